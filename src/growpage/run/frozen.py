"""`config.yaml`:

the resolved configuration of one job, written by the parent, read by the worker.
"""

from pathlib import Path

import yaml

from growpage.config import Config, from_dict, to_dict
from growpage.store.atomic import write_bytes
from growpage.store.errors import StoreError, describe_os_error


def freeze(config: Config, path: Path) -> None:
    """Raises StoreError."""
    text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    write_bytes(path, text.encode())


def thaw(path: Path) -> Config:
    """Raises StoreError for a file that is missing or damaged."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        return from_dict(values)
    except OSError as error:
        raise StoreError(describe_os_error(path, error)) from error
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise StoreError(f"{path} is damaged ({reason}). Remove the run directory.") from error
