"""One job through its own processes: killed, interrupted, run twice, on full disks."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from growpage.store.run_dir import RunDir, list_runs
from growpage.store.samples import read_rows
from growpage.store.schema import SampleRow
from growpage.store.status import RunState, Status, pid_exists
from tests.fake_run import job_command

NUM_SAMPLES = 18
SLOW = {"FAKE_STEP_S": "0.15"}
Done = subprocess.CompletedProcess[str]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, **changes}


def run_job(runs: Path, *, env: dict[str, str] | None = None, **changes: Any) -> Done:
    return subprocess.run(
        job_command(runs, **changes),
        env=environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def start_job(runs: Path, **changes: Any) -> "subprocess.Popen[str]":
    """A slow job in a process group of its own, as a shell would start it."""
    return subprocess.Popen(
        job_command(runs, **changes),
        env=environment(**SLOW),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def the_run(runs: Path) -> RunDir:
    (run,) = list_runs(runs)
    return run


def the_status(runs: Path) -> Status:
    status = the_run(runs).read_status()
    assert status is not None
    return status


def num_samples(runs: Path) -> int:
    found = list(runs.glob("*/samples.jsonl"))
    return found[0].read_bytes().count(b"\n") if found else 0


def in_the_middle(runs: Path) -> Callable[[], bool]:
    return lambda: num_samples(runs) >= 3


def outputs(runs: Path) -> list[tuple[Any, ...]]:
    """What generation made, in order of problem and index, without its times."""
    rows = read_rows(the_run(runs).samples, SampleRow)
    return sorted((*row.key, row.token_ids, row.text, row.finish_reason) for row in rows)


def accuracy(runs: Path) -> dict[str, Any]:
    record = json.loads(the_run(runs).metrics.read_text())["accuracy"]
    assert isinstance(record, dict)
    return record


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("undisturbed")
    done = run_job(runs)
    assert done.returncode == 0, done.stderr
    return runs


def check_continues(runs: Path, undisturbed: Path) -> None:
    """The same command finishes the run; nothing was made twice and nothing differs."""
    num_before = num_samples(runs)
    assert 0 < num_before < NUM_SAMPLES
    done = run_job(runs)
    assert done.returncode == 0, done.stderr
    assert f"continuing: {num_before} of {NUM_SAMPLES} samples exist" in done.stderr
    assert outputs(runs) == outputs(undisturbed)
    assert accuracy(runs) == accuracy(undisturbed)
    assert the_status(runs).state is RunState.ok
    assert "made in 2 sessions" in done.stdout


# ---- complete ------------------------------------------------------------------------------------


def test_complete_run_prints_table_directory_and_compare_command(undisturbed: Path) -> None:
    again = run_job(undisturbed)
    name = the_run(undisturbed).name
    assert again.returncode == 0
    for text in ("already complete", "pass@1", "TPOT", str(undisturbed / name), f"compare {name}"):
        assert text in again.stdout


def test_same_command_on_a_complete_run_changes_no_file(undisturbed: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        files = the_run(undisturbed).path.iterdir()
        return {item.name: (item.stat().st_mtime_ns, item.stat().st_size) for item in files}

    before = state()
    assert run_job(undisturbed).returncode == 0
    assert state() == before


def test_files_of_a_run_are_all_there(undisturbed: Path) -> None:
    names = {item.name for item in the_run(undisturbed).path.iterdir() if item.suffix != ".lock"}
    assert names == {
        "config.yaml", "provenance.json", "status.json", "samples.jsonl", "verdicts.jsonl",
        "events.jsonl", "run.log", "samples.parquet", "metrics.json", "DONE",
    }  # fmt: skip


def test_dry_run_leaves_nothing(tmp_path: Path) -> None:
    done = run_job(tmp_path / "runs", dry_run=True)
    assert done.returncode == 0
    assert f"would make {NUM_SAMPLES} samples" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_parent_and_verbs_import_no_torch() -> None:
    code = "import growpage.run.job, growpage.run.verbs, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


# ---- killed and interrupted ----------------------------------------------------------------------


def test_killed_worker_loses_only_samples_in_flight(tmp_path: Path, undisturbed: Path) -> None:
    job = start_job(tmp_path)
    wait_for(in_the_middle(tmp_path))
    worker_pid = the_status(tmp_path).worker_pid
    assert worker_pid is not None
    os.kill(worker_pid, signal.SIGKILL)
    _, errors = job.communicate(timeout=30)
    assert job.returncode == 1
    assert "killed by signal 9" in errors
    assert the_status(tmp_path).state is RunState.killed
    check_continues(tmp_path, undisturbed)


def test_killed_job_takes_its_worker_along_and_continues(tmp_path: Path, undisturbed: Path) -> None:
    job = start_job(tmp_path)
    wait_for(in_the_middle(tmp_path))
    worker_pid = the_status(tmp_path).worker_pid
    assert worker_pid is not None
    job.kill()
    job.communicate(timeout=30)
    wait_for(lambda: not pid_exists(worker_pid))
    assert the_status(tmp_path).label == "lost"
    check_continues(tmp_path, undisturbed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_job_says_so_and_continues(
    tmp_path: Path, undisturbed: Path, number: signal.Signals
) -> None:
    job = start_job(tmp_path)
    wait_for(in_the_middle(tmp_path))
    worker_pid = the_status(tmp_path).worker_pid
    assert worker_pid is not None
    if number is signal.SIGINT:
        os.killpg(job.pid, number)  # Ctrl-C reaches the whole group
    else:
        job.send_signal(number)
    _, errors = job.communicate(timeout=30)
    assert job.returncode == 128 + number
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not pid_exists(worker_pid)
    status = the_status(tmp_path)
    assert (status.state, status.error) == (RunState.interrupted, f"stopped by {number.name}")
    check_continues(tmp_path, undisturbed)


def test_stage_generate_leaves_the_grading_to_a_later_command(
    tmp_path: Path, undisturbed: Path
) -> None:
    assert run_job(tmp_path, stage="generate").returncode == 0
    assert not the_run(tmp_path).is_complete
    done = run_job(tmp_path)
    assert done.returncode == 0
    assert "loading model" not in done.stderr
    assert accuracy(tmp_path) == accuracy(undisturbed)


def test_half_line_is_cut_off_reported_and_made_again(tmp_path: Path, undisturbed: Path) -> None:
    assert run_job(tmp_path, stage="generate").returncode == 0
    samples = the_run(tmp_path).samples
    samples.write_bytes(samples.read_bytes()[:-30])
    done = run_job(tmp_path)
    assert done.returncode == 0
    assert "half-written last line cut off" in done.stderr
    assert outputs(tmp_path) == outputs(undisturbed)


def test_fresh_starts_over(tmp_path: Path) -> None:
    assert run_job(tmp_path).returncode == 0
    before = the_run(tmp_path).samples.stat().st_mtime_ns
    done = run_job(tmp_path, fresh=True)
    assert done.returncode == 0
    assert "continuing" not in done.stderr
    assert the_run(tmp_path).samples.stat().st_mtime_ns > before
    assert len(json.loads(the_run(tmp_path).provenance.read_text())["sessions"]) == 1


def contents(runs: Path) -> dict[str, bytes]:
    files = [item for item in the_run(runs).path.iterdir() if item.suffix != ".lock"]
    return {item.name: item.read_bytes() for item in files if item.name != "run.log"}


def test_grading_alone_after_starting_over_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    assert run_job(tmp_path).returncode == 0
    before = contents(tmp_path)
    done = run_job(tmp_path, fresh=True, stage="grade")
    assert done.returncode == 2
    assert "fresh=true stage=grade: starting over leaves no samples to grade" in done.stderr
    assert contents(tmp_path) == before


@pytest.mark.parametrize("fault", [{"FAKE_CRASH_AT": "0"}, {"FAKE_REFUSE": "1"}])
def test_start_over_that_makes_no_sample_keeps_the_old_results(
    tmp_path: Path, fault: dict[str, str]
) -> None:
    assert run_job(tmp_path).returncode == 0
    before = contents(tmp_path)
    done = run_job(tmp_path, fresh=True, env=fault)
    assert done.returncode != 0
    assert "No new sample was made; the results from before are back." in done.stderr
    assert contents(tmp_path) == before
    assert "already complete" in run_job(tmp_path).stdout


def test_start_over_whose_processes_were_killed_early_keeps_the_old_results(
    tmp_path: Path, undisturbed: Path
) -> None:
    assert run_job(tmp_path).returncode == 0
    run = the_run(tmp_path)
    run.set_aside()  # as far as a killed job got
    done = run_job(tmp_path)
    assert done.returncode == 0, done.stderr
    assert outputs(tmp_path) == outputs(undisturbed)
    assert "loading model" not in done.stderr


def test_interrupted_start_over_says_that_it_continues_without_fresh(tmp_path: Path) -> None:
    job = start_job(tmp_path, fresh=True)
    wait_for(in_the_middle(tmp_path))
    job.terminate()
    _, errors = job.communicate(timeout=30)
    assert "The same command without fresh=true continues it." in errors
    assert "continuing: " in run_job(tmp_path).stderr


@pytest.mark.parametrize("name", ["status.json", "config.yaml", "metrics.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", '{"sessions": 1'])
def test_damaged_small_file_of_a_complete_run_is_written_anew(
    tmp_path: Path, undisturbed: Path, name: str, content: str
) -> None:
    shutil.copytree(undisturbed, tmp_path / "runs")
    runs = tmp_path / "runs"
    (the_run(runs).path / name).write_text(content)
    done = run_job(runs)
    assert done.returncode == 0, done.stderr
    assert "loading model" not in done.stderr
    assert outputs(runs) == outputs(undisturbed)
    assert accuracy(runs) == accuracy(undisturbed)
    assert the_status(runs).state is RunState.ok
    assert "already complete" in run_job(runs).stdout


@pytest.mark.parametrize("name", ["samples.parquet", "samples.jsonl"])
def test_result_cut_after_the_run_is_made_again_by_the_same_command(
    tmp_path: Path, undisturbed: Path, name: str
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(undisturbed, runs)
    os.truncate(the_run(runs).path / name, 300)
    done = run_job(runs)
    assert done.returncode == 0, done.stderr
    assert outputs(runs) == outputs(undisturbed)
    assert the_run(runs).is_complete


def test_damaged_provenance_is_one_line_and_starting_over_mends_it(
    tmp_path: Path, undisturbed: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(undisturbed, runs)
    the_run(runs).done.unlink()
    the_run(runs).provenance.write_text('{"a": 1}')
    done = run_job(runs)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "provenance.json: sessions is missing. Remove it;" in line
    assert run_job(runs, fresh=True).returncode == 0


def test_missing_configuration_beside_samples_is_written_again(
    tmp_path: Path, undisturbed: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(undisturbed, runs)
    the_run(runs).config.unlink()
    done = run_job(runs)
    assert done.returncode == 0, done.stderr
    assert "loading model" not in done.stderr
    assert the_run(runs).is_complete


# ---- two at a time -------------------------------------------------------------------------------


def test_second_process_stops_with_pid_and_host_of_the_first(tmp_path: Path) -> None:
    job = start_job(tmp_path)
    try:
        wait_for(in_the_middle(tmp_path))
        second = run_job(tmp_path)
        assert second.returncode == 2
        assert f"in use by pid {job.pid} on host {os.uname().nodename}" in second.stderr
        assert len(second.stderr.strip().splitlines()) == 1
    finally:
        job.terminate()
        job.communicate(timeout=30)


def test_two_runs_of_other_settings_share_a_folder(tmp_path: Path) -> None:
    jobs = [start_job(tmp_path, policy=policy) for policy in ("fixed", "fullkv")]
    assert [job.communicate(timeout=60) and job.returncode for job in jobs] == [0, 0]
    assert len(list_runs(tmp_path)) == 2


# ---- what goes wrong -----------------------------------------------------------------------------


def test_crash_leaves_one_line_a_traceback_in_the_log_and_its_samples(tmp_path: Path) -> None:
    done = run_job(tmp_path, env={"FAKE_CRASH_AT": "12"})
    assert done.returncode == 1
    assert "error: RuntimeError: the kernel launch failed" in done.stderr
    assert "Traceback" not in done.stderr
    run = the_run(tmp_path)
    assert "Traceback" in run.log.read_text()
    assert the_status(tmp_path).state is RunState.failed
    assert num_samples(tmp_path) > 0
    assert run_job(tmp_path).returncode == 0


def test_mistake_of_the_user_leaves_no_directory(tmp_path: Path) -> None:
    done = run_job(tmp_path, env={"FAKE_REFUSE": "1"})
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "error: prompt of 99 tokens: longer than engine.max_model_len=64. (problem q0)"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("FAKE_DATA_SUFFIX", "!", "the data changed since this run began"),
        ("FAKE_PROMPT_SUFFIX", "!", "the prompt of problem q"),
        ("FAKE_MODEL_FILE", "b" * 64, "model.safetensors changed since this run began"),
    ],
)
def test_other_data_prompts_or_weights_under_the_same_hash_are_refused(
    tmp_path: Path, variable: str, value: str, words: str
) -> None:
    assert run_job(tmp_path, env={"FAKE_CRASH_AT": "12"}).returncode == 1
    before = the_run(tmp_path).samples.read_bytes()
    done = run_job(tmp_path, env={variable: value})
    assert done.returncode == 2
    assert words in done.stderr
    assert "fresh=true" in done.stderr
    assert the_run(tmp_path).samples.read_bytes() == before
    assert run_job(tmp_path).returncode == 0


def test_occupied_results_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    done = run_job(tmp_path / "results" / "runs")
    assert done.returncode == 2
    assert f"cannot write {tmp_path / 'results'}: " in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_file_size_limit_ends_the_run_in_one_line_and_it_continues_without(
    tmp_path: Path, undisturbed: Path
) -> None:
    command = " ".join(map(shlex.quote, job_command(tmp_path)))
    limited = ["bash", "-c", f"ulimit -f 8; exec {command}"]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("error:")]
    assert "samples.jsonl: File too large" in line
    assert "Traceback" not in done.stderr
    assert the_run(tmp_path).samples.read_bytes().endswith(b"}\n")
    assert not the_run(tmp_path).is_complete
    check_continues(tmp_path, undisturbed)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a small tmpfs with the given options; skipped by name where that is not allowed."""
    folders: list[Path] = []

    def make(options: str) -> Path:
        folder = tmp_path / f"disk{len(folders)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("mounting a tmpfs is not allowed here")
        folders.append(folder)
        return folder

    yield make
    for folder in folders:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def test_full_disk_ends_the_run_in_one_line_and_room_continues_it(
    mount: Callable[[str], Path], undisturbed: Path
) -> None:
    disk = mount("size=64k")
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * 4096 * 5)
    done = run_job(disk / "runs")
    assert done.returncode == 1
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("error:")]
    assert "No space left on device. Free some space" in line
    assert "Traceback" not in done.stderr
    run = the_run(disk / "runs")
    assert not run.is_complete
    assert not list(run.path.glob(".*.tmp"))
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
    done = run_job(disk / "runs")
    assert done.returncode == 0, done.stderr
    assert outputs(disk / "runs") == outputs(undisturbed)


def test_disk_too_full_for_a_run_leaves_no_run(mount: Callable[[str], Path]) -> None:
    disk = mount("size=16k")
    (disk / "ballast").write_bytes(b"x" * 4096 * 4)
    done = run_job(disk / "runs")
    assert done.returncode != 0
    (line,) = done.stderr.strip().splitlines()
    assert "No space left on device" in line
    assert list(disk.glob("runs/*")) == []


def test_read_only_folder_is_one_line(mount: Callable[[str], Path]) -> None:
    disk = mount("size=64k,ro")
    done = run_job(disk / "runs")
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "Read-only file system. Choose a writable folder with paths.runs=FOLDER." in line
