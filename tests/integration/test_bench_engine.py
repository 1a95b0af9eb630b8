"""scripts/bench_engine.py from its command line, on a tiny shape: children, files, limits, mistakes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from growpage.speed import command
from growpage.speed.command import main, parse
from growpage.speed.spec import Spec

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench_engine.py"


def bench(out: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments, "--tiny", f"--out={out}"],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def stored(out: Path) -> dict[str, Any]:
    content = json.loads(out.with_suffix(".json").read_text())
    assert isinstance(content, dict)
    return content


def test_memory_pressure_runs_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "pressure"
    done = bench(out, "preset=pressure", "seed=3")
    assert done.returncode == 0, done.stdout + done.stderr
    result = stored(out)
    rows = {row["row"]: row for row in result["rows"]}
    assert set(rows) == {"fullkv_recompute", "fullkv_swap", "fixed", "growpage", "random_30.9"}
    for row in rows.values():
        assert row["finish_reasons"] == ["length"]
        assert row["num_output_tokens"] == 4 * 24
        assert row["decode_throughput"] > 0
        assert row["floor"]["bytes_ms"] > 0
        assert row["num_decode_steps"] >= 23
        assert 0 < row["avg_resident_requests"] <= 4
    assert rows["fullkv_recompute"]["counters"]["preempt_recompute"] > 0
    assert rows["fullkv_swap"]["counters"]["preempt_swap"] > 0
    assert rows["fixed"]["avg_capacity_tokens"] < rows["fullkv_swap"]["avg_capacity_tokens"]
    assert 0 < rows["random_30.9"]["grow_ratio"] < 1
    assert result["missing"] == {"vllm": "our engine only, on a CPU"}
    assert len(result["order"]["growpage"]) == 5
    assert str(tmp_path) not in out.with_suffix(".json").read_text()


def test_the_same_seed_gives_the_same_order(tmp_path: Path) -> None:
    orders = []
    for seed in (1, 1, 2):
        options = parse(["preset=vs_vllm", "--tiny", f"seed={seed}", f"out={tmp_path}"])
        orders.append(command._Bench(options, [])._children)
    assert orders[0] == orders[1] != orders[2]


def test_the_death_of_a_child_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(command, "Spec", _broken_device)
    assert main(["preset=nano", "rows=fullkv_swap", "--tiny", f"--out={out}"]) == 1
    result = stored(out)
    assert "the process ended with 1: " in result["missing"]["device"]
    assert [row["row"] for row in result["rows"]] == ["fullkv_swap"]
    assert result["rows"][0]["floor"] is None


def _broken_device(**settings: Any) -> Spec:
    is_device = settings["engine"] == "device"
    return Spec(**{**settings, "preset": "none" if is_device else settings["preset"]})


def test_a_row_that_fails_leaves_the_next_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = bench(out, "preset=pressure", "rows=fixed,fullkv_swap", "engine.num_pages=3")
    assert done.returncode == 1
    result = stored(out)
    assert {"fixed", "fullkv_swap"} & {name.split(" ")[0] for name in result["missing"]}
    assert "UsageError" in out.with_suffix(".md").read_text()


def test_nothing_starts_after_the_time_limit(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = bench(out, "preset=nano", "rows=fullkv_swap", "time-limit=0")
    assert done.returncode == 1
    assert stored(out)["missing"]["fullkv_swap / 128x1536"] == "no time left"


def test_kernels_are_measured_one_by_one(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    out = tmp_path / "kernels"
    done = bench(out, "preset=kernels", "only=KV store,SwiGLU")
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = {item["name"]: item for item in stored(out)["kernels"]}
    assert set(kernels) == {"copy", "KV store", "SwiGLU"}
    assert kernels["SwiGLU"]["floor_ms"] > 0
    assert "error" not in kernels["KV store"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("preset=presure", "preset=presure pressure?"),
        ("preset=pressure rows=fixd", "rows=fixd fixed?"),
        ("preset=pressure engine.max_num_seq=3", "engine setting=max_num_seq max_num_seqs?"),
        ("preset=pressure repeats=0", "repeats=0 >= 1"),
        ("preset=kernels only=decode", "only=decode Known:"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    line = capsys.readouterr().err
    assert len(line.strip().splitlines()) == 1
    assert all(word in line for word in words.split())


def test_results_that_cannot_be_written_end_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["preset=pressure", "--tiny", f"out={tmp_path / 'file' / 'out'}"]) == 1
    assert capsys.readouterr().err.startswith("error: cannot write")
