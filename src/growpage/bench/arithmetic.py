"""Word problems with small whole numbers, made from a seed: no download, exact answers.

Not a benchmark of the paper: a small set for first runs and tests, easy to check by head.
"""

from collections.abc import Callable
from random import Random

from growpage.bench.base import Problem, ProblemSet
from growpage.bench.problems import problem_set
from growpage.bench.prompts import MATH_INSTRUCTION, chat_messages
from growpage.bench.spec import BenchmarkSpec
from growpage.errors import require

GENERATOR_VERSION = 1  # a changed text or number is another version
DEFAULT_NUM_PROBLEMS = 48

_NAMES = (
    "Amara", "Ben", "Chiara", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas",
    "Keiko", "Liam", "Mina", "Noor", "Oscar", "Priya", "Rosa", "Samuel", "Tove", "Yusuf",
)  # fmt: skip
_THINGS = (
    "marbles", "stickers", "postcards", "shells", "buttons", "pencils", "stamps", "badges",
)  # fmt: skip
_FRUITS = ("apples", "pears", "plums", "oranges", "lemons", "peaches")

Draft = tuple[str, int]  # question and answer
Template = Callable[[Random], Draft]


class Arithmetic:
    """`num_problems_expected` problems, else 48; each depends on the seed and its index alone."""

    def __init__(self, spec: BenchmarkSpec) -> None:
        self._spec = spec

    def load(self) -> ProblemSet:
        count = self._spec.num_problems_expected
        count = DEFAULT_NUM_PROBLEMS if count is None else count
        require(count >= 1, "bench.num_problems_expected", count, ">= 1 or null")
        source = f"growpage.bench.arithmetic version {GENERATOR_VERSION}, seed {self._spec.seed}"
        problems = [arithmetic_problem(self._spec.seed, index) for index in range(count)]
        return problem_set(self._spec.name, problems, source)

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        instruction = self._spec.instruction or MATH_INSTRUCTION
        return chat_messages(problem.question, instruction, self._spec.prompt_role)


def arithmetic_problem(seed: int, index: int) -> Problem:
    """Problem `index` of a seed. Templates take turns, which mixes the difficulties."""
    difficulty, template = TEMPLATES[index % len(TEMPLATES)]
    question, answer = template(Random(f"arithmetic-{GENERATOR_VERSION}:{seed}:{index}"))
    return Problem(
        id=f"arithmetic/{seed}/{index:04d}",
        question=question,
        answer=str(answer),
        kind=difficulty,
    )


def _two_names(rng: Random) -> tuple[str, str]:
    first, second = rng.sample(_NAMES, 2)
    return first, second


def _gift(rng: Random) -> Draft:
    giver, friend = _two_names(rng)
    things, start, given = rng.choice(_THINGS), rng.randint(20, 60), rng.randint(3, 18)
    return (
        f"{giver} has {start} {things} and gives {given} of them to {friend}. "
        f"How many {things} does {giver} have left?"
    ), start - given


def _boxes(rng: Random) -> Draft:
    name, fruits = rng.choice(_NAMES), rng.choice(_FRUITS)
    boxes, each = rng.randint(4, 12), rng.randint(6, 15)
    return (
        f"{name} packs {fruits} into {boxes} boxes, {each} to a box. "
        f"How many {fruits} does {name} pack?"
    ), boxes * each


def _sharing(rng: Random) -> Draft:
    name, things = rng.choice(_NAMES), rng.choice(_THINGS)
    friends, each = rng.randint(3, 9), rng.randint(4, 14)
    return (
        f"{name} shares {friends * each} {things} equally among {friends} friends. "
        f"How many {things} does each friend get?"
    ), each


def _difference(rng: Random) -> Draft:
    first, second = _two_names(rng)
    fewer, more = rng.randint(12, 40), rng.randint(5, 30)
    return (
        f"{first} read {fewer + more} pages on Saturday, and {second} read {fewer}. "
        f"How many more pages did {first} read than {second}?"
    ), more


def _shopping(rng: Random) -> Draft:
    name = rng.choice(_NAMES)
    books, book_price = rng.randint(2, 5), rng.randint(6, 14)
    pens, pen_price = rng.randint(3, 8), rng.randint(1, 4)
    return (
        f"At the school fair, a book costs {book_price} dollars and a pen costs {pen_price} "
        f"dollars. {name} buys {books} books and {pens} pens. "
        "How many dollars does this cost altogether?"
    ), books * book_price + pens * pen_price


def _savings(rng: Random) -> Draft:
    name = rng.choice(_NAMES)
    weekly, weeks, spent = rng.randint(5, 15), rng.randint(6, 12), rng.randint(8, 25)
    return (
        f"{name} saves {weekly} dollars a week for {weeks} weeks and then spends {spent} dollars "
        f"on a present. How many dollars of the savings are left?"
    ), weekly * weeks - spent


def _bus(rng: Random) -> Draft:
    start, left, joined = rng.randint(20, 45), rng.randint(4, 15), rng.randint(3, 18)
    return (
        f"A bus leaves the station with {start} people on board. At the first stop {left} people "
        f"get off and {joined} get on. How many people are on the bus now?"
    ), start - left + joined


def _rectangle(rng: Random) -> Draft:
    name, width, extra = rng.choice(_NAMES), rng.randint(4, 15), rng.randint(2, 9)
    return (
        f"{name}'s garden is a rectangle {width} meters wide and {width + extra} meters long. "
        "How many meters of fence go all the way around it?"
    ), 2 * (2 * width + extra)


def _bakery(rng: Random) -> Draft:
    trays, each = rng.randint(4, 9), rng.randint(8, 16)
    burnt, bag = rng.randint(2, 7), rng.randint(3, 6)
    rolls = trays * each - burnt
    return (
        f"A baker makes {trays} trays of {each} rolls. {burnt} rolls burn and are thrown away. "
        f"The others are sold in bags of {bag}. How many full bags can the baker fill?"
    ), rolls // bag


def _train(rng: Random) -> Draft:
    fast, slow = 5 * rng.randint(16, 24), 5 * rng.randint(8, 15)
    first, second = rng.randint(2, 4), rng.randint(2, 5)
    return (
        f"A train runs at {fast} kilometers an hour for {first} hours and then, in the mountains, "
        f"at {slow} kilometers an hour for {second} hours. How many kilometers does it cover?"
    ), fast * first + slow * second


def _ages(rng: Random) -> Draft:
    young, old = _two_names(rng)
    age, factor, years = rng.randint(5, 12), rng.randint(3, 5), rng.randint(2, 9)
    return (
        f"{young} is {age} years old, and {old} is {factor} times as old. "
        f"How old will {old} be in {years} years?"
    ), age * factor + years


def _theatre(rng: Random) -> Draft:
    rows, seats, price = rng.randint(8, 14), rng.randint(10, 18), rng.randint(5, 9)
    empty = rng.randint(6, 30)
    return (
        f"A theatre has {rows} rows of {seats} seats. For tonight's play {empty} seats stay empty, "
        f"and each of the others was sold for {price} dollars. "
        "How many dollars did the theatre take?"
    ), (rows * seats - empty) * price


def _half_and_third(rng: Random) -> Draft:
    name, things, unit = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(3, 12)
    bought = rng.randint(5, 20)
    return (
        f"{name} has {6 * unit} {things}. Half of them are red, a third of them are blue, and the "
        f"others are green. Then {name} gets {bought} more green ones. "
        f"How many green {things} does {name} have now?"
    ), unit + bought


def _orchard(rng: Random) -> Draft:
    first, second = _two_names(rng)
    fruits, start, more, days = rng.choice(_FRUITS), rng.randint(8, 20), rng.randint(2, 6), 4
    total = sum(start + more * day for day in range(days))
    return (
        f"{first} and {second} pick {fruits} for {days} days. On the first day they pick {start} "
        f"baskets, and on each later day {more} baskets more than on the day before. "
        "How many baskets do they pick in all?"
    ), total


TEMPLATES: tuple[tuple[str, Template], ...] = (
    ("easy", _gift),
    ("medium", _shopping),
    ("hard", _bakery),
    ("easy", _boxes),
    ("medium", _savings),
    ("hard", _theatre),
    ("easy", _sharing),
    ("medium", _bus),
    ("medium", _train),
    ("hard", _half_and_third),
    ("easy", _difference),
    ("medium", _rectangle),
    ("medium", _ages),
    ("hard", _orchard),
)
