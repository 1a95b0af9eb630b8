"""Whether what a program wrote or returned is what a test expects (docs/graders.md §7).

Runs in the grader's process on text of the program: nothing here evaluates, and digit strings are bounded.
"""

import json
import re
from collections.abc import Mapping
from decimal import Context, Decimal, InvalidOperation, Overflow
from typing import Any

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_MAX_DIGITS = 4000  # of a value that is more than text
_CONTEXT = Context(prec=60, traps=[InvalidOperation, Overflow])

Checker = Mapping[str, Any]
"""How a problem departs from equality: `kind` and its numbers; empty for equality.

tolerance: `absolute` and `relative` errors of numbers. case: the case of letters does not count.
any_order: the order of the outermost list does not. several: `verifier` names one of
`growpage.grade.verifiers`. Other kinds (interactive, broken) compare as equality does, and their verdicts say so.
"""


def same_text(written: str, expected: str, checker: Checker) -> bool:
    """Line by line without outer blanks; a line also agrees when all its words are equal decimals."""
    if checker.get("kind") == "case":
        written, expected = written.casefold(), expected.casefold()
    lines, wanted = _lines(written), _lines(expected)
    return len(lines) == len(wanted) and all(
        line == want or _same_numbers(line, want, checker)
        for line, want in zip(lines, wanted, strict=True)
    )


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_numbers(line: str, wanted: str, checker: Checker) -> bool:
    words, wanted_words = line.split(), wanted.split()
    return len(words) == len(wanted_words) and all(
        _same_number(word, want, checker) for word, want in zip(words, wanted_words, strict=True)
    )


def _same_number(word: str, wanted: str, checker: Checker) -> bool:
    if word == wanted and checker.get("kind") == "tolerance":
        return True  # labels beside numbers
    if max(len(word), len(wanted)) > _MAX_DIGITS:
        return False
    if not (_DECIMAL.fullmatch(word) and _DECIMAL.fullmatch(wanted)):
        return False
    value, target = Decimal(word), Decimal(wanted)
    return value == target or _is_near(value, target, checker)


def _is_near(value: Decimal, target: Decimal, checker: Checker) -> bool:
    if checker.get("kind") != "tolerance":
        return False
    absolute = Decimal(repr(checker.get("absolute", 0.0)))
    relative = Decimal(repr(checker.get("relative", 0.0)))
    try:
        error = _CONTEXT.abs(_CONTEXT.subtract(value, target))
        allowed = max(absolute, _CONTEXT.multiply(relative, _CONTEXT.abs(target)))
    except (InvalidOperation, Overflow):
        return False
    return error <= allowed


def same_value(returned: bytes, expected: Any, checker: Checker, *, is_strict: bool = True) -> bool:
    """JSON of a program against the expected value. strict: true is not 1, and text is never a number."""
    try:
        value = json.loads(returned, parse_constant=_refuse)
        return _same(_ordered(value, checker), _ordered(expected, checker), checker, is_strict)
    except (ValueError, RecursionError):
        return False


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _ordered(value: Any, checker: Checker) -> Any:
    if checker.get("kind") != "any_order" or not isinstance(value, list):
        return value
    return sorted(value, key=lambda item: json.dumps(item, sort_keys=True))


def _same(value: Any, expected: Any, checker: Checker, is_strict: bool) -> bool:
    if isinstance(expected, list):
        return (
            isinstance(value, list)
            and len(value) == len(expected)
            and all(_same(a, b, checker, is_strict) for a, b in zip(value, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(value, dict)
            and value.keys() == expected.keys()
            and all(_same(value[key], expected[key], checker, is_strict) for key in expected)
        )
    if is_strict and isinstance(value, bool) is not isinstance(expected, bool):
        return False
    if isinstance(value, (int, float)) and isinstance(expected, (int, float)):
        return value == expected or _is_near(Decimal(repr(value)), Decimal(repr(expected)), checker)
    if isinstance(value, str) and isinstance(expected, str) and checker.get("kind") == "case":
        return value.casefold() == expected.casefold()
    return type(value) is type(expected) and bool(value == expected)
