"""Results of a preset as JSON and as a Markdown table, whole again after each result. No torch."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from growpage.budget.base import EvictingPolicy
from growpage.budget.registry import POLICIES
from growpage.speed.presets import Preset, Row
from growpage.speed.roofline import Costs, DeviceRates, floor
from growpage.store.atomic import make_folder, write_bytes, write_json

SCHEMA_VERSION = 1
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

Record = dict[str, Any]


class Report:
    """Collects what the children write; `save` may be called at any time."""

    def __init__(self, preset: Preset, facts: Mapping[str, Any]) -> None:
        self._preset = preset
        self._facts = dict(facts)
        self.device: Record | None = None
        self.engines: dict[str, Record] = {}  # by row
        self.measured: list[Record] = []
        self.kernels: list[Record] = []
        self.missing: dict[str, str] = {}  # "row" or "row / workload" to the reason

    def take(self, record: Record) -> None:
        """One line of a child."""
        kind = record.pop("kind")
        if kind == "device":
            self.device = record
        elif kind == "engine":
            record["facts"] = _without_paths(record["facts"])
            self.engines[record.pop("row")] = record
        elif kind == "measured":
            self.measured.append(record)
        elif kind == "kernel":
            self.kernels.append(record)
        elif kind == "failed":
            self.lose(record["row"], record["workload"], record["reason"])

    def lose(self, row: str, workload: str | None, reason: str) -> None:
        self.missing[f"{row} / {workload}" if workload else row] = reason

    def has(self, row: str, workload: str) -> bool:
        return any(item["row"] == row and item["workload"] == workload for item in self.measured)

    def save(self, stem: Path) -> None:
        """Write STEM.json and STEM.md; neither is ever half written. Raises StoreError."""
        make_folder(stem.parent)
        summary = self.summary()
        write_json(stem.with_name(f"{stem.name}.json"), _rounded(summary))
        write_bytes(stem.with_name(f"{stem.name}.md"), self.markdown(summary).encode())

    def summary(self) -> Record:
        """Everything, with the medians of the repeats and the ratios."""
        return {
            "schema_version": SCHEMA_VERSION,
            "preset": self._preset.name,
            **self._facts,
            "workloads": [
                {
                    "name": workload.name,
                    "num_requests": workload.num_requests,
                    "num_output_tokens": workload.num_output_tokens,
                    "prompt_tokens": [workload.min_prompt_tokens, workload.max_prompt_tokens],
                }
                for workload in self._preset.workloads
            ],
            "kv_cache_gib": self._preset.kv_cache_gib or None,
            "num_pages": self._preset.num_pages,
            "device": self.device,
            "engines": self.engines,
            "missing": self.missing,
            "rows": self.rows(),
            "measured": self.measured,
            "kernels": self.kernels,
        }

    def rows(self) -> list[Record]:
        """One a row and workload, in the order of the preset: the median repeat, its floor and its ratios."""
        found = []
        for row, workload in self._preset.jobs():
            runs = [
                item
                for item in self.measured
                if item["row"] == row.name and item["workload"] == workload.name
            ]
            if runs:
                found.append(self._row(row, runs))
        for item in found:
            self._compare(item, found)
        return found

    def _row(self, row: Row, runs: Sequence[Record]) -> Record:
        speed = statistics.median_low([item["output_throughput"] or 0.0 for item in runs])
        chosen = next(item for item in runs if (item["output_throughput"] or 0.0) == speed)
        item = {"num_repeats": len(runs), "note": row.note, **chosen, "floor": None}
        if self.device is not None:
            rates = DeviceRates(
                copy_bytes_per_s=self.device["copy_bytes_per_s"],
                matmul_flops_per_s=self.device["matmul_flops_per_s"],
            )
            costs = Costs.of(self._preset.shape, DTYPE_BYTES[self._preset.dtype])
            least = floor(costs, rates, chosen, has_summaries=_has_summaries(row))
            if least is not None:
                item["floor"] = {
                    "bytes_ms": least.bytes_ms,
                    "flops_ms": least.flops_ms,
                    "share_of_step": least.ms / chosen["step_ms"],
                }
        return item

    def _compare(self, item: Record, found: Sequence[Record]) -> None:
        """Ratios against the baseline, and against the faster of our full-KV rows."""
        same = [other for other in found if other["workload"] == item["workload"]]
        own = [other for other in same if other["row"] in self._preset.own]
        best = max(own, key=lambda other: other["decode_throughput"] or 0.0, default=None)
        baseline = next((other for other in same if other["row"] == self._preset.baseline), None)
        for name, other in (("baseline", baseline), ("own_fullkv", best)):
            item[f"vs_{name}"] = None if other is None else _ratios(item, other)

    def markdown(self, summary: Record) -> str:
        lines = [f"# {self._preset.title}", "", *_provenance_lines(summary), ""]
        if self._preset.is_tiny:
            lines += [
                "**A tiny shape on a CPU: shows that the command works, measures nothing.**",
                "",
            ]
        if summary["rows"]:
            lines += ["## Speed", "", *_table(SPEED, summary["rows"]), ""]
            lines += ["## Capacity and memory", "", *_table(CAPACITY, summary["rows"]), ""]
            lines += _stage_lines(summary["rows"], self._preset.page_size)
            lines += [*self._legend(), ""]
        if self.kernels:
            lines += [*_table(KERNELS, self.kernels), "", *_KERNEL_LEGEND, ""]
        if self.missing:
            lines += ["## Not measured", ""]
            lines += [f"* {name}: {reason}" for name, reason in sorted(self.missing.items())]
            lines.append("")
        return "\n".join(lines)

    def _legend(self) -> list[str]:
        notes = [f"* {note}." for note in self._preset.notes]
        notes += [f"* {row.note}." for row in self._preset.rows if row.note]
        return [*notes, *_LEGEND]


_LEGEND = [
    "* × vLLM: output throughput over that of vLLM in this run, in brackets decode throughput; "
    "× own: the same over our faster full-KV row.",
    "* Definitions as in vLLM's benchmark (TTFT, TPOT, ITL); decode tok/s counts from the first "
    "decode step to the end; ms/step is that time over its steps.",
    "* floor: bytes (weights once, stored keys and values, summaries) over the measured copy "
    "bandwidth, or operations over the measured matmul rate, whichever is longer.",
    "* C: requests on the device, mean over steps. Capacity and retained: tokens of a request, "
    "mean over its decode steps.",
    "* — : not measured, or nothing to measure.",
]
_KERNEL_LEGEND = [
    "* floor: bytes that cannot be avoided over the measured copy bandwidth (both counted as read "
    "plus written).",
    "* Times are medians of CUDA graph replays over rotated data, but for what says host clock.",
]


def _without_paths(facts: Mapping[str, Any]) -> Record:
    """An engine's own record, without names of folders."""
    return {key: value for key, value in facts.items() if key not in ("model", "model_files")}


def _has_summaries(row: Row) -> bool:
    return row.engine == "growpage" and issubclass(POLICIES[row.policy], EvictingPolicy)


def _ratios(item: Record, other: Record) -> Record:
    names = ("output_throughput", "decode_throughput")
    return {name: _ratio(item[name], other[name]) for name in names}


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value and other else None


def _stage_lines(rows: Iterable[Record], page_size: int) -> list[str]:
    """Stages of the capacity events, where they were profiled, over the b steps from one to the next (b: page size)."""
    lines = []
    for item in rows:
        stages = item["stage_times"]
        if not stages or not item["step_ms"]:
            continue
        total = sum(stage["median_ms"] for stage in stages.values())
        parts = ", ".join(
            f"{name} {stage['median_ms']:.3f} ms ({stage['num_events']}×)"
            for name, stage in stages.items()
        )
        share = 100 * total / (page_size * item["step_ms"])
        lines.append(
            f"* {item['row']} {item['workload']}: {parts}; together {total:.3f} ms, "
            f"{share:.2f} % of {page_size} mean steps."
        )
    return ["## Capacity events, median by stage", "", *lines, ""] if lines else []


# -- Markdown ----------------------------------------------------------------------------------

Column = tuple[str, Callable[[Record], str]]


def _number(value: float | None, digits: int = 1) -> str:
    return "—" if value is None else f"{value:,.{digits}f}"


def _at(name: str, digits: int = 1, factor: float = 1.0) -> Callable[[Record], str]:
    """The value at a dotted name."""

    def show(record: Record) -> str:
        value: Any = record
        for part in name.split("."):
            value = None if value is None else value.get(part)
        return _number(None if value is None else factor * value, digits)

    return show


def _pair(
    first: Callable[[Record], str], second: Callable[[Record], str]
) -> Callable[[Record], str]:
    return lambda record: f"{first(record)} / {second(record)}"


def _versus(name: str) -> Callable[[Record], str]:
    output = _at(f"vs_{name}.output_throughput", 2)
    decode = _at(f"vs_{name}.decode_throughput", 2)
    return lambda record: f"{output(record)} ({decode(record)})"


def _floor_ms(record: Record) -> str:
    least = record.get("floor")
    return "—" if least is None else _number(max(least["bytes_ms"], least["flops_ms"]), 2)


def _kernel_rate(record: Record) -> str:
    if "bytes_per_s" in record:
        return f"{record['bytes_per_s'] / 1e9:,.0f} GB/s"
    if "flops_per_s" in record:
        return f"{record['flops_per_s'] / 1e12:,.0f} TFLOP/s"
    if "bytes" in record:
        return f"{record['bytes'] / record['ms'] / 1e6:,.0f} GB/s"
    return "—"


SPEED: list[Column] = [
    ("workload", lambda record: str(record["workload"])),
    ("row", lambda record: str(record["row"])),
    ("output tok/s", _at("output_throughput")),
    ("decode tok/s", _at("decode_throughput")),
    ("× vLLM", _versus("baseline")),
    ("× own", _versus("own_fullkv")),
    ("ms/step", _at("step_ms", 2)),
    ("floor ms", _floor_ms),
    ("floor, % of step", _at("floor.share_of_step", 0, 100.0)),
    ("TTFT ms, mean / p99", _pair(_at("ttft_ms.mean", 0), _at("ttft_ms.p99", 0))),
    ("TPOT ms, mean / p99", _pair(_at("tpot_ms.mean", 2), _at("tpot_ms.p99", 2))),
    ("ITL ms, mean / max", _pair(_at("itl_mean_ms", 2), _at("itl_max_ms", 0))),
]
CAPACITY: list[Column] = [
    ("workload", lambda record: str(record["workload"])),
    ("row", lambda record: str(record["row"])),
    ("C", _at("avg_resident_requests")),
    ("capacity", _at("avg_capacity_tokens", 0)),
    ("retained", _at("avg_resident_tokens", 0)),
    (
        "preemptions, swap / recompute",
        _pair(_at("counters.preempt_swap", 0), _at("counters.preempt_recompute", 0)),
    ),
    ("grow ratio %", _at("grow_ratio", 1, 100.0)),
    ("fallbacks, % of grow", _at("fallback_share", 1, 100.0)),
    (
        "decisions, grow / compress",
        _pair(_at("counters.grow", 0), _at("counters.compress", 0)),
    ),
    (
        "tokens a request",
        lambda record: _number(record["num_output_tokens"] / record["num_requests"], 0),
    ),
    ("peak GiB (torch)", _at("peak_allocated_gib")),
    ("card GiB in use", _at("device_used_gib")),
]
KERNELS: list[Column] = [
    ("kernel", lambda record: str(record["name"])),
    ("shape", lambda record: str(record.get("error") or record["shape"])),
    ("µs", _at("ms", 1, 1e3)),
    ("floor µs", _at("floor_ms", 1, 1e3)),
    ("rate", _kernel_rate),
    ("% of copy", _at("share_of_copy", 1, 100.0)),
    ("reference µs", _at("reference_ms", 1, 1e3)),
    ("% of reference", _at("share_of_reference", 1, 100.0)),
]


def _table(columns: Sequence[Column], records: Iterable[Record]) -> list[str]:
    lines = [
        "| " + " | ".join(name for name, _ in columns) + " |",
        "|" + "---|" * len(columns),
    ]
    lines += ["| " + " | ".join(show(record) for _, show in columns) + " |" for record in records]
    return lines


def _provenance_lines(summary: Record) -> list[str]:
    device = summary["device"] or {}
    gpus = ", ".join(
        f"{gpu['name']} ({gpu['memory']}, driver {gpu['driver']})" for gpu in summary["gpus"]
    )
    versions = ", ".join(f"{name} {version}" for name, version in summary["packages"].items())
    commit = summary["commit"] or "unknown"
    lines = [
        f"`{summary['command']}`, {summary['started']}, commit {commit}"
        f"{' with changes' if summary['is_dirty'] else ''}, seed {summary['seed']}.",
        f"Hardware: {gpus or summary['cpu']}. Versions: Python {summary['python']}, {versions}.",
    ]
    if summary["order"]:
        order = "; ".join(
            f"{engine}: {', '.join(jobs)}" for engine, jobs in summary["order"].items()
        )
        lines.append(f"Order (random): {order}.")
    if device:
        lines.append(
            f"Measured in this run: copy {device['copy_bytes_per_s'] / 1e12:.2f} TB/s (read plus written, "
            f"buffers of {device['copy_buffer_bytes'] / 2**30:.1f} GiB), matmul "
            f"{device['matmul_flops_per_s'] / 1e12:,.0f} TFLOP/s ({device['matmul_size']} cubed)."
        )
    if summary["kv_cache_gib"] and summary["num_pages"] is None:
        lines.append(f"KV pool of every engine: {summary['kv_cache_gib']:g} GiB.")
    return [f"{line}  " for line in lines]


def _rounded(value: Any) -> Any:
    """Six significant digits are more than a clock gives."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
