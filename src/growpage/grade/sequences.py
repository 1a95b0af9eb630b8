"""Grades `bench=sequences`: the number after the word "answer" behind the reasoning, exactly."""

import re
from collections.abc import Sequence

from growpage.grade.base import Answer, Verdict
from growpage.grade.text import END_THINK, THINK

_ANSWER = re.compile(r"\banswer +(\d+)\b")


class SequencesGrader:
    """Exact and strict: no answer inside the reasoning counts, and no other number is ever taken."""

    version = "sequences-1"

    def grade(self, answers: Sequence[Answer]) -> list[Verdict]:
        return [grade_answer(answer) for answer in answers]

    def close(self) -> None:
        """Nothing is held."""


def grade_answer(answer: Answer) -> Verdict:
    cut = answer.finish_reason == "length"
    flags: tuple[str, ...] = ("truncated",) if cut else ()
    is_open = answer.reasoning_open or THINK in answer.text
    reasoning, closed, final = answer.text.rpartition(END_THINK)
    if is_open and not closed:
        reasoning, final = answer.text, ""
    found = _last_answer(final, cut)
    if found is None:
        flags += ("no_answer",)
        if _last_answer(reasoning, cut=False) == answer.problem.answer:
            flags += ("answer_in_reasoning_only",)
        reason = "the reasoning is not closed" if is_open and not closed else "no line 'answer N'"
        return Verdict(correct=False, reason=reason, rule="exact", flags=flags)
    correct = found == answer.problem.answer
    reason = "equal" if correct else f"{found} is not {answer.problem.answer}"
    return Verdict(correct=correct, reason=reason, extracted=found, rule="exact", flags=flags)


def _last_answer(text: str, cut: bool) -> str | None:
    """The last answer, without leading zeros. A number that ends a cut text may be unfinished: none."""
    matches = list(_ANSWER.finditer(text))
    if not matches or (cut and matches[-1].end() == len(text)):
        return None
    return matches[-1].group(1).lstrip("0") or "0"
