"""The stored configuration of a run as text, also one of an older program."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from growpage.store.errors import StoreError
from growpage.store.run_dir import RunDir

_WAY_OUT = "The command of this run writes it anew and keeps the samples."


def flat_settings(run: RunDir) -> dict[str, str]:
    """ "group.key" to its value as text. Raises StoreError."""
    return dict(_flatten(read_settings(run.config)))


def settings_text(run: RunDir) -> str:
    """config.yaml as it was written. Raises StoreError."""
    return _read_text(run.config)


def read_settings(path: Path) -> dict[str, Any]:
    """Raises StoreError for a file that is missing or damaged."""
    try:
        values = yaml.safe_load(_read_text(path))
    except yaml.YAMLError as error:
        raise damaged(path, error) from error
    if not isinstance(values, dict):
        raise damaged(path, ValueError("not a mapping"))
    return values


def damaged(path: Path, error: Exception) -> StoreError:
    reason = (str(error).splitlines() or ["unreadable"])[0]
    return StoreError(f"{path} is damaged ({reason}). {_WAY_OUT}")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}. {_WAY_OUT}") from error
    except UnicodeDecodeError as error:
        raise damaged(path, error) from error


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, "null" if value is None else str(value)
