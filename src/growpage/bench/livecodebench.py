"""LiveCodeBench v1: 400 problems of LeetCode, AtCoder and Codeforces, May 2023 to March 2024, with their tests.

From the hub (`livecodebench/code_generation`, about 9 GB with the hidden tests) or from a local file of JSON lines in
the hub's columns or in those of docs/graders.md §7.
"""

import base64
import hashlib
import io
import json
import pickle
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from growpage.bench.base import Problem, ProblemSet
from growpage.bench.hub import HubSource, check_revision, read_hub_records
from growpage.bench.jsonl import read_objects
from growpage.bench.problems import problem_set
from growpage.bench.spec import BenchmarkSpec
from growpage.errors import UsageError

# The generic chat form of LiveCodeBench/LiveCodeBench, lcb_runner/prompts/code_generation.py.
ROLE = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will "
    "generate a correct Python program that matches the specification and passes all tests. You will NOT "
    "return anything except for the program."
)
_WITH_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your code "
    "within delimiters."
)
_WITH_STDIN = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on "
    "the sample inputs). Enclose your code within delimiters as follows."
)

# Problems of v1 whose tests cannot be judged by equality alone (LiveCodeBench's ERRATA.md and the statements).
_SEVERAL = "abc311_c abc315_e abc326_d abc333_e abc335_d abc343_a abc343_e"
CHECKERS: dict[str, dict[str, Any]] = {
    **{name: {"kind": "several", "verifier": name} for name in _SEVERAL.split()},
    **{name: {"kind": "any_order"} for name in ("3194", "3221", "3234")},
    **{
        name: {"kind": "tolerance", "absolute": error, "relative": error}
        for name, error in (("abc314_e", 1e-5), ("abc315_f", 1e-5), ("abc327_e", 1e-6), ("abc324_f", 1e-9))
    },
    "abc319_c": {"kind": "tolerance", "absolute": 1e-8, "relative": 0.0},
    **{name: {"kind": "case"} for name in ("1873_A", "1883_B")},
    "abc337_e": {"kind": "interactive"},
    "3308": {"kind": "broken"},
}  # fmt: skip

_COLUMNS = ("question_id", "question_content", "starter_code", "public_test_cases")
_HIDDEN = "private_test_cases"

_MALFORMED = (ValueError, TypeError, AttributeError, RecursionError, EOFError)

Test = dict[str, Any]


class LiveCodeBench:
    """Each problem's metadata holds its kind (stdin or functional), tests, checker and starter code."""

    HUB: ClassVar[HubSource] = HubSource(
        hub_id="livecodebench/code_generation", split="test", num_problems=400
    )

    def __init__(self, spec: BenchmarkSpec) -> None:
        check_revision(spec.revision)
        self._spec = spec

    def load(self) -> ProblemSet:
        """All problems. Raises `UsageError` for missing or malformed data, or a wrong count."""
        objects: Iterable[tuple[str, dict[str, Any]]]
        if self._spec.path is not None:
            objects, source = read_objects(self._spec.path), f"file:{self._spec.path}"
        else:
            objects, source = self._from_hub()
        placed = [(place, problem_of(record, place)) for place, record in objects]
        _check_ids(placed)
        problems = [problem for _, problem in placed]
        if all(problem.metadata["public_tests_only"] for problem in problems):
            source += ", public tests only: an upper bound, not LiveCodeBench"
        return problem_set(self._spec.name, problems, source)

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """The role sentence before the question, in the user turn or as the system's."""
        role = self._spec.instruction or ROLE
        user = _user_turn(problem.question, problem.metadata["starter_code"])
        if self._spec.prompt_role == "system":
            return [{"role": "system", "content": role}, {"role": "user", "content": user}]
        return [{"role": "user", "content": f"{role}\n\n{user}"}]

    def hub_source(self) -> HubSource:
        spec, own = self._spec, self.HUB
        return HubSource(
            hub_id=spec.hub_id or own.hub_id,
            hub_config=spec.hub_config,
            split=spec.split or own.split,
            revision=spec.revision,
            num_problems=spec.num_problems_expected or own.num_problems,
        )

    def _from_hub(self) -> tuple[Iterator[tuple[str, dict[str, Any]]], str]:
        """Row by row, since the tests are gigabytes of text."""
        hub = self.hub_source()
        num_rows, records, commit = read_hub_records(hub, (*_COLUMNS, _HIDDEN))
        if hub.num_problems is not None and num_rows != hub.num_problems:
            raise UsageError(
                f"bench.num_problems_expected={hub.num_problems}: {hub} holds {num_rows} problems. Pin "
                "another bench.revision, or state the number you expect."
            )
        places = (f"{hub}, row {number}" for number in range(num_rows))
        return zip(places, records, strict=True), f"{hub}@{commit}"


def problem_of(record: dict[str, Any], place: str) -> Problem:
    """A problem from the hub's columns or from ours. Raises `UsageError` that names the place."""
    try:
        facts = _of_hub(record) if "question_content" in record else _of_file(record)
        if not facts["tests"]:
            raise ValueError("has no tests")
        if facts["kind"] == "functional" and not facts["fn_name"]:
            raise ValueError("functional tests need the name of the function")
        identity, question = str(facts.pop("id")), str(facts.pop("question"))
        if not question.strip():
            raise ValueError("has an empty question")
    except KeyError as error:
        raise UsageError(
            f"{place}: no column {error}. A problem of LiveCodeBench needs id, question, kind and tests "
            "(or fn_name, inputs and outputs), or the columns of livecodebench/code_generation."
        ) from None
    except (*_MALFORMED, zlib.error, pickle.UnpicklingError) as error:
        raise UsageError(f"{place}: {error}. Mend this problem or remove the line.") from None
    facts["checker"] = CHECKERS.get(identity.rpartition("/")[2], {})
    content = json.dumps([facts["kind"], facts["fn_name"], facts["tests"]], sort_keys=True)
    return Problem(
        id=identity,
        question=question,
        answer=f"tests:sha256:{hashlib.sha256(content.encode()).hexdigest()}",
        kind=str(facts.pop("difficulty")),
        metadata=facts,
    )


def _of_file(record: dict[str, Any]) -> dict[str, Any]:
    kind = record["kind"]
    if kind == "functional":
        inputs, outputs = record["inputs"], record["outputs"]
        tests = [_function_test(*pair) for pair in zip(inputs, outputs, strict=True)]
    elif kind == "stdin":
        tests = [_text_test(test["input"], test["output"]) for test in record["tests"]]
    else:
        raise ValueError(f"kind={kind!r} must be stdin or functional")
    return {
        "id": record["id"],
        "question": record["question"],
        "kind": kind,
        "fn_name": record.get("fn_name", ""),
        "tests": tests,
        "starter_code": record.get("starter_code") or "",
        "difficulty": record.get("difficulty") or "",
        "public_tests_only": "hidden tests NOT available" in record.get("tests_scope", ""),
    }


def _of_hub(record: dict[str, Any]) -> dict[str, Any]:
    hidden = _hidden_tests(record.get(_HIDDEN) or "[]")
    rows = [*json.loads(record["public_test_cases"]), *hidden]
    kinds = {row["testtype"] for row in rows}
    if len(kinds) > 1:
        raise ValueError(f"mixes tests of {' and '.join(sorted(kinds))}")
    is_function = kinds == {"functional"}
    make = _hub_function_test if is_function else _text_test
    return {
        "id": record["question_id"],
        "question": record["question_content"],
        "kind": "functional" if is_function else "stdin",
        "fn_name": json.loads(record.get("metadata") or "{}").get("func_name") or "",
        "tests": [make(row["input"], row["output"]) for row in rows],
        "starter_code": record["starter_code"] or "",
        "difficulty": record.get("difficulty") or "",
        "public_tests_only": not hidden,
    }


def _text_test(given: object, expected: object) -> Test:
    if not (isinstance(given, str) and isinstance(expected, str)):
        raise ValueError("input and output of a stdin test must be text")
    return {"input": given, "output": expected}


def _function_test(given: object, expected: object) -> Test:
    if not isinstance(given, list):
        raise ValueError("inputs of a function must be a list of arguments")
    return {"input": given, "output": expected}


def _hub_function_test(given: str, expected: str) -> Test:
    """One JSON value a line is one argument."""
    return {
        "input": [json.loads(line) for line in given.split("\n")],
        "output": json.loads(expected),
    }


def _hidden_tests(stored: str) -> list[Test]:
    """JSON, or in the lite editions a compressed pickle of the JSON's text, of which only text is taken."""
    if stored.lstrip().startswith("["):
        tests = json.loads(stored)
    else:
        packed = zlib.decompress(base64.b64decode(stored))
        tests = json.loads(_OnlyText(io.BytesIO(packed)).load())
    if not isinstance(tests, list):
        raise ValueError(f"{_HIDDEN} is no list")
    return tests


class _OnlyText(pickle.Unpickler):
    """A pickle may name any function to be called; a text needs none."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"{_HIDDEN} names {module_name}.{global_name}")


def _check_ids(placed: list[tuple[str, Problem]]) -> None:
    seen: dict[str, str] = {}
    for place, problem in placed:
        if problem.id in seen:
            raise UsageError(
                f"{place}: id '{problem.id}' was used before ({seen[problem.id]}). Give each problem its "
                "own id, or remove the repeated line."
            )
        seen[problem.id] = place


def _user_turn(question: str, starter_code: str) -> str:
    if starter_code:
        form = f"### Format: {_WITH_STARTER}\n```python\n{starter_code}\n```\n\n"
    else:
        form = f"### Format: {_WITH_STDIN}\n```python\n# YOUR CODE HERE\n```\n\n"
    answer = "### Answer: (use the provided format with backticks)\n\n"
    return f"### Question:\n{question}\n\n{form}{answer}"
