"""One job, seen from the process that the user started: decide, prepare, start a worker, watch it.

Imports no torch. What the worker left is in `status.json`, whatever happened to it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from rich.console import Console

from growpage.config import Config, Stage, num_samples_planned, resolve
from growpage.errors import EXIT_FAILED, EXIT_USAGE
from growpage.identity import config_hash, grader_hash, run_directory
from growpage.places import CHECKOUT
from growpage.run.frozen import freeze
from growpage.run.provenance import git_facts, session_record
from growpage.run.report import make_console, print_run, result_line, state_label
from growpage.store.atomic import write_json
from growpage.store.errors import StoreError
from growpage.store.frames import read_metrics
from growpage.store.run_dir import RunDir, find_existing, find_or_create
from growpage.store.samples import read_records
from growpage.store.schema import SCHEMA_VERSION
from growpage.store.settings import flat_settings
from growpage.store.status import RunState, Status, write_status

WORKER_COMMAND = (sys.executable, "-m", "growpage.run.worker")
_GRACE_S = 60.0  # from the first signal to the kill; a step of a large model takes seconds


def run_job(
    config: Config,
    overrides: Sequence[str],
    *,
    is_brief: bool = False,
    worker_command: Sequence[str] = WORKER_COMMAND,
) -> int:
    """Do what is left of the run of `config`, and print its table; `is_brief`: a line instead.

    Returns 0 when the run is complete, 1 when it failed, 2 when the user can mend it (the worker
    has said how), 128 + signal when it was interrupted. Raises UsageError for what is found
    before the worker starts.
    """
    console = make_console()
    resolved = resolve(config)
    if resolved.dry_run:
        _print_plan(resolved, console)
        return 0
    try:
        return _Job(resolved, overrides, worker_command, console, is_brief).run()
    except StoreError as error:
        make_console(is_error=True).print(f"error: {error}", markup=False, soft_wrap=True)
        return EXIT_FAILED


class _Job:
    def __init__(
        self,
        config: Config,
        overrides: Sequence[str],
        worker_command: Sequence[str],
        console: Console,
        is_brief: bool,
    ) -> None:
        self._config = config
        self._is_brief = is_brief
        self._overrides = list(overrides)
        self._command = list(worker_command)
        self._console = console
        self._hash = config_hash(config)
        self._errors = make_console(is_error=True)

    def run(self) -> int:
        path = run_directory(self._config)
        existing = find_existing(path, self._hash)
        if existing is not None and self._has_nothing_to_do(existing):
            self._console.print("already complete", markup=False)
            self._tell_of_other_code(existing)
            self._print_end(existing)
            return 0
        run_dir, is_new = find_or_create(path, self._hash)
        with self._lock(run_dir, is_new):
            run_dir.settle()
            run_dir.check_is_ours()
            code = self._start(run_dir, is_new)
        if code == 0:
            self._print_end(run_dir)
        return code

    def _tell_of_other_code(self, run_dir: RunDir) -> None:
        """The hash covers the configuration, not the code: a policy that was edited gives other samples."""
        sessions = (run_dir.read_provenance() or {}).get("sessions") or [{}]
        before, now = sessions[-1].get("git"), git_facts(CHECKOUT) if CHECKOUT else None
        names = ("commit", "diff_sha256")
        if before and now and any(before.get(name) != now.get(name) for name in names):
            changes = " with changes" if before.get("is_dirty") else ""
            self._say(
                f"made by other code than this (commit {before['commit'][:12]}{changes}): "
                "fresh=true makes it anew"
            )

    def _has_nothing_to_do(self, run_dir: RunDir) -> bool:
        if self._config.fresh or self._config.stage is Stage.grade or not run_dir.is_complete:
            return False
        try:
            metrics = read_metrics(run_dir) or {}
            run_dir.read_status()
            flat_settings(run_dir)
        except StoreError as error:
            self._say(f"made anew from the samples: {error}")
            return False
        if self._config.trace and not run_dir.timeline.is_file():
            return False
        is_graded = metrics.get("grader_hash") == grader_hash(self._config)
        return is_graded or self._config.stage is Stage.generate

    @contextlib.contextmanager
    def _lock(self, run_dir: RunDir, is_new: bool) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(run_dir.lock_for_job())
            except StoreError:
                if is_new:
                    run_dir.discard()
                raise
            yield

    def _start(self, run_dir: RunDir, is_new: bool) -> int:
        try:
            self._prepare(run_dir)
            code = self._supervise(run_dir)
        except BaseException:
            if is_new and not run_dir.has_samples:
                run_dir.discard()
            raise
        finally:
            if run_dir.settle():
                self._say("No new sample was made; the results from before are back.")
        if code == EXIT_USAGE and is_new and not run_dir.has_samples:
            run_dir.discard()  # a mistake of the user leaves nothing behind
        return code

    def _prepare(self, run_dir: RunDir) -> None:
        if self._config.fresh:
            run_dir.set_aside()
        run_dir.reopen()
        freeze(self._config, run_dir.config)
        provenance = run_dir.read_provenance() or {
            "schema_version": SCHEMA_VERSION,
            "run": run_dir.name,
            "config_hash": self._hash,
            "seed": self._config.seed,
            "sessions": [],
        }
        provenance["sessions"].append(session_record(self._overrides))
        write_json(run_dir.provenance, provenance)
        write_status(run_dir.status, Status(state=RunState.running))

    def _supervise(self, run_dir: RunDir) -> int:
        """Run one worker to its end; its last word, or ours for it, stands in status.json."""
        with _Signals() as signals:
            with signals.held_back():
                child = subprocess.Popen([*self._command, str(run_dir.path)], env=_worker_env())
            code = signals.wait(child)
        interrupted = signals.received
        if code == 0:
            return 0
        if interrupted is not None or code in (128 + signal.SIGTERM, -signal.SIGTERM):
            number = interrupted or signal.SIGTERM
            self._record(run_dir, RunState.interrupted, f"stopped by {number.name}")
            self._explain("interrupted", run_dir)
            return 128 + number
        if code < 0:
            reason = f"the worker was killed by signal {-code}"
            if -code == signal.SIGKILL:
                reason += " (by hand, or by the kernel for want of memory)"
            self._record(run_dir, RunState.killed, reason)
            self._explain(reason, run_dir)
            return EXIT_FAILED
        self._record(run_dir, RunState.failed, f"the worker ended with status {code}")
        return code if code == EXIT_USAGE else EXIT_FAILED

    def _record(self, run_dir: RunDir, state: RunState, error: str) -> None:
        """Say how it ended, unless the worker said so itself. A full disk may forbid it."""
        with contextlib.suppress(StoreError):
            status = run_dir.read_status() or Status(state=state)
            if status.state is RunState.running or state is RunState.interrupted:
                write_status(run_dir.status, status.beat(state=state, error=error))

    def _explain(self, what: str, run_dir: RunDir) -> None:
        command = "The same command"
        if self._config.fresh:
            command += " without fresh=true"
        self._say(f"{what}: {run_dir.name} is {state_label(run_dir)}. {command} continues it.")

    def _say(self, text: str) -> None:
        self._errors.print(text, markup=False, soft_wrap=True)

    def _print_end(self, run_dir: RunDir) -> None:
        if run_dir.is_complete and self._is_brief:
            line = f"{run_dir.name}: {result_line(run_dir)}"
            self._console.print(line, markup=False, soft_wrap=True)
        elif run_dir.is_complete:
            print_run(run_dir, self._console)
        else:
            self._console.print(
                f"samples are complete, not graded (stage={self._config.stage.value}): "
                f"{run_dir.path}",
                markup=False,
                soft_wrap=True,
            )


class _Signals:
    """SIGINT and SIGTERM end the child: once asks it, a second time or too long a wait kills it."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._deadline: float | None = None
        self._is_urgent = False
        self._has_asked = False
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "_Signals":
        if threading.current_thread() is threading.main_thread():  # elsewhere the caller has them
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Ctrl-C ignored for the moment of a start, so that the child is born ignoring it."""
        if not self._previous:
            yield
            return
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, self._handle)

    def wait(self, child: "subprocess.Popen[bytes]") -> int:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return child.wait(timeout=0.2)
                self._pass_on(child)
        except BaseException:
            child.kill()
            child.wait()
            raise

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._is_urgent = self.received is not None
        self.received = self.received or signal.Signals(number)
        self._deadline = self._deadline or time.monotonic() + _GRACE_S

    def _pass_on(self, child: "subprocess.Popen[bytes]") -> None:
        if self.received is None:
            return
        if self._is_urgent or (self._deadline is not None and time.monotonic() > self._deadline):
            child.kill()
        elif not self._has_asked:
            self._has_asked = True
            child.terminate()


def _worker_env() -> dict[str, str]:
    """Ours, with threads that sleep while they wait, unless the user has said how they wait."""
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}


def _print_plan(config: Config, console: Console) -> None:
    """One line: what this command would do."""
    path = run_directory(config)
    run_dir = find_existing(path, config_hash(config))
    planned = num_samples_planned(config)
    total = "all" if planned is None else f"{planned}"
    if run_dir is None:
        what = f"would make {total} samples"
    elif run_dir.is_complete:
        what = "is complete"
    else:
        what = f"would continue, {len(read_records(run_dir.samples))} of {total} samples exist"
    console.print(f"{(run_dir or RunDir(path)).name}: {what}", markup=False, soft_wrap=True)
