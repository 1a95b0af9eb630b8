"""The sample frame: the columns metrics rely on, and verdicts that say nothing stay absent."""

from pathlib import Path

import pandas as pd
import pytest

from growpage.store.errors import StoreError
from growpage.store.frames import (
    FRAME_COLUMNS,
    build_frame,
    read_metrics,
    read_runs,
    read_samples,
    write_parquet,
)
from growpage.store.run_dir import RunDir
from growpage.store.samples import AppendFile
from growpage.store.schema import SampleRow, SampleTimes, VerdictRow


def sample(problem_id: str, index: int = 0, *, is_timed: bool = True) -> SampleRow:
    times = SampleTimes(arrival_s=1.0)
    if is_timed:
        times = SampleTimes(arrival_s=1.0, first_scheduled_s=1.5, first_token_s=2.0, finished_s=4.0)
    return SampleRow(
        problem_id=problem_id,
        sample_index=index,
        seed=2**63 - 1 - index,
        config_hash="0badcafe",
        kind="",
        prompt_hash="beef",
        num_prompt_tokens=7,
        token_ids=(4, 2, 1),
        text="four",
        finish_reason="stop",
        times=times,
        counters={"grow": 2},
    )


def verdict(row: SampleRow, *flags: str) -> VerdictRow:
    return VerdictRow(
        problem_id=row.problem_id,
        sample_index=row.sample_index,
        seed=row.seed,
        config_hash=row.config_hash,
        grader="math",
        grader_version="1",
        grader_hash="12345678",
        correct=False,
        reason="compared",
        flags=flags,
    )


def test_frame_has_its_columns_also_when_empty() -> None:
    assert set(FRAME_COLUMNS) <= set(build_frame([sample("q1")], {}).columns)
    assert set(FRAME_COLUMNS) <= set(build_frame([], {}).columns)


def test_times_become_durations_and_absent_ones_stay_absent() -> None:
    frame = build_frame([sample("q1"), sample("q2", is_timed=False)], {})
    assert frame.loc[0, ["queue_s", "ttft_s", "e2el_s"]].tolist() == [0.5, 1.0, 3.0]
    assert frame.loc[1, ["queue_s", "ttft_s", "e2el_s"]].isna().all()


def test_failure_of_the_grader_is_neither_right_nor_wrong() -> None:
    rows = [sample("q1"), sample("q2"), sample("q3")]
    verdicts = {rows[0].key: verdict(rows[0]), rows[1].key: verdict(rows[1], "grader_error")}
    assert build_frame(rows, verdicts)["is_correct"].tolist() == [False, None, None]


def test_rows_are_ordered_by_problem_and_index_not_by_arrival() -> None:
    frame = build_frame([sample("b"), sample("a", 1), sample("a", 0)], {})
    found = list(zip(frame["problem_id"], frame["sample_index"], strict=True))
    assert found == [("a", 0), ("a", 1), ("b", 0)]


def test_parquet_keeps_seeds_tokens_and_flags(tmp_path: Path) -> None:
    row = sample("q1")
    write_parquet(build_frame([row], {row.key: verdict(row, "a", "b")}), tmp_path / "s.parquet")
    frame = pd.read_parquet(tmp_path / "s.parquet")
    assert frame.loc[0, "seed"] == 2**63 - 1
    assert list(frame.loc[0, "token_ids"]) == [4, 2, 1]
    assert list(frame.loc[0, "flags"]) == ["a", "b"]
    assert [item.name for item in tmp_path.iterdir()] == ["s.parquet"]


def test_several_runs_come_in_one_frame_complete_or_not(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with AppendFile(RunDir(tmp_path / name).samples) as file:
            file.append_rows(sample("q1"))
    frame = read_runs([RunDir(tmp_path / "one"), RunDir(tmp_path / "two")])
    assert frame["run"].tolist() == ["one", "two"]


def test_samples_of_another_configuration_are_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with AppendFile(run.samples) as file:
        file.append_rows(sample("q1"))
    with pytest.raises(StoreError, match="0badcafe, not 11111111"):
        read_samples(run, "11111111")


def test_metrics_of_another_schema_are_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert read_metrics(run) is None
    run.metrics.write_text('{"schema_version": 0}')
    with pytest.raises(StoreError, match="another schema"):
        read_metrics(run)
