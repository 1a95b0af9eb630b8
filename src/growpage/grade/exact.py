"""Exact values of expressions, within limits: rational numbers, and rational functions at chosen points.

What is not rational (√2, π, sin x, a variable) takes part as an unknown: a number drawn from its name and its
arguments. Two expressions that agree at such points are equal whatever the unknowns are. If they disagree they
may still be equal when an unknown was not free (√8 and 2√2); `agree_at_points` says whether that can be.
"""

import hashlib
import math
from fractions import Fraction

from growpage.grade.expression import Node
from growpage.grade.tokens import TooLarge

MAX_BITS = 200_000
MAX_EXPONENT = 20_000
MAX_FACTORIAL = 3_000
NUM_POINTS = 3


class Undefined(ArithmeticError):
    """Division by zero, 0^0 and the like."""


class NotRational(ArithmeticError):
    """The expression has no rational value: it holds a variable, a constant or an irrational root."""


class Evaluation:
    """Values at point number `point`; point None refuses unknowns. Remembers whether it met any that is bound."""

    def __init__(self, point: int | None) -> None:
        self._point = point
        self.met_bound_unknown = False  # one that is more than a free variable

    def value(self, node: Node) -> Fraction:
        """Raises NotRational, Undefined or TooLarge."""
        result = self._value(node)
        if result.numerator.bit_length() + result.denominator.bit_length() > MAX_BITS:
            raise TooLarge(f"a value of more than {MAX_BITS} bits")
        return result

    def _value(self, node: Node) -> Fraction:
        match node.op:
            case "num":
                if node.value is None:
                    raise TooLarge("a literal of more than 1000 digits")
                return node.value
            case "sym":
                return self._symbol(node.name)
            case "neg":
                return -self.value(node.args[0])
            case "add" | "mixed":
                return sum((self.value(arg) for arg in node.args), Fraction(0))
            case "mul":
                return self._product(node.args)
            case "div":
                top, bottom = (self.value(arg) for arg in node.args)
                if bottom == 0:
                    raise Undefined("division by zero")
                return top / bottom
            case "abs":
                return self._absolute(self.value(node.args[0]), node)
            case _:
                return self._function(node, [self.value(arg) for arg in node.args])

    def _product(self, factors: tuple[Node, ...]) -> Fraction:
        product = Fraction(1)
        for factor in factors:
            product *= self.value(factor)
            if product.numerator.bit_length() + product.denominator.bit_length() > MAX_BITS:
                raise TooLarge(f"a value of more than {MAX_BITS} bits")
        return product

    def _symbol(self, name: str) -> Fraction:
        if name == "\\infty":
            raise Undefined("infinity in an expression")
        if name in ("i", "e"):  # perhaps a number; perhaps a variable
            self.met_bound_unknown = True
        return self._unknown(f"symbol {name}")

    def _absolute(self, value: Fraction, node: Node) -> Fraction:
        if self._is_rational(node.args[0]):
            return abs(value)
        return self._bound("abs", [value])

    def _function(self, node: Node, args: list[Fraction]) -> Fraction:
        if node.op == "pow":
            return self._power(node, *args)
        if not all(self._is_rational(arg) for arg in node.args):
            return self._bound(node.op + node.name, args)
        match node.op:
            case "root":
                root = exact_root(args[1], args[0])
                return root if root is not None else self._bound("root", args)
            case "floor":
                return Fraction(math.floor(args[0]))
            case "ceil":
                return Fraction(math.ceil(args[0]))
            case "fact":
                return self._factorial(args[0])
            case "binom":
                return self._binomial(*args)
            case _:
                return self._bound(node.op + node.name, args)

    def _power(self, node: Node, base: Fraction, exponent: Fraction) -> Fraction:
        if not self._is_rational(node.args[1]):
            return self._bound("pow", [base, exponent])
        if exponent.denominator != 1:
            if self._is_rational(node.args[0]):
                root = exact_root(base, Fraction(exponent.denominator))
                if root is not None:
                    return power(root, exponent.numerator)
            return self._bound("pow", [base, exponent])
        return power(base, exponent.numerator)

    def _factorial(self, value: Fraction) -> Fraction:
        if value.denominator != 1 or value < 0:
            raise Undefined("the factorial of what is no natural number")
        if value > MAX_FACTORIAL:
            raise TooLarge(f"a factorial beyond {MAX_FACTORIAL}!")
        return Fraction(math.factorial(value.numerator))

    def _binomial(self, top: Fraction, bottom: Fraction) -> Fraction:
        if top.denominator != 1 or bottom.denominator != 1 or top < 0 or bottom < 0:
            raise Undefined("a binomial of what is no natural number")
        n, k = top.numerator, min(bottom.numerator, max(0, top.numerator - bottom.numerator))
        if k * n.bit_length() > MAX_BITS:
            raise TooLarge("a binomial beyond the limit")
        return Fraction(math.comb(top.numerator, bottom.numerator))

    def _is_rational(self, node: Node) -> bool:
        # Without a point the value of the node exists already, so it is rational; asking again at
        # every level would double the work with each one.
        return self._point is None or _is_rational(node)

    def _bound(self, name: str, args: list[Fraction]) -> Fraction:
        self.met_bound_unknown = True
        shown = ",".join(f"{hex(arg.numerator)}/{hex(arg.denominator)}" for arg in args)
        return self._unknown(f"{name}({shown})")

    def _unknown(self, name: str) -> Fraction:
        """A number that no accident gives twice, drawn from the name and the point."""
        if self._point is None:
            raise NotRational(name)
        digest = hashlib.sha256(f"{self._point} {name}".encode()).digest()
        return Fraction(
            int.from_bytes(digest[:6], "big") + 1, int.from_bytes(digest[6:9], "big") + 1
        )


def rational_value(node: Node) -> Fraction:
    """The value of an expression of rational numbers. Raises NotRational, Undefined or TooLarge."""
    return Evaluation(None).value(node)


def agree_at_points(left: Node, right: Node) -> tuple[bool, bool]:
    """(whether both have one value at every point, whether a difference would prove them unequal)."""
    decisive = True
    for point in range(NUM_POINTS):
        first, second = Evaluation(point), Evaluation(point)
        same = first.value(left) == second.value(right)
        decisive = decisive and not (first.met_bound_unknown or second.met_bound_unknown)
        if not same:
            return False, decisive
    return True, decisive


def power(base: Fraction, exponent: int) -> Fraction:
    if base == 0 and exponent <= 0:
        raise Undefined("zero to the power of zero or less")
    if base in (0, 1):
        return base
    bits = base.numerator.bit_length() + base.denominator.bit_length()
    if base != -1 and (abs(exponent) > MAX_EXPONENT or abs(exponent) * bits > MAX_BITS):
        raise TooLarge(f"a power of {exponent.bit_length()} bits of exponent")
    return base**exponent if base != -1 else Fraction(-1 if exponent % 2 else 1)


def exact_root(radicand: Fraction, index: Fraction) -> Fraction | None:
    """The rational `index`-th root if there is one."""
    if index.denominator != 1 or not 2 <= index <= 64 or radicand < 0:
        return None
    top = integer_root(radicand.numerator, index.numerator)
    bottom = integer_root(radicand.denominator, index.numerator)
    return Fraction(top, bottom) if top is not None and bottom is not None else None


def integer_root(value: int, index: int) -> int | None:
    """r with r^index = value, or None; by bisection, so exact at any size."""
    low, high = 0, 1 << (value.bit_length() // index + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**index <= value else (low, middle - 1)
    return low if low**index == value else None


def _is_rational(node: Node) -> bool:
    try:
        rational_value(node)
    except (NotRational, Undefined):
        return False
    return True
