"""Verdicts of the maths grader: flags, its own failures, workers only when they are needed."""

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from growpage.bench.base import Problem
from growpage.errors import UsageError
from growpage.grade import math as math_module
from growpage.grade.base import Answer, Verdict
from growpage.grade.math import MathGrader
from growpage.grade.policy import MathPolicy
from growpage.grade.registry import make_grader
from growpage.grade.worker import Outcome, Task


def answer_to(gold: str, text: str, **fields: Any) -> Answer:
    fields = {"finish_reason": "stop"} | fields
    return Answer(problem=Problem(id="p", question="q", answer=gold), text=text, **fields)


@pytest.fixture
def grader() -> Iterator[MathGrader]:
    grader = MathGrader(timeout_s=10.0)
    yield grader
    grader.close()


def grade(grader: MathGrader, gold: str, text: str, **fields: Any) -> Verdict:
    return grader.grade([answer_to(gold, text, **fields)])[0]


def test_right_answer_says_what_was_compared(grader: MathGrader) -> None:
    verdict = grade(grader, "5", "\\boxed{x = 5}")
    assert verdict.correct
    assert verdict.extracted == "x = 5"
    assert verdict.rule == "text"
    assert verdict.flags == ("variable_added",)


@pytest.mark.parametrize(
    ("text", "fields", "flags"),
    [
        ("no idea", {}, {"no_answer"}),
        ("<think>\\boxed{5}", {"finish_reason": "length"}, {"no_answer", "truncated"}),
        ("5 \\boxed{5", {"finish_reason": "length"}, {"no_answer", "truncated"}),
        ("<think>\\boxed{5}</think> done", {}, {"no_answer", "answer_in_reasoning_only"}),
        ("so \\boxed{5}", {"reasoning_open": True}, {"no_answer", "answer_in_reasoning_only"}),
        ("\\boxed{\\foo}", {}, {"parser_error"}),
        ("\\boxed{5}", {"finish_reason": "abort"}, {"no_answer"}),
        ("\\boxed{5}", {"finish_reason": "error"}, {"no_answer"}),
    ],
)
def test_wrong_verdicts_are_flagged(
    grader: MathGrader, text: str, fields: dict[str, Any], flags: set[str]
) -> None:
    verdict = grade(grader, "5", text, **fields)
    assert not verdict.correct
    assert flags <= set(verdict.flags)


def test_closed_box_before_the_cut_counts_and_is_flagged(grader: MathGrader) -> None:
    verdict = grade(grader, "5", "\\boxed{5} because", finish_reason="length")
    assert verdict.correct
    assert verdict.flags == ("truncated",)


def test_policy_can_refuse_truncated_and_accept_reasoning() -> None:
    grader = MathGrader(policy=MathPolicy(accept_truncated=False, accept_answer_in_reasoning=True))
    assert not grade(grader, "5", "\\boxed{5} because", finish_reason="length").correct
    verdict = grade(grader, "5", "<think>\\boxed{5}</think> done")
    assert verdict.correct
    assert "answer_in_reasoning_only" in verdict.flags


def test_easy_answers_start_no_worker(grader: MathGrader) -> None:
    texts = [
        "\\boxed{5}",
        "\\boxed{6}",
        "none",
        "\\boxed{5 \\text{ cm}}",
        "\\boxed{2^{10}}",
        "\\boxed{\\foo}",
    ]
    grader.grade([answer_to("5", text) for text in texts])
    assert grader._pool.pids() == []


def test_irrational_answers_are_decided_by_a_worker(grader: MathGrader) -> None:
    answers = [
        answer_to("3\\sqrt{13}", "\\boxed{\\sqrt{117}}"),
        answer_to("3\\sqrt{13}", "\\boxed{\\sqrt{118}}"),
        answer_to("\\cot x", "\\boxed{\\frac{\\cos x}{\\sin x}}"),
    ]
    verdicts = grader.grade(answers)
    assert [verdict.correct for verdict in verdicts] == [True, False, True]
    assert {verdict.rule for verdict in verdicts} == {"numeric"}


def test_grading_works_in_a_thread(grader: MathGrader) -> None:
    verdicts: list[Verdict] = []
    work = lambda: verdicts.append(grade(grader, "3\\sqrt{13}", "\\boxed{\\sqrt{117}}"))  # noqa: E731
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60.0)
    assert verdicts[0].correct


def test_same_outputs_get_the_same_verdicts_again(grader: MathGrader) -> None:
    texts = ["\\boxed{\\sqrt{8}}", "\\boxed{2\\sqrt2}", "\\boxed{2.83}", "no", "\\boxed{2\\sqrt{2"]
    answers = [answer_to("2\\sqrt{2}", text) for text in texts]
    assert grader.grade(answers) == grader.grade(answers[::-1])[::-1]


class StubbornPool:
    """Outcomes from a list; remembers how many tasks each call had."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[int] = []

    def run(self, tasks: Sequence[Task]) -> list[Outcome]:
        self.calls.append(len(tasks))
        return [self.outcomes.pop(0) for _ in tasks]

    def close(self) -> None:
        pass


DONE = {"equal": True, "rule": "numeric", "reason": "equal", "flags": []}


def with_pool(*outcomes: Outcome) -> tuple[MathGrader, StubbornPool]:
    grader, pool = MathGrader(), StubbornPool(*outcomes)
    grader._pool = pool  # type: ignore[assignment]
    return grader, pool


def test_crash_is_tried_once_more_alone() -> None:
    grader, pool = with_pool(
        Outcome(status="done", result=DONE),
        Outcome(status="crash"),
        Outcome(status="done", result=DONE),
    )
    answers = [answer_to("\\sqrt{8}", "\\boxed{2\\sqrt{2}}")] * 2
    assert all(verdict.correct for verdict in grader.grade(answers))
    assert pool.calls == [2, 1]


def test_own_failure_is_never_wrong_but_a_grader_error() -> None:
    grader, _ = with_pool(
        Outcome(status="crash", detail="exit status -11"), Outcome(status="crash")
    )
    verdict = grade(grader, "\\sqrt{8}", "\\boxed{2\\sqrt{2}}")
    assert verdict.rule == "grader_error"
    assert verdict.flags == ("grader_error",)


def test_second_timeout_is_wrong_and_flagged() -> None:
    grader, pool = with_pool(Outcome(status="timeout"), Outcome(status="timeout"))
    verdict = grade(grader, "\\sqrt{8}", "\\boxed{2\\sqrt{2}}")
    assert (verdict.correct, verdict.flags) == (False, ("timeout",))
    assert verdict.reason.startswith("too_large")
    assert pool.calls == [1, 1]


def test_exception_in_the_grader_becomes_a_verdict(
    grader: MathGrader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(math_module, "compare", broken)
    verdicts = grader.grade([answer_to("5", "\\boxed{5}"), answer_to("5", "nothing")])
    assert verdicts[0].flags == ("grader_error",)
    assert "a bug of ours" in verdicts[0].reason
    assert verdicts[1].flags == ("no_answer",)


def test_broken_pool_becomes_verdicts(grader: MathGrader) -> None:
    class BrokenPool(StubbornPool):
        def run(self, tasks: Sequence[Task]) -> list[Outcome]:
            raise RuntimeError("no pool")

    grader._pool = BrokenPool()  # type: ignore[assignment]
    grader._whole_output = True
    verdict, easy = grader.grade(
        [answer_to("\\sqrt{8}", "\\boxed{2\\sqrt{2}}"), answer_to("5", "\\boxed{5}")]
    )
    assert "grader_error" in verdict.flags
    assert easy.correct


def test_whole_output_is_a_second_number_that_changes_no_verdict() -> None:
    grader = MathGrader(whole_output=True)
    try:
        strict, cut, wrong = grader.grade(
            [
                answer_to("5", "\\boxed{5}"),
                answer_to("73", "70+3 = 73", finish_reason="length"),
                answer_to("5", "\\boxed{6}"),
            ]
        )
    finally:
        grader.close()
    assert strict.correct
    assert "whole_output_right" in strict.flags
    assert not cut.correct
    assert "whole_output_right" in cut.flags
    assert "whole_output_wrong" in wrong.flags


def test_hang_in_the_whole_output_harms_no_verdict() -> None:
    grader = MathGrader(whole_output=True, timeout_s=2.0)
    texts = ["$\\boxed{9^{9^{9^9}}-5}$", "\\boxed{5}"]
    try:
        hangs, other = grader.grade([answer_to("5", text) for text in texts])
    finally:
        grader.close()
    assert not hangs.correct
    assert hangs.reason.startswith("too_large")
    assert hangs.flags == ("whole_output_failed",)
    assert other.correct
    assert other.flags == ("whole_output_right",)


def test_failure_of_the_second_number_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    grader = MathGrader(whole_output=True)

    def fail(tasks: object) -> None:
        raise OverflowError("cannot convert float infinity to integer")

    monkeypatch.setattr(grader._pool, "run", fail)
    (verdict,) = grader.grade([answer_to("4", "\\boxed{4}")])
    assert (verdict.correct, verdict.flags) == (True, ("whole_output_failed",))


def test_thousand_adversarial_gradings_leave_no_process() -> None:
    grader = MathGrader(timeout_s=5.0, num_workers=2)
    pieces = ["9^{9^9}", "\\sqrt{2", "\\frac{1}{0}", "\\text{a", "(1,", "\\sqrt{117}", "-", "!"]
    texts = [f"\\boxed{{{pieces[n % 8] * (n % 7 + 1)}{pieces[n // 8 % 8]}}}" for n in range(1000)]
    verdicts = grader.grade([answer_to("3\\sqrt{13}", text) for text in texts])
    pids = grader._pool.pids()
    grader.close()
    assert not any("grader_error" in verdict.flags for verdict in verdicts)
    for pid in pids:
        done = subprocess.run(["kill", "-0", str(pid)], capture_output=True, check=False)
        assert done.returncode != 0


def test_registry_builds_the_grader_and_lists_the_known_ones() -> None:
    config = SimpleNamespace(
        timeout_s=5.0, memory_gib=1.0, num_workers=1, whole_output=False, policy=MathPolicy()
    )
    assert make_grader("math", config).version == MathGrader().version
    assert make_grader("sequences", config).version.startswith("sequences")
    with pytest.raises(UsageError, match=r"grader\.name=maths: unknown.*Did you mean math"):
        make_grader("maths", config)
    with pytest.raises(UsageError, match=r"grader\.timeout_s=0"):
        make_grader("math", SimpleNamespace(**{**vars(config), "timeout_s": 0.0}))
    config.policy = MathPolicy(accept_marks=False)
    assert make_grader("math", config).version == MathGrader(policy=config.policy).version


def test_version_names_the_policy() -> None:
    strict = MathGrader(policy=MathPolicy(accept_marks=False))
    assert strict.version != MathGrader().version
    assert MathPolicy().sha8() in MathGrader().version


def test_import_brings_neither_torch_nor_sympy() -> None:
    code = (
        "import sys, growpage.grade.registry;"
        "print([m for m in ('torch', 'sympy', 'hydra', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
