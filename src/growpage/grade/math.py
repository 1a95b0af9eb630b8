"""The grader of maths answers: extraction, comparison, and a verdict that says what decided it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version as package_version

from growpage.grade.base import Answer, Verdict
from growpage.grade.compare import Comparison, compare, reads_as_answer
from growpage.grade.extraction import Extraction, extract, extract_anywhere
from growpage.grade.matcher import NeedsWorker
from growpage.grade.policy import MathPolicy
from growpage.grade.worker import Outcome, WorkerPool, compare_task, whole_output_task

GRADER_VERSION = 1  # any change that can change a verdict raises it

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Case:
    """One answer on its way to a verdict."""

    answer: Answer
    extraction: Extraction | None = None
    verdict: Verdict | None = None
    flags: list[str] = field(default_factory=list)


class MathGrader:
    """Grades in this process what exact arithmetic decides, and the rest in killable workers."""

    def __init__(
        self,
        *,
        policy: MathPolicy | None = None,
        timeout_s: float = 10.0,
        memory_gib: float = 4.0,
        num_workers: int = 1,
        whole_output: bool = False,
    ) -> None:
        self._policy = policy if policy is not None else MathPolicy()
        self._whole_output = whole_output
        self._pool = WorkerPool(num_workers=num_workers, timeout_s=timeout_s, memory_gib=memory_gib)
        self.version = (
            f"math-{GRADER_VERSION}+math-verify-{package_version('math-verify')}"
            f"+policy-{self._policy.sha8()}"
        )

    def grade(self, answers: Sequence[Answer]) -> list[Verdict]:
        """One verdict an answer, in order. Never raises for anything a model wrote."""
        cases = [_Case(answer=answer) for answer in answers]
        for case in cases:
            self._guarded(self._decide_here, [case])
        self._guarded(self._decide_in_workers, [case for case in cases if case.verdict is None])
        if self._whole_output:
            self._guarded(self._add_whole_output, cases)
        return [self._finished(case) for case in cases]

    def close(self) -> None:
        """End the workers. The grader may be used again."""
        self._pool.close()

    def _guarded(self, step: Callable[[Sequence[_Case]], None], cases: Sequence[_Case]) -> None:
        """The boundary: our own failure is a verdict of its own, no exception and not "wrong"."""
        try:
            step(cases)
        except Exception as error:
            log.exception("grader failed problems=%d", len(cases))
            for case in cases:
                if case.verdict is None:
                    case.verdict = _grader_error(f"{type(error).__name__}: {error}")
                else:  # only the second number comes after a verdict
                    case.flags.append("whole_output_failed")

    # in this process

    def _decide_here(self, cases: Sequence[_Case]) -> None:
        for case in cases:
            self._decide(case)

    def _decide(self, case: _Case) -> None:
        answer = case.answer
        if answer.finish_reason == "length":
            case.flags.append("truncated")
        if answer.finish_reason in ("abort", "error"):
            reason = f"the sample ended with {answer.finish_reason}"
            case.verdict = Verdict(correct=False, reason=reason, flags=("no_answer",))
            return
        found = self._extract(case)
        case.extraction = found
        if found.answer is None:
            case.verdict = Verdict(
                correct=False,
                reason=f"no answer: {found.reason}",
                rule="none",
                flags=("no_answer",),
            )
        elif any(self._policy.refused(flag) for flag in case.flags):
            case.verdict = Verdict(
                correct=False, reason="refused by policy: truncated", extracted=found.answer
            )
        else:
            self._compare(case, found.answer)

    def _extract(self, case: _Case) -> Extraction:
        answer = case.answer
        found = extract(
            answer.text,
            reasoning_open=answer.reasoning_open,
            is_cut=answer.finish_reason == "length",
            reads=reads_as_answer,
        )
        if found.in_reasoning:
            case.flags.append("answer_in_reasoning_only")
            if self._policy.accept_answer_in_reasoning:
                return extract_anywhere(answer.text)
        return found

    def _compare(self, case: _Case, extracted: str) -> None:
        try:
            result = compare(case.answer.problem.answer, extracted, self._policy)
        except NeedsWorker:
            return
        case.verdict = _verdict(result, extracted)

    # in workers

    def _decide_in_workers(self, cases: Sequence[_Case]) -> None:
        """What a busy machine may have caused is tried once more, alone."""
        tasks = [
            compare_task(case.answer.problem.answer, _extracted(case), asdict(self._policy))
            for case in cases
        ]
        outcomes = self._pool.run(tasks) if tasks else []
        for case, task, outcome in zip(cases, tasks, outcomes, strict=True):
            if outcome.status != "done":
                outcome = self._pool.run([task])[0]
            case.verdict = _verdict_of_outcome(outcome, _extracted(case))

    def _add_whole_output(self, cases: Sequence[_Case]) -> None:
        """math-verify on the whole text: a second number, which changes no verdict."""
        tasks = [whole_output_task(c.answer.problem.answer, c.answer.text) for c in cases]
        for case, outcome in zip(cases, self._pool.run(tasks), strict=True):
            if outcome.result is None:
                case.flags.append("whole_output_failed")
            else:
                right = outcome.result["correct"]
                case.flags.append("whole_output_right" if right else "whole_output_wrong")

    def _finished(self, case: _Case) -> Verdict:
        verdict = case.verdict if case.verdict is not None else _grader_error("no verdict")
        return replace(verdict, flags=tuple(dict.fromkeys((*verdict.flags, *case.flags))))


def _extracted(case: _Case) -> str:
    assert case.extraction is not None
    assert case.extraction.answer is not None
    return case.extraction.answer


def _verdict(result: Comparison, extracted: str) -> Verdict:
    return Verdict(
        correct=result.equal,
        reason=result.reason,
        extracted=extracted,
        rule=result.rule,
        flags=result.flags,
    )


def _verdict_of_outcome(outcome: Outcome, extracted: str) -> Verdict:
    if outcome.result is not None:
        result = Comparison(**{**outcome.result, "flags": tuple(outcome.result["flags"])})
        return _verdict(result, extracted)
    if outcome.status in ("timeout", "memory"):
        # The texts differ, and the values are beyond computing within the limits.
        return Verdict(
            correct=False,
            reason=f"too_large: {outcome.status}",
            extracted=extracted,
            rule="limits",
            flags=("timeout",) if outcome.status == "timeout" else ("memory",),
        )
    return replace(_grader_error(f"{outcome.status}: {outcome.detail}"), extracted=extracted)


def _grader_error(detail: str) -> Verdict:
    return Verdict(correct=False, reason=detail, rule="grader_error", flags=("grader_error",))
