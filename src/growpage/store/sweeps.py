"""What is kept of a sweep as a whole: a folder `.sweeps/<time>` beside its runs, with their names."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from growpage.errors import UsageError
from growpage.store.atomic import read_record, write_json

_FOLDER, _NAMES = ".sweeps", "runs.json"


def new_record_folder(runs: Path) -> Path:
    """Where Hydra and we put what is known of a sweep that starts now; not made yet."""
    return runs / _FOLDER / f"{datetime.now():%Y-%m-%d_%H-%M-%S_%f}"


def write_names(folder: Path, names: Sequence[str]) -> None:
    """Raises StoreError."""
    write_json(folder / _NAMES, list(names))


def last_record(runs: Path) -> Path:
    """The folder of the newest sweep that has ended. Raises `UsageError` without one."""
    records = sorted(runs.glob(f"{_FOLDER}/*/{_NAMES}"))
    if not records:
        raise UsageError(f"no sweep in {runs} yet: name runs, or start one: python run.py -m …")
    return records[-1].parent


def last_sweep(runs: Path) -> list[str]:
    """Names of the runs of the newest sweep, in its order. Raises `UsageError` without one."""
    file = last_record(runs) / _NAMES
    names: list[str] = read_record(file, [str], "Remove it, or name runs.")
    return names
