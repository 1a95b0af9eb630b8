"""`status.json`: what a run is doing, and whether whoever wrote that still lives."""

import os
import socket
import time
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from growpage.store.atomic import read_record, write_json
from growpage.store.errors import StoreError
from growpage.store.schema import SCHEMA_VERSION
from growpage.store.shapes import STATUS_SHAPE

HEARTBEAT_S = 5.0
STALE_S = 90.0  # a heartbeat older than this, written on another host, counts as dead
_WAY_OUT = "The command of this run writes it anew and keeps the samples."


class RunState(str, Enum):
    running = "running"
    ok = "ok"
    failed = "failed"
    interrupted = "interrupted"
    killed = "killed"  # the worker died without a last word


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """`pid` is the process that the user started, `worker_pid` its child.

    Times are Unix seconds.
    """

    state: RunState
    pid: int = field(default_factory=os.getpid)
    worker_pid: int | None = None
    host: str = field(default_factory=socket.gethostname)
    started: float = field(default_factory=time.time)
    heartbeat: float = field(default_factory=time.time)
    error: str | None = None
    num_done: int | None = None
    num_total: int | None = None

    def beat(self, **changes: Any) -> "Status":
        return replace(self, heartbeat=time.time(), **changes)

    @property
    def is_alive(self) -> bool:
        """Running: by a process of this host, or by a fresh heartbeat of another host."""
        if self.state is not RunState.running:
            return False
        if self.is_elsewhere:
            return time.time() - self.heartbeat < STALE_S
        return any(pid is not None and pid_exists(pid) for pid in (self.pid, self.worker_pid))

    @property
    def is_elsewhere(self) -> bool:
        return self.host != socket.gethostname()

    @property
    def is_of_this_process(self) -> bool:
        """Written by this process, as the user's or as its child."""
        return not self.is_elsewhere and os.getpid() in (self.pid, self.worker_pid)

    @property
    def label(self) -> str:
        """The state for people: a run that says running and is not is `lost`."""
        if self.state is RunState.running and not self.is_alive:
            return "lost"
        return self.state.value


def read_status(path: Path) -> Status | None:
    """None when there is no such file. Raises StoreError for a damaged one."""
    record = read_record(path, STATUS_SHAPE, _WAY_OUT)
    if record is None:
        return None
    names = {item.name for item in fields(Status)}
    values = {name: value for name, value in record.items() if name in names}
    if values["state"] not in RunState.__members__:
        raise StoreError(f"cannot read {path}: state {values['state']} is unknown. {_WAY_OUT}")
    values["state"] = RunState(values["state"])
    return Status(**values)


def write_status(path: Path, status: Status) -> None:
    """Raises StoreError."""
    write_json(path, {"schema_version": SCHEMA_VERSION, **asdict(status)})


def pid_exists(pid: int) -> bool:
    """Whether a process with this id runs here; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state not in ("Z", "X")
