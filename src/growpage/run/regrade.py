"""`python run.py stage=grade run=RUN`: new verdicts on stored samples, and what they changed. Generates nothing."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from growpage.config import Config, from_dict, to_dict
from growpage.errors import EXIT_FAILED, EXIT_USAGE, UsageError, unknown
from growpage.grade.registry import GRADERS
from growpage.places import default_runs_folder, expand
from growpage.run.frozen import thaw
from growpage.run.preflight import check
from growpage.run.report import make_console, print_run
from growpage.store.atomic import write_bytes
from growpage.store.errors import StoreError
from growpage.store.run_dir import RunDir, find_run
from growpage.store.samples import last_by_key, read_rows
from growpage.store.schema import SampleKey, VerdictRow

RUN_KEY = "run="
_USAGE = "python run.py stage=grade run=RUN [grader=NAME] [grader.KEY=VALUE…] [paths.runs=FOLDER]"
_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One sample that two graders judge differently."""

    before: VerdictRow
    after: VerdictRow


def regrade(arguments: Sequence[str], config_folder: Path) -> int:
    """Grade a run again as its stored configuration says, but for the grader. Returns the exit status.

    Newer versions of growpage may name such a run otherwise; its samples keep the hash they have.
    """
    run, settings = _parse(arguments)
    console = make_console()
    try:
        config = _with_grader(thaw(run.config), run, settings, config_folder)
        check(config)
        with run.lock_for_job():
            run.settle()
            if settings:
                _store_grader(run, config)
            run.reopen()
            command = [sys.executable, "-m", "growpage.run.regrade_worker", str(run.path)]
            status = subprocess.run(command, check=False).returncode
    except StoreError as error:
        raise UsageError(str(error)) from error
    if status != 0:
        return status if status == EXIT_USAGE else EXIT_FAILED
    print_run(run, console)
    print_changes(run, console)
    return 0


def _store_grader(run: RunDir, config: Config) -> None:
    """The settings that the new verdicts come from; everything else stays as it was written."""
    values = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    values["grader"] = to_dict(config)["grader"]
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    write_bytes(run.config, text.encode())


def changes(rows: Sequence[VerdictRow]) -> tuple[int, list[Change]]:
    """How many samples two graders have judged, and where the last two that did so disagree."""
    after = last_by_key(rows)
    before: dict[SampleKey, VerdictRow] = {}
    for row in rows:
        if _grader(row) != _grader(after[row.key]):
            before[row.key] = row
    pairs = [Change(before=row, after=after[key]) for key, row in before.items()]
    return len(pairs), [pair for pair in pairs if _judgement(pair.before) != _judgement(pair.after)]


def print_changes(run: RunDir, console: Console) -> None:
    """What the newest verdicts changed against those of the grader before."""
    num_both, found = changes(read_rows(run.verdicts, VerdictRow))
    if not num_both:
        console.print("verdicts: no other grader has judged this run", soft_wrap=True)
        return
    gained = sum(pair.after.correct and not pair.before.correct for pair in found)
    lost = sum(pair.before.correct and not pair.after.correct for pair in found)
    console.print(
        f"verdicts: {len(found)} of {num_both} changed, {gained} now right, {lost} now wrong",
        soft_wrap=True,
    )
    if found:
        console.print(_table(found[:_MAX_SHOWN]))
    if len(found) > _MAX_SHOWN:
        console.print(f"and {len(found) - _MAX_SHOWN} more in {run.verdicts}", soft_wrap=True)


def _table(found: Sequence[Change]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("problem", "sample", "before", "after", "why"):
        table.add_column(heading, overflow="fold")
    for pair in found:
        cells = (_word(pair.before), _word(pair.after), pair.after.reason)
        table.add_row(pair.after.problem_id, str(pair.after.sample_index), *cells)
    return table


def _grader(row: VerdictRow) -> tuple[str, str]:
    return row.grader_version, row.grader_hash


def _judgement(row: VerdictRow) -> tuple[bool, bool]:
    return row.correct, "grader_error" in row.flags


def _word(row: VerdictRow) -> str:
    return "ungraded" if "grader_error" in row.flags else "right" if row.correct else "wrong"


def _parse(arguments: Sequence[str]) -> tuple[RunDir, list[str]]:
    """The run, and the settings of the grader. Raises `UsageError` for anything else."""
    root, name, has_stage = default_runs_folder(), "", False
    grader: list[str] = []
    for item in arguments:
        key, _, value = item.partition("=")
        if key == "run":
            name = value
        elif item == "stage=grade":
            has_stage = True
        elif key == "paths.runs":
            root = expand(value, item).absolute()
        elif key == "grader" or key.startswith("grader."):
            grader.append(item)
        else:
            raise UsageError(f"{item}: a stored run has its settings. {_USAGE}")
    if not has_stage:
        raise UsageError(f"run={name}: names a run to grade again; add stage=grade. {_USAGE}")
    return find_run(root, name), grader


def _with_grader(config: Config, run: RunDir, settings: Sequence[str], folder: Path) -> Config:
    values = to_dict(config)
    values["stage"], values["dry_run"], values["fresh"] = "grade", False, False
    values["paths"]["runs"] = str(run.path.parent)
    dotted = [item for item in settings if not item.startswith("grader=")]
    for item in settings:
        if item.startswith("grader="):
            values["grader"] = _option(item.partition("=")[2], folder)
    chosen: Any = OmegaConf.to_container(OmegaConf.from_dotlist(dotted))
    merged = OmegaConf.merge(values, chosen)
    return from_dict(OmegaConf.to_container(merged))  # type: ignore[arg-type]


def _option(name: str, folder: Path) -> dict[str, Any]:
    if name not in GRADERS:
        raise unknown("grader", name, GRADERS)
    values: dict[str, Any] = yaml.safe_load((folder / "grader" / f"{name}.yaml").read_text())
    del values["defaults"]
    return values
