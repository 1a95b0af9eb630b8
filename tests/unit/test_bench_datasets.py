"""Data sets: golds, errors that name file and line, and the hub with a stand-in for `datasets`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from growpage.bench.base import ProblemSet
from growpage.bench.math_datasets import Aime24, Amc23, Gsm8k, Math500
from growpage.bench.registry import BENCHMARKS, make_benchmark
from growpage.errors import UsageError

SHARED = os.environ.get("GROWPAGE_TEST_DATA")


def spec(family: str = "math500", **changes: Any) -> SimpleNamespace:
    values = {
        "name": family,
        "family": family,
        "hub_id": None,
        "hub_config": None,
        "split": None,
        "revision": None,
        "path": None,
        "num_problems_expected": None,
        "prompt_role": "user",
        "instruction": "",
        "seed": 0,
        "gsm8k_thinking": None,
    }
    return SimpleNamespace(**(values | changes))


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def load(family: str, path: str) -> ProblemSet:
    return make_benchmark(spec(family, path=path)).load()


def load_text(tmp_path: Path, text: str | bytes, family: str = "math500") -> ProblemSet:
    path = tmp_path / "questions.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load(family, str(path))


def answer_of(tmp_path: Path, family: str, answer: object) -> str:
    path = write(tmp_path / "one.jsonl", {"question": "q", "answer": answer})
    return load(family, path).problems[0].answer


@pytest.mark.parametrize(
    ("family", "raw", "gold"),
    [
        ("aime24", "025", "25"),
        ("aime24", "000", "0"),
        ("aime24", 73, "73"),
        ("amc23", 27.0, "27"),
        ("amc23", "-1.0", "-1"),
        ("gsm8k", "so 4 + 4 = 8 #### no\n#### 8", "8"),
        ("gsm8k", "it is\n#### 2,125", "2125"),
        ("gsm8k", "#### -10", "-10"),
        ("gsm8k", "18", "18"),
        ("math500", "-2,1", "-2,1"),
        ("math500", "11,\\! 111,\\! 111,\\! 100", "11,\\! 111,\\! 111,\\! 100"),
    ],
)
def test_gold_is_normalised(tmp_path: Path, family: str, raw: object, gold: str) -> None:
    assert answer_of(tmp_path, family, raw) == gold


@pytest.mark.parametrize(
    ("family", "raw"),
    [("aime24", "1024"), ("aime24", "-5"), ("amc23", "27.5"), ("gsm8k", "#### eight")],
)
def test_gold_of_another_kind_is_refused(tmp_path: Path, family: str, raw: str) -> None:
    with pytest.raises(UsageError, match=r"one\.jsonl, line 1: answer=.*must be"):
        answer_of(tmp_path, family, raw)


def test_ids_come_from_the_file_or_from_the_position(tmp_path: Path) -> None:
    rows = [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2", "id": 60}]
    problems = load("math500", write(tmp_path / "f.jsonl", *rows)).problems
    assert [problem.id for problem in problems] == ["math500/0000", "60"]


def test_hash_changes_with_question_answer_id_and_order(tmp_path: Path) -> None:
    one = {"id": "1", "question": "a", "answer": "1"}
    two = {"id": "2", "question": "b", "answer": "2"}
    sets = [[one, two], [two, one]] + [[one | {key: "9"}, two] for key in one]
    hashes = {load("math500", write(tmp_path / "f.jsonl", *rows)).sha256 for rows in sets}
    assert len(hashes) == len(sets)
    again = load("math500", write(tmp_path / "g.jsonl", one, two))
    assert again.sha256 == load("math500", write(tmp_path / "f.jsonl", one, two)).sha256


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no questions in this file"),
        ("\n \n", "no questions in this file"),
        ('{"question": "a", "answer": "1"}\n{"question": "b"', "line 2: not valid JSON"),
        ('["a", "1"]', "line 1: a JSON list, not an object"),
        ("27", "line 1: a JSON text or number, not an object"),
        ('{"question": "\\ud800", "answer": "1"}', "line 1: 'question' has half of a UTF-16 pair"),
        ('{"question": "a", "answer": "1", "id": "\\udc00"}', "line 1: 'id' has half of a UTF"),
        ('{"problem": "a", "answer": "1"}', r"no column 'question' \(found: problem, answer\)"),
        ('{"question": "a", "answr": "1"}', "Did you mean answr"),
        ('{"question": "a", "answer": null}', "'answer' is null, but must be a text"),
        ('{"question": "a", "answer": true}', "'answer' is true"),
        ('{"question": " ", "answer": "1"}', "'question' is empty"),
        ('{"question": "a", "answer": "1", "generation": "x"}', "column 'generation'"),
        (
            '{"question": "a", "answer": "1", "id": "x"}\n\n'
            '{"question": "b", "answer": "2", "id": "x"}',
            r"line 3: id 'x' was used before \(.*line 1\)",
        ),
        (
            b'{"question": "a", "answer": "1"}\n{"question": "\xe9", "answer": "1"}',
            "line 2: not UTF",
        ),
        ("[" * 100_000, "line 1: not valid JSON"),
    ],
)
def test_malformed_file_is_refused_by_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_text(tmp_path, text)
    assert "questions.jsonl" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load("gsm8k", str(tmp_path / "absent.jsonl"))
    with pytest.raises(UsageError, match="cannot be read"):
        load("gsm8k", str(tmp_path))


def test_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    text = b'\xef\xbb\xbf{"question": "a", "answer": "1"}\r\n{"question": "b", "answer": "2"}\r\n'
    assert len(load_text(tmp_path, text).problems) == 2


def test_line_separator_inside_a_question_does_not_split_the_line(tmp_path: Path) -> None:
    text = '{"question": "a\u2028b", "answer": "1"}\n'
    assert load_text(tmp_path, text).problems[0].question == "a\u2028b"


def test_unknown_family_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"bench\.family=gsm8: unknown.*Did you mean gsm8k"):
        make_benchmark(spec("gsm8"))


@pytest.mark.parametrize("revision", ["main", "6e4ed1a", "v1.0"])
def test_branch_names_are_refused_as_revision(revision: str) -> None:
    with pytest.raises(UsageError, match=r"bench\.revision=.*40 hex digits"):
        make_benchmark(spec(revision=revision))


@pytest.mark.parametrize("family", [Gsm8k, Math500, Amc23, Aime24])
def test_every_hub_family_is_pinned_and_counted(family: type[Gsm8k]) -> None:
    hub = family(spec()).hub_source()
    assert hub.revision is not None
    assert hub.num_problems is not None


def test_settings_of_the_family_do_not_leak_into_another_data_set() -> None:
    hub = Gsm8k(spec("gsm8k", hub_id="someone/copy")).hub_source()
    assert (hub.hub_config, hub.split, hub.revision, hub.num_problems) == (None, "test", None, None)


class HubTable(list[dict[str, Any]]):
    """Rows with the three attributes of `datasets.Dataset` that are read."""

    def __init__(self, rows: list[dict[str, Any]], address: str | None = None) -> None:
        super().__init__(rows)
        self.column_names = list(rows[0])
        self.info = SimpleNamespace(download_checksums={address: {}} if address else None)


def stand_in(monkeypatch: pytest.MonkeyPatch, result: object) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def load_dataset(*args: Any, **kwargs: Any) -> object:
        calls.append((*args, kwargs["split"], kwargs["revision"]))
        if isinstance(result, Exception):
            raise result
        return result

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_hub_rows_become_problems_at_the_pinned_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": n, "problem": f"q{n}", "answer": f"{n:03d}"} for n in range(30)]
    calls = stand_in(monkeypatch, HubTable(rows))
    problems = make_benchmark(spec("aime24")).load()
    assert calls == [("HuggingFaceH4/aime_2024", None, "train", Aime24.HUB.revision)]
    assert problems.problems[25].answer == "25"
    assert problems.source == f"hub:HuggingFaceH4/aime_2024/train@{Aime24.HUB.revision}"


def test_newest_hub_copy_is_recorded_by_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    table = HubTable([{"question": "a", "answer": "1"}], f"hf://datasets/x/y@{commit}/t.parquet")
    stand_in(monkeypatch, table)
    assert make_benchmark(spec(hub_id="x/y")).load().source == f"hub:x/y/test@{commit}"


def test_wrong_count_on_the_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, HubTable([{"question": "a", "answer": "1"}]))
    with pytest.raises(UsageError, match=r"num_problems_expected=40: .*holds 1 problems"):
        make_benchmark(spec("amc23")).load()


def test_missing_hub_column_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, HubTable([{"text": "a", "answer": "1"}]))
    with pytest.raises(UsageError, match="needs columns question/problem and answer, has text"):
        make_benchmark(spec("amc23")).load()


@pytest.mark.parametrize("error", [ConnectionError("Couldn't reach it\nmore"), ValueError("bad")])
def test_unreachable_hub_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    stand_in(monkeypatch, error)
    with pytest.raises(UsageError, match=r"bench\.hub_id=openai/gsm8k: .*bench\.path=FILE") as seen:
        make_benchmark(spec("gsm8k")).load()
    assert "\n" not in str(seen.value)


def test_question_and_instruction_make_one_user_turn() -> None:
    benchmark = make_benchmark(spec("arithmetic"))
    problem = benchmark.load().problems[0]
    (message,) = benchmark.messages(problem)
    assert message["role"] == "user"
    assert message["content"] == (
        problem.question
        + "\nPlease reason step by step, and put your final answer within \\boxed{}."
    )


def test_instruction_can_stand_in_the_system_turn() -> None:
    benchmark = make_benchmark(spec("math500", prompt_role="system", instruction="Be brief."))
    problem = make_benchmark(spec("arithmetic")).load().problems[0]
    system, user = benchmark.messages(problem)
    assert system == {"role": "system", "content": "Be brief."}
    assert user == {"role": "user", "content": problem.question}


def test_import_brings_neither_torch_nor_datasets() -> None:
    code = (
        "import sys, growpage.bench.registry;"
        "print([m for m in ('torch', 'datasets', 'hydra', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(SHARED is None, reason="GROWPAGE_TEST_DATA is not set")
@pytest.mark.parametrize(
    ("family", "file", "count"),
    [
        ("gsm8k", "gsm8k_test", 1319),
        ("math500", "math500", 500),
        ("amc23", "amc23", 40),
        ("aime24", "aime24", 30),
    ],
)
def test_whole_data_set_loads_from_a_file(family: str, file: str, count: int) -> None:
    problems = load(family, f"{SHARED}/{file}.jsonl").problems
    assert len(problems) == count
    assert family in BENCHMARKS
