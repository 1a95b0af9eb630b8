"""Experiments that list their jobs."""

from pathlib import Path

import pytest
from hydra.errors import HydraException

from hydra_plugins.growpage_rows import with_rows
from tests.config.test_cli_errors import run_py


def test_each_row_meets_each_job() -> None:
    jobs = with_rows(
        ["policy=fixed policy.budget_tokens=64", "policy=fullkv"], [["seed=0"], ["seed=1"]]
    )
    assert jobs == [
        ["policy=fixed", "policy.budget_tokens=64", "seed=0"],
        ["policy=fixed", "policy.budget_tokens=64", "seed=1"],
        ["policy=fullkv", "seed=0"],
        ["policy=fullkv", "seed=1"],
    ]


def test_without_rows_jobs_stay_as_they_are() -> None:
    assert with_rows([], [["seed=0"]]) == [["seed=0"]]


def test_a_key_of_a_row_cannot_be_given_as_well() -> None:
    with pytest.raises(HydraException, match="policy: set by the rows"):
        with_rows(["policy=fullkv"], [["policy=fixed"]])


def test_the_first_experiment_has_eight_jobs(tmp_path: Path) -> None:
    where = f"paths.runs={tmp_path}"
    arguments = ("-m", "experiment=budgets", "dry_run=true", "bench.limit=2", where)
    result = run_py(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "8 jobs, all checked" in result.stdout
    assert "would make 2 samples" in result.stdout


def test_an_experiment_of_rows_asks_for_m(tmp_path: Path) -> None:
    result = run_py("experiment=budgets", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "Add -m" in result.stderr


def test_a_policy_beside_rows_is_one_line(tmp_path: Path) -> None:
    result = run_py("-m", "experiment=budgets", "policy=fixed", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: policy: set by the rows of this experiment")
