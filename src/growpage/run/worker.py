"""The child process of one job, the only one that imports torch.

`python -m growpage.run.worker RUN_DIR`, started by `growpage.run.job`. Ends with 0, 1 (failed), 2
(the user can mend it) or 143 (told to stop); status.json has its last word.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from growpage.errors import EXIT_FAILED, EXIT_USAGE, UsageError
from growpage.run.build import REAL_PARTS, Parts
from growpage.run.frozen import thaw
from growpage.run.heartbeat import Heartbeat, die_with_parent
from growpage.run.report import make_console
from growpage.run.session import Session, Stopped
from growpage.store.errors import StoreError
from growpage.store.run_dir import RunDir
from growpage.store.status import RunState, Status
from growpage.terminal import forgiving_streams

logger = logging.getLogger(__name__)

EXIT_STOPPED = 128 + signal.SIGTERM


class _QuietFileHandler(logging.FileHandler):
    """A log that cannot be written (a full disk) must not flood the terminal with tracebacks."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    handler = _QuietFileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        root.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


def main(argv: Sequence[str], parts: Parts = REAL_PARTS) -> int:
    """Work on the run directory `argv[0]` as the child of a job."""
    stop = threading.Event()
    # Ctrl-C reaches the whole process group; the parent alone decides and sends SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    run_dir = RunDir(Path(argv[0]))
    status = run_dir.read_status()
    assert status is not None, f"{run_dir.path} has no status.json"
    die_with_parent(status.pid)
    with forgiving_streams(), _logging_to(run_dir.log):
        return _work(run_dir, status.beat(worker_pid=os.getpid()), parts, stop.is_set)


def _work(run_dir: RunDir, status: Status, parts: Parts, should_stop: Callable[[], bool]) -> int:
    with run_dir.lock_for_worker(), Heartbeat(run_dir.status, status) as heartbeat:
        try:
            session = Session(
                run_dir,
                thaw(run_dir.config),
                parts,
                should_stop=should_stop,
                on_progress=heartbeat.update,
            )
            session.run()
        except Stopped:
            heartbeat.finish(RunState.interrupted)
            return EXIT_STOPPED
        except UsageError as error:
            return _fail(heartbeat, str(error), EXIT_USAGE)
        except StoreError as error:
            return _fail(heartbeat, str(error), EXIT_FAILED)
        except Exception as error:  # the boundary of the process: the traceback goes to run.log
            logger.exception("the run failed")
            reason = str(error).strip().splitlines()
            line = f"{type(error).__name__}: {reason[0] if reason else 'no message'}"
            return _fail(heartbeat, f"{line} (traceback in {run_dir.log})", EXIT_FAILED)
        heartbeat.finish(RunState.ok)
        return 0


def _fail(heartbeat: Heartbeat, line: str, code: int) -> int:
    logger.error(line)
    heartbeat.finish(RunState.failed, line)
    make_console(is_error=True).print(f"error: {line}", markup=False, soft_wrap=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
