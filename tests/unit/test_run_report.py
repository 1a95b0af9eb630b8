"""What a table says beside its numbers."""

from typing import Any

import pytest

from growpage.run.report import notes


def metrics(policy: str = "growpage", flags: dict[str, int] | None = None, **totals: int) -> Any:
    return {
        "policy": policy,
        "accuracy": {"value": 0.5},
        "shares": {"num_grader_errors": 0, "num_engine_errors": 0, "flags": flags or {}},
        "serving": {"num_sessions": 1},
        "events": {"totals": totals},
        "num_sessions": 1,
        "is_dirty_tree": False,
        "commits": [],
    }


def test_undisturbed_run_has_nothing_to_say() -> None:
    assert notes(metrics(grow=7, compress=3, fallback=0)) == []


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"fallback": 1200}, "1,200 fallbacks, 0 preemptions"),
        ({"preempt_swap": 2, "preempt_recompute": 3}, "0 fallbacks, 5 preemptions"),
    ],
)
def test_capacity_that_the_load_decided_is_told(counts: dict[str, int], words: str) -> None:
    (note,) = notes(metrics(**counts))
    assert note.startswith(f"capacity was decided under pressure: {words}; samples depend")


def test_preemption_of_full_kv_changes_no_sample_and_is_no_note() -> None:
    assert notes(metrics("fullkv", preempt_swap=5)) == []
    assert notes(metrics("a policy of another version", preempt_swap=5)) == []


def test_engine_errors_are_counted_with_their_reasons() -> None:
    record = metrics()
    record["shares"] |= {"num_engine_errors": 3, "engine_errors": {"not finite": 2, "lost": 1}}
    (note,) = notes(record)
    assert note == "3 requests ended with an engine error and count as wrong (not finite; lost)"


def test_failed_lenient_verdicts_are_counted() -> None:
    (note,) = notes(metrics(flags={"whole_output_failed": 4}))
    assert note == "4 answers lack the lenient verdict on their whole output"
