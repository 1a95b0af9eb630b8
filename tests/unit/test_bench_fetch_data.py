"""The script that stores checked local copies."""

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest

SHARED = os.environ.get("GROWPAGE_TEST_DATA")
needs_data = pytest.mark.skipif(SHARED is None, reason="GROWPAGE_TEST_DATA is not set")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "fetch_data.py"
    spec = importlib.util.spec_from_file_location("fetch_data", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_data
def test_copies_hold_the_known_content_and_read_back(script: ModuleType, tmp_path: Path) -> None:
    arguments = [str(tmp_path), "gsm8k", "aime24", "--from", str(SHARED)]
    assert script.main(arguments) == 0
    assert script.main([str(tmp_path / "again"), "gsm8k", "aime24", "--from", str(tmp_path)]) == 0
    sums = [(folder / "SHA256SUMS").read_text() for folder in (tmp_path, tmp_path / "again")]
    assert sums[0] == sums[1]
    assert len(sums[0].splitlines()) == 2


@needs_data
def test_other_content_is_refused_unless_it_is_accepted(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (Path(str(SHARED)) / "aime24.jsonl").read_text().splitlines()
    changed = json.loads(rows[11]) | {"answer": "384"}  # the wrong copy that goes around
    (tmp_path / "aime24.jsonl").write_text("\n".join([*rows[:11], json.dumps(changed), *rows[12:]]))
    arguments = [str(tmp_path / "out"), "aime24", "--from", str(tmp_path)]
    assert script.main(arguments) == 2
    message = capsys.readouterr().err
    assert "differ from those known here" in message
    assert not (tmp_path / "out" / "aime24.jsonl").exists()
    assert script.main([*arguments, "--accept", message.split()[-1]]) == 0


def test_missing_problems_and_unknown_names_are_refused(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "aime24.jsonl").write_text('{"question": "q", "answer": "1"}\n')
    assert script.main([str(tmp_path / "out"), "aime24", "--from", str(tmp_path)]) == 2
    assert "1 problems, not 30" in capsys.readouterr().err
    assert script.main([str(tmp_path / "out"), "aime"]) == 2
    assert "aime24" in capsys.readouterr().err


def test_problems_with_tests_read_back(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"id": "a", "kind": "stdin", "question": "q", "tests": [{"input": "1", "output": "2"}]},
        {
            "id": "b",
            "kind": "functional",
            "question": "q",
            "fn_name": "f",
            "inputs": [[1]],
            "outputs": [[2.5]],
        },
    ]
    (tmp_path / "livecodebench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setitem(script.KNOWN, "livecodebench", (2, None))
    assert script.main([str(tmp_path / "out"), "livecodebench", "--from", str(tmp_path)]) == 0
