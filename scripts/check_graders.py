"""Grades cases with known verdicts: `python scripts/check_graders.py CASES.jsonl`. Ends with 1 when one is missed.

A case has `task` (math or code), `expected`, an `id` and a `note`; of maths `prediction` and `gold`; of code `program`
and `tests`, or `fn_name`, `inputs` and `outputs`, with `time_limit_s` and `memory_mb` where it needs its own limits.
Programs run in the sandbox only.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from growpage.bench.base import Problem
from growpage.errors import UsageError
from growpage.grade.base import Answer, Grader, Verdict
from growpage.grade.code import CodeGrader
from growpage.grade.math import MathGrader

Case = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("cases", type=Path, help="a file of JSON lines")
    parser.add_argument("--workers", type=int, default=1, help="graders at work at the same time")
    options = parser.parse_args(arguments)
    try:
        cases = read_cases(options.cases)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    missed = 0
    for task, grader in _graders(cases, options.workers).items():
        of_task = [case for case in cases if case["task"] == task]
        missed += _check(task, of_task, grader)
        grader.close()
    return 1 if missed else 0


def read_cases(path: Path) -> list[Case]:
    """Raises `UsageError` with the line of what is no case."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}).") from error
    cases = []
    for number, line in enumerate(lines, start=1):
        try:
            case = json.loads(line)
            answer_of(case)
            assert isinstance(case["expected"], bool)
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise UsageError(
                f"{path}, line {number}: no case ({type(error).__name__}: {error})."
            ) from error
        cases.append(case)
    if not cases:
        raise UsageError(f"{path}: no cases in this file.")
    return cases


def answer_of(case: Case) -> Answer:
    """The output and the problem of a case. Raises KeyError and ValueError for anything else."""
    if case["task"] == "math":
        problem = Problem(id=case["id"], question="", answer=case["gold"])
        return Answer(problem=problem, text=case["prediction"], finish_reason="stop")
    if case["task"] != "code":
        raise ValueError(f"task={case['task']!r} is neither math nor code")
    facts = {name: case[name] for name in ("time_limit_s", "memory_mb", "fn_name") if name in case}
    if "fn_name" in case:
        pairs = zip(case["inputs"], case["outputs"], strict=True)
        tests = [{"input": given, "output": expected} for given, expected in pairs]
        facts |= {"kind": "functional", "tests": tests}
    else:
        facts |= {"kind": "stdin", "tests": case["tests"]}
    problem = Problem(id=case["id"], question="", answer="", metadata=facts)
    text = f"````python\n{case['program']}\n````"
    return Answer(problem=problem, text=text, finish_reason="stop")


def _graders(cases: Sequence[Case], num_workers: int) -> dict[str, Grader]:
    tasks = {case["task"] for case in cases}
    graders: dict[str, Grader] = {}
    if "math" in tasks:
        graders["math"] = MathGrader(num_workers=num_workers, timeout_s=20.0)
    if "code" in tasks:
        graders["code"] = CodeGrader(num_workers=num_workers)
    return graders


def _check(task: str, cases: Sequence[Case], grader: Grader) -> int:
    """Print what was missed and a line of numbers; returns how many."""
    canary = Path(tempfile.gettempdir()) / "GRADER_CANARY"
    canary.touch()
    started = time.perf_counter()
    verdicts = grader.grade([answer_of(case) for case in cases])
    seconds = time.perf_counter() - started
    missed = [pair for pair in zip(cases, verdicts, strict=True) if not _is_met(*pair)]
    for case, verdict in missed:
        expected = "right" if case["expected"] else "wrong"
        print(f"missed {case['id']}: expected {expected}, got {verdict} ({case.get('note', '')})")
    if not canary.exists():
        print("missed: a program deleted a file outside its folder")
    is_there = canary.exists()
    canary.unlink(missing_ok=True)
    rules = ", ".join(f"{name} {count}" for name, count in _rules(verdicts).most_common())
    print(
        f"{task}: {len(cases) - len(missed)} of {len(cases)} cases, {seconds:.1f} s, "
        f"{len(cases) / seconds:.0f} a second, {grader.version}; {rules}"
    )
    return len(missed) + (not is_there)


def _is_met(case: Case, verdict: Verdict) -> bool:
    has_no_tests = case["task"] == "code" and not case.get("tests", True)
    is_ungraded = "grader_error" in verdict.flags
    return verdict.correct is case["expected"] and is_ungraded is has_no_tests


def _rules(verdicts: Sequence[Verdict]) -> Counter[str]:
    return Counter(verdict.rule or "none" for verdict in verdicts)


if __name__ == "__main__":
    sys.exit(main())
