"""What exact arithmetic cannot decide: many digits, then math-verify behind guards. Runs in a worker only.

No text of a model is evaluated as code: trees of our own grammar go to mpmath functions one by one, and texts go to
math-verify's LaTeX grammar, never to `eval`, `sympify` or `parse_expr`.
"""

import re
from typing import Any

from growpage.grade.expression import Node
from growpage.grade.numeric import constant_ratio, numerically_equal, real_value
from growpage.grade.unit_names import words

_MAX_CHARS = 400
_MAX_DEPTH = 8
_COMMANDS = words(
    """frac dfrac tfrac sqrt pi sin cos tan cot sec csc ln log exp infty cup cap setminus in
    le leq ge geq ne neq lt gt times cdot div pm left right sum prod int lim to mathbb
    alpha beta gamma delta theta lambda mu phi omega quad circ backslash emptyset"""
)


class SymbolicIrrational:
    """The `Irrational` of a worker."""

    def equal(self, gold: Node, answer: Node) -> bool | None:
        return numerically_equal(gold, answer)

    def proportional(self, gold: Node, answer: Node) -> bool | None:
        return constant_ratio(gold, answer)

    def close(self, gold: Node, answer: Node, tolerance: float) -> bool:
        values = real_value(gold), real_value(answer)
        if values[0] is None or values[1] is None:
            return False
        return bool(abs(values[0] - values[1]) <= tolerance * abs(values[0]))

    def texts_equal(self, gold: str, answer: str) -> bool | None:
        if not (is_guarded(gold) and is_guarded(answer)):
            return None
        first, second = _parse(f"${gold}$"), _parse(f"${answer}$")
        return _verify(first, second) if first and second else None


def whole_output_correct(gold: str, text: str) -> bool:
    """math-verify on everything a model wrote, as Zipage and G-KV do. Unguarded: needs a killable process."""
    return _verify(_parse(f"${gold}$"), _parse(text))


def is_guarded(text: str) -> bool:
    """Whether math-verify may see the text: short, shallow, no number that it rounds, nothing that it drops.

    It rounds to six places, drops units, base subscripts, dots and one of two signs, and computes any power.
    """
    commands = re.findall(r"\\([A-Za-z]+)", text)
    return (
        0 < len(text) <= _MAX_CHARS
        and all(command in _COMMANDS for command in commands)
        and _depth(text) <= _MAX_DEPTH
        and not re.search(
            r"[0-9]{13}|[0-9]\.|\.[0-9]|[-+]\s*[-+]|[!%$&~'\"@]|_|\\[^A-Za-z{}]", text
        )
        and not re.search(r"\^\s*(?:\{[^{}]*(?:\^|[0-9]{3})|[0-9]{3}|\{[^{}]*\{)", text)
        and not re.search(r"\^[^^]{0,40}\^\s*[{0-9].*\^", text)
    )


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        depth += (char in "({[") - (char in ")}]")
        deepest = max(deepest, depth)
    return deepest


def _parse(text: str) -> list[Any]:
    import math_verify

    # Its own time-out is SIGALRM; the limit comes from outside.
    return list(math_verify.parse(text, parsing_timeout=None))


def _verify(gold: list[Any], answer: list[Any]) -> bool:
    import math_verify

    return bool(math_verify.verify(gold, answer, timeout_seconds=None))
