"""Numbers of the engine benchmark: floors, ratios, medians, and tables that are whole at any time."""

import json
from pathlib import Path
from typing import Any

import pytest

from growpage.speed.presets import PRESETS, QWEN3_8B, Preset, Row, Workload
from growpage.speed.report import Report
from growpage.speed.roofline import Costs, DeviceRates, floor

RATES = DeviceRates(copy_bytes_per_s=4e12, matmul_flops_per_s=7e14)
WORKLOAD = Workload(
    name="w", num_requests=2, num_output_tokens=10, min_prompt_tokens=3, max_prompt_tokens=5
)
PRESET = Preset(
    name="test",
    title="A test",
    workloads=(WORKLOAD,),
    rows=(
        Row(name="vllm", engine="vllm"),
        Row(name="fullkv_recompute"),
        Row(name="fullkv_swap"),
        Row(name="growpage", policy="growpage", note="its own decisions"),
    ),
    kv_cache_gib=6.0,
)
FACTS = {
    "command": "bench", "started": "now", "commit": "abc", "is_dirty": False, "python": "3.11",
    "packages": {}, "gpus": [], "cpu": "a CPU", "num_cores": 2, "seed": 0, "order": {},
}  # fmt: skip


def measured(row: str, output: float, decode: float, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "measured", "row": row, "workload": "w", "repeat": 0, "output_throughput": output,
        "decode_throughput": decode, "num_decode_steps": 10, "num_decode_output_tokens": 1000,
        "num_prompt_tokens": 0, "kv_token_steps": 400_000.0, "step_ms": 10.0, "num_requests": 2,
        "num_output_tokens": 20, "counters": {"grow": 0}, "stage_times": {}, **changes,
    }  # fmt: skip


def report(*records: dict[str, Any]) -> Report:
    made = Report(PRESET, FACTS)
    device = {
        "name": "a card", "copy_bytes_per_s": RATES.copy_bytes_per_s, "copy_buffer_bytes": 2**32,
        "matmul_flops_per_s": RATES.matmul_flops_per_s, "matmul_size": 8192,
    }  # fmt: skip
    made.take({"kind": "device", **device})
    for record in records:
        made.take(record)
    return made


def test_costs_are_those_of_the_shape() -> None:
    costs = Costs.of(QWEN3_8B, 2)
    assert costs.weight_bytes == 2 * (36 * (4096 * 10240 + 3 * 4096 * 12288) + 4096 * 151936)
    assert costs.kv_bytes_per_token == 147456
    assert costs.summary_bytes_per_row == 2 * 2 * 36 * 4096 * 4


def test_a_step_reads_the_weights_once_and_every_stored_token() -> None:
    costs = Costs.of(QWEN3_8B, 2)
    found = floor(costs, RATES, measured("a", 1, 1), has_summaries=False)
    assert found is not None
    moved = costs.weight_bytes + 147456 * (40_000 + 100)
    assert found.bytes_ms == pytest.approx(1e3 * moved / 4e12)
    flops = 100 * costs.flops_per_token + 40_000 * 4 * 36 * 4096
    assert found.flops_ms == pytest.approx(1e3 * flops / 7e14)
    with_summaries = floor(costs, RATES, measured("a", 1, 1), has_summaries=True)
    assert with_summaries is not None
    assert with_summaries.bytes_ms > found.bytes_ms
    none = measured("a", 1, 1, num_decode_steps=0)
    assert floor(costs, RATES, none, has_summaries=False) is None


def test_ratios_are_against_vllm_and_the_faster_full_kv_of_ours() -> None:
    rows = report(
        measured("growpage", 300.0, 360.0),
        measured("vllm", 200.0, 210.0),
        measured("fullkv_swap", 150.0, 180.0),
        measured("fullkv_recompute", 160.0, 170.0),
    ).rows()
    assert [row["row"] for row in rows] == [row.name for row in PRESET.rows]
    grown = rows[-1]
    assert grown["vs_baseline"] == {"output_throughput": 1.5, "decode_throughput": 360 / 210}
    assert grown["vs_own_fullkv"] == {"output_throughput": 2.0, "decode_throughput": 2.0}
    assert grown["floor"]["share_of_step"] == pytest.approx(
        max(grown["floor"]["bytes_ms"], grown["floor"]["flops_ms"]) / 10
    )


def test_without_vllm_there_is_no_ratio_and_its_absence_is_named() -> None:
    made = report(measured("growpage", 300.0, 360.0))
    made.lose("vllm", None, "vLLM is not installed")
    (row,) = made.rows()
    assert row["vs_baseline"] is None
    assert row["vs_own_fullkv"] is None
    text = made.markdown(made.summary())
    assert "* vllm: vLLM is not installed" in text


def test_of_repeats_the_median_counts() -> None:
    (row,) = report(
        *(measured("vllm", speed, speed, repeat=i) for i, speed in enumerate((90.0, 200.0, 100.0)))
    ).rows()
    assert (row["output_throughput"], row["num_repeats"]) == (100.0, 3)


def test_the_cost_of_an_event_is_told_over_the_steps_of_a_page() -> None:
    stages = {"demand": {"num_events": 7, "mean_ms": 3.0, "median_ms": 2.56}}
    made = report(measured("growpage", 1.0, 1.0, stage_times=stages))
    assert "demand 2.560 ms (7×); together 2.560 ms, 0.10 %" in made.markdown(made.summary())


def test_the_files_are_whole_after_each_result(tmp_path: Path) -> None:
    made = report(measured("vllm", 200.0, 210.0))
    made.save(tmp_path / "deep" / "out")
    facts = {"model": "/a/place", "model_files": {}, "device": "cuda"}
    made.take({"kind": "engine", "row": "vllm", "start_s": 1.0, "facts": facts})
    made.save(tmp_path / "deep" / "out")
    stored = json.loads((tmp_path / "deep" / "out.json").read_text())
    assert stored["engines"]["vllm"]["facts"] == {"device": "cuda"}
    assert [row["row"] for row in stored["rows"]] == ["vllm"]
    text = (tmp_path / "deep" / "out.md").read_text()
    assert "| w | vllm | 200.0 | 210.0 | 1.00 (1.00) |" in text
    assert "KV pool of every engine: 6 GiB." in text
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["out.json", "out.md"]


def test_a_name_keeps_what_stands_behind_its_dot(tmp_path: Path) -> None:
    report(measured("vllm", 200.0, 210.0)).save(tmp_path / "vllm-0.23")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["vllm-0.23.json", "vllm-0.23.md"]


def test_prompts_are_the_same_for_every_engine_and_new_for_every_repeat() -> None:
    first = WORKLOAD.prompts(100, "0/0")
    assert first == WORKLOAD.prompts(100, "0/0") != WORKLOAD.prompts(100, "0/1")
    assert all(3 <= len(prompt) <= 5 and max(prompt) < 100 for prompt in first)


@pytest.mark.parametrize("name", ["vs_vllm", "pressure", "pressure_long"])
def test_presets_are_those_of_the_comparison(name: str) -> None:
    preset = PRESETS[name]
    assert {row.engine for row in preset.rows} == {"growpage", "vllm"}
    rows = {row.name: row for row in preset.rows}
    assert rows["fullkv_recompute"].settings["preempt_mode"] == "recompute"
    if name != "vs_vllm":
        assert rows["random_30.9"].policy_settings == {
            "initial_pages": 8, "compress_probability": 0.691, "evaluate_demand": True
        }  # fmt: skip
        assert "dummy weights" in rows["random_30.9"].note
