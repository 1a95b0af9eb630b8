"""`config.yaml`: the resolved configuration of a job, written by the parent, read by the worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from growpage.config import Config, from_dict, to_dict
from growpage.store.atomic import write_bytes
from growpage.store.errors import StoreError
from growpage.store.run_dir import RunDir

_WAY_OUT = "The command of this run writes it anew and keeps the samples."


def freeze(config: Config, path: Path) -> None:
    """Raises StoreError."""
    text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    write_bytes(path, text.encode())


def thaw(path: Path) -> Config:
    """Raises StoreError for a file that is missing or damaged."""
    try:
        return from_dict(_read(path))
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error


def flat_settings(run: RunDir) -> dict[str, str]:
    """The stored configuration as "group.key" to text, also one of an older program."""
    return dict(_flatten(_read(run.config)))


def settings_text(run: RunDir) -> str:
    """The stored configuration as it was written. Raises StoreError."""
    return _read_text(run.config)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(_read_text(path))
    except yaml.YAMLError as error:
        raise _damaged(path, error) from error
    if not isinstance(values, dict):
        raise _damaged(path, ValueError("not a mapping"))
    return values


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}. {_WAY_OUT}") from error
    except UnicodeDecodeError as error:
        raise _damaged(path, error) from error


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, "null" if value is None else str(value)


def _damaged(path: Path, error: Exception) -> StoreError:
    reason = (str(error).splitlines() or ["unreadable"])[0]
    return StoreError(f"{path} is damaged ({reason}). {_WAY_OUT}")
