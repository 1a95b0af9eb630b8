"""One directory a run: created exclusively, locked while in use, trusted once `DONE` stands in it."""

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from growpage.errors import UsageError
from growpage.places import expand
from growpage.store.atomic import read_record, write_json
from growpage.store.errors import ForeignRunError, LockedRunError, StoreError, describe_os_error
from growpage.store.shapes import DONE_SHAPE, PROVENANCE_SHAPE
from growpage.store.status import Status, read_status

_ORPHAN_WAIT_S = 15.0  # a worker whose parent was killed ends by itself within this time


class RunDir:
    """Paths and life cycle of one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.provenance = path / "provenance.json"
        self.status = path / "status.json"
        self.samples = path / "samples.jsonl"
        self.verdicts = path / "verdicts.jsonl"
        self.events = path / "events.jsonl"
        self.log = path / "run.log"
        self.parquet = path / "samples.parquet"
        self.metrics = path / "metrics.json"
        self.timeline = path / "timeline.json"
        self.pages_plot = path / "pages.png"
        self.done = path / "DONE"
        self._replaced = path / ".replaced"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def has_samples(self) -> bool:
        return _size(self.samples) > 0

    @property
    def is_complete(self) -> bool:
        """`DONE` stands there, and the results that it vouches for have the sizes they had."""
        try:
            done = read_record(self.done, DONE_SHAPE, "")
        except StoreError:
            return False
        if done is None or not (self.metrics.is_file() and self.parquet.is_file()):
            return False
        sizes: dict[str, int] = done.get("sizes") or {}
        return all(_size(self.path / name) == size for name, size in sizes.items())

    @property
    def is_damaged(self) -> bool:
        """It was complete once; the command of this run makes it so again."""
        return self.done.exists() and not self.is_complete

    def read_status(self) -> Status | None:
        return read_status(self.status)

    def read_provenance(self) -> dict[str, Any] | None:
        way_out = (
            "Remove it; the command of this run then goes on, without what earlier sessions noted."
        )
        record: dict[str, Any] | None = read_record(self.provenance, PROVENANCE_SHAPE, way_out)
        return record

    def mark_done(self, num_samples: int) -> None:
        """The last write of a run."""
        files = (self.samples, self.metrics, self.parquet)
        sizes = {file.name: _size(file) for file in files if file.is_file()}
        write_json(self.done, {"num_samples": num_samples, "finished": time.time(), "sizes": sizes})

    def reopen(self) -> None:
        """Take `DONE` away before anything behind it changes."""
        with _failing_as_store_error(self.done):
            self.done.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock_for_job(self) -> Iterator[None]:
        """Hold the directory for the process that the user started.

        Raises LockedRunError with pid and host of the holder: another job, a worker that outlived
        its job, or a job on another host with a fresh heartbeat (shared folders lose locks).
        """
        with self._locked("job.lock", 0.0):
            with self._locked("worker.lock", _ORPHAN_WAIT_S):
                pass
            status = self._last_status()
            if status is not None and status.is_alive and status.is_elsewhere:
                raise self._locked_error()
            yield

    @contextlib.contextmanager
    def lock_for_worker(self) -> Iterator[None]:
        """Hold the directory for the process that writes samples."""
        with self._locked("worker.lock", 0.0):
            yield

    def set_aside(self) -> None:
        """Put the results out of the way of new ones; call it, and `settle`, while holding the lock.

        The log and the locks stay. `DONE` goes first, then the samples, so that what a kill cuts
        short is never taken for complete and loses no sample.
        """
        first = (self.done, self.samples)
        rest = (item for item in self.path.iterdir() if item not in (*first, self.log))
        with _failing_as_store_error(self.path):
            entries = [*(item for item in first if item.exists()), *rest]
            self._replaced.mkdir(exist_ok=True)
            for entry in entries:
                if entry.suffix != ".lock" and entry != self._replaced:
                    entry.rename(self._replaced / entry.name)

    def settle(self) -> bool:
        """End a start that `set_aside` began: new samples replace the old results, else these come back.

        Returns whether they came back.
        """
        if not self._replaced.is_dir():
            return False
        with _failing_as_store_error(self.path):
            if not self.has_samples:
                done_last = sorted(self._replaced.iterdir(), key=lambda x: x.name == self.done.name)
                for entry in done_last:
                    entry.replace(self.path / entry.name)
                self._replaced.rmdir()
                return True
            shutil.rmtree(self._replaced)
        return False

    def discard(self) -> None:
        """Remove the directory, as far as possible; call it while holding the lock."""
        shutil.rmtree(self.path, ignore_errors=True)

    def check_is_ours(self) -> None:
        """Raise ForeignRunError for a folder that holds something but no run."""
        strangers = sorted(entry.name for entry in self.path.iterdir() if entry.suffix != ".lock")
        if strangers and not (self.config.is_file() or self.samples.is_file()):
            raise ForeignRunError(
                f"{self.path} exists and is not a run directory (it holds {strangers[0]}). "
                "Move it away."
            )

    @contextlib.contextmanager
    def _locked(self, name: str, timeout_s: float) -> Iterator[None]:
        lock = FileLock(self.path / name)
        try:
            lock.acquire(timeout=timeout_s, poll_interval=0.05)
        except Timeout:
            raise self._locked_error() from None
        except NotImplementedError:  # a file system without locks: pids and heartbeats must do
            status = self._last_status()
            if status is not None and status.is_alive and not status.is_of_this_process:
                raise self._locked_error() from None
        except OSError as error:
            raise StoreError(describe_os_error(self.path / name, error)) from error
        try:
            yield
        finally:
            lock.release()

    def _last_status(self) -> Status | None:
        """None also for a damaged file, which must not keep a run from being continued."""
        with contextlib.suppress(StoreError):
            return self.read_status()
        return None

    def _locked_error(self) -> LockedRunError:
        status = self._last_status()
        if status is None:
            return LockedRunError(
                f"{self.path} is in use by another process that is just starting."
            )
        age = max(0.0, time.time() - status.heartbeat)
        return LockedRunError(
            f"{self.path} is in use by pid {status.pid} on host {status.host} "
            f"(heartbeat {age:.0f} s ago). Wait for it, or stop it first."
        )


def find_or_create(path: Path, config_hash: str) -> tuple[RunDir, bool]:
    """The directory of this configuration and whether it was made now.

    `path` is where it belongs. A sibling whose name ends in the same hash is used instead, since
    two spellings of a command are one run. Raises UsageError when the folder cannot be had.
    """
    if (existing := find_existing(path, config_hash)) is not None:
        return existing, False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except OSError as error:
        if isinstance(error, FileExistsError) and path.is_dir():
            return RunDir(path), False  # another process was faster; its lock decides
        raise UsageError(describe_os_error(_obstacle(path), error)) from error
    return RunDir(path), True


def find_existing(path: Path, config_hash: str) -> RunDir | None:
    """The run at `path`, or beside it under another label with the same hash.

    Raises UsageError when the folder cannot be looked into.
    """
    try:
        if path.is_dir():
            return RunDir(path)
        siblings = sorted(item for item in path.parent.glob(f"*-{config_hash}") if item.is_dir())
    except OSError as error:
        raise UsageError(describe_os_error(path.parent, error)) from error
    return RunDir(siblings[0]) if siblings else None


def list_runs(root: Path) -> list[RunDir]:
    """All run directories under `root`, newest first."""
    if not root.is_dir():
        return []
    paths = [entry for entry in root.iterdir() if _is_run(entry)]
    return [RunDir(path) for path in sorted(paths, key=_modified, reverse=True)]


def find_run(root: Path, text: str) -> RunDir:
    """A run by path, name, or a prefix that only one name has. Raises UsageError."""
    if not text:
        raise UsageError("the name of a run is empty.")
    path = expand(text, text)
    if _is_run(path):
        return RunDir(path.resolve())
    runs = {run.name: run for run in list_runs(root)}
    name = text.rstrip("/")
    if name in runs:
        return runs[name]
    matches = sorted(candidate for candidate in runs if candidate.startswith(name))
    if len(matches) == 1:
        return runs[matches[0]]
    if matches:
        raise UsageError(f"{text}: fits several runs: {', '.join(matches)}. Type more of the name.")
    known = ", ".join(sorted(runs)) or "none"
    raise UsageError(f"{text}: no such run in {root}. Known: {known}.")


def _is_run(path: Path) -> bool:
    try:
        return (path / "config.yaml").is_file()
    except OSError:  # a name that is too long, a folder that may not be looked into
        return False


def _obstacle(path: Path) -> Path:
    """What stands in the way of the folder `path`: a file in its place or above it, else itself."""
    files = (item for item in (path, *path.parents) if _size(item) >= 0 and not item.is_dir())
    return next(files, path)


def _size(path: Path) -> int:
    """Bytes of a file; -1 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


@contextlib.contextmanager
def _failing_as_store_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(describe_os_error(path, error)) from error


def _modified(path: Path) -> float:
    return path.stat().st_mtime
