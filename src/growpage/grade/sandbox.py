"""Runs one program of a model with one input, apart from everything else (docs/graders.md §7).

The expected outputs never leave this process; programs run under `growpage.grade.jail`, in the strongest mode that
the kernel allows. Every end of a program is a `ProgramRun`; a failure of the sandbox itself is one too, and is never
taken for the program's.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from growpage.grade.jail import MODES, receive, send

_START_LIMIT_S = 120.0
_ANSWER_LIMIT_S = 90.0  # beyond the program's own time: its interpreter's start and the cleaning up
_MODULE = "from growpage.grade.jail import serve; serve()"


class Ended(str, Enum):
    """How a program ended. `infrastructure`: the sandbox failed, and nothing is known of the program."""

    finished = "finished"
    runtime = "runtime"
    timeout = "timeout"
    memory = "memory"
    output = "output"
    infrastructure = "infrastructure_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one program on one test. Bytes, seconds of wall clock, processes with their threads."""

    time_limit_s: float = 6.0
    memory_bytes: int = 4 << 30
    output_bytes: int = 16 << 20
    file_bytes: int = 64 << 20
    disk_bytes: int = 256 << 20
    num_processes: int = 64
    interpreter_bytes: int = 128 << 20  # address space that Python itself maps


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """`output`: what it wrote, or what its function returned as JSON. `detail`: the last line of its errors."""

    ended: Ended
    output: bytes = b""
    detail: str = ""
    wall_s: float = 0.0


class Sandbox:
    """One server, started when first needed and again when it has ended. One program at a time."""

    def __init__(self, *, modes: Sequence[str] = MODES) -> None:
        """modes: what may be tried, the strongest first."""
        self._modes = list(modes)
        self._server: list[_Server] = []
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _stop, self._server)

    @property
    def mode(self) -> str:
        """The mode in use; "" where none could be started."""
        with self._lock:
            return self._started().mode if self._start() == "" else ""

    def run_stdin(self, program: str, given: str, limits: Limits) -> ProgramRun:
        """The program with `given` on its standard input."""
        return self._run({"kind": "stdin"}, program, given, limits)

    def run_function(
        self, program: str, name: str, arguments: Sequence[Any], limits: Limits
    ) -> ProgramRun:
        """`Solution().name(*arguments)`, or a plain function of that name."""
        header = {"kind": "functional", "fn_name": name}
        return self._run(header, program, json.dumps(list(arguments)), limits)

    def close(self) -> None:
        """End the server; the sandbox may be used again."""
        with self._lock:
            _stop(self._server)

    def _run(self, header: dict[str, Any], program: str, given: str, limits: Limits) -> ProgramRun:
        header |= asdict(limits) | {"temporary": tempfile.gettempdir()}
        contents = [program.encode("utf-8", "replace"), given.encode("utf-8", "replace")]
        with self._lock:
            if failure := self._start():
                return ProgramRun(ended=Ended.infrastructure, detail=failure)
            reply = self._started().ask(header, contents, limits.time_limit_s + _ANSWER_LIMIT_S)
            if reply is None:
                _stop(self._server)
                return ProgramRun(ended=Ended.infrastructure, detail="the sandbox ended")
            return _program_run(*reply)

    def _started(self) -> "_Server":
        return self._server[0]

    def _start(self) -> str:
        """ "" when a server runs; else why not."""
        if self._server and self._server[0].has_ended():
            _stop(self._server)
        reasons = []
        while self._modes and not self._server:
            try:
                server = _Server(self._modes[0])
            except OSError as error:
                return f"no process could be started: {error}"
            if failure := server.await_mode() or server.try_it():
                server.stop()
                reasons.append(f"{self._modes.pop(0)}: {failure}")
            else:
                self._server.append(server)
        return "" if self._server else "; ".join(reasons) or "no mode of the sandbox works here"


class _Server:
    """The process and the two pipes to it."""

    def __init__(self, mode: str) -> None:
        self.mode = ""  # what the server says
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MODULE, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            env=_environment(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()

    def await_mode(self) -> str:
        """ "" when the server has locked itself in; else why not."""
        with self._limit(_START_LIMIT_S):
            content = self._receive()
        if content is None:
            return "it ended"
        reply = json.loads(content)
        self.mode = str(reply.get("mode", ""))
        return str(reply.get("error", ""))

    def try_it(self) -> str:
        """ "" when a program runs here; else why not: a Python may lack what it needs behind the wall."""
        header = {"kind": "stdin", "temporary": tempfile.gettempdir()} | asdict(Limits())
        reply = self.ask(header, [b"print(input())", b"1"], _START_LIMIT_S)
        if reply is None:
            return "it ended"
        run = _program_run(*reply)
        return "" if run.output == b"1\n" else f"{run.ended.value}: {run.detail}"

    def ask(
        self, header: dict[str, Any], contents: Sequence[bytes], limit_s: float
    ) -> tuple[dict[str, Any], bytes] | None:
        """None when the server ended or did not answer in time; then it is of no more use."""
        with self._limit(limit_s):
            try:
                send(self._input, json.dumps(header).encode(), *contents)
            except OSError:
                return None
            report = self._receive()
            output = None if report is None else self._receive()
        return None if report is None or output is None else (json.loads(report), output)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """Closing its input lets it clean up; what does not end then is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10.0)
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def _receive(self) -> bytes | None:
        try:
            return receive(self._output)
        except OSError:
            return None

    @contextlib.contextmanager
    def _limit(self, seconds: float) -> Any:
        """Kill the server when the block takes longer."""
        timer = threading.Timer(seconds, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _stop(servers: list[_Server]) -> None:
    while servers:
        servers.pop().stop()


def _environment() -> dict[str, str]:
    """Nothing of ours but where Python finds modules: programs may see the environment of what started them."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _program_run(report: dict[str, Any], output: bytes) -> ProgramRun:
    status, code = report["status"], int(report.get("code") or 0)
    last = _last_line(report.get("errors", ""))
    wall = float(report.get("wall_s") or 0.0)
    if status in ("timeout", "memory", "output"):
        return ProgramRun(ended=Ended(status), wall_s=wall)
    if status == "processes":
        return ProgramRun(ended=Ended.runtime, detail="too many processes", wall_s=wall)
    if status != "exit":
        detail = " ".join(str(report.get(key) or "") for key in ("status", "detail", "code"))
        return ProgramRun(ended=Ended.infrastructure, detail=f"{detail} {last}".strip())
    if code == 0:
        return ProgramRun(ended=Ended.finished, output=output, wall_s=wall)
    if last.startswith("MemoryError"):
        return ProgramRun(ended=Ended.memory, detail=last, wall_s=wall)
    how = last or (f"signal {-code}" if code < 0 else f"exit status {code}")
    return ProgramRun(ended=Ended.runtime, detail=how, output=output, wall_s=wall)


def _last_line(errors: str) -> str:
    lines = errors.strip().splitlines()
    return lines[-1][:200] if lines else ""
