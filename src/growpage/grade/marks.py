"""Marks around a value: unit, currency, percent, degree, name, base, modulus. They may be left out or added."""

from collections.abc import Sequence
from dataclasses import dataclass

from growpage.grade.tokens import FUNCTIONS, GREEK, Token, Unreadable
from growpage.grade.unit_names import MULTIPLES, NEVER_UNITS, POWERS, UNIT_OF

_CURRENCIES = ("$", "€", "£")
_UNIT_SIGNS = ("degree", "%", "¢")
_KNOWN_UNITS = frozenset(UNIT_OF.values())
_MAX_UNIT_WORDS = 5
_NAME_COMMANDS = GREEK | {"angle", "triangle", "overline", "vec", "hat", "bar", "widehat", "tilde"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Each is None when it is not written."""

    unit: str | None = None
    variable: str | None = None
    base: str | None = None
    modulus: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """`factor` is what words such as "million" multiply the value by."""

    name: str | None = None
    factor: int = 1


NO_MARKS = Marks()


def split_unit(tokens: Sequence[Token]) -> tuple[Unit, Sequence[Token]]:
    """The unit after a value (or the currency before it), and the value's tokens."""
    currency, tokens = _split_currency(tokens)
    at = _unit_start(tokens)
    if at is None:
        return Unit(name=currency), tokens
    if at == 0:
        raise Unreadable("words without a value")
    unit = _unit(tokens[at:])
    if all(token.kind == "letter" for token in tokens[:at]) and unit.name not in _KNOWN_UNITS:
        raise Unreadable("words without a value")  # "no solution" is not n·o of a unit
    if currency is not None and unit.name not in (None, currency):
        raise Unreadable("two units")
    return Unit(name=unit.name or currency, factor=unit.factor), tokens[:at]


def split_modulus(tokens: Sequence[Token]) -> tuple[str | None, Sequence[Token]]:
    """3 \\pmod{7}, 3 (mod 7): the modulus is a mark."""
    at = next((i for i, t in enumerate(tokens) if t.is_cmd("mod") or t.is_word("mod")), None)
    if at is None or at == 0:
        return None, tokens
    before, after = tokens[:at], tokens[at + 1 :]
    if before[-1].is_sym("("):
        before = before[:-1]
    numbers = [token for token in after if not token.is_sym("{", "}", "(", ")")]
    if len(numbers) != 1 or numbers[0].number is None:
        raise Unreadable("a modulus that is no number")
    return numbers[0].number.raw, before


def is_name(tokens: Sequence[Token]) -> bool:
    """x, N, x_1, f(x), P(A), \\angle ABC, (x,y), area: what stands left of "=" and is no value."""
    if len(tokens) == 0 or len(tokens) > 12 or tokens[-1].is_cmd(*FUNCTIONS):
        return False
    return (
        any(token.kind in ("letter", "word") or token.is_cmd(*GREEK) for token in tokens)
        and all(_in_name(tokens, index) for index in range(len(tokens)))
        and not tokens[0].is_sym("|", "_", ",")
    )


def name_text(tokens: Sequence[Token]) -> str:
    """One spelling of a name, for comparison."""
    kept = [token for token in tokens if not token.is_sym("{", "}")]
    text = "".join(token.number.raw if token.number else token.text for token in kept)
    return text.lower() if all(token.kind == "word" for token in kept) else text


def _in_name(tokens: Sequence[Token], index: int) -> bool:
    token = tokens[index]
    if token.kind in ("letter", "word"):
        return True
    if token.kind == "num":  # in a subscript or as an argument: x_1, f(2), P(X=2)
        before = tokens[index - 1] if index else None
        in_argument = before is not None and index > 1 and before.is_sym("(", ",", "=", "<", ">")
        return before is not None and (in_argument or before.is_sym("_", "{") or _is_order(before))
    if token.kind == "cmd":
        return token.text in _NAME_COMMANDS or _is_order(token)
    return token.is_sym("(", ")", "{", "}", ",", "_", "'", "=", "<", ">")


def _is_order(token: Token) -> bool:
    return token.is_cmd("le", "ge", "in")


def _split_currency(tokens: Sequence[Token]) -> tuple[str | None, Sequence[Token]]:
    """$5, -$5 and $-5; also 5$."""
    for at in (0, 1, len(tokens) - 1):
        if 0 <= at < len(tokens) and tokens[at].is_sym(*_CURRENCIES):
            if at == 1 and not tokens[0].is_sym("-", "+"):
                continue
            return tokens[at].text, [*tokens[:at], *tokens[at + 1 :]]
    return None, tokens


def _unit_start(tokens: Sequence[Token]) -> int | None:
    """Where the unit begins: the first word or unit sign outside brackets.

    A degree sign in the argument of a function is no mark: \\sin 30^\\circ.
    """
    depth = 0
    for index, token in enumerate(tokens):
        if token.opens_bracket():
            depth += 1
        elif token.closes_bracket():
            depth -= 1
        elif depth == 0 and token.kind == "word":
            follows_subscript = index > 0 and tokens[index - 1].is_sym("_")
            if not follows_subscript:
                return index
        elif depth == 0 and token.kind == "sym" and token.text in _UNIT_SIGNS:
            is_last = all(later.kind in ("word", "letter") for later in tokens[index + 1 :])
            in_function = any(before.is_cmd(*FUNCTIONS) for before in tokens[:index])
            if is_last and not in_function:
                return index
            if token.text != "degree":
                raise Unreadable(f"'{token.text}' inside the expression")
    return None


def _unit(tokens: Sequence[Token]) -> Unit:
    """square inches, inches^2, cm/s, miles per hour, ^\\circ C, million dollars."""
    words = _unit_words(tokens)
    factor = 1
    while words and words[0] in MULTIPLES:
        factor *= MULTIPLES[words.pop(0)]
    names: list[str] = []
    power_ahead = ""  # "square" before its unit
    for word in words:
        if word in ("square", "cubic"):
            power_ahead = "^2" if word == "square" else "^3"
        elif word.startswith("^"):
            if not names or names[-1] == "/":
                raise Unreadable("a power without a unit")
            names[-1] += word
        else:
            names.append(word + power_ahead)
            power_ahead = ""
    if len(names) > _MAX_UNIT_WORDS or power_ahead or "/" in (names[:1] + names[-1:]):
        raise Unreadable("words beside a value that are no unit")
    return Unit(name=" ".join(names).replace(" / ", "/") or None, factor=factor)


def _unit_words(tokens: Sequence[Token]) -> list[str]:
    """One canonical word for each part: names of units, "/", "^2", "square", multiples."""
    words: list[str] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if token.is_sym("/"):
            words.append("/")
        elif token.is_sym("^"):
            power, index = _unit_power(tokens, index)
            words.append(f"^{power}")
        elif token.is_sym("$", *_UNIT_SIGNS):
            words.append(token.text)
        elif token.kind in ("word", "letter"):
            _add_word(words, token.text)
        elif not token.is_sym("*", "{", "}"):
            raise Unreadable(f"'{token.text}' inside a unit")
    return words


def _add_word(words: list[str], word: str) -> None:
    lower = word.lower()
    if lower in NEVER_UNITS:
        raise Unreadable(f"the word '{word}' beside a value")
    if lower == "per":
        words.append("/")
    elif lower == "cent" and words == ["/"]:
        words[:] = ["%"]
    elif lower in POWERS:
        words.append(POWERS[lower])
    elif lower in UNIT_OF:
        words.extend(UNIT_OF[lower].replace("/", " / ").split())
    else:
        words.append(lower[:-1] if len(lower) > 3 and lower.endswith("s") else lower)


def _unit_power(tokens: Sequence[Token], index: int) -> tuple[str, int]:
    """The raised number at `index`, in braces or not, and where it ends."""
    is_braced = index < len(tokens) and tokens[index].is_sym("{")
    end = index + 3 if is_braced else index + 1
    numbers = [token.number for token in tokens[index:end] if token.number is not None]
    if len(numbers) != 1:
        raise Unreadable("a unit's power that is no number")
    return numbers[0].raw, end
