"""The verbs of run.py that read results. No torch, no Hydra."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from growpage.errors import UsageError, require, unknown
from growpage.paper.accuracy_capacity import HEADINGS, table_rows, write_figure
from growpage.paper.points import footer, read_points
from growpage.paper.stored import export as write_export
from growpage.paper.stored import read_stored
from growpage.places import default_runs_folder, expand
from growpage.run.report import ABSENT, make_console, print_comparison, print_run, state_label
from growpage.store.errors import StoreError
from growpage.store.frames import read_metrics
from growpage.store.run_dir import RunDir, find_run, list_runs
from growpage.store.settings import settings_text
from growpage.store.sweeps import last_record, last_sweep

USAGE = {
    "compare": "python run.py compare [RUN RUN…] [paths.runs=FOLDER]\n"
    "Runs side by side; differences to the first are paired by question.\n"
    "RUN: a path, a name, or a prefix that only one name has. Without RUN: the last sweep.",
    "plot": "python run.py plot [RUN RUN…] [out=PATH] [paths.runs=FOLDER]\n"
    "Accuracy against average KV capacity: a table, and PATH.pdf, .png, .csv, .md.\n"
    "RUN may be an exported file. Without RUN: the last sweep.",
    "export": "python run.py export [RUN RUN…] out=FILE.parquet [paths.runs=FOLDER]\n"
    "Packs runs into one file that plot reads: numbers and verdicts of every sample, no texts.",
    "ls": "python run.py ls [paths.runs=FOLDER]\nAll runs, newest first.",
    "show": "python run.py show RUN [paths.runs=FOLDER]\n"
    "One run: state, where it comes from, configuration, numbers.",
}
_FOLDER_KEY, _OUT_KEY = "paths.runs=", "out="


def main(verb: str, args: Sequence[str]) -> int:
    """Run a verb. Raises UsageError for unknown verbs, runs and arguments."""
    if verb not in VERBS:
        raise unknown("verb", verb, VERBS)
    console = make_console()
    if any(item in ("-h", "--help") for item in args):
        console.print(USAGE[verb], markup=False, soft_wrap=True)
        return 0
    arguments = _parse(verb, args)
    try:
        VERBS[verb](arguments, console)
    except StoreError as error:
        raise UsageError(str(error)) from error
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The folder of the runs, the runs that were named, and where output goes."""

    root: Path
    names: list[str]
    out: Path | None

    @property
    def names_or_last_sweep(self) -> list[str]:
        return self.names or last_sweep(self.root)


def compare(arguments: Arguments, console: Console) -> None:
    print_comparison(
        [find_run(arguments.root, name) for name in arguments.names_or_last_sweep], console
    )


def plot(arguments: Arguments, console: Console) -> None:
    runs = read_stored(arguments.root, arguments.names_or_last_sweep)
    points = read_points(runs)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == HEADINGS[0] else "right")
    for row in table_rows(points):
        table.add_row(*row)
    console.print(table)
    figures = arguments.root.parent / "figures"
    stem = arguments.out or figures / (
        f"{points[0].bench}-{points[0].model}"
        if arguments.names
        else last_record(arguments.root).name
    )
    for path in write_figure(points, stem, footer(runs)):
        console.print(f"written  {path}", markup=False, soft_wrap=True)


def export(arguments: Arguments, console: Console) -> None:
    if arguments.out is None:
        raise UsageError("export: say where to, for example out=runs.parquet")
    runs = read_stored(arguments.root, arguments.names_or_last_sweep)
    write_export(runs, arguments.out)
    console.print(f"written  {arguments.out} ({len(runs)} runs)", markup=False, soft_wrap=True)


def show(arguments: Arguments, console: Console) -> None:
    root, names = arguments.root, arguments.names
    if len(names) != 1:
        raise UsageError(f"show: name one run. {_known(root)}")
    run = find_run(root, names[0])
    _print_origin(run, console)
    console.print(settings_text(run).rstrip(), markup=False, soft_wrap=True)
    console.print()
    print_run(run, console)


def ls(arguments: Arguments, console: Console) -> None:
    root, names = arguments.root, arguments.names
    if names:
        raise UsageError(f"ls: takes no run names (got {names[0]}). Did you mean show {names[0]}?")
    runs = list_runs(root)
    if not runs:
        console.print(f"no runs in {root}", markup=False, soft_wrap=True)
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("run", "state", "pass@1 %", "last change"):
        table.add_column(heading, no_wrap=heading != "run", overflow="fold")
    faults = []
    for run in runs:
        try:
            table.add_row(run.name, state_label(run), _pass_at_1(run), _age(run))
        except StoreError as error:
            table.add_row(run.name, "unreadable", ABSENT, _age(run))
            faults.append(f"unreadable: {error}")
    console.print(table)
    for fault in faults:
        console.print(fault, markup=False, soft_wrap=True)


VERBS: dict[str, Callable[[Arguments, Console], None]] = {
    "compare": compare,
    "export": export,
    "ls": ls,
    "plot": plot,
    "show": show,
}
_WRITING = ("export", "plot")


def _parse(verb: str, args: Sequence[str]) -> Arguments:
    root, names, out = default_runs_folder(), [], None
    for item in args:
        if item.startswith(_FOLDER_KEY):
            root = _runs_folder(item)
        elif item.startswith(_OUT_KEY) and verb in _WRITING:
            out = expand(item[len(_OUT_KEY) :], item).absolute()
        elif item.startswith("-") or ("=" in item and not os.path.exists(expand(item, item))):
            raise UsageError(f"{verb}: unknown argument {item}. {USAGE[verb].splitlines()[0]}")
        else:
            names.append(item)
    return Arguments(root=root, names=names, out=out)


def _runs_folder(argument: str) -> Path:
    root = expand(argument[len(_FOLDER_KEY) :], argument).absolute()
    require(root.is_dir(), _FOLDER_KEY.rstrip("="), root, "a folder with runs")
    return root


def _print_origin(run: RunDir, console: Console) -> None:
    status, provenance = run.read_status(), run.read_provenance() or {}
    console.print(f"{run.name}: {state_label(run)}", markup=False, soft_wrap=True)
    if status is not None and status.error:
        console.print(f"last error: {status.error}", markup=False, soft_wrap=True)
    bench = provenance.get("bench")
    if bench:
        console.print(f"data: {bench['source']}", markup=False, soft_wrap=True)
    for number, session in enumerate(provenance.get("sessions", ())):
        console.print(f"session {number}: {_origin(session)}", markup=False, soft_wrap=True)
    console.print()


def _origin(session: Mapping[str, Any]) -> str:
    """When, where, from which code, on what, with which overrides; what was not noted is absent."""
    return (
        f"{session.get('started', ABSENT)} on {session.get('host', ABSENT)}, "
        f"{_commit(session.get('git'))}, {_devices(session.get('hardware'))}; "
        f"overrides: {' '.join(session.get('overrides') or ()) or 'none'}"
    )


def _commit(git: Mapping[str, Any] | None) -> str:
    if git is None:
        return "no commit"
    return str(git["commit"][:12]) + ("+changes" if git.get("is_dirty") else "")


def _devices(hardware: Mapping[str, Any] | None) -> str:
    if hardware is None:
        return ABSENT
    return ", ".join(gpu["name"] for gpu in hardware["gpus"]) or str(hardware["cpu"])


def _pass_at_1(run: RunDir) -> str:
    metrics = read_metrics(run)
    value = None if metrics is None else metrics["accuracy"]["value"]
    return ABSENT if value is None else f"{100 * value:.1f}"


def _age(run: RunDir) -> str:
    seconds = max(0.0, time.time() - run.path.stat().st_mtime)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"


def _known(root: Path) -> str:
    names = [run.name for run in list_runs(root)]
    return f"Known in {root}: {', '.join(names) or 'none'}."
