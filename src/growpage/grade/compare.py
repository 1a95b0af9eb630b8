"""Whether two answers are the same, under a policy: the cheapest comparison that can decide, decides.

Everything here is exact and bounded. What needs numbers of many digits is asked of `Irrational`; without one
(in the run's own process) `NeedsWorker` says so, and a worker does the whole comparison again.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from growpage.grade.answer import Answer, Matrix, Parts, Value, Words, parse_answer
from growpage.grade.guards import is_guarded, spells_a_set
from growpage.grade.matcher import Irrational, Matcher, NeedsWorker
from growpage.grade.policy import MathPolicy
from growpage.grade.text import clean, translate_signs
from growpage.grade.tokens import TooLarge, Unreadable, literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`rule` names what decided; `flags` hold lenient acceptances, and `parser_error`."""

    equal: bool
    rule: str
    reason: str
    flags: tuple[str, ...] = ()


def compare(
    gold: str, answer: str, policy: MathPolicy, irrational: Irrational | None = None
) -> Comparison:
    """Whether `answer` is `gold`. Raises `NeedsWorker` only, and only without `irrational`."""
    if _plain(gold) == _plain(answer):
        return Comparison(equal=True, rule="text", reason="equal text")
    both = literal(gold), literal(answer)
    if both[0] is not None and both[1] is not None:
        return _literals(both[0], both[1], answer, policy)
    try:
        return _parsed(gold, answer, policy, irrational)
    except (TooLarge, RecursionError, MemoryError) as error:
        return Comparison(equal=False, rule="limits", reason=f"too_large: {error}")


def reads_as_answer(text: str) -> bool:
    """Whether a line is an answer as a whole: in the grammar, and no sentence."""
    try:
        answer = parse_answer(text)
    except Unreadable:
        return False
    except (TooLarge, RecursionError):
        return False
    return not isinstance(answer, Words) or len(answer.text.split()) <= 3


def _literals(
    gold: tuple[bool, str], answer: tuple[bool, str], text: str, policy: MathPolicy
) -> Comparison:
    """Digit strings of any length, compared as strings."""
    if gold != answer:
        if policy.tolerance == 0.0 or len(gold[1]) + len(answer[1]) > 600:
            return Comparison(equal=False, rule="number", reason="different numbers")
        first, second = (_signed(part) for part in (gold, answer))
        near = "." in answer[1] and abs(first - second) <= Fraction(policy.tolerance) * abs(first)
        reason = "within the tolerance" if near else "different numbers"
        return Comparison(equal=near, rule="number", reason=reason)
    as_written = text.strip().removesuffix(".").replace(" ", "")
    flags = () if as_written == ("-" if answer[0] else "") + answer[1] else ("number_format",)
    return _under(policy, "number", flags)


def _signed(number: tuple[bool, str]) -> Fraction:
    return Fraction(number[1]) * (-1 if number[0] else 1)


def _under(policy: MathPolicy, rule: str, flags: Sequence[str]) -> Comparison:
    """Equal, unless the policy refuses what made it so."""
    for flag in flags:
        if policy.refused(flag):
            return Comparison(equal=False, rule=rule, reason=f"refused by policy: {flag}")
    return Comparison(equal=True, rule=rule, reason="equal", flags=tuple(flags))


def _plain(text: str) -> str:
    """Without delimiters, and without white space but where it may part two numbers."""
    plain = translate_signs(clean(text)).replace("$", "").strip()
    return re.sub(r"(?<![0-9,])\s+|\s+(?![0-9.])", "", plain)


def _parsed(
    gold: str, answer: str, policy: MathPolicy, irrational: Irrational | None
) -> Comparison:
    gold_tree = _tree(gold)
    answer_tree = _tree(answer)
    if gold_tree is not None and answer_tree is not None:
        matcher = Matcher(policy, irrational)
        if matcher.match(gold_tree, answer_tree):
            return _under(policy, matcher.rule, sorted(matcher.flags))
        again = _reread(gold_tree, answer)
        if again is not None and again != answer_tree:
            matcher = Matcher(policy, irrational)
            if matcher.match(gold_tree, again):
                return _under(policy, matcher.rule, sorted(matcher.flags))
        return Comparison(equal=False, rule=matcher.rule, reason=matcher.reason)
    is_text = gold_tree is None or isinstance(gold_tree, Words)
    if is_text and not policy.case_matters and _letters(gold) == _letters(answer):
        return Comparison(equal=True, rule="words", reason="equal words")
    flags = ("parser_error",) if answer_tree is None else ()
    equal: bool | None = None
    if _may_be_sets(gold, gold_tree, answer) and is_guarded(gold) and is_guarded(answer):
        if irrational is None:
            raise NeedsWorker("an answer outside the grammar")
        equal = irrational.texts_equal(gold, answer)
    if equal:
        return Comparison(equal=True, rule="math_verify", reason="equal", flags=flags)
    reason = "different" if equal is False else "the answer cannot be read"
    rule = "math_verify" if equal is False else "unreadable"
    return Comparison(equal=False, rule=rule, reason=reason, flags=flags)


def _may_be_sets(gold: str, gold_tree: Answer | None, answer: str) -> bool:
    """Values need nothing outside the grammar; sets have spellings that it lacks."""
    is_no_set = isinstance(gold_tree, (Value, Words, Parts, Matrix))
    return not is_no_set and (spells_a_set(gold) or spells_a_set(answer))


def _tree(text: str) -> Answer | None:
    try:
        return parse_answer(text)
    except Unreadable:
        return None


def _reread(gold: Answer, answer: str) -> Answer | None:
    """The answer with letters after numbers read as a unit, where the gold has one."""
    if not isinstance(gold, Value) or gold.marks.unit is None:
        return None
    try:
        return parse_answer(answer, letters_are_units=True)
    except Unreadable:
        return None


def _letters(text: str) -> str:
    """What is left of words when case, spaces and text commands do not count."""
    plain = translate_signs(clean(text))
    for command in ("\\text", "\\mbox", "\\mathrm", "\\textbf", "\\mathbf", "bf", "rm"):
        plain = plain.replace(command + "{", "{")
    return "".join(char for char in plain.casefold() if char not in " {}$()*~")
