"""LiveCodeBench: both file formats, prompts, and what a malformed problem says."""

import base64
import json
import os
import pickle
import sys
import zlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from growpage.bench.base import ProblemSet
from growpage.bench.livecodebench import CHECKERS, ROLE, LiveCodeBench
from growpage.bench.registry import make_benchmark
from growpage.errors import UsageError
from growpage.grade.base import Answer
from growpage.grade.code import CodeGrader

SHARED = os.environ.get("GROWPAGE_TEST_DATA")

OWN = {
    "id": "lcb_v1/abc314_e",
    "kind": "stdin",
    "question": "Add.",
    "tests": [{"input": "1 2\n", "output": "3\n"}],
    "difficulty": "easy",
}
FUNCTION = {
    "id": "lcb_v1/3194",
    "kind": "functional",
    "question": "Double.",
    "starter_code": "class Solution:\n    def f(self, x):",
    "fn_name": "f",
    "inputs": [[1], [2.5]],
    "outputs": [2, 5.0],
}
HUB = {
    "question_id": "2886",
    "question_content": "Join.",
    "starter_code": "class Solution:\n    def f(self, a, b):",
    "difficulty": "hard",
    "metadata": '{"func_name": "f"}',
    "public_test_cases": json.dumps(
        [{"input": '"a"\n["b"]', "output": '"ab"', "testtype": "functional"}]
    ),
    "private_test_cases": json.dumps(
        [{"input": '"c"\n[]', "output": '"c"', "testtype": "functional"}]
    ),
}


def spec(**changes: Any) -> Any:
    values = dict.fromkeys(
        ("hub_id", "hub_config", "split", "revision", "path", "num_problems_expected")
    )
    named = {"name": "livecodebench", "family": "livecodebench", "prompt_role": "user"}
    return SimpleNamespace(**(values | named | {"instruction": ""} | changes))


def load(tmp_path: Path, *rows: dict[str, Any]) -> ProblemSet:
    path = tmp_path / "lcb.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return make_benchmark(spec(path=str(path))).load()


def test_both_formats_give_the_same_kind_of_problem(tmp_path: Path) -> None:
    stdin, function, hub = load(tmp_path, OWN, FUNCTION, HUB).problems
    assert (stdin.kind, hub.kind) == ("easy", "hard")
    assert stdin.metadata["tests"] == [{"input": "1 2\n", "output": "3\n"}]
    assert function.metadata["tests"][1] == {"input": [2.5], "output": 5.0}
    assert hub.metadata["tests"] == [
        {"input": ["a", ["b"]], "output": "ab"},
        {"input": ["c", []], "output": "c"},
    ]
    assert (hub.metadata["kind"], hub.metadata["fn_name"]) == ("functional", "f")


def test_packed_hidden_tests_are_read_and_other_pickles_refused(tmp_path: Path) -> None:
    def packed(value: Any) -> dict[str, Any]:
        content = base64.b64encode(zlib.compress(pickle.dumps(value))).decode()
        return HUB | {"private_test_cases": content}

    problem = load(tmp_path, packed(HUB["private_test_cases"])).problems[0]
    assert len(problem.metadata["tests"]) == 2
    with pytest.raises(UsageError, match="names posix"):
        load(tmp_path, packed(os.getcwd))


def test_problems_that_need_care_are_marked(tmp_path: Path) -> None:
    stdin, function = load(tmp_path, OWN, FUNCTION).problems
    assert stdin.metadata["checker"] == {"kind": "tolerance", "absolute": 1e-5, "relative": 1e-5}
    assert function.metadata["checker"] == {"kind": "any_order"}
    assert len(CHECKERS) == 19


def test_hash_changes_with_the_tests(tmp_path: Path) -> None:
    before = load(tmp_path, OWN).sha256
    other = OWN | {"tests": [{"input": "1 2\n", "output": "4\n"}]}
    assert load(tmp_path, other).sha256 != before


def test_prompt_is_the_generic_chat_form(tmp_path: Path) -> None:
    stdin, function = load(tmp_path, OWN, FUNCTION).problems
    benchmark = LiveCodeBench(spec())
    (message,) = benchmark.messages(stdin)
    assert message["role"] == "user"
    assert message["content"] == (
        f"{ROLE}\n\n### Question:\nAdd.\n\n### Format: Read the inputs from stdin solve the problem and write the "
        "answer to stdout (do not directly test on the sample inputs). Enclose your code within delimiters as "
        "follows.\n```python\n# YOUR CODE HERE\n```\n\n### Answer: (use the provided format with backticks)\n\n"
    )
    system, user = LiveCodeBench(spec(prompt_role="system")).messages(function)
    assert (system["role"], system["content"]) == ("system", ROLE)
    assert "following starter code" in user["content"]
    assert "```python\nclass Solution:\n    def f(self, x):\n```" in user["content"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (OWN | {"tests": []}, "line 1: has no tests"),
        (OWN | {"kind": "shell"}, "must be stdin or functional"),
        (OWN | {"question": " "}, "empty question"),
        (OWN | {"tests": [{"input": 1, "output": "3"}]}, "must be text"),
        (FUNCTION | {"fn_name": ""}, "need the name"),
        (FUNCTION | {"inputs": [1, 2]}, "list of arguments"),
        (FUNCTION | {"outputs": [1]}, "line 1: "),
        ({"id": "x", "question": "q"}, "no column 'kind'"),
        (HUB | {"private_test_cases": "{}"}, "line 1: "),
        (HUB | {"public_test_cases": "[1]"}, "line 1: "),
    ],
)
def test_malformed_problem_is_refused_by_line(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load(tmp_path, row)
    assert "lcb.jsonl, line 1" in str(caught.value)


def test_repeated_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line 2: id 'lcb_v1/abc314_e' was used before"):
        load(tmp_path, OWN, OWN)


class HubTable(list[dict[str, Any]]):
    """Rows with the attributes of `datasets.Dataset` that are read."""

    column_names = tuple(HUB)
    info = SimpleNamespace(download_checksums={"hf://datasets/x/y@" + "0a" * 20 + "/f": {}})


def test_hub_rows_are_counted_and_their_commit_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("datasets")
    module.load_dataset = lambda *_, **__: HubTable([HUB, HUB | {"question_id": "2"}])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    found = make_benchmark(spec(num_problems_expected=2)).load()
    assert [problem.id for problem in found.problems] == ["2886", "2"]
    assert found.source == "hub:livecodebench/code_generation/test@" + "0a" * 20
    with pytest.raises(UsageError, match=r"num_problems_expected=400: .* holds 2 problems"):
        make_benchmark(spec()).load()


@pytest.mark.skipif(SHARED is None, reason="GROWPAGE_TEST_DATA is not set")
def test_sample_of_twenty_is_an_upper_bound_and_says_so() -> None:
    found = make_benchmark(spec(path=f"{SHARED}/lcb_sample20.jsonl")).load()
    assert len(found.problems) == 20
    assert "public tests only" in found.source
    assert [problem.metadata["kind"] for problem in found.problems].count("stdin") == 10


SOLUTIONS = {
    "lcb_v1/abc327_b": "b = int(input())\nprint(next((a for a in range(1, 17) if a ** a == b), -1))",
    "lcb_v1/abc329_b": "n = input()\na = list(map(int, input().split()))\nprint(max(x for x in a if x < max(a)))",
    "lcb_v1/2917": (
        "class Solution:\n    def countPairs(self, nums: List[int], target: int) -> int:\n"
        "        return sum(a + b < target for a, b in combinations(nums, 2))"
    ),
    "lcb_v1/3347": (
        "class Solution:\n    def resultArray(self, nums: List[int]) -> List[int]:\n"
        "        a, b = [nums[0]], [nums[1]]\n        for x in nums[2:]:\n"
        "            (a if a[-1] > b[-1] else b).append(x)\n        return a + b"
    ),
}


@pytest.mark.skipif(SHARED is None, reason="GROWPAGE_TEST_DATA is not set")
def test_right_and_wrong_programs_of_real_problems() -> None:
    problems = {
        problem.id: problem
        for problem in make_benchmark(spec(path=f"{SHARED}/lcb_sample20.jsonl")).load().problems
    }
    grader = CodeGrader()
    for name, program in SOLUTIONS.items():
        texts = [f"```python\n{code}\n```" for code in (program, f"{program}\n1/0")]
        answers = [
            Answer(problem=problems[name], text=text, finish_reason="stop") for text in texts
        ]
        right, broken = grader.grade(answers)
        assert right.correct, (name, right)
        assert "public_tests_only" in right.flags
        assert not broken.correct
    grader.close()
