"""Append-only JSON lines: one line a record, a half last line is cut off, keys are deduplicated."""

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from growpage.store.errors import StoreError, describe_os_error
from growpage.store.schema import Row, SampleKey, row_from_dict, row_to_dict
from growpage.store.shapes import ROW_SHAPES, Shape, check_shape

logger = logging.getLogger(__name__)


class AppendFile:
    """Appends records. Lines reach the kernel at once (they survive kill -9), the disk in batches.

    A write that fails leaves the file as it was before the call and raises StoreError.
    """

    def __init__(self, path: Path, *, sync_lines: int = 64, sync_seconds: float = 5.0) -> None:
        self.path = path
        self._sync_lines = sync_lines
        self._sync_seconds = sync_seconds
        self._num_unsynced = 0
        self._last_sync = time.monotonic()
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise StoreError(describe_os_error(path, error)) from error

    def append(self, *records: dict[str, Any]) -> None:
        """Write the records in order, all of them or none."""
        if not records:
            return
        content = b"".join(_to_line(record) for record in records)
        start = os.fstat(self._descriptor).st_size
        try:
            self._write(content)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, start)
            raise StoreError(describe_os_error(self.path, error)) from error
        self._num_unsynced += len(records)
        is_due = time.monotonic() - self._last_sync >= self._sync_seconds
        if self._num_unsynced >= self._sync_lines or is_due:
            self.sync()

    def append_rows(self, *rows: Row) -> None:
        self.append(*(row_to_dict(row) for row in rows))

    def sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise StoreError(describe_os_error(self.path, error)) from error
        self._num_unsynced = 0
        self._last_sync = time.monotonic()

    def close(self) -> None:
        if self._descriptor < 0:
            return
        try:
            if self._num_unsynced:
                self.sync()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "AppendFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(self._descriptor, view) :]


def cut_half_line(path: Path) -> int:
    """Remove a last line that is not whole; returns the bytes removed, 0 when all is well.

    Whole means: ends with a newline and is JSON. Only the owner of the run directory may call this.
    """
    content = _read(path)
    keep = _num_whole_bytes(content)
    if keep < len(content):
        try:
            os.truncate(path, keep)
        except OSError as error:
            raise StoreError(describe_os_error(path, error)) from error
    return len(content) - keep


def read_records(path: Path, shape: Shape = dict) -> list[dict[str, Any]]:
    """All whole lines; a half last line is left out.

    Raises StoreError for a line before it that is damaged or not of `shape`.
    """
    content, records = _read(path), []
    for number, line in enumerate(content[: _num_whole_bytes(content)].splitlines(), start=1):
        try:
            record = json.loads(line)
            check_shape(record, shape)
        except (ValueError, RecursionError) as error:
            raise _damaged(path, number, error) from error
        records.append(record)
    return records


def read_rows(path: Path, row_type: type[Row]) -> list[Row]:
    rows = []
    for number, record in enumerate(read_records(path), start=1):
        try:
            row = row_from_dict(row_type, record)
            check_shape(record, ROW_SHAPES[row_type])
        except ValueError as error:
            raise _damaged(path, number, error) from error
        rows.append(row)
    return rows


def first_by_key(rows: Iterable[Row]) -> dict[SampleKey, Row]:
    """The first row of each key, in file order. A sample that exists is never replaced."""
    kept: dict[SampleKey, Row] = {}
    for row in rows:
        if row.key in kept:
            logger.warning("duplicate sample ignored problem=%s sample=%d", *row.key[:2])
        else:
            kept[row.key] = row
    return kept


def last_by_key(rows: Iterable[Row]) -> dict[SampleKey, Row]:
    """The last row of each key: a newer verdict replaces an older one."""
    return {row.key: row for row in rows}


def _to_line(record: dict[str, Any]) -> bytes:
    """One line of ASCII; NaN and infinity are refused, an absent number is null."""
    text = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def _read(path: Path) -> bytes:
    """The content; nothing where there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}. Move it away.") from error


def _num_whole_bytes(content: bytes) -> int:
    if not content:
        return 0
    if not content.endswith(b"\n"):
        return content.rfind(b"\n") + 1
    start = content.rfind(b"\n", 0, len(content) - 1) + 1
    try:
        json.loads(content[start:])
    except (ValueError, RecursionError):
        return start
    return len(content)


def _damaged(path: Path, number: int, error: Exception) -> StoreError:
    return StoreError(
        f"{path}:{number} is damaged ({error}). Remove that line and run the same command again."
    )
