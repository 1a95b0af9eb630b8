"""`scripts/check_graders.py`: the shared cases pass, a missed one ends with 1, and what is no case is named by line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASE = {"id": "a", "task": "math", "prediction": "\\boxed{5}", "gold": "5", "expected": True}


def check(path: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "scripts" / "check_graders.py"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_shared_cases_are_all_met() -> None:
    done = check(ROOT / "tests" / "data" / "grader_cases.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "math: 110 of 110 cases" in done.stdout
    assert "code: 30 of 30 cases" in done.stdout


def test_a_missed_case_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(CASE | {"gold": "6"}) + "\n")
    done = check(path)
    assert done.returncode == 1
    assert "missed a: expected right" in done.stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", "line 1: no case (KeyError: 'task')"),
        ("", "no cases"),
        ('{"task": "x"}', "neither math nor code"),
    ],
)
def test_what_is_no_case_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(line)
    done = check(path)
    assert done.returncode == 2
    assert message in done.stderr
