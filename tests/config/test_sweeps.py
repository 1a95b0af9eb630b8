"""A sweep: every job checked and frozen before the first, failures apart, a table at the end.

The jobs themselves are scripted; `run_job` is tested in tests/integration.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from growpage.cli import main
from growpage.config import Config
from growpage.errors import UsageError
from growpage.identity import run_directory
from growpage.run import job as job_module
from growpage.store.run_dir import RunDir
from tests.config.test_cli_errors import run_py
from tests.tiny_models import make_tiny

Job = Callable[[Config], int]
Sweep = Callable[..., tuple[int, list[Config], str, str]]


@pytest.fixture
def sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Sweep:
    """Runs a sweep with scripted jobs: exit status, the configurations that ran, both outputs."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, jobs: Sequence[Job] = ()) -> tuple[int, list[Config], str, str]:
        started: list[Config] = []

        def run_job(config: Config, overrides: Sequence[str], *, is_brief: bool) -> int:
            assert is_brief
            started.append(config)
            return jobs[len(started) - 1](config) if jobs else 0

        monkeypatch.setattr(job_module, "run_job", run_job)
        status = main(["-m", f"paths.runs={tmp_path}/runs", *arguments])
        output, errors = capfd.readouterr()
        return status, started, output, errors

    return run


def ok(config: Config) -> int:
    return 0


def failed(config: Config) -> int:
    return 1


def interrupted(config: Config) -> int:
    return 130


def refused(config: Config) -> int:
    raise UsageError("bench.path=x: line 3 has no answer.")


def broken(config: Config) -> int:
    raise RuntimeError("a fault of ours")


def complete(config: Config) -> None:
    run = RunDir(run_directory(config))
    run.path.mkdir(parents=True)
    for file in (run.metrics, run.parquet):
        file.touch()
    run.mark_done(1)


def test_the_others_run_when_jobs_fail(sweep: Sweep) -> None:
    jobs = [failed, ok, refused, broken, ok]
    status, started, output, errors = sweep("seed=0,1,2,3,4", jobs=jobs)
    assert status == 1
    assert [config.seed for config in started] == [0, 1, 2, 3, 4]
    assert "3 failed, 2 ok" in output
    assert "line 3 has no answer" in errors
    assert "a fault of ours" in errors


def test_all_well_ends_with_status_0(sweep: Sweep) -> None:
    status, started, output, _ = sweep("policy=fullkv,random")
    assert status == 0
    assert [config.policy.name for config in started] == ["fullkv", "random"]
    assert "2 ok" in output


def test_no_job_starts_when_one_is_out_of_range(sweep: Sweep, tmp_path: Path) -> None:
    status, started, output, errors = sweep("policy.tau=0,5,7")
    assert (status, started, output) == (2, [], "")
    assert "2 of 3 jobs" in errors
    assert "policy.tau=5.0" in errors
    assert "policy.tau=7.0" in errors
    assert list(tmp_path.iterdir()) == []


def test_a_file_edited_meanwhile_changes_no_later_job(sweep: Sweep, tmp_path: Path) -> None:
    file = tmp_path / "own" / "policy" / "edited.yaml"
    file.parent.mkdir(parents=True)
    text = "defaults:\n  - /schema/policy/growpage@_here_\n  - _self_\ntau: 0.25\n"
    file.write_text(text)

    def edit(config: Config) -> int:
        file.write_text(text.replace("0.25", "0.75"))
        return 0

    arguments = (f"--config-dir={tmp_path}/own", "policy=edited", "seed=0,1")
    status, started, _, errors = sweep(*arguments, jobs=[edit, ok])
    assert status == 0, errors
    assert [config.policy.tau for config in started] == [0.25, 0.25]


def test_after_an_interrupt_no_further_job_starts(
    sweep: Sweep,
) -> None:
    status, started, output, _ = sweep("seed=0,1,2", jobs=[ok, interrupted])
    assert status == 130
    assert len(started) == 2
    assert "1 ok, 1 interrupted, 1 not started" in output


def test_a_job_that_was_complete_before_counts_as_skipped(
    sweep: Sweep,
) -> None:
    _, started, _, _ = sweep("seed=0,1")
    complete(started[0])
    status, _, output, _ = sweep("seed=0,1")
    assert status == 0
    assert "1 skipped, 1 ok" in output


def test_a_dry_sweep_starts_nothing(sweep: Sweep, tmp_path: Path) -> None:
    status, started, output, _ = sweep("seed=0,1", "dry_run=true")
    assert (status, started) == (0, [])
    assert "2 jobs" in output
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_lists_its_policies(
    sweep: Sweep,
) -> None:
    status, started, _, _ = sweep("experiment=policies", "bench.limit=2")
    assert status == 0
    names = ["fullkv", "fixed", "growpage", "random", "inverse", "shrink", "coverage"]
    assert [config.policy.name for config in started] == names
    assert {config.bench.limit for config in started} == {2}


def test_hydra_leaves_its_record_beside_the_runs_only(sweep: Sweep, tmp_path: Path) -> None:
    sweep("seed=0,1")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [".sweeps"]


def test_values_from_another_sweep_do_not_leak_into_the_next(
    sweep: Sweep,
) -> None:
    sweep("policy.tau=0.1,0.2")
    _, started, _, _ = sweep("seed=0,1")
    assert {config.policy.tau for config in started} == {0.0}


def test_the_same_sweep_again_skips_what_is_complete(tmp_path: Path) -> None:
    """The real thing: two workers on a tiny checkpoint, one of which finds a damaged file."""
    model = make_tiny(tmp_path, "LlamaForCausalLM")
    (tmp_path / "good.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    (tmp_path / "bad.jsonl").write_text('{"question": "1+1?"}\n')
    arguments = [
        "bench=gsm8k", f"bench.path={tmp_path}/bad.jsonl,{tmp_path}/good.jsonl", "sampling=greedy",
        "model=local", f"model.path={model}", "policy=fullkv", "bench.num_samples=1",
        "sampling.max_tokens=3", "engine.kv_cache_gib=0.01", "engine.num_threads=1",
    ]  # fmt: skip
    first, second = (run_py("-m", *arguments, "paths.runs=r", cwd=tmp_path) for _ in range(2))
    assert (first.returncode, second.returncode) == (1, 1)
    assert "answer" in first.stderr
    assert "1 failed, 1 ok" in first.stdout
    assert "1 failed, 1 skipped" in second.stdout
    assert len([path for path in (tmp_path / "r").iterdir() if path.name != ".sweeps"]) == 1
