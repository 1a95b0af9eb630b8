"""How a value is written: the forms that are right but not as a book would print them."""

from math import gcd

from growpage.grade.exact import NotRational, Undefined, rational_value
from growpage.grade.expression import Node
from growpage.grade.tokens import TooLarge, canonical


def is_decimal(node: Node) -> bool:
    inner = node.args[0] if node.op == "neg" else node
    return inner.op == "num" and inner.number is not None and inner.number.is_decimal


def _is_unreduced(node: Node) -> bool:
    if node.op == "div" and all(arg.op == "num" for arg in node.args):
        top, bottom = (arg.value for arg in node.args)
        if top is not None and bottom is not None and top.denominator == bottom.denominator == 1:
            return bottom == 1 or gcd(top.numerator, bottom.numerator) > 1
    return any(_is_unreduced(arg) for arg in node.args)


def _is_unevaluated(node: Node) -> bool:
    """A rational value that is written as a computation."""
    inner = node.args[0] if node.op == "neg" else node
    if inner.op in ("num", "sym", "mixed"):
        return False
    if inner.op == "div" and all(arg.op == "num" for arg in inner.args):
        return False
    try:
        rational_value(inner)
    except (NotRational, Undefined, TooLarge):
        return False
    return True


def _has_root_below(node: Node) -> bool:
    if node.op == "div" and _has(node.args[1], "root"):
        return True
    return any(_has_root_below(arg) for arg in node.args)


def _has(node: Node, op: str) -> bool:
    return node.op == op or any(_has(arg, op) for arg in node.args)


def _has_odd_format(node: Node) -> bool:
    inner = node.args[0] if node.op == "neg" else node
    if inner.op != "num" or inner.number is None or inner.number.value is None:
        return False
    whole, _, fraction = inner.number.raw.partition(".")
    return "(" not in fraction and inner.number.raw != canonical(whole, fraction)


# A flag for each; an answer carries it when it has the form and the gold has not.
FORMS = {
    "unreduced": _is_unreduced,
    "unevaluated": _is_unevaluated,
    "unrationalised": _has_root_below,
    "mixed_number": lambda node: _has(node, "mixed"),
    "number_format": _has_odd_format,
}
