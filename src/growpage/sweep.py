"""The jobs of a sweep as plain values: the plan before, the table after."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from growpage.config import Config, resolve
from growpage.errors import EXIT_FAILED
from growpage.identity import run_directory
from growpage.run.job import run_job
from growpage.run.preflight import check
from growpage.run.report import ABSENT, headline, make_console, state_label
from growpage.store.errors import StoreError
from growpage.store.run_dir import RunDir

_SIGNALS = 128  # exit statuses above: ended by a signal


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepJob:
    number: int
    overrides: list[str]
    config: Config  # resolved and checked
    was_complete: bool  # before the sweep began

    @classmethod
    def of(cls, number: int, overrides: list[str], config: Config) -> "SweepJob":
        """Raises `UsageError` for what cannot run here."""
        config = resolve(config)
        check(config)
        was_complete = RunDir(run_directory(config)).is_complete and not config.fresh
        return cls(number=number, overrides=overrides, config=config, was_complete=was_complete)


def print_plan(jobs: Sequence[SweepJob]) -> None:
    """What each job would do; starts none."""
    console = make_console()
    console.print(f"{len(jobs)} jobs, all checked; none is started", markup=False)
    for job in jobs:
        text = f"job {job.number}: {' '.join(job.overrides)}"
        console.print(text, markup=False, soft_wrap=True)
        run_job(replace(job.config, dry_run=True), job.overrides)


def print_summary(jobs: Sequence[SweepJob], statuses: Sequence[int]) -> int:
    """A line for each job and the count of ok, failed and skipped; returns the exit status.

    `statuses` are those of the jobs that ran in this process; jobs that a launcher ran elsewhere
    have none, and are judged by their run directories.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("job", "overrides", "state", "pass@1 %", "KV capacity", "run"):
        table.add_column(heading, overflow="fold")
    states = _states(jobs, statuses)
    for job, state in zip(jobs, states, strict=True):
        run = RunDir(run_directory(job.config))
        table.add_row(str(job.number), " ".join(job.overrides), state, *_headline(run), run.name)
    console = make_console()
    console.print(table)
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    console.print(", ".join(f"{count} {state}" for state, count in counts.items()), markup=False)
    return next((status for status in statuses if status > _SIGNALS), 0) or (
        EXIT_FAILED if set(states) - {"ok", "skipped"} else 0
    )


def _headline(run: RunDir) -> tuple[str, str]:
    try:
        return headline(run)
    except StoreError:  # its own command has told of the damage
        return ABSENT, ABSENT


def _states(jobs: Sequence[SweepJob], statuses: Sequence[int]) -> list[str]:
    states: list[str] = []
    for index, job in enumerate(jobs):
        is_stopped = "interrupted" in states
        if index >= len(statuses):
            states.append(_stored_state(job))
        elif statuses[index] > _SIGNALS:
            states.append("not started" if is_stopped else "interrupted")
        elif statuses[index]:
            states.append("failed")
        else:
            states.append("skipped" if job.was_complete else "ok")
    return states


def _stored_state(job: SweepJob) -> str:
    run = RunDir(run_directory(job.config))
    if run.is_complete:
        return "skipped" if job.was_complete else "ok"
    return state_label(run) if run.path.is_dir() else "not started"
