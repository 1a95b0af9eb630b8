"""Two parsed answers, side by side: marks, kinds, elements and values, under a policy.

What needs numbers of many digits is asked of `Irrational`. Without one `NeedsWorker` says so.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Protocol

from growpage.grade.answer import (
    Answer,
    Choice,
    Listing,
    Matrix,
    Parts,
    Relation,
    Sequenced,
    Union,
    Value,
    Words,
    as_interval,
    words_of,
)
from growpage.grade.exact import NotRational, Undefined, agree_at_points, rational_value
from growpage.grade.expression import Node, integer
from growpage.grade.forms import FORMS, is_decimal
from growpage.grade.marks import NO_MARKS, Marks
from growpage.grade.policy import MathPolicy
from growpage.grade.tokens import TooLarge

_MAX_ITEMS = 60


class NeedsWorker(Exception):
    """The comparison cannot be decided by exact arithmetic alone."""


class Irrational(Protocol):
    """Decides what exact arithmetic cannot. May take long: it lives in a worker."""

    def equal(self, gold: Node, answer: Node) -> bool | None: ...

    def proportional(self, gold: Node, answer: Node) -> bool | None: ...

    def close(self, gold: Node, answer: Node, tolerance: float) -> bool: ...

    def texts_equal(self, gold: str, answer: str) -> bool | None:
        """math-verify on texts that its guards let through; None when it cannot read them."""


class Matcher:
    """One comparison of two trees. `rule` and `reason` tell the last decision, `flags` all acceptances."""

    def __init__(self, policy: MathPolicy, irrational: Irrational | None) -> None:
        self._policy = policy
        self._irrational = irrational
        self.flags: set[str] = set()
        self.rule = "structure"
        self.reason = "different kinds of answer"

    def match(self, gold: Answer, answer: Answer) -> bool:
        if gold == answer:
            return self._decide(True, "text", "equal after normalisation")
        if isinstance(gold, Words) or isinstance(answer, Words):
            return self._words(gold, answer)
        if isinstance(answer, Choice) or isinstance(gold, Choice):
            return self._choice(gold, answer)
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            return self._relation(gold, answer)
        if _is_equation(gold) and _is_equation(answer) and self._equation(gold, answer):
            return True
        if not self._marks(gold, answer):
            return False
        if isinstance(answer, Listing) and self._policy.any_of_several:
            items = _items(answer)
            if not isinstance(gold, Listing) and any(self.match(gold, item) for item in items):
                return True
        if isinstance(gold, Sequenced):
            return self._sequenced(gold, answer)
        if _is_listing(gold) or _is_listing(answer):
            return self._listing(gold, answer)
        if isinstance(gold, Value) and isinstance(answer, Value):
            return self._value(gold, answer)
        if isinstance(gold, Union) and isinstance(answer, Union):
            return self._unordered(gold.items, answer.items)
        if isinstance(gold, Parts) and isinstance(answer, Parts):
            return self._ordered(gold.items, answer.items)
        if isinstance(gold, Matrix) and isinstance(answer, Matrix):
            return self._matrix(gold, answer)
        return self._decide(False, "structure", "different kinds of answer")

    def _decide(self, equal: bool, rule: str, reason: str) -> bool:
        self.rule, self.reason = rule, reason
        return equal

    # words and choices

    def _words(self, gold: Answer, answer: Answer) -> bool:
        first, second = words_of(gold), words_of(answer)
        if first is None or second is None:
            return self._labelled_choice(gold, answer)
        first, second = "".join(first.split()), "".join(second.split())
        if not self._policy.case_matters:
            first, second = first.casefold(), second.casefold()
        return self._decide(
            first == second, "words", "equal words" if first == second else "other words"
        )

    def _labelled_choice(self, gold: Answer, answer: Answer) -> bool:
        if isinstance(answer, Choice):
            return self._choice(gold, answer)
        return self._decide(False, "words", "words against something else")

    def _choice(self, gold: Answer, answer: Answer) -> bool:
        """ "(C) 12" answers both 12 and (C); against another labelled choice both parts count."""
        if isinstance(gold, Choice):
            if isinstance(answer, Choice):
                return gold.letter == answer.letter and self.match(gold.value, answer.value)
            return self._decide(False, "choice", "the choice's letter or value is missing")
        assert isinstance(answer, Choice)
        if words_of(gold) is not None and len(words_of(gold) or "") == 1:
            self.flags.add("choice_value_added")
            return self._decide(words_of(gold) == answer.letter, "choice", "another choice")
        self.flags.add("choice_label_added")
        return self.match(gold, answer.value)

    # marks

    def _marks(self, gold: Answer, answer: Answer) -> bool:
        """May be left out or added, may not contradict."""
        first, second = _marks_of(gold), _marks_of(answer)
        for mark in ("unit", "variable", "base", "modulus"):
            wanted, given = getattr(first, mark), getattr(second, mark)
            if wanted == given:
                continue
            if wanted is not None and given is not None:
                return self._decide(False, "marks", f"{mark} {given}, not {wanted}")
            self.flags.add(f"{mark}_added" if wanted is None else f"{mark}_omitted")
        return True

    # values

    def _value(self, gold: Value, answer: Value) -> bool:
        if gold.marks.base is not None or answer.marks.base is not None:
            same = _digits_of(gold.node) == _digits_of(answer.node) is not None
            return self._decide(same, "base", "equal digits" if same else "other digits")
        equal = self._nodes(gold.node, answer.node) or self._scaled(gold, answer)
        if equal:
            self._note_form(gold.node, answer.node)
        return equal

    def _scaled(self, gold: Value, answer: Value) -> bool:
        """Percent and radians, where the policy lets them change the value."""
        policy, units = self._policy, (gold.marks.unit, answer.marks.unit)
        if policy.percent_scales and (units[0] == "%") != (units[1] == "%"):
            hundred = integer(100)
            if units[0] == "%":
                return self._nodes(Node("div", (gold.node, hundred)), answer.node)
            return self._nodes(gold.node, Node("div", (answer.node, hundred)))
        if policy.radians_answer_degrees and units == ("degree", None):
            return self._nodes(Node("degrees", (gold.node,)), answer.node)
        return False

    def _nodes(self, gold: Node, answer: Node) -> bool:
        if gold == answer:
            return self._decide(True, "text", "equal after normalisation")
        if _has_sign(gold) or _has_sign(answer):
            signs = (1, -1)
            return all(self._nodes(_with_sign(gold, s), _with_sign(answer, s)) for s in signs)
        infinite = _infinity(gold), _infinity(answer)
        if any(infinite):
            return self._decide(infinite[0] == infinite[1], "infinity", "infinity or its sign")
        texts = _digits_of(gold), _digits_of(answer)
        if None not in texts:
            same = texts[0] == texts[1]
            if same or self._policy.tolerance == 0.0:
                return self._decide(
                    same, "number", "equal numbers" if same else "different numbers"
                )
        try:
            values = rational_value(gold), rational_value(answer)
        except NotRational:
            return self._irrational_nodes(gold, answer)
        except Undefined as error:
            return self._decide(False, "exact", f"undefined: {error}")
        equal = values[0] == values[1] or self._near(values[0], answer, values[1])
        return self._decide(equal, "exact", "equal values" if equal else "different values")

    def _near(self, gold: Fraction, node: Node, answer: Fraction) -> bool:
        limit = Fraction(self._policy.tolerance) * abs(gold)
        return limit > 0 and is_decimal(node) and abs(gold - answer) <= limit

    def _irrational_nodes(self, gold: Node, answer: Node) -> bool:
        try:
            agree, is_decisive = agree_at_points(gold, answer)
        except Undefined:
            agree, is_decisive = False, False
        if agree or is_decisive:
            return self._decide(agree, "points", "equal" if agree else "different expressions")
        if self._irrational is None:
            raise NeedsWorker("irrational expressions")
        equal = self._irrational.equal(gold, answer)
        if not equal and self._policy.tolerance > 0.0 and is_decimal(answer):
            equal = self._irrational.close(gold, answer, self._policy.tolerance)
        return self._decide(bool(equal), "numeric", "equal" if equal else "different expressions")

    def _note_form(self, gold: Node, answer: Node) -> None:
        for flag, has_form in FORMS.items():
            if has_form(answer) and not has_form(gold):
                self.flags.add(flag)

    # collections

    def _ordered(self, gold: Sequence[Answer], answer: Sequence[Answer]) -> bool:
        if len(gold) != len(answer):
            return self._decide(False, "structure", f"{len(answer)} elements, not {len(gold)}")
        return all(self.match(*pair) for pair in zip(gold, answer, strict=True))

    def _unordered(self, gold: Sequence[Answer], answer: Sequence[Answer]) -> bool:
        """Each element of one answers exactly one of the other."""
        if len(gold) != len(answer):
            return self._decide(False, "structure", f"{len(answer)} elements, not {len(gold)}")
        if len(gold) > _MAX_ITEMS:
            raise TooLarge(f"more than {_MAX_ITEMS} elements")
        left = list(answer)
        for wanted in gold:
            found = next((item for item in left if self._quietly(wanted, item)), None)
            if found is None:
                return self._decide(False, "structure", "an element is missing or wrong")
            left.remove(found)
        return self._decide(True, "list", "equal elements")

    def _quietly(self, gold: Answer, answer: Answer) -> bool:
        """A match whose flags count only if it succeeds."""
        before = set(self.flags)
        if self.match(gold, answer):
            return True
        self.flags = before
        return False

    def _listing(self, gold: Answer, answer: Answer) -> bool:
        first, second = _items(gold), _items(answer)
        if self._policy.lists_are_ordered and not _is_set(gold):
            return self._ordered(first, second)
        return self._unordered(first, second)

    def _sequenced(self, gold: Sequenced, answer: Answer) -> bool:
        if isinstance(answer, Sequenced):
            ends = (gold.opening, gold.closing) == (answer.opening, answer.closing)
            if not ends and self._policy.interval_ends_matter:
                return self._decide(False, "structure", "other brackets")
            return self._ordered(gold.items, answer.items)
        if isinstance(answer, Listing) and not answer.is_set:
            if (gold.opening, gold.closing) != ("(", ")"):
                return self._decide(False, "structure", "brackets are missing")
            self.flags.add("bare_tuple")
            return self._ordered(gold.items, answer.items)
        return self._decide(False, "structure", "different kinds of answer")

    def _matrix(self, gold: Matrix, answer: Matrix) -> bool:
        if self._policy.matrix_brackets_matter and gold.style != answer.style:
            return self._decide(False, "structure", "other brackets")
        shapes = [(len(matrix.rows), len(matrix.rows[0])) for matrix in (gold, answer)]
        if shapes[0] != shapes[1]:
            return self._decide(False, "structure", "another shape")
        return all(self._ordered(*rows) for rows in zip(gold.rows, answer.rows, strict=True))

    # relations

    def _relation(self, gold: Answer, answer: Answer) -> bool:
        if _is_equation(gold) and _is_equation(answer):
            return self._equation(gold, answer)
        intervals = as_interval(gold), as_interval(answer)
        if intervals[0] is not None and intervals[1] is not None:
            return self.match(intervals[0], intervals[1])
        if intervals[1] is not None:
            self.flags.add("inequality")
            return self.match(gold, intervals[1])
        if intervals[0] is not None:
            return self.match(intervals[0], answer)
        if isinstance(answer, Relation) and set(answer.operators) == {"="}:
            return self._chain(gold, answer)
        return self._decide(False, "structure", "a relation against something else")

    def _chain(self, gold: Answer, answer: Relation) -> bool:
        """2^{10} = 1024 answers 1024: every side says the same."""
        if not isinstance(gold, Value):
            return self._decide(False, "structure", "a relation against something else")
        return all(self._nodes(gold.node, side) for side in answer.sides)

    def _equation(self, gold: Answer, answer: Answer) -> bool:
        """Both as left - right = 0; one may be the other times a number."""
        first, second = _difference(gold), _difference(answer)
        if self._nodes(first, second):
            return True
        if self._irrational is None:
            raise NeedsWorker("two equations")
        if self._irrational.proportional(first, second):
            self.flags.add("scaled_equation")
            return self._decide(True, "equation", "the same equation, scaled")
        return self._decide(False, "equation", "different equations")


def _marks_of(answer: Answer) -> Marks:
    return NO_MARKS if isinstance(answer, (Words, Relation, Choice)) else answer.marks


def _is_set(answer: Answer) -> bool:
    return isinstance(answer, Listing) and answer.is_set


def _is_listing(answer: Answer) -> bool:
    return isinstance(answer, Listing) or (isinstance(answer, Value) and _has_sign(answer.node))


def _items(answer: Answer) -> tuple[Answer, ...]:
    """Elements of a list, with both values of every ±."""
    if isinstance(answer, Listing):
        return tuple(part for item in answer.items for part in _items(item))
    if isinstance(answer, Value) and _has_sign(answer.node):
        return tuple(
            Value(node=_with_sign(answer.node, sign), marks=answer.marks) for sign in (1, -1)
        )
    return (answer,)


def _has_sign(node: Node) -> bool:
    return node.op in ("pm", "mp") or any(_has_sign(arg) for arg in node.args)


def _with_sign(node: Node, sign: int) -> Node:
    """All upper signs, or all lower ones."""
    args = tuple(_with_sign(arg, sign) for arg in node.args)
    if node.op in ("pm", "mp"):
        is_positive = (sign > 0) == (node.op == "pm")
        return args[0] if is_positive else Node("neg", args)
    return replace(node, args=args)


def _is_equation(answer: Answer) -> bool:
    if isinstance(answer, Relation):
        return answer.operators == ("=",)
    return (
        isinstance(answer, Value)
        and _is_symbol(answer.marks.variable)
        and not _has_sign(answer.node)
    )


def _is_symbol(variable: str | None) -> bool:
    return variable is not None and len(variable) == 1 and variable.isalpha()


def _difference(answer: Answer) -> Node:
    if isinstance(answer, Relation):
        left, right = answer.sides
    else:
        assert isinstance(answer, Value)
        assert answer.marks.variable is not None
        left, right = Node("sym", name=answer.marks.variable), answer.node
    return Node("add", (left, Node("neg", (right,))))


def _infinity(node: Node) -> str:
    """'+' or '-' for an infinite value, else ''."""
    if node.op == "neg" and _infinity(node.args[0]) == "+":
        return "-"
    return "+" if node.op == "sym" and node.name == "\\infty" else ""


def _digits_of(node: Node) -> tuple[bool, str | Fraction] | None:
    """A literal with its sign; equal numbers have equal digits whatever their length."""
    is_negative, inner = (True, node.args[0]) if node.op == "neg" else (False, node)
    if inner.op != "num" or inner.number is None:
        return None
    number = inner.number
    digits: str | Fraction = number.text if number.value is None else number.value
    is_zero = number.value == 0 or digits == "0"
    return is_negative and not is_zero, digits
