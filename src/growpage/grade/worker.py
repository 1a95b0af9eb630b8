"""Comparisons in processes that can be killed: a wall limit and memory and CPU limits, set from outside.

Each worker is a fresh interpreter (no fork of a process that has threads or a CUDA context) that reads one task
a line and answers one line. A worker that takes too long is killed and replaced; other tasks are not touched.
Works from any thread: no signal handler, no alarm.
"""

import contextlib
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_START_LIMIT_S = 120.0  # for imports on a busy machine; tasks have their own limit
_READ_BYTES = 1 << 16

Task = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """status: done (with `result`), timeout, memory, crash (the process ended) or error (it raised)."""

    status: str
    result: dict[str, Any] | None = None
    detail: str = ""


def compare_task(gold: str, answer: str, policy: dict[str, Any]) -> Task:
    return {"kind": "compare", "gold": gold, "answer": answer, "policy": policy}


def whole_output_task(gold: str, text: str) -> Task:
    return {"kind": "whole_output", "gold": gold, "text": text}


class WorkerPool:
    """Up to `num_workers` processes, started when first needed and kept until `close`."""

    def __init__(self, *, num_workers: int, timeout_s: float, memory_gib: float) -> None:
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._memory_gib = memory_gib
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _stop_all, self._workers)

    def run(self, tasks: Sequence[Task]) -> list[Outcome]:
        """One outcome a task, in order. Never raises for what a task does."""
        with self._lock:
            return _Round(tasks, self._timeout_s, self._workers, self._start).outcomes()

    def pids(self) -> list[int]:
        """Of the processes alive now."""
        return [worker.pid for worker in self._workers]

    def close(self) -> None:
        """End all workers; the pool starts new ones if it is used again."""
        with self._lock:
            _stop_all(self._workers)

    def _start(self, num_tasks: int) -> None:
        """Bring the number of workers to what the tasks can use; fewer when the system refuses."""
        for worker in [worker for worker in self._workers if worker.has_ended()]:
            self._workers.remove(worker)
            worker.kill()
        wanted = min(self._num_workers, num_tasks) - len(self._workers)
        started: list[_Worker] = []
        with contextlib.suppress(OSError):
            for _ in range(wanted):
                started.append(_Worker(self._timeout_s, self._memory_gib))
        for worker in started:
            if worker.await_ready():
                self._workers.append(worker)
            else:
                worker.kill()


class _Round:
    """One `run`: tasks to idle workers, results back, late workers killed."""

    def __init__(
        self,
        tasks: Sequence[Task],
        timeout_s: float,
        workers: "list[_Worker]",
        start: Callable[[int], None],
    ) -> None:
        self._tasks = tasks
        self._timeout_s = timeout_s
        self._workers = workers
        self._start = start
        self._waiting = deque(range(len(tasks)))
        self._busy: dict[_Worker, tuple[int, float]] = {}
        self._outcomes: dict[int, Outcome] = {}

    def outcomes(self) -> list[Outcome]:
        try:
            while self._waiting or self._busy:
                self._hand_out()
                self._collect()
        finally:
            for worker in list(self._busy):
                self._remove(worker)
        return [self._outcomes[index] for index in range(len(self._tasks))]

    def _hand_out(self) -> None:
        if self._waiting:
            self._start(len(self._waiting) + len(self._busy))
        if not self._workers:
            for index in self._waiting:
                self._outcomes[index] = Outcome(status="error", detail="no worker could be started")
            self._waiting.clear()
        for worker in list(self._workers):
            if self._waiting and worker not in self._busy:
                index = self._waiting.popleft()
                deadline = time.monotonic() + self._timeout_s
                self._busy[worker] = (index, deadline)
                if not worker.send(self._tasks[index], deadline):
                    self._end(worker, "timeout" if time.monotonic() >= deadline else "crash")

    def _collect(self) -> None:
        """Wait for a result or the next deadline. What has come counts, even when it is read late."""
        if not self._busy:
            return
        with selectors.DefaultSelector() as selector:
            for worker in self._busy:
                selector.register(worker.output, selectors.EVENT_READ, worker)
            nearest = min(deadline for _, deadline in self._busy.values())
            ready = [key.data for key, _ in selector.select(max(0.0, nearest - time.monotonic()))]
        for worker in ready:
            self._read(worker)
        now = time.monotonic()
        for worker, (_, deadline) in list(self._busy.items()):
            if now >= deadline and worker not in ready:
                self._end(worker, "timeout")

    def _read(self, worker: "_Worker") -> None:
        line = worker.receive()
        if line is None:
            return
        if line == b"":
            self._end(worker, "timeout" if worker.ended_by(signal.SIGXCPU) else "crash")
            return
        reply = json.loads(line)
        if reply["status"] == "memory":
            self._end(worker, "memory")
            return
        index, _ = self._busy.pop(worker)
        self._outcomes[index] = Outcome(**reply)

    def _end(self, worker: "_Worker", status: str) -> None:
        index, _ = self._busy[worker]
        detail = f"exit status {worker.exit_status()}" if status == "crash" else ""
        self._outcomes[index] = Outcome(status=status, detail=detail)
        self._remove(worker)

    def _remove(self, worker: "_Worker") -> None:
        self._busy.pop(worker, None)
        self._workers.remove(worker)
        worker.kill()


class _Worker:
    """One process and the two pipes to it."""

    def __init__(self, timeout_s: float, memory_gib: float) -> None:
        limits = {"timeout_s": timeout_s, "memory_bytes": int(memory_gib * 2**30)}
        code = "from growpage.grade.worker import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(limits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # a Ctrl-C in the terminal is the run's business
            env=_environment(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin.fileno()
        self.output = self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        self._received = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_ready(self) -> bool:
        deadline = time.monotonic() + _START_LIMIT_S
        while (left := deadline - time.monotonic()) > 0:
            with selectors.DefaultSelector() as selector:
                selector.register(self.output, selectors.EVENT_READ)
                if selector.select(left) and (line := self.receive()) is not None:
                    return line == b"ready"
        return False

    def send(self, task: Task, deadline: float) -> bool:
        """Whether the process took the whole task in time."""
        data = memoryview(json.dumps(task).encode() + b"\n")
        with selectors.DefaultSelector() as selector:
            selector.register(self._input, selectors.EVENT_WRITE)
            while data:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return False
                try:
                    data = data[os.write(self._input, data) :]
                except BrokenPipeError:
                    return False
        return True

    def receive(self) -> bytes | None:
        """One line without its end; None when it is not complete yet; b"" when the process ended."""
        chunk = os.read(self.output, _READ_BYTES)
        if not chunk:
            return b""
        self._received += chunk
        if not self._received.endswith(b"\n"):
            return None
        line, self._received = self._received[:-1], b""
        return line

    def ended_by(self, number: signal.Signals) -> bool:
        return self.exit_status() == -number

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def exit_status(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=5)
        return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _stop_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().kill()


def _environment() -> dict[str, str]:
    """Ours, with our module search path and without the current folder on it."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


# the worker's side


def serve() -> None:
    """Answer tasks from standard input until it ends. The limits are the last argument of the command."""
    limits = json.loads(sys.argv[-1])
    reply = _private_output()
    import math_verify  # noqa: F401  # imports must not count against the first task

    from growpage.grade import symbolic  # noqa: F401

    _limit_memory(limits["memory_bytes"])
    reply(b"ready\n")
    while True:
        answer = _next_answer(limits["timeout_s"])
        if answer is None:
            return
        reply(json.dumps(answer).encode() + b"\n")
        if answer["status"] == "memory":
            return  # whatever is left of us is not worth keeping


def _private_output() -> Callable[[bytes], None]:
    """A writer to the pipe; whatever a library prints goes nowhere."""
    pipe = os.fdopen(os.dup(1), "wb", buffering=0)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[pipe.write(view) :]

    return write


def _limit_memory(memory_bytes: int) -> None:
    """Address space beyond what is mapped now; no files, no core dumps."""
    mapped = 0
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    for kind, limit in (
        (resource.RLIMIT_AS, mapped + memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        _set_limit(kind, limit)


def _limit_cpu(timeout_s: float) -> None:
    """A second line of defence behind the wall limit, for when the run that would kill us is gone."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _set_limit(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime + timeout_s) + 2)


def _set_limit(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS has no address-space limit
        resource.setrlimit(kind, (soft, hard))


def _next_answer(timeout_s: float) -> dict[str, Any] | None:
    """The boundary of a worker: every exception becomes an answer. None when the input ended."""
    try:
        line = sys.stdin.buffer.readline()
        if not line:
            return None
        _limit_cpu(timeout_s)
        return {"status": "done", "result": _TASKS[(task := json.loads(line))["kind"]](task)}
    except MemoryError:
        return {"status": "memory"}
    except Exception as error:
        return {"status": "error", "detail": f"{type(error).__name__}: {error}"[:2000]}


def _compare(task: Task) -> dict[str, Any]:
    from growpage.grade.compare import compare
    from growpage.grade.policy import MathPolicy
    from growpage.grade.symbolic import SymbolicIrrational

    policy = MathPolicy(**task["policy"])
    return asdict(compare(task["gold"], task["answer"], policy, SymbolicIrrational()))


def _whole_output(task: Task) -> dict[str, Any]:
    from growpage.grade.symbolic import whole_output_correct

    return {"correct": whole_output_correct(task["gold"], task["text"])}


_TASKS: dict[str, Callable[[Task], dict[str, Any]]] = {
    "compare": _compare,
    "whole_output": _whole_output,
}
