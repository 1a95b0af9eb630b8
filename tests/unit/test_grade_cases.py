"""The shared cases with known verdicts, and every gold of the data sets against itself."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from growpage.bench.base import Problem
from growpage.grade.base import Answer, Verdict
from growpage.grade.math import MathGrader

SHARED = os.environ.get("GROWPAGE_TEST_DATA")
DATA = Path(__file__).parent.parent / "data" / "grader_cases.jsonl"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


CASES = [case for case in rows(DATA) if case["task"] == "math"]


def answer_to(gold: str, text: str) -> Answer:
    return Answer(
        problem=Problem(id="p", question="q", answer=gold), text=text, finish_reason="stop"
    )


@pytest.fixture(scope="module")
def grader() -> Iterator[MathGrader]:
    grader = MathGrader(timeout_s=20.0)
    yield grader
    grader.close()


@pytest.fixture(scope="module")
def verdicts(grader: MathGrader) -> dict[str, Verdict]:
    graded = grader.grade([answer_to(case["gold"], case["prediction"]) for case in CASES])
    return {case["id"]: verdict for case, verdict in zip(CASES, graded, strict=True)}


def test_there_are_110_cases() -> None:
    assert len(CASES) == 110


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_shared_case_gets_its_verdict(case: dict[str, Any], verdicts: dict[str, Verdict]) -> None:
    verdict = verdicts[case["id"]]
    assert verdict.correct == case["expected"], (case["note"], verdict)
    assert "grader_error" not in verdict.flags


WRAPPINGS = {
    "boxed": "<think>So \\boxed{0}?</think>So the result is $\\boxed{%s}$.",
    "display": "$$\n\\boxed{ %s }\n$$",
    "prose": "The answer is $%s$.",
    "heading": "**Final Answer**\n\n%s",
}


@pytest.mark.skipif(SHARED is None, reason="GROWPAGE_TEST_DATA is not set")
@pytest.mark.parametrize("file", ["math500", "aime24", "amc23", "gsm8k_test"])
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_every_gold_answers_itself(grader: MathGrader, file: str, wrapping: str) -> None:
    golds = [row["answer"] for row in rows(Path(f"{SHARED}/{file}.jsonl"))]
    answers = [answer_to(gold, WRAPPINGS[wrapping] % gold) for gold in golds]
    graded = zip(golds, grader.grade(answers), strict=True)
    assert [gold for gold, verdict in graded if not verdict.correct] == []


@pytest.mark.skipif(SHARED is None, reason="GROWPAGE_TEST_DATA is not set")
def test_golds_of_math500_do_not_answer_each_other(grader: MathGrader) -> None:
    golds = sorted({row["answer"] for row in rows(Path(f"{SHARED}/math500.jsonl"))})
    odd = [gold for gold in golds if not gold.lstrip("-").isdigit()][::6]
    pairs = [(gold, other) for gold in odd for other in odd if gold != other]
    graded = grader.grade([answer_to(gold, f"\\boxed{{{other}}}") for gold, other in pairs])
    assert [pair for pair, verdict in zip(pairs, graded, strict=True) if verdict.correct] == []
