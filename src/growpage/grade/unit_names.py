"""Spellings of units, and the words that are never part of one."""


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SPELLINGS = {
    "degree": "degrees deg degs",
    "radian": "radians rad rads",
    "%": "percent percents percentage pct",
    "$": "dollar dollars usd bucks",
    "¢": "cent cents",
    "€": "euro euros eur",
    "£": "gbp",
    "mm": "millimeter millimeters millimetre millimetres",
    "cm": "centimeter centimeters centimetre centimetres cms",
    "dm": "decimeter decimeters",
    "m": "meter meters metre metres",
    "km": "kilometer kilometers kilometre kilometres kms",
    "inch": "inches in ins",
    "foot": "feet ft",
    "yard": "yards yd yds",
    "mile": "miles mi",
    "mile/hour": "mph",
    "km/hour": "kph kmh",
    "mg": "milligram milligrams",
    "g": "gram grams gm gms",
    "kg": "kilogram kilograms kgs kilo kilos",
    "pound": "pounds lb lbs",
    "ounce": "ounces oz",
    "ml": "milliliter milliliters millilitre millilitres",
    "l": "liter liters litre litres",
    "gallon": "gallons gal gals",
    "second": "seconds sec secs s",
    "minute": "minutes min mins",
    "hour": "hours hr hrs h",
    "day": "days",
    "week": "weeks wk wks",
    "month": "months",
    "year": "years yr yrs",
    "unit": "units",
    "am": "a.m",
    "pm": "p.m",
}
UNIT_OF = {word: unit for unit, words in _SPELLINGS.items() for word in (unit, *words.split())}

# Runs of plain letters that are a unit when they follow a number; single letters stay variables.
UNIT_RUNS = frozenset(word for word in UNIT_OF if len(word) > 1 and word.isalpha()) | {
    "sq",
    "per",
    "dozen",
}
POWERS = {
    "square": "square", "sq": "square", "squared": "^2",
    "cubic": "cubic", "cu": "cubic", "cubed": "^3",
}  # fmt: skip
MULTIPLES = {
    "dozen": 12,
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
NEVER_UNITS = words("""a about almost an and approximately around are at below but by cannot close different divided
    does either equal equals except exactly false for from half if impossible infinite infinity is
    least less maximum minimum minus more most nearly negative neither no none nor not of off only or
    other over plus point possible quarter quarters remainder respectively roughly she some than
    that the there third thirds times to true under undefined unknown until when where which with
    without""")
