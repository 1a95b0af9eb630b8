"""The committed study: what its tables say follows from the committed samples, and two errors have one line."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from growpage.errors import UsageError
from growpage.paper.points import read_points
from growpage.paper.stored import StoredRun, export, read_stored
from growpage.paper.study import budget_distribution, minimum_budget, ranking, write_study
from growpage.places import CHECKOUT

assert CHECKOUT is not None
PAPER = CHECKOUT / "results" / "paper"


@pytest.fixture(scope="module")
def runs() -> list[StoredRun]:
    return read_stored(Path(), [str(PAPER / "data" / "study.parquet")])


def test_committed_tables_follow_from_the_committed_samples(
    runs: list[StoredRun], tmp_path: Path
) -> None:
    written = write_study(runs, tmp_path)
    tables = [path for path in written if path.suffix in (".md", ".csv")]
    assert len(tables) == 10
    for path in tables:
        assert path.read_text() == (PAPER / "study" / path.name).read_text(), path.name


def test_figures_are_the_same_bytes_each_time(runs: list[StoredRun], tmp_path: Path) -> None:
    first, again = write_study(runs, tmp_path / "a"), write_study(runs, tmp_path / "b")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in again]


def test_accuracy_of_a_point_is_that_of_its_samples(runs: list[StoredRun]) -> None:
    by_name = {run.name: run for run in runs}
    for point in read_points(runs):
        frame = by_name[point.run].frame
        assert point.accuracy == pytest.approx(frame["is_correct"].mean())
        assert point.capacity_tokens == pytest.approx(frame["avg_capacity_tokens"].mean())
        assert point.low <= point.accuracy <= point.high + 1e-9


def test_labels_tell_runs_apart(runs: list[StoredRun]) -> None:
    labels = [point.label for point in read_points(runs)]
    assert len(set(labels)) == len(labels)
    assert {"fullkv", "growpage", "growpage tau -0.003", "fixed 64", "random seed 2"} <= set(labels)


def _samples(rows: list[tuple[str, int, str, bool]]) -> pd.DataFrame:
    names = ("policy", "budget", "problem_id", "is_correct")
    frame = pd.DataFrame([dict(zip(names, row, strict=True)) for row in rows])
    frame["kind"] = "walk"
    return frame


def test_a_minimum_budget_is_one_from_which_on_all_succeed() -> None:
    solved = {"a": (True, True, True), "b": (True, False, True), "c": (False, False, False)}
    rows = [
        ("fixed", budget, problem, success)
        for problem, successes in solved.items()
        for budget, success in zip((64, 128, 256), successes, strict=True)
    ]
    least = minimum_budget(_samples(rows))
    assert least["a"] == 64
    assert least["b"] == 256  # it fails at 128 after it has succeeded at 64 by luck
    assert pd.isna(least["c"])
    table = budget_distribution(_samples(rows)).set_index("B*, tokens")
    assert table["all"].to_dict() == {"64": 1, "256": 1, "unsolved": 1}


def test_seeds_of_a_policy_are_pooled_by_question(runs: list[StoredRun]) -> None:
    samples = pd.concat(
        [
            run.frame.assign(
                run=run.name,
                row=run.settings["policy.name"],
                policy=run.settings["policy.name"],
            )
            for run in runs
            if run.settings["policy.name"] == "random" or run.name == _default(runs).name
        ]
    )
    table = ranking(samples).set_index("policy")
    assert table.loc["random", "runs"] == 3
    assert table.loc["growpage", "pass@1 − growpage, points"] == ""


def _default(runs: list[StoredRun]) -> StoredRun:
    return next(run for run in runs if run.settings["policy.name"] == "growpage")


def test_an_export_comes_back_as_it_went(runs: list[StoredRun], tmp_path: Path) -> None:
    export(runs[:2], tmp_path / "two.parquet")
    again = read_stored(Path(), [str(tmp_path / "two.parquet")])
    assert [run.name for run in again] == [run.name for run in runs[:2]]
    assert again[0].metrics == runs[0].metrics
    pd.testing.assert_frame_equal(again[1].frame, runs[1].frame)


def test_another_suffix_and_a_strange_file_are_refused(
    runs: list[StoredRun], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"must end with \.parquet"):
        export(runs[:1], tmp_path / "runs.csv")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(UsageError, match="not made by"):
        read_stored(Path(), [str(tmp_path / "other.parquet")])


def test_runs_over_other_questions_share_no_figure(runs: list[StoredRun]) -> None:
    metrics = {**(runs[1].metrics or {}), "bench_sha256": "0" * 64}
    with pytest.raises(UsageError, match="differ in bench_sha256"):
        read_points([runs[0], replace(runs[1], metrics=metrics)])


def test_an_incomplete_run_is_named(runs: list[StoredRun]) -> None:
    with pytest.raises(UsageError, match=f"{runs[1].name}: incomplete"):
        read_points([runs[0], replace(runs[1], metrics=None)])
