"""Problems with several right outputs: any right one is right, a broken one wrong, a refusal right only if expected."""

import json
import os
from pathlib import Path

import pytest

from growpage.bench.livecodebench import CHECKERS
from growpage.grade.verifiers import VERIFIERS, is_right

SHARED = os.environ.get("GROWPAGE_TEST_DATA")
POTIONS = "9\n2 1\n1 1\n2 1\n1 2\n2 2\n1 3\n2 3\n1 1\n2 1"

CASES = [
    ("abc311_c", "7\n6 7 2 1 3 4 5", "4\n7 5 3 2", "4\n7 5 3 2", True),
    ("abc311_c", "7\n6 7 2 1 3 4 5", "3\n4 1 6", "4\n7 5 3 2", True),
    ("abc311_c", "7\n6 7 2 1 3 4 5", "4\n5 3 2 7", "4\n7 5 3 2", True),
    ("abc311_c", "7\n6 7 2 1 3 4 5", "4\n7 5 3 3", "4\n7 5 3 2", False),
    ("abc311_c", "7\n6 7 2 1 3 4 5", "3\n7 5 3 2", "4\n7 5 3 2", False),
    ("abc311_c", "2\n2 1", "4\n1 2 1 2", "2\n1 2", False),
    ("abc311_c", "2\n2 1", "0", "2\n1 2", False),
    ("abc315_e", "4\n2 2 3\n0\n0\n0", "2 3", "3 2", True),
    ("abc315_e", "4\n2 2 3\n1 3\n0\n0", "2 3", "3 2", False),
    ("abc315_e", "4\n2 2 3\n0\n0\n0", "2 3 4", "3 2", False),
    ("abc315_e", "4\n2 2 3\n0\n0\n0", "2 2", "3 2", False),
    ("abc326_d", "3\nABC\nABC", "Yes\nABC\nBCA\nCAB", "Yes\nABC\nBCA\nCAB", True),
    ("abc326_d", "3\nABC\nABC", "Yes\nABC\nBAC\nCAB", "Yes\nABC\nBCA\nCAB", False),
    ("abc326_d", "3\nABC\nABC", "No", "Yes\nABC\nBCA\nCAB", False),
    ("abc326_d", "3\nAAA\nBBB", "No", "No", True),
    ("abc333_e", "2\n1 1\n2 1", "1\n1", "1\n1", True),
    ("abc333_e", "3\n1 1\n1 1\n2 1", "1\n1 0", "1\n0 1", True),
    ("abc333_e", "3\n1 1\n1 1\n2 1", "1\n1 1", "1\n0 1", False),
    ("abc333_e", "3\n1 1\n1 1\n2 1", "1\n0 0", "1\n0 1", False),
    ("abc333_e", "3\n1 1\n1 1\n2 1", "1\n1", "1\n0 1", False),
    ("abc333_e", "1\n2 1", "-1", "-1", True),
    ("abc333_e", POTIONS, "1\n1 1 1 1", "-1", False),
    ("abc335_d", "3", "1 2 3\n8 T 4\n7 6 5", "1 2 3\n8 T 4\n7 6 5", True),
    ("abc335_d", "3", "3 4 5\n2 T 6\n1 8 7", "1 2 3\n8 T 4\n7 6 5", True),
    ("abc335_d", "3", "1 2 4\n8 T 3\n7 6 5", "1 2 3\n8 T 4\n7 6 5", False),
    ("abc335_d", "3", "1 2 3\n8 4 T\n7 6 5", "1 2 3\n8 T 4\n7 6 5", False),
    ("abc343_a", "2 5", "2", "2", True),
    ("abc343_a", "2 5", "9", "2", True),
    ("abc343_a", "2 5", "7", "2", False),
    ("abc343_a", "2 5", "10", "2", False),
    ("abc343_a", "2 5", "1 2", "2", False),
    ("abc343_e", "840 84 7", "Yes\n0 0 0 0 6 0 6 0 0", "Yes\n0 0 0 0 6 0 6 0 0", True),
    ("abc343_e", "840 84 7", "Yes\n1 1 1 1 7 1 7 1 1", "Yes\n0 0 0 0 6 0 6 0 0", True),
    ("abc343_e", "840 84 7", "Yes\n0 0 0 0 6 0 6 0 1", "Yes\n0 0 0 0 6 0 6 0 0", False),
    ("abc343_e", "840 84 7", "No", "Yes\n0 0 0 0 6 0 6 0 0", False),
    ("abc343_e", "343 34 3", "No", "No", True),
    ("abc343_a", "2 5", "9" * 10_000, "2", False),
    ("abc343_a", "2 5", "", "2", False),
]


@pytest.mark.parametrize(("name", "given", "written", "expected", "right"), CASES)
def test_any_right_output_is_right(
    name: str, given: str, written: str, expected: str, right: bool
) -> None:
    assert is_right(name, given, written, expected) is right


def test_every_problem_with_several_outputs_has_a_verifier() -> None:
    several = {name for name, checker in CHECKERS.items() if checker["kind"] == "several"}
    assert several == set(VERIFIERS)
    assert all(CHECKERS[name]["verifier"] == name for name in several)


@pytest.mark.skipif(SHARED is None, reason="GROWPAGE_TEST_DATA is not set")
def test_samples_of_the_statements_are_right() -> None:
    rows = map(json.loads, (Path(str(SHARED)) / "lcb_sample20.jsonl").read_text().splitlines())
    problem = next(row for row in rows if row["id"].endswith("abc335_d"))
    for test in problem["tests"]:
        assert is_right("abc335_d", test["input"], test["output"], test["output"])
