"""Files that are either whole or not there."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from growpage.store.errors import StoreError, describe_os_error
from growpage.store.shapes import Shape, check_shape


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file beside `path`, sync it and rename it over `path`.

    Raises StoreError; the old file, if any, is then untouched and no temporary file is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        _sync(temporary, os.O_RDWR)
        os.replace(temporary, path)
        _sync(path.parent, os.O_RDONLY)
    except OSError as error:
        raise StoreError(describe_os_error(path, error)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def make_folder(path: Path) -> None:
    """Raises StoreError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(describe_os_error(path, error)) from error


def write_bytes(path: Path, content: bytes) -> None:
    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, write)


def write_json(path: Path, record: Any) -> None:
    """Readable JSON. NaN and infinity are refused: an absent number is null."""
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, text.encode() + b"\n")


def read_record(path: Path, shape: Shape, way_out: str) -> Any:
    """The content of a small JSON file, of the given shape; None when there is no such file.

    Raises StoreError, ending in `way_out`, for a file that is unreadable or not of `shape`.
    """
    try:
        record = json.loads(path.read_bytes())
        check_shape(record, shape)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}. {way_out}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"cannot read {path}: {error}. {way_out}") from error
    return record


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
