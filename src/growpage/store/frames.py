"""Samples as a pandas frame: one row a sample with its last verdict, flat columns with units.

`FRAME_COLUMNS` is what metrics may rely on. Absent numbers are NaN; `is_correct` is None where
nothing has been graded or the grader itself failed.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from growpage.store.atomic import read_record, write_atomically
from growpage.store.errors import StoreError
from growpage.store.run_dir import RunDir
from growpage.store.samples import first_by_key, last_by_key, read_rows
from growpage.store.schema import SampleKey, SampleRow, VerdictRow
from growpage.store.shapes import METRICS_SHAPE

if TYPE_CHECKING:
    import pandas as pd


FRAME_COLUMNS = (
    "problem_id", "sample_index", "seed", "config_hash", "kind", "session",
    "prompt_hash", "num_prompt_tokens", "num_output_tokens", "token_ids", "text", "finish_reason",
    "reasoning_open", "error",
    "arrival_s", "queue_s", "ttft_s", "e2el_s", "max_itl_s", "finished_s",
    "avg_capacity_tokens", "avg_resident_tokens", "peak_capacity_tokens", "num_decode_steps",
    "num_cached_tokens",
    "grader", "grader_version", "grader_hash", "is_correct", "reason", "extracted", "rule", "flags",
)  # fmt: skip
COUNTER_PREFIX = "num_events_"


def read_samples(run: RunDir, config_hash: str | None = None) -> dict[SampleKey, SampleRow]:
    """The samples of a run by key. Raises StoreError for rows of another configuration."""
    rows = first_by_key(read_rows(run.samples, SampleRow))
    for key in rows:
        if config_hash is not None and key.config_hash != config_hash:
            raise StoreError(
                f"{run.samples} holds samples of configuration {key.config_hash}, "
                f"not {config_hash}. Move the directory away."
            )
    return rows


def read_verdicts(run: RunDir) -> dict[SampleKey, VerdictRow]:
    return last_by_key(read_rows(run.verdicts, VerdictRow))


def sample_record(sample: SampleRow, verdict: VerdictRow | None) -> dict[str, Any]:
    """One flat row with the columns of `FRAME_COLUMNS` and one `num_events_*` a counter."""
    times, capacity = sample.times, sample.capacity
    record: dict[str, Any] = {
        "problem_id": sample.problem_id,
        "sample_index": sample.sample_index,
        "seed": sample.seed,
        "config_hash": sample.config_hash,
        "kind": sample.kind,
        "session": sample.session,
        "prompt_hash": sample.prompt_hash,
        "num_prompt_tokens": sample.num_prompt_tokens,
        "num_output_tokens": len(sample.token_ids),
        "token_ids": list(sample.token_ids),
        "text": sample.text,
        "finish_reason": sample.finish_reason,
        "reasoning_open": sample.reasoning_open,
        "error": sample.error,
        "arrival_s": times.arrival_s,
        "queue_s": _since(times.arrival_s, times.first_scheduled_s),
        "ttft_s": _since(times.arrival_s, times.first_token_s),
        "e2el_s": _since(times.arrival_s, times.finished_s),
        "max_itl_s": times.max_itl_s,
        "finished_s": times.finished_s,
        "avg_capacity_tokens": capacity.avg_capacity_tokens,
        "avg_resident_tokens": capacity.avg_resident_tokens,
        "peak_capacity_tokens": capacity.peak_capacity_tokens,
        "num_decode_steps": capacity.num_decode_steps,
        "num_cached_tokens": capacity.num_cached_tokens,
        **_verdict_columns(verdict),
    }
    record.update({COUNTER_PREFIX + name: count for name, count in sample.counters.items()})
    return record


def build_frame(
    samples: Iterable[SampleRow], verdicts: Mapping[SampleKey, VerdictRow]
) -> "pd.DataFrame":
    """Rows ordered by problem and sample index."""
    import pandas as pd

    ordered = sorted(samples, key=lambda row: (row.problem_id, row.sample_index))
    records = [sample_record(row, verdicts.get(row.key)) for row in ordered]
    frame = pd.DataFrame.from_records(records, columns=None if records else list(FRAME_COLUMNS))
    floats = [name for name in frame.columns if name.endswith("_s") or name.startswith("avg_")]
    return frame.astype(dict.fromkeys(floats, "float64"))


def write_parquet(frame: "pd.DataFrame", path: Path) -> None:
    """Raises StoreError; never leaves half a file."""

    def write(temporary: Path) -> None:
        frame.to_parquet(temporary, index=False)

    write_atomically(path, write)


def read_run(run: RunDir) -> "pd.DataFrame":
    """The samples of one run: the parquet file of a complete run, else the lines so far.

    Raises StoreError for damaged files.
    """
    import pandas as pd

    if not run.is_complete:
        return build_frame(read_samples(run).values(), read_verdicts(run))
    try:
        return pd.read_parquet(run.parquet)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise StoreError(
            f"cannot read {run.parquet}: {reason} Remove it; the command of this run makes it anew "
            "from the samples."
        ) from error


def read_runs(runs: Iterable[RunDir]) -> "pd.DataFrame":
    """Several runs under each other, with the column `run` in front."""
    import pandas as pd

    frames = []
    for run in runs:
        frame = read_run(run)
        frame.insert(0, "run", run.name)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["run"])


def read_metrics(run: RunDir) -> dict[str, Any] | None:
    """`metrics.json`, or None before the run is complete. Raises StoreError for a damaged one."""
    way_out = "The command of this run writes it anew from the samples."
    metrics: dict[str, Any] | None = read_record(run.metrics, METRICS_SHAPE, way_out)
    return metrics


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else end - start


def _verdict_columns(verdict: VerdictRow | None) -> dict[str, Any]:
    if verdict is None:
        return {
            "grader": None, "grader_version": None, "grader_hash": None, "is_correct": None,
            "reason": None, "extracted": None, "rule": None, "flags": [],
        }  # fmt: skip
    is_graded = "grader_error" not in verdict.flags
    return {
        "grader": verdict.grader,
        "grader_version": verdict.grader_version,
        "grader_hash": verdict.grader_hash,
        "is_correct": verdict.correct if is_graded else None,
        "reason": verdict.reason,
        "extracted": verdict.extracted,
        "rule": verdict.rule,
        "flags": list(verdict.flags),
    }
