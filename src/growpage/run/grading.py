"""From stored samples to stored verdicts."""

from collections.abc import Sequence

from growpage.bench.base import Problem
from growpage.grade.base import Answer, Grader, Verdict
from growpage.run.generation import storable
from growpage.run.resume import WorkItem
from growpage.store.schema import SampleRow, VerdictRow

BATCH_SIZE = 32


def to_answer(problem: Problem, sample: SampleRow) -> Answer:
    return Answer(
        problem=problem,
        text=sample.text,
        finish_reason=sample.finish_reason,
        reasoning_open=sample.reasoning_open,
    )


def grade_answers(grader: Grader, answers: Sequence[Answer]) -> list[Verdict]:
    """One verdict an answer; a failure of the grader itself is tried once more, alone."""
    verdicts = grader.grade(answers)
    assert len(verdicts) == len(answers), (len(verdicts), len(answers))
    return [
        grader.grade([answer])[0] if "grader_error" in verdict.flags else verdict
        for answer, verdict in zip(answers, verdicts, strict=True)
    ]


def verdict_row(
    item: WorkItem, verdict: Verdict, *, grader: str, version: str, grader_hash: str
) -> VerdictRow:
    extracted = verdict.extracted
    return VerdictRow(
        problem_id=item.problem.id,
        sample_index=item.sample_index,
        seed=item.seed,
        config_hash=item.config_hash,
        grader=grader,
        grader_version=version,
        grader_hash=grader_hash,
        correct=verdict.correct,
        reason=storable(verdict.reason),
        extracted=None if extracted is None else storable(extracted),
        rule=verdict.rule,
        flags=tuple(verdict.flags),
    )
