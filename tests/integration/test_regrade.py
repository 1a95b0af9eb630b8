"""`stage=grade run=RUN`: new verdicts on stored samples, also on those that an older version named otherwise."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_py(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "run.py"), *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    size = ("bench.limit=1", "sampling.max_tokens=8", "engine.device=cpu")
    done = run_py("bench=sequences", "policy=fullkv", *size, f"paths.runs={runs}")
    assert done.returncode == 0, done.stderr
    (run,) = runs.glob("fullkv-*")
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / made.name))


def test_another_grader_judges_the_stored_samples_and_the_changes_are_shown(run: Path) -> None:
    samples = (run / "samples.jsonl").read_bytes()
    again = run_py("stage=grade", f"run={run}")
    assert again.returncode == 0, again.stderr
    assert "no other grader has judged this run" in again.stdout
    other = run_py("stage=grade", f"run={run}", "grader=math", "grader.whole_output=false")
    assert other.returncode == 0, other.stderr
    assert "verdicts: 0 of 1 changed" in other.stdout
    verdicts = [json.loads(line) for line in (run / "verdicts.jsonl").read_text().splitlines()]
    assert [row["grader"] for row in verdicts] == ["sequences", "math"]
    assert (run / "samples.jsonl").read_bytes() == samples
    assert (run / "DONE").exists()


def test_changed_verdicts_are_listed(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "verdicts.jsonl").read_text().splitlines()]
    older = rows[0] | {"correct": True, "grader_version": "sequences-0"}
    (run / "verdicts.jsonl").write_text(json.dumps(older) + "\n")
    done = run_py("stage=grade", f"run={run}")
    assert done.returncode == 0, done.stderr
    assert "verdicts: 1 of 1 changed, 0 now right, 1 now wrong" in done.stdout
    assert "right" in done.stdout


def test_a_run_of_an_older_version_is_graded_where_it_lies(run: Path) -> None:
    old = run.with_name("fullkv-sequences-sequences_reasoner-00000000")
    run.rename(old)
    for name in ("samples.jsonl", "verdicts.jsonl", "provenance.json"):
        text = (old / name).read_text().replace(run.name[-8:], "00000000")
        (old / name).write_text(text)
    done = run_py("stage=grade", f"run={old}", "grader=math", "grader.whole_output=false")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in old.parent.iterdir()) == [old.name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stage=grade", "policy=fixed"], "policy=fixed: a stored run has its settings"),
        ([], "add stage=grade"),
        (["stage=grade", "grader=maths"], "grader=maths"),
        (["stage=grade", "grader.polcy=1"], "polcy"),
        (["stage=grade", "grader.timeout_s=-1"], "grader.timeout_s"),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(
    run: Path, arguments: list[str], message: str
) -> None:
    before = (run / "config.yaml").read_bytes()
    done = run_py(*arguments, f"run={run}")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert (run / "config.yaml").read_bytes() == before
    assert (run / "DONE").exists()
