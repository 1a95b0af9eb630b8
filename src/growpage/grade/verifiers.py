"""Problems of LiveCodeBench v1 with several right outputs: what any of them must fulfil, by their statements.

A verifier gets the words of the input, of the output and of the expected output, and says whether the output is right.
It runs in the grader's process: it raises ValueError, IndexError or KeyError for whatever it cannot read.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

Words = Sequence[str]
_MAX_DIGITS = 18  # of a number in an output


def is_right(name: str, given: str, written: str, expected: str) -> bool:
    """Whether `written` answers the input. An expected refusal ("No", "-1") is the only right output."""
    try:
        return VERIFIERS[name](given.split(), written.split(), expected.split())
    except (ValueError, IndexError, KeyError):
        return False


def _number(word: str) -> int:
    if len(word) > _MAX_DIGITS or not word.isascii():
        raise ValueError(word)
    return int(word)


def _numbers(words: Words) -> list[int]:
    return [_number(word) for word in words]


def _cycle(given: Words, written: Words, _expected: Words) -> bool:
    """A cycle i -> A_i: its length, then its vertices."""
    successors = dict(enumerate(_numbers(given[1:]), start=1))
    length, *vertices = _numbers(written)
    following = [*vertices[1:], vertices[0]]
    is_linked = all(successors[a] == b for a, b in zip(vertices, following, strict=True))
    return length == len(vertices) == len(set(vertices)) and is_linked


def _reading_order(given: Words, written: Words, expected: Words) -> bool:
    """The books needed before the first, each behind its own prerequisites."""
    numbers, needs, position = _numbers(given), dict[int, list[int]](), 1
    for book in range(1, numbers[0] + 1):
        count = numbers[position]
        needs[book] = numbers[position + 1 : position + 1 + count]
        position += 1 + count
    order = _numbers(written)
    place = {book: index for index, book in enumerate(order)}
    is_ordered = all(place[need] < place[book] for book in order for need in needs[book])
    return sorted(order) == sorted(_numbers(expected)) and is_ordered


def _letter_grid(given: Words, written: Words, expected: Words) -> bool:
    """One A, B and C in each row and column; the first letters of rows and columns are given."""
    if expected == ["No"] or written == ["No"]:
        return list(written) == list(expected)
    size, first_of_rows, first_of_columns = _number(given[0]), given[1], given[2]
    word, *rows = written
    if word != "Yes" or len(rows) != size or any(len(row) != size for row in rows):
        return False
    columns = ["".join(row[index] for row in rows) for index in range(size)]
    letters = [line.replace(".", "") for line in (*rows, *columns)]
    firsts = [line[0] for line in letters]
    has_each_once = all(sorted(line) == ["A", "B", "C"] for line in letters)
    return has_each_once and "".join(firsts) == first_of_rows + first_of_columns


def _potions(given: Words, written: Words, expected: Words) -> bool:
    """The least number of potions carried, then which finds are picked up, so that every monster is met by one."""
    if expected == ["-1"] or written == ["-1"]:
        return list(written) == list(expected)
    most, *choices = _numbers(written)
    if most != _number(expected[0]) or any(choice not in (0, 1) for choice in choices):
        return False
    held: dict[int, int] = {}
    total = reached = 0
    picks = iter(choices)
    numbers = _numbers(given[1:])
    for kind, what in zip(numbers[::2], numbers[1::2], strict=True):
        if kind == 1:
            picked = next(picks, None)
            if picked is None:
                return False
            change = picked
        else:
            change = -1
        held[what] = held.get(what, 0) + change
        total += change
        reached = max(reached, total)
        if held[what] < 0:
            return False
    return reached == most and next(picks, None) is None


def _dragon(given: Words, written: Words, _expected: Words) -> bool:
    """T in the middle of an odd grid, and 1 to N² - 1 along a path of neighbours."""
    size = _number(given[0])
    cells = list(written)
    middle = size * size // 2
    if len(cells) != size * size or cells[middle] != "T":
        return False
    place = {
        _number(cell): divmod(index, size) for index, cell in enumerate(cells) if index != middle
    }
    path = [place[part] for part in range(1, size * size)]
    steps = pairwise(path)
    return all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in steps)


def _other_digit(given: Words, written: Words, _expected: Words) -> bool:
    """Any digit but the sum."""
    (answer,) = _numbers(written)
    return 0 <= answer <= 9 and answer != sum(_numbers(given))


def _cubes(given: Words, written: Words, expected: Words) -> bool:
    """Corners of three cubes of side 7 with given volumes inside exactly one, two and three of them."""
    if expected == ["No"] or written == ["No"]:
        return list(written) == list(expected)
    word, *rest = written
    corners = _numbers(rest)
    if word != "Yes" or len(corners) != 9 or any(abs(value) > 100 for value in corners):
        return False
    first, second, third = corners[:3], corners[3:6], corners[6:]
    in_three = _common(first, second, third)
    pairs = _common(first, second) + _common(first, third) + _common(second, third)
    in_two = pairs - 3 * in_three
    in_one = 3 * 7**3 - 2 * in_two - 3 * in_three
    return _numbers(given) == [in_one, in_two, in_three]


def _common(*corners: Sequence[int]) -> int:
    """The volume that cubes of side 7 have in common."""
    volume = 1
    for values in zip(*corners, strict=True):
        volume *= max(0, min(values) + 7 - max(values))
    return volume


VERIFIERS: dict[str, Callable[[Words, Words, Words], bool]] = {
    "abc311_c": _cycle,
    "abc315_e": _reading_order,
    "abc326_d": _letter_grid,
    "abc333_e": _potions,
    "abc335_d": _dragon,
    "abc343_a": _other_digit,
    "abc343_e": _cubes,
}
