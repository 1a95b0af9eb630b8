"""Run directories: made once, held by one process, found by name."""

import multiprocessing
import os
import socket
import time
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from growpage.errors import UsageError
from growpage.store.atomic import write_json
from growpage.store.errors import ForeignRunError, LockedRunError, StoreError
from growpage.store.run_dir import RunDir, find_existing, find_or_create, find_run, list_runs
from growpage.store.status import STALE_S, RunState, Status, read_status, write_status

HASH = "12ab34cd"
DAMAGED_STATUS = [
    "", "{", "[]", "{}", '{"state": "ok"}', "\xff\xfe",
    '{"state": "foo", "pid": 1, "host": "h", "started": 1, "heartbeat": 1}',
    '{"state": "running", "pid": "1", "host": "h", "started": 1, "heartbeat": 1}',
    '{"state": "running", "pid": 1, "host": "h", "started": 1, "heartbeat": "x"}',
]  # fmt: skip


def make_run(root: Path, name: str = f"growpage-gsm8k-tiny-{HASH}") -> RunDir:
    run, _ = find_or_create(root / name, HASH)
    run.config.write_text("seed: 0\n")
    return run


def hold_lock(path: Path, is_held: Event, may_end: Event) -> None:
    run = RunDir(path)
    with run.lock_for_job():
        write_status(run.status, Status(state=RunState.running))
        is_held.set()
        may_end.wait(30)


def test_directory_is_made_once_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "runs" / f"fixed-gsm8k-tiny-{HASH}"
    first, is_new = find_or_create(path, HASH)
    again, is_new_again = find_or_create(path, HASH)
    assert (first.path, is_new, again.path, is_new_again) == (path, True, path, False)


def test_same_hash_under_another_label_is_the_same_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, f"fixed-gsm8k-tiny-{HASH}")
    found, is_new = find_or_create(tmp_path / f"fixed-gsm8k-renamed-{HASH}", HASH)
    assert (found.path, is_new) == (run.path, False)
    assert find_existing(tmp_path / "fixed-gsm8k-tiny-00000000", "00000000") is None


@pytest.mark.parametrize("occupied", ["runs", "runs/sub", "runs/sub/run-1"])
def test_file_in_the_place_of_a_folder_is_one_clear_line(tmp_path: Path, occupied: str) -> None:
    blocker = tmp_path / occupied
    blocker.parent.mkdir(parents=True, exist_ok=True)
    blocker.write_text("")
    with pytest.raises(UsageError) as caught:
        find_or_create(tmp_path / "runs" / "sub" / "run-1", "1")
    assert str(blocker) in str(caught.value)
    assert "Move it" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folder_of_someone_else_is_refused(tmp_path: Path) -> None:
    run, _ = find_or_create(tmp_path / f"a-{HASH}", HASH)
    run.check_is_ours()
    (run.path / "thesis.tex").write_text("")
    with pytest.raises(ForeignRunError, match=r"thesis\.tex"):
        run.check_is_ours()


def test_second_process_is_told_pid_and_host_of_the_first(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    spawn = multiprocessing.get_context("spawn")
    is_held, may_end = spawn.Event(), spawn.Event()
    holder = spawn.Process(target=hold_lock, args=(run.path, is_held, may_end))
    holder.start()
    try:
        assert is_held.wait(30)
        with (
            pytest.raises(LockedRunError, match=f"pid {holder.pid} on host {socket.gethostname()}"),
            run.lock_for_job(),
        ):
            pass
    finally:
        may_end.set()
        holder.join()
    with run.lock_for_job():
        pass


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    spawn = multiprocessing.get_context("spawn")
    is_held, may_end = spawn.Event(), spawn.Event()
    holder = spawn.Process(target=hold_lock, args=(run.path, is_held, may_end))
    holder.start()
    assert is_held.wait(30)
    holder.kill()
    holder.join()
    status = run.read_status()
    assert status is not None
    assert (status.state, status.label) == (RunState.running, "lost")
    with run.lock_for_job():
        pass


def test_fresh_heartbeat_of_another_host_counts_where_locks_are_lost(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    elsewhere = Status(state=RunState.running, pid=77, host="another-host")
    write_status(run.status, elsewhere)
    with pytest.raises(LockedRunError, match="pid 77 on host another-host"), run.lock_for_job():
        pass
    write_status(run.status, replace(elsewhere, heartbeat=time.time() - STALE_S - 1))
    with run.lock_for_job():
        pass


def test_worker_and_job_hold_different_locks(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with run.lock_for_job(), run.lock_for_worker():
        pass


def test_finished_state_is_not_alive() -> None:
    assert Status(state=RunState.running).is_alive
    assert not Status(state=RunState.ok).is_alive
    assert Status(state=RunState.interrupted).label == "interrupted"


def test_status_survives_the_disk(tmp_path: Path) -> None:
    status = Status(state=RunState.failed, pid=os.getpid(), error="x", num_done=3, num_total=9)
    write_status(tmp_path / "status.json", status)
    assert read_status(tmp_path / "status.json") == status


def test_run_is_complete_only_with_everything_that_done_promises(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.mark_done(3)
    assert not run.is_complete
    write_json(run.metrics, {})
    run.parquet.write_bytes(b"")
    assert run.is_complete
    run.reopen()
    assert not run.is_complete


@pytest.mark.parametrize("name", ["samples.jsonl", "samples.parquet", "metrics.json"])
def test_result_that_was_cut_or_emptied_after_the_run_is_damage(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path)
    for item in ("samples.jsonl", "samples.parquet", "metrics.json"):
        (run.path / item).write_bytes(b"0123456789")
    run.mark_done(3)
    assert run.is_complete
    for content in (b"01234", b""):
        (run.path / name).write_bytes(content)
        assert (run.is_complete, run.is_damaged) == (False, True)


def test_damaged_done_is_not_trusted(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_json(run.metrics, {})
    run.parquet.write_bytes(b"")
    for content in ("", "[]", "{}", "{"):
        run.done.write_text(content)
        assert not run.is_complete


def finished_run(root: Path) -> RunDir:
    run = make_run(root)
    run.samples.write_text("old\n")
    run.log.write_text("log\n")
    (run.path / "plots").mkdir()
    run.parquet.write_text("old\n")
    write_json(run.metrics, {})
    run.mark_done(1)
    return run


def test_results_set_aside_leave_the_locks_and_the_log(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    with run.lock_for_job():
        run.set_aside()
        names = {item.name for item in run.path.iterdir() if item.suffix != ".lock"}
    assert names == {"run.log", ".replaced"}


def test_results_set_aside_come_back_when_nothing_new_was_made(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    run.set_aside()
    run.config.write_text("seed: 1\n")
    assert run.settle()
    assert run.is_complete
    assert run.samples.read_text() == "old\n"
    assert run.config.read_text() == "seed: 0\n"
    assert not (run.path / ".replaced").exists()
    assert not run.settle()


def test_results_set_aside_go_when_there_are_new_samples(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    run.set_aside()
    run.samples.write_text("new\n")
    assert not run.settle()
    assert run.samples.read_text() == "new\n"
    assert not run.is_complete
    assert not (run.path / ".replaced").exists()


def test_samples_without_their_configuration_are_ours(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.samples.write_text("{}\n")
    run.config.unlink()
    run.check_is_ours()


@pytest.mark.parametrize("content", DAMAGED_STATUS)
def test_damaged_status_is_named_and_does_not_hold_a_run_back(tmp_path: Path, content: str) -> None:
    run = make_run(tmp_path)
    run.status.write_bytes(content.encode("latin-1"))
    with pytest.raises(StoreError, match=r"status\.json: .*The command of this run writes it anew"):
        run.read_status()
    with run.lock_for_job():
        pass


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"a": 1}', '{"sessions": {}}', '{"sessions": [1]}', "\xff"]
)
def test_damaged_provenance_is_named_with_the_remedy(tmp_path: Path, content: str) -> None:
    run = make_run(tmp_path)
    run.provenance.write_bytes(content.encode("latin-1"))
    with pytest.raises(StoreError, match=r"provenance\.json: .*Remove it"):
        run.read_provenance()


def test_atomic_write_that_fails_keeps_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError):
        write_json(tmp_path / "folder", {})
    assert sorted(item.name for item in tmp_path.iterdir()) == ["folder", "metrics.json"]
    assert path.read_text() == '{\n  "a": 1\n}\n'


def test_run_is_found_by_path_name_or_unique_prefix(tmp_path: Path) -> None:
    one = make_run(tmp_path, "fixed-aime24-tiny-aaaaaaaa")
    two = make_run(tmp_path, "fixed-gsm8k-tiny-bbbbbbbb")
    assert find_run(tmp_path, str(one.path)).path == one.path
    assert find_run(tmp_path, two.name).path == two.path
    assert find_run(tmp_path, "fixed-a").path == one.path
    with pytest.raises(UsageError, match="fits several runs"):
        find_run(tmp_path, "fixed")
    with pytest.raises(UsageError, match=r"no such run.*fixed-aime24-tiny-aaaaaaaa"):
        find_run(tmp_path, "growpage")
    with pytest.raises(UsageError, match="is empty"):
        find_run(tmp_path, "")
    with pytest.raises(UsageError, match="no such run"):
        find_run(tmp_path, "a" * 300)
    with pytest.raises(UsageError, match=r"~nouser: the folder of that user"):
        find_run(tmp_path, "~nouser")


def test_path_that_is_too_long_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too long"):
        find_or_create(tmp_path / ("a" * 300), HASH)


def test_runs_are_listed_newest_first_and_other_folders_are_not(tmp_path: Path) -> None:
    old, new = make_run(tmp_path, "a-aaaaaaaa"), make_run(tmp_path, "b-bbbbbbbb")
    os.utime(old.path, (1, 1))
    (tmp_path / "notes").mkdir()
    assert [run.name for run in list_runs(tmp_path)] == [new.name, old.name]
    assert list_runs(tmp_path / "absent") == []
