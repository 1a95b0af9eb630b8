"""What an answer is before anything is compared: a value with its marks, a list, a tuple, words and so on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from growpage.grade.expression import Node, parse_expression
from growpage.grade.marks import NO_MARKS, Marks, is_name, name_text, split_modulus, split_unit
from growpage.grade.tokens import Number, Token, Unreadable, tokenize

_OPENING = {"(": ")", "[": "]", "\\{": "\\}"}
_RELATIONS = {"<": "<", ">": ">", "le": "le", "ge": "ge", "=": "=", "equiv": "=", "in": "in"}
_CHOICES = frozenset("ABCDEFGHIJ")
_MATRICES = frozenset(f"begin:{kind}matrix" for kind in ("", "p", "b", "B")) | {"begin:array"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One expression. ± inside it stands for two values."""

    node: Node
    marks: Marks = NO_MARKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Words as written, one space between them, without parentheses."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Elements in any order: a comma list, a set, or values joined by "or"."""

    items: tuple["Answer", ...]
    is_set: bool = False
    marks: Marks = NO_MARKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequenced:
    """A tuple, point, vector or interval: order and brackets count."""

    items: tuple["Answer", ...]
    opening: str
    closing: str
    marks: Marks = NO_MARKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """A union of intervals or sets, in any order."""

    items: tuple["Answer", ...]
    marks: Marks = NO_MARKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    rows: tuple[tuple["Answer", ...], ...]
    style: str
    marks: Marks = NO_MARKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """sides[0] operators[0] sides[1] ...: an equation, or a chain of inequalities."""

    sides: tuple[Node, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A ratio or a time: 1:2, 12:00. Every part counts."""

    items: tuple["Answer", ...]
    marks: Marks = NO_MARKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A lettered choice together with its value: "(C) 12"."""

    letter: str
    value: "Answer"


Answer = Value | Words | Listing | Sequenced | Union | Matrix | Relation | Parts | Choice


def parse_answer(text: str, *, letters_are_units: bool = False) -> Answer:
    """The answer that the whole text states. Raises `Unreadable` or `TooLarge`."""
    tokens = tokenize(text, letters_are_units=letters_are_units)
    if not tokens:
        raise Unreadable("an empty answer")
    return _answer(tokens)


def words_of(answer: Answer) -> str | None:
    """The words an answer may be read as: words, or one name."""
    if isinstance(answer, Words):
        return answer.text
    if isinstance(answer, Value) and answer.marks == NO_MARKS:
        node = answer.node
        if node.op == "sym" and not node.name.startswith("\\"):
            return node.name
        if node.op == "mul" and all(a.op == "sym" and len(a.name) == 1 for a in node.args):
            return "".join(arg.name for arg in node.args)
    return None


def _answer(tokens: Sequence[Token]) -> Answer:
    parts = _split(tokens, lambda token: token.is_sym(",", ";") or token.is_word("and", "or"))
    if len(parts) > 1:
        items = tuple(_single(part) for part in parts)
        return _inequalities(items) or Listing(items=items)
    return _single(tokens)


def _single(tokens: Sequence[Token]) -> Answer:
    if len(tokens) == 0:
        raise Unreadable("an empty part")
    errors: list[Unreadable] = []
    for reading in (_relation, _united, _matrix, _bracketed, _parts, _value, _choice, _words):
        try:
            answer = reading(tokens)
        except Unreadable as error:
            errors.append(error)
            continue
        if answer is not None:
            return answer
    raise errors[0] if errors else Unreadable("no answer in this grammar")


# relations


def _relation(tokens: Sequence[Token]) -> Answer | None:
    """`x = …` and `x \\in …` are marks of what follows; other relations are answers of their own."""
    sides, operators = _sides(tokens)
    if not operators:
        return None
    if any(len(side) == 0 for side in sides):
        raise Unreadable("a relation with an empty side")
    if operators in (["="], ["in"]):
        for name, rest in ((sides[0], sides[1]), (sides[1], sides[0])):
            if is_name(name) and (operators == ["="] or name is sides[0]):
                return _named(name_text(name), _single(rest))
    if set(operators) == {"="}:
        return _equalities(sides)
    if "in" in operators:
        raise Unreadable("membership of what is no name")
    return Relation(
        sides=tuple(parse_expression(side) for side in sides), operators=tuple(operators)
    )


def _equalities(sides: list[Sequence[Token]]) -> Answer:
    """x = y = 5 is a value with a name; x = 2^3 = 8 and 2^3 = 8 say that all values are the answer."""
    name = name_text(sides[0]) if is_name(sides[0]) else None
    while len(sides) > 1 and is_name(sides[0]):
        sides = sides[1:]
    if len(sides) == 1 and name is not None:
        return _named(name, _single(sides[0]))
    values = tuple(parse_expression(side) for side in sides)
    return Relation(sides=values, operators=("=",) * (len(values) - 1))


def _sides(tokens: Sequence[Token]) -> tuple[list[Sequence[Token]], list[str]]:
    sides: list[Sequence[Token]] = []
    operators: list[str] = []
    start = 0
    for index in _top_level(tokens):
        token = tokens[index]
        if token.kind in ("sym", "cmd") and token.text in _RELATIONS:
            sides.append(tokens[start:index])
            operators.append(_RELATIONS[token.text])
            start = index + 1
    return [*sides, tokens[start:]], operators


def _named(name: str, answer: Answer) -> Answer:
    if isinstance(answer, (Words, Relation, Choice)):
        if isinstance(answer, Words):
            return answer
        raise Unreadable("a name for what is no value")
    if answer.marks.variable is not None:
        raise Unreadable("two names for one value")
    return replace(answer, marks=replace(answer.marks, variable=name))


def _inequalities(items: tuple[Answer, ...]) -> Answer | None:
    """ "x<2 or x>3" is a union of intervals."""
    intervals = [as_interval(item) for item in items]
    if any(interval is None for interval in intervals):
        return None
    return Union(items=items)


def as_interval(answer: Answer) -> Sequenced | None:
    """An inequality between one name and numbers, as the interval it describes."""
    if not isinstance(answer, Relation) or "=" in answer.operators:
        return None
    sides, operators = answer.sides, answer.operators
    if operators[0] in (">", "ge"):
        flip = {">": "<", "ge": "le", "<": ">", "le": "ge"}
        sides = sides[::-1]
        operators = tuple(flip[operator] for operator in operators[::-1])
    if not set(operators) <= {"<", "le"}:
        return None
    infinity = Node("sym", name="\\infty")
    if len(sides) == 2:
        if sides[0].op == "sym":
            sides, operators = (Node("neg", (infinity,)), *sides), ("<", *operators)
        else:
            sides, operators = (*sides, infinity), (*operators, "<")
    if len(sides) != 3 or sides[1].op != "sym" or sides[1].name == "\\infty":
        return None
    return Sequenced(
        items=(Value(node=sides[0]), Value(node=sides[2])),
        opening="[" if operators[0] == "le" else "(",
        closing="]" if operators[1] == "le" else ")",
        marks=Marks(variable=sides[1].name),
    )


# brackets


def _united(tokens: Sequence[Token]) -> Answer | None:
    parts = _split(tokens, lambda token: token.is_cmd("cup"))
    return Union(items=tuple(_single(part) for part in parts)) if len(parts) > 1 else None


def _bracketed(tokens: Sequence[Token]) -> Answer | None:
    if tokens[0].is_cmd("emptyset") and len(tokens) == 1:
        return Listing(items=(), is_set=True)
    opening, closing = tokens[0], tokens[-1]
    if opening.kind != "sym" or opening.text not in _OPENING or _closes(tokens) != len(tokens) - 1:
        return None
    inner = tokens[1:-1]
    if opening.text == "\\{":
        return Listing(items=tuple(_elements(inner)), is_set=True)
    parts = _split(inner, lambda token: token.is_sym(",", ";"))
    if len(parts) < 2:
        return None
    return Sequenced(
        items=tuple(_single(part) for part in parts), opening=opening.text, closing=closing.text
    )


def _elements(tokens: Sequence[Token]) -> list[Answer]:
    parts = _split(tokens, lambda token: token.is_sym(",", ";"))
    return [_single(part) for part in parts] if len(tokens) > 0 else []


def _closes(tokens: Sequence[Token]) -> int | None:
    """Where the bracket that opens the tokens is closed; any bracket may close it, as for [2,3)."""
    depth = 0
    for index, token in enumerate(tokens):
        if token.opens_bracket():
            depth += 1
        elif token.closes_bracket():
            depth -= 1
            if depth == 0:
                return index
    return None


def _matrix(tokens: Sequence[Token]) -> Answer | None:
    if tokens[0].is_sym("(", "[") and tokens[-1].is_sym(")", "]") and len(tokens) > 2:
        inner = tokens[1:-1]
        if inner[0].is_cmd("begin:matrix", "begin:array"):
            tokens = inner
    start, end = tokens[0], tokens[-1]
    if start.kind != "cmd" or start.text not in _MATRICES:
        return None
    kind = start.text.removeprefix("begin:")
    if not end.is_cmd(f"end:{kind}"):
        raise Unreadable("something beside a matrix")
    rows = _split(tokens[1:-1], lambda token: token.is_cmd("\\"))
    rows = rows[:-1] if len(rows[-1]) == 0 else rows
    cells = [_split(row, lambda token: token.is_sym("&")) for row in rows]
    if len({len(row) for row in cells}) != 1:
        raise Unreadable("rows of different length")
    return Matrix(rows=tuple(tuple(_single(cell) for cell in row) for row in cells), style=kind)


def _parts(tokens: Sequence[Token]) -> Answer | None:
    parts = _split(tokens, lambda token: token.is_sym(":"))
    if len(parts) < 2:
        return None
    if all(token.kind == "word" for token in parts[0]):
        raise Unreadable("a label before the answer")
    unit, last = split_unit(parts[-1])
    items = tuple(_value(part) for part in (*parts[:-1], last))
    return Parts(items=items, marks=replace(NO_MARKS, unit=unit.name))


# values and words


def _value(tokens: Sequence[Token]) -> Answer:
    modulus, tokens = split_modulus(tokens)
    unit, tokens = split_unit(tokens)
    base, tokens = _split_base(tokens)
    node = parse_expression(tokens)
    if unit.factor != 1:
        factor = Node("num", number=Number(Fraction(unit.factor), "", raw=str(unit.factor)))
        node = Node("mul", (node, factor))
    return Value(node=node, marks=Marks(unit=unit.name, base=base, modulus=modulus))


def _split_base(tokens: Sequence[Token]) -> tuple[str | None, Sequence[Token]]:
    """52_8, 52_{8}, 52_{\\text{eight}}, (52)_8: the base is a mark of the digits."""
    at = next((index for index in _top_level(tokens) if tokens[index].is_sym("_")), None)
    if at is None or at == 0 or not (tokens[at - 1].kind == "num" or tokens[at - 1].is_sym(")")):
        return None, tokens
    base = [token for token in tokens[at + 1 :] if not token.is_sym("{", "}")]
    if len(base) != 1:
        raise Unreadable("a base that is no number")
    if base[0].kind == "word":
        named = _BASES.get(base[0].text.lower())
        if named is None:
            raise Unreadable("a base that is no number")
        return named, tokens[:at]
    if base[0].number is None:
        raise Unreadable("a base that is no number")
    return base[0].number.raw, tokens[:at]


_BASES = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8",
    "nine": "9", "ten": "10", "eleven": "11", "twelve": "12", "sixteen": "16",
}  # fmt: skip


def _choice(tokens: Sequence[Token]) -> Answer | None:
    """(C) 12 and C. 12: a letter in parentheses, or a word of one letter, before a value."""
    if len(tokens) > 3 and tokens[0].is_sym("(") and tokens[2].is_sym(")"):
        letter, rest = tokens[1], tokens[3:]
    elif len(tokens) > 1 and tokens[0].kind == "word":
        letter, rest = tokens[0], tokens[1:]
    else:
        return None
    if letter.kind not in ("letter", "word") or letter.text not in _CHOICES:
        return None
    return Choice(letter=letter.text, value=_single(rest[1:] if rest[0].is_sym(":") else rest))


def _words(tokens: Sequence[Token]) -> Answer | None:
    if tokens[0].is_sym("(") and _closes(tokens) == len(tokens) - 1:
        tokens = tokens[1:-1]
    if not tokens or any(token.kind not in ("word", "letter") for token in tokens):
        return None
    spaced = "".join((" " if t.spaced or t.kind == "word" else "") + t.text for t in tokens)
    return Words(text=" ".join(spaced.split()))


def _split(tokens: Sequence[Token], is_separator: Callable[[Token], bool]) -> list[Sequence[Token]]:
    """Parts between separators outside all brackets. A comma before "and" separates once."""
    parts: list[Sequence[Token]] = []
    start = 0
    for index in _top_level(tokens):
        if is_separator(tokens[index]):
            repeats = index == start and parts and tokens[index].kind == "word"
            if not repeats:
                parts.append(tokens[start:index])
            start = index + 1
    return [*parts, tokens[start:]]


def _top_level(tokens: Sequence[Token]) -> list[int]:
    """Positions outside all brackets, braces and environments."""
    positions = []
    depth = 0
    for index, token in enumerate(tokens):
        closes = token.closes_bracket() or token.text.startswith("end:")
        depth -= closes
        opens = token.opens_bracket() or token.text.startswith("begin:")
        if depth == 0 and not opens and not closes:
            positions.append(index)
        depth += opens
    return positions
