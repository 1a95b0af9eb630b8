"""`config.yaml`: the resolved configuration of a job, written by the parent, read by the worker."""

from pathlib import Path

import yaml

from growpage.config import Config, from_dict, to_dict
from growpage.store.atomic import write_bytes
from growpage.store.settings import damaged, read_settings


def freeze(config: Config, path: Path) -> None:
    """Raises StoreError."""
    text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    write_bytes(path, text.encode())


def thaw(path: Path) -> Config:
    """Raises StoreError for a file that is missing or damaged."""
    try:
        return from_dict(read_settings(path))
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, error) from error
