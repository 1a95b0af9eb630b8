"""Equality of irrational expressions by numbers of 100 and 200 digits, at several points.

Not a proof, but neither does it round: relative agreement to 90 digits is asked for. Runs in a worker only.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import mpmath  # type: ignore[import-untyped]

from growpage.grade.expression import Node
from growpage.grade.tokens import TooLarge

_DIGITS = (100, 200)
_POINTS = 6
_MIN_POINTS = 2
_MAX_MAGNITUDE = 10**6

_TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
_HYPERBOLIC = ("sinh", "cosh", "tanh", "coth")

Value = Any  # mpmath ships no types: mpc here, mpf where a name says real


class _Skip(ArithmeticError):
    """No finite value at this point."""


def numerically_equal(left: Node, right: Node) -> bool | None:
    """Whether both have one value wherever both are defined; None when too few points say so.

    Points are real, half of them with negative variables. A point counts when both values are real there, unless
    the expressions hold the imaginary unit. Raises TooLarge.
    """
    names = _symbols(left) | _symbols(right)
    is_complex = "i" in names
    points = range(_POINTS) if names - {"\\pi", "e", "i"} else range(1)
    agreed = 0
    for point in points:
        same = _same_at(left, right, point, is_complex or len(points) == 1)
        if same is False:
            return False
        agreed += same is True
    return True if agreed >= min(_MIN_POINTS, len(points)) else None


def real_value(node: Node) -> Value | None:
    """The value of an expression without variables, if it is real. Raises TooLarge."""
    if _symbols(node) - {"\\pi", "e"}:
        return None
    value = _at(node, 0, _DIGITS[0])
    return value.real if value is not None and value.imag == 0 else None


def constant_ratio(left: Node, right: Node) -> bool | None:
    """Whether left is right times one number other than 0, at every point. For scaled equations."""
    ratios = []
    for point in range(_POINTS):
        first, second = (_at(node, point, _DIGITS[0]) for node in (left, right))
        if first is None or second is None:
            continue
        if abs(first) == 0 or abs(second) == 0:
            if first != second:
                return False
            continue
        ratios.append(first / second)
    if len(ratios) < _MIN_POINTS:
        return None
    with mpmath.workdps(_DIGITS[0]):
        return all(abs(r - ratios[0]) <= mpmath.mpf(10) ** -70 * abs(r) for r in ratios)


def _same_at(left: Node, right: Node, point: int, complex_counts: bool) -> bool | None:
    differences = []
    for digits in _DIGITS:
        first, second = _at(left, point, digits), _at(right, point, digits)
        if first is None or second is None:
            # One defined and one not is a difference only when there are no variables to blame.
            return None
        if not complex_counts and (first.imag != 0 or second.imag != 0):
            return None
        with mpmath.workdps(digits):
            differences.append((abs(first - second), max(abs(first), abs(second))))
    (coarse, _), (fine, size) = differences
    with mpmath.workdps(_DIGITS[1]):
        ten = mpmath.mpf(10)
        # Equal to 90 digits; or the difference is rounding noise, which shrinks with more digits.
        return bool(fine <= size * ten**-90 or fine <= coarse * ten**-50)


def _at(node: Node, point: int, digits: int) -> Value | None:
    with mpmath.workdps(digits):
        try:
            value = mpmath.mpc(_evaluate(node, point))
        except (ZeroDivisionError, ValueError, OverflowError, _Skip):
            return None
        if not mpmath.isfinite(value):
            return None
        is_noise = abs(value.imag) <= abs(value) * mpmath.mpf(10) ** (10 - digits)
        return mpmath.mpc(value.real) if is_noise else value


def _evaluate(node: Node, point: int) -> Value:
    if node.op == "num":
        value = node.value
        if value is None:
            raise TooLarge("a literal of more than 1000 digits")
        return mpmath.mpc(mpmath.mpf(value.numerator) / value.denominator)
    if node.op == "sym":
        return mpmath.mpc(_symbol_value(node.name, point))
    args = [_evaluate(arg, point) for arg in node.args]
    if node.op in ("add", "mixed"):
        return mpmath.fsum(args)
    if node.op == "mul":
        return mpmath.fprod(args)
    return _OPERATIONS[node.op + node.name](*args)


def _symbol_value(name: str, point: int) -> Value:
    constants = {"\\pi": mpmath.pi, "e": mpmath.e, "i": mpmath.j}
    if name in constants:
        return +constants[name]
    if name == "\\infty":
        raise _Skip("infinity")
    digest = hashlib.sha256(f"{point} {name}".encode()).digest()
    size = mpmath.mpf(int.from_bytes(digest[:8], "big") + 1) / 2**64 * 2 + mpmath.mpf(1) / 3
    return -size if point % 2 and digest[9] % 3 else size


def _symbols(node: Node) -> set[str]:
    names = {node.name} if node.op == "sym" else set()
    return names.union(*(_symbols(arg) for arg in node.args))


def _bounded(value: Value) -> Value:
    if abs(value) > _MAX_MAGNITUDE:
        raise TooLarge("an argument beyond a million")
    return value


def _power(base: Value, exponent: Value) -> Value:
    _bounded(exponent)
    if base == 0:
        if exponent.real <= 0:
            raise ZeroDivisionError
        return base
    return mpmath.power(base, exponent)


def _root(index: Value, radicand: Value) -> Value:
    """Odd roots of negative numbers are real, as in school."""
    whole = int(mpmath.nint(_bounded(index).real))
    if index != whole or whole < 1:
        raise _Skip("a root of no natural order")
    if radicand.imag == 0 and radicand.real < 0 and whole % 2:
        return mpmath.mpc(-mpmath.root(-radicand.real, whole))
    return mpmath.mpc(mpmath.root(radicand, whole))


def _logarithm(argument: Value, base: Value | None = None) -> Value:
    """A logarithm without a base is one of no agreed base: an unknown multiple of ln."""
    if argument == 0:
        raise ZeroDivisionError
    if base is None:
        return mpmath.log(argument) * _symbol_value("base of log", 0)
    return mpmath.log(argument) / mpmath.log(base)


def _real(value: Value) -> Value:
    if value.imag != 0:
        raise _Skip("a rounded complex number")
    return _bounded(value).real


def _factorial(value: Value) -> Value:
    if value.imag != 0 or value.real < 0:
        raise _Skip("a factorial of what is no natural number")
    return mpmath.factorial(_bounded(value))


def _mp(name: str) -> Callable[..., Value]:
    return lambda argument: mpmath.mpc(getattr(mpmath, name)(_bounded(argument)))


_OPERATIONS: dict[str, Callable[..., Value]] = {
    "neg": lambda a: -a,
    "div": lambda a, b: a / b,
    "pow": _power,
    "root": _root,
    "abs": lambda a: mpmath.mpc(abs(a)),
    "floor": lambda a: mpmath.mpc(mpmath.floor(_real(a))),
    "ceil": lambda a: mpmath.mpc(mpmath.ceil(_real(a))),
    "fact": _factorial,
    "binom": lambda n, k: mpmath.mpc(mpmath.binomial(_bounded(n), _bounded(k))),
    "degrees": lambda a: a * mpmath.pi / 180,
    "funln": lambda a: _logarithm(a, mpmath.mpc(mpmath.e)),
    "funlog": _logarithm,
    **{f"fun{name}": _mp(name) for name in (*_TRIGONOMETRIC, *_HYPERBOLIC, "exp")},
    **{f"funarc{name}": _mp(f"a{name}") for name in _TRIGONOMETRIC},
}
