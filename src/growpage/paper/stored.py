"""Runs as figures read them: from run directories, or from one parquet file that holds many.

`export` packs chosen runs, so that the data behind a committed figure can be committed too. Texts and token ids stay
behind: they are most of the bytes and in no figure.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from growpage.errors import UsageError
from growpage.places import expand
from growpage.store.atomic import make_folder, write_atomically
from growpage.store.frames import read_metrics, read_run
from growpage.store.run_dir import RunDir, find_run
from growpage.store.settings import flat_settings

if TYPE_CHECKING:
    import pandas as pd

SUFFIX = ".parquet"
_METADATA_KEY = b"growpage.runs"
_LEFT_BEHIND = ("text", "token_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """`frame` has the columns of `store.frames.FRAME_COLUMNS`, of an export without text and token ids."""

    name: str
    settings: dict[str, str]  # "group.key" → value as text
    metrics: dict[str, Any] | None  # None: incomplete
    devices: list[str] = field(default_factory=list)
    frame: "pd.DataFrame"


def read_stored(root: Path, names: Sequence[str]) -> list[StoredRun]:
    """Runs by name, by folder, or by an exported file, which stands for all it holds.

    Raises `UsageError` for what is not there.
    """
    runs: list[StoredRun] = []
    for name in names:
        path = expand(name, name)
        if path.suffix == SUFFIX and path.is_file():
            runs += _read_export(path)
        else:
            runs.append(_read_run(find_run(root, name)))
    return runs


def export(runs: Sequence[StoredRun], path: Path) -> None:
    """Write the runs to one parquet file. Raises `UsageError` for another suffix, StoreError for a full disk."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix != SUFFIX:
        raise UsageError(f"out={path}: must end with {SUFFIX}.")
    frames = []
    for run in runs:
        frame = run.frame.drop(columns=list(_LEFT_BEHIND), errors="ignore")
        if "run" not in frame.columns:
            frame.insert(0, "run", run.name)
        frames.append(frame)
    facts = [_facts(run) for run in runs]
    table = pa.Table.from_pandas(pd.concat(frames, ignore_index=True), preserve_index=False)
    metadata = {**(table.schema.metadata or {}), _METADATA_KEY: json.dumps(facts).encode()}
    make_folder(path.parent)
    write_atomically(
        path, lambda temporary: pq.write_table(table.replace_schema_metadata(metadata), temporary)
    )


def _facts(run: StoredRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "settings": {k: v for k, v in run.settings.items() if not k.startswith("paths.")},
        "metrics": run.metrics,
        "devices": run.devices,
    }


def _read_run(run: RunDir) -> StoredRun:
    sessions = (run.read_provenance() or {}).get("sessions", ())
    devices: dict[str, None] = {}
    for session in sessions:
        hardware = session.get("hardware") or {"cpu": "unknown", "gpus": []}
        is_cpu = str((session.get("engine") or {}).get("device", "cpu")).startswith("cpu")
        names = [] if is_cpu else [gpu["name"] for gpu in hardware["gpus"]]
        devices.update(dict.fromkeys(names or [f"{hardware['cpu']} (CPU)"]))
    return StoredRun(
        name=run.name,
        settings=flat_settings(run),
        metrics=read_metrics(run),
        devices=list(devices),
        frame=read_run(run),
    )


def _read_export(path: Path) -> list[StoredRun]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{path}: not a readable parquet file ({error}).") from error
    packed = (table.schema.metadata or {}).get(_METADATA_KEY)
    if packed is None:
        raise UsageError(f"{path}: not made by `python run.py export`.")
    frame = table.to_pandas()
    groups = dict(tuple(frame.groupby("run", sort=False)))
    return [
        StoredRun(frame=groups[facts["name"]].reset_index(drop=True), **facts)
        for facts in json.loads(packed)
    ]
