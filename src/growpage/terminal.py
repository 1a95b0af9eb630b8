"""Standard output and error that never end a run: closed pipes, full disks, narrow encodings."""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from typing import Any, TextIO, cast

from growpage.errors import EXIT_FAILED


class ForgivingStream:
    """A text stream whose first failure is kept in `error`; from then on what is written is lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: OSError) -> None:
        """Also what is still in the buffer, which Python would write again at its end."""
        self.error = self.error or error
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


@contextlib.contextmanager
def forgiving_streams() -> Iterator[None]:
    """Standard output and error as forgiving streams, which also write what an encoding lacks as "?"."""
    before = sys.stdout, sys.stderr
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    streams = [item and ForgivingStream(item) for item in before]  # None: closed at the start
    sys.stdout, sys.stderr = cast(list[TextIO], streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def output_status() -> int:
    """0 when all of the output arrived; else what a command ends with, said unless the reader is gone.

    Call it within `forgiving_streams`.
    """
    stream = sys.stdout
    if not isinstance(stream, ForgivingStream):
        return 0
    stream.flush()
    if stream.error is None:
        return 0
    if stream.error.errno == errno.EPIPE:
        return 128 + signal.SIGPIPE
    print(f"error: cannot write the output: {stream.error.strerror}.", file=sys.stderr)
    return EXIT_FAILED
