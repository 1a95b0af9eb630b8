"""Workers that can be killed: limits from outside, replacement, and nothing left behind.

The hang is a real one: math-verify on a whole output with a nested power tower, which never returns.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from growpage.grade.policy import MathPolicy
from growpage.grade.worker import WorkerPool, compare_task, whole_output_task

HANGS = whole_output_task("5", "$\\boxed{9^{9^{9^9}}-5}$")
RIGHT = whole_output_task("5", "so it is \\boxed{5}")


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(num_workers=2, timeout_s=2.0, memory_gib=1.0)
    yield pool
    pool.close()


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_task_that_hangs_is_killed_and_the_others_are_answered(pool: WorkerPool) -> None:
    pool.run([RIGHT, RIGHT])  # the start of the workers is not what is measured
    before = pool.pids()
    start = time.monotonic()
    outcomes = pool.run([RIGHT, HANGS, RIGHT, RIGHT])
    assert time.monotonic() - start < 10.0
    assert [outcome.status for outcome in outcomes] == ["done", "timeout", "done", "done"]
    assert sum(is_gone(pid) for pid in before) == 1


def test_killed_worker_is_replaced(pool: WorkerPool) -> None:
    assert [outcome.status for outcome in pool.run([HANGS, HANGS])] == ["timeout", "timeout"]
    assert pool.run([RIGHT])[0].result == {"correct": True}


def test_worker_that_died_while_idle_is_replaced(pool: WorkerPool) -> None:
    pool.run([RIGHT])
    (pid,) = pool.pids()
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    assert pool.run([RIGHT])[0].status == "done"
    assert pool.pids() != [pid]


def test_worker_killed_from_outside_during_a_task_is_a_crash(pool: WorkerPool) -> None:
    pool.run([RIGHT])
    (pid,) = pool.pids()
    killer = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
    killer.start()
    assert pool.run([HANGS])[0].status == "crash"


def test_pool_works_in_a_thread_that_is_not_the_main_one(pool: WorkerPool) -> None:
    statuses: list[str] = []

    def work() -> None:
        statuses.extend(outcome.status for outcome in pool.run([RIGHT, HANGS]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60.0)
    assert statuses == ["done", "timeout"]


def test_two_threads_may_use_one_pool(pool: WorkerPool) -> None:
    results: list[object] = []
    work = lambda: results.extend(o.result for o in pool.run([RIGHT] * 5))  # noqa: E731
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert results == [{"correct": True}] * 10


def test_task_beyond_the_memory_limit_ends_in_its_worker() -> None:
    pool = WorkerPool(num_workers=1, timeout_s=20.0, memory_gib=0.05)
    huge = whole_output_task("5", "x" * 40_000_000)
    try:
        assert [outcome.status for outcome in pool.run([huge, RIGHT])] == ["memory", "done"]
    finally:
        pool.close()


def test_close_leaves_no_process(pool: WorkerPool) -> None:
    pool.run([RIGHT, RIGHT])
    pids = pool.pids()
    assert len(pids) == 2
    pool.close()
    assert all(is_gone(pid) for pid in pids)


def test_workers_end_with_a_run_that_is_killed() -> None:
    code = (
        "import os, signal; from growpage.grade.worker import *;"
        "p = WorkerPool(num_workers=1, timeout_s=2.0, memory_gib=1.0);"
        "p.run([whole_output_task('5', '5')]); print(p.pids()[0], flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    deadline = time.monotonic() + 10.0
    while not is_gone(pid) and not is_zombie(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert is_gone(pid) or is_zombie(pid)


def is_zombie(pid: int) -> bool:
    """Ended, and whoever inherited it has not asked for its status."""
    try:
        return ") Z" in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_output_of_a_megabyte_passes_through(pool: WorkerPool) -> None:
    text = "Let me check 3 + 4 = 7 again. " * 30_000 + "\\boxed{5}"
    slow = WorkerPool(num_workers=1, timeout_s=60.0, memory_gib=2.0)
    try:
        assert slow.run([whole_output_task("5", text)])[0].result == {"correct": True}
    finally:
        slow.close()


def test_text_of_a_model_is_never_run(pool: WorkerPool, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    attacks = [
        f"__import__('os').system('touch {canary}')",
        f"(lambda: open('{canary}', 'w'))()",
        f"\\boxed{{open('{canary}','w').write('x')}}",
        f"$\\boxed{{\\operatorname{{open}}('{canary}','w')}}$",
        f"\\immediate\\write18{{touch {canary}}}",
    ]
    policy = asdict(MathPolicy())
    tasks = [compare_task("[2,5]", attack, policy) for attack in attacks]
    tasks += [whole_output_task("5", attack) for attack in attacks]
    pool.run(tasks)
    assert not canary.exists()


def test_error_inside_a_task_is_an_outcome(pool: WorkerPool) -> None:
    outcome = pool.run([{"kind": "no such task"}])[0]
    assert outcome.status == "error"
    assert "KeyError" in outcome.detail
    assert pool.run([RIGHT])[0].status == "done"
