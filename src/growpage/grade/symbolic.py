"""What exact arithmetic cannot decide: numbers of many digits, and math-verify. In a worker only.

No text of a model is evaluated as code: trees of our own grammar go to mpmath functions one by one,
and texts go to math-verify's LaTeX grammar, never to `eval`, `sympify` or `parse_expr`.
"""

import logging
from typing import Any

from growpage.grade.expression import Node
from growpage.grade.numeric import constant_ratio, numerically_equal, real_value

log = logging.getLogger(__name__)


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
        """Both texts have passed `guards.is_guarded`. One that math-verify fails on is not read."""
        try:
            first, second = _parse(f"${gold}$"), _parse(f"${answer}$")
            return _verify(first, second) if first and second else None
        except Exception:
            log.exception("math-verify failed")
            return None


def whole_output_correct(gold: str, text: str) -> bool:
    """math-verify on everything a model wrote, as Zipage and G-KV do. Unguarded: needs a killable process."""
    return _verify(_parse(f"${gold}$"), _parse(text))


def _parse(text: str) -> list[Any]:
    import math_verify

    # Its own time-out is SIGALRM; the limit comes from outside.
    return list(math_verify.parse(text, parsing_timeout=None))


def _verify(gold: list[Any], answer: list[Any]) -> bool:
    import math_verify

    return bool(math_verify.verify(gold, answer, timeout_seconds=None))
