"""`config.yaml`: the resolved configuration of a job, written by the parent, read by the worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from growpage.config import Config, from_dict, to_dict
from growpage.store.atomic import write_bytes
from growpage.store.errors import StoreError
from growpage.store.run_dir import RunDir


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


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error
    if not isinstance(values, dict):
        raise _damaged(path, ValueError("not a mapping"))
    return values


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, "null" if value is None else str(value)


def _damaged(path: Path, error: Exception) -> StoreError:
    reason = (str(error).splitlines() or ["unreadable"])[0]
    return StoreError(f"{path} is damaged ({reason}). Remove the run directory.")
