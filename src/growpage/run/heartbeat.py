"""The worker's signs of life: `status.json` every few seconds, and an end when its parent is gone."""

import ctypes
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from growpage.store.errors import StoreError
from growpage.store.status import HEARTBEAT_S, RunState, Status, write_status

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


class Heartbeat:
    """Writes the status in a thread; `update` changes what it says, `finish` says the last word.

    A status that cannot be written is logged once and never ends the run.
    """

    def __init__(self, path: Path, status: Status, *, seconds: float = HEARTBEAT_S) -> None:
        self._path = path
        self._status = status
        self._seconds = seconds
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._has_failed = False
        self._parent = os.getppid()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def update(self, **changes: Any) -> None:
        with self._lock:
            self._status = self._status.beat(**changes)

    def finish(self, state: RunState, error: str | None = None) -> None:
        self._stopped.set()
        self.update(state=state, error=error)
        self._write()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            if os.getppid() != self._parent:  # where the kernel does not do it for us
                os.kill(os.getpid(), signal.SIGKILL)
            self.update()
            self._write()

    def _write(self) -> None:
        with self._lock:
            try:
                write_status(self._path, self._status)
            except StoreError as error:
                if not self._has_failed:
                    logger.warning("status not written error=%s", error)
                self._has_failed = True


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux): no worker is orphaned.

    A killed worker loses the samples in flight and nothing else.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the call
        os.kill(os.getpid(), signal.SIGKILL)
