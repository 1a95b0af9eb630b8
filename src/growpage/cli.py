"""The command line, and the only place that knows Hydra.

Verbs are taken first; everything else is composed by Hydra and turned into dataclasses at once. A
mistake of the user ends with status 2 and one line, before a model loads, and leaves nothing behind.
"""

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict, read_write

from growpage.budget.registry import POLICIES
from growpage.cli_errors import CHOICE_GROUPS, USER_ERRORS, explain
from growpage.config import GROUPS, Config, resolve, to_config, to_dict
from growpage.errors import EXIT_FAILED, EXIT_USAGE, UsageError, closest
from growpage.identity import run_directory
from growpage.places import CONFIG_FOLDER
from growpage.store.errors import StoreError
from growpage.store.sweeps import new_record_folder, write_names
from growpage.sweep import SweepJob, print_plan, print_summary
from growpage.terminal import forgiving_streams, output_status
from hydra_plugins.growpage_rows import with_rows

VERBS = ("compare", "export", "ls", "plot", "show")
_INTERRUPTED = 128 + signal.SIGINT
_FULL_ERROR = "HYDRA_FULL_ERROR"
# Flags of Hydra, and whether a value follows. Not offered: --experimental-rerun, which unpickles a
# file and passes by every check.
_FLAGS = {
    "--help": False, "-h": False, "--hydra-help": False, "--version": False, "--resolve": False,
    "--run": False, "-r": False, "--multirun": False, "-m": False,
    "--shell-completion": False, "-sc": False,
    "--cfg": True, "-c": True, "--info": True, "-i": True, "--package": True, "-p": True,
    "--config-name": True, "-cn": True, "--config-path": True, "-cp": True,
    "--config-dir": True, "-cd": True,
}  # fmt: skip
_OPTIONAL = ("--info", "-i")  # may stand alone


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status: 0, 1 (a run failed), 2 (a mistake), 128 + signal.

    With `HYDRA_FULL_ERROR=1` set by the user, mistakes keep their traceback.
    """
    with forgiving_streams():
        status = _main(sys.argv[1:] if arguments is None else arguments)
        return status or output_status()


def _main(arguments: Sequence[str]) -> int:
    try:
        check_surroundings(arguments)
        return _run(list(arguments))
    except USER_ERRORS as error:
        if os.environ.get(_FULL_ERROR) == "1":
            raise
        print(f"error: {explain(error)}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemExit as stop:  # Hydra's after --help, ours after a sweep
        if stop.__cause__ is not None and os.environ.get(_FULL_ERROR) == "1":
            raise stop.__cause__ from None
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def register_schemas() -> None:
    """Offer the dataclasses to Hydra: `schema` on top, `schema/<group>`, `schema/policy/<name>`."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, schema in GROUPS.items():
        store.store(group="schema", name=group, node=schema)
    for name, policy in POLICIES.items():
        store.store(group="schema/policy", name=name, node=policy)


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in VERBS:
        from growpage.run import verbs

        return verbs.main(arguments[0], arguments[1:])
    if any(item.startswith("run=") for item in arguments):
        from growpage.run.regrade import regrade

        return regrade(arguments, CONFIG_FOLDER)
    flags, overrides = split_arguments(arguments)
    check_overrides(overrides)
    composed = _compose([*flags, *overrides])
    if composed is None:  # --help and its like, or a sweep that has ended well
        return 0
    return run_one(to_config(composed), overrides)


# ---- before Hydra ----------------------------------------------------------------------------------


def check_surroundings(arguments: Sequence[str]) -> None:
    """Raise `UsageError` where every command would fail: no current folder, arguments that are no text."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder no longer exists. Change to another one.") from error
    for text in arguments:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            shown = text.encode(errors="backslashreplace").decode()
            raise UsageError(
                f"{shown}: not text in the encoding of this terminal. Set PYTHONUTF8=1 or a UTF-8 "
                "locale."
            ) from error


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags with their values, and overrides, in whatever order they came."""
    flags: list[str] = []
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        item = rest.pop(0)
        if not item.startswith("-"):
            overrides.append(item)
            continue
        name, _, value = item.partition("=")
        if name not in _FLAGS:
            raise UsageError(f"{item}: unknown flag.{closest(name, _FLAGS)} See --help.")
        flags.append(item)
        if not _FLAGS[name] or value:
            continue
        if rest and not rest[0].startswith("-") and (name not in _OPTIONAL or "=" not in rest[0]):
            flags.append(rest.pop(0))
        elif name not in _OPTIONAL:
            raise UsageError(f"{item}: a value must follow. See --hydra-help.")
    return flags, overrides


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise `UsageError` for what Hydra would misread, or take without using it."""
    parser, seen = OverridesParser.create(), set[str]()
    for text in overrides:
        if text in VERBS:
            raise UsageError(f"{text}: a verb stands first: run.py {text} …")
        if "=" not in text and not text.startswith("~"):
            raise UsageError(
                f"{text}: neither a verb ({', '.join(VERBS)}) nor key=value.{closest(text, VERBS)}"
            )
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            reason = str(error).splitlines()
            detail = next((line for line in reason if " at '" in line), reason[0])
            raise UsageError(
                f"{text}: cannot be read ({detail}). Quote values with special signs: key='…'"
            ) from error
        key = override.key_or_group
        if override.value() is None and key in (*GROUPS, "policy"):
            raise UsageError(f"{text}: choose an option of {key}; --help lists them.")
        if override.value() is None and key in CHOICE_GROUPS and not override.is_delete():
            raise UsageError(f"{text}: leave it out instead.")
        if text.startswith("="):
            raise UsageError(f"{text}: no key before the equals sign.")
        if override.get_key_element() in seen:
            raise UsageError(
                f"{text}: {key} is set twice. Keep one; to run several, use -m {key}=A,B"
            )
        seen.add(override.get_key_element())


# ---- one job ---------------------------------------------------------------------------------------


def run_one(config: Config, overrides: Sequence[str], *, is_brief: bool = False) -> int:
    """Check and run one configuration; with `dry_run` show it and what would be done."""
    from growpage.run.first_prompt import first_prompt
    from growpage.run.job import run_job
    from growpage.run.preflight import check

    config = resolve(config)
    check(config)
    if config.dry_run:
        print(yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True))
        print(f"run directory: {run_directory(config)}")
        print(first_prompt(config))
    return run_job(config, list(overrides), is_brief=is_brief)


def _compose(arguments: Sequence[str]) -> DictConfig | None:
    """What Hydra makes of the arguments. A sweep runs its jobs within; its status is its exit."""
    if not CONFIG_FOLDER.is_dir():
        raise UsageError(f"{CONFIG_FOLDER} is missing: install growpage again.")
    register_schemas()
    composed: list[DictConfig] = []
    swept: list[str] = []
    stopped: list[int] = []

    def task(config: DictConfig) -> int:
        if HydraConfig.get().mode is RunMode.RUN:
            composed.append(config)
            swept.extend(_swept(HydraConfig.get().sweeper))
            return 0
        if not stopped:
            status = _sweep_job(config)
            if status <= 128:
                return status
            stopped.append(status)
        return stopped[0]

    program = hydra.main(config_path=str(CONFIG_FOLDER), config_name="config", **_hydra_settings())
    with _hydra_raises(), _argv(arguments):
        try:
            program(task)()
        except (ValueError, AssertionError) as error:  # Hydra's own, about its flags
            raise UsageError(" ".join(str(error).split())) from error
    if swept:
        raise UsageError(
            f"This experiment runs several jobs ({'; '.join(swept)}). Add -m to run them."
        )
    return composed[0] if composed else None


def _swept(sweeper: DictConfig) -> list[str]:
    """What an experiment sweeps over: keys with their values, and rows."""
    params = sweeper.get("params") or {}
    return [*(f"{key}={value}" for key, value in params.items()), *(sweeper.get("rows") or ())]


def _hydra_settings() -> dict[str, Any]:
    """What 1.3 and 1.4 want to be told: the behaviour to keep, and the one `_target_` of ours."""
    if hydra.__version__.startswith("1.3."):
        return {"version_base": "1.3"}
    return {"execution_whitelist": ["growpage.cli.SweepCallback"]}


@contextmanager
def _hydra_raises() -> Iterator[None]:
    """Hydra prints errors and exits by itself unless this variable is set."""
    before = os.environ.get(_FULL_ERROR)
    os.environ[_FULL_ERROR] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FULL_ERROR]
        else:
            os.environ[_FULL_ERROR] = before


@contextmanager
def _argv(arguments: Sequence[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = [before[0], *arguments]
    try:
        yield
    finally:
        sys.argv = before


# ---- a sweep ---------------------------------------------------------------------------------------


def _sweep_job(composed: DictConfig) -> int:
    """One job of a sweep. Its failure is told at once and does not end the others."""
    settings = HydraConfig.get()
    overrides = list(settings.overrides.task)
    print(f"\njob {settings.job.num}: {' '.join(overrides)}", flush=True)
    try:
        return run_one(to_config(composed), overrides, is_brief=True)
    except USER_ERRORS as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        return EXIT_USAGE
    except Exception:  # the boundary of a job: a fault in one must not hide the others
        traceback.print_exc()
        return EXIT_FAILED


class FrozenJobs(ConfigLoaderImpl):
    """Composes each job of a sweep once, so that files edited meanwhile change no later job."""

    def __init__(self, search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path=search_path)
        self._jobs: dict[tuple[str, ...], DictConfig] = {}

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        key = tuple(sweep_overrides)
        if key not in self._jobs:
            self._jobs[key] = super().load_sweep_config(master_config, sweep_overrides)
        return deepcopy(self._jobs[key])


class SweepCallback(Callback):
    """Checks every job of a sweep before the first starts, and ends the sweep with a table.

    Hydra drops what its functions return and makes warnings of a callback's exceptions, so the exit
    status leaves as SystemExit.
    """

    def __init__(self) -> None:
        self._jobs: list[SweepJob] = []
        self._returns: list[int] = []
        self._has_started = False

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            self._prepare(config)
        except USER_ERRORS as error:
            print(f"error: {explain(error)}", file=sys.stderr)
            raise SystemExit(EXIT_USAGE) from error
        except Exception as error:  # else Hydra goes on without our checks
            traceback.print_exc()
            raise SystemExit(EXIT_FAILED) from error

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if self._has_started:
            self._returns.append(job_return.return_value)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        if not self._has_started:  # Hydra 1.4 calls this after our own exit, too
            return
        names = [run_directory(job.config).name for job in self._jobs]
        with suppress(StoreError):  # a full disk has been reported by the jobs
            write_names(Path(config.hydra.sweep.dir), names)
        if status := print_summary(self._jobs, self._returns):
            raise SystemExit(status)

    def _prepare(self, config: DictConfig) -> None:
        hydra_instance = GlobalHydra.instance().hydra
        assert hydra_instance is not None
        loader = FrozenJobs(hydra_instance.config_loader.get_search_path())
        errors: list[Exception] = []
        lines: list[str] = []
        all_overrides = expand(config, loader)
        for number, overrides in enumerate(all_overrides):
            try:
                job = to_config(_own_part(loader.load_sweep_config(config, list(overrides))))
                self._jobs.append(SweepJob.of(number, overrides, job))
            except USER_ERRORS as error:
                errors.append(error)
                lines.append(f"  job {number} ({' '.join(overrides)}): {explain(error)}")
        if errors:
            head = f"error: {len(errors)} of {len(all_overrides)} jobs cannot run; none was started"
            print("\n".join([head, *lines]), file=sys.stderr)
            raise SystemExit(EXIT_USAGE) from errors[0]
        if any(job.config.dry_run for job in self._jobs):
            print_plan(self._jobs)
            raise SystemExit(0)
        print(f"sweep of {len(self._jobs)} jobs, all checked", flush=True)
        hydra_instance.config_loader = loader
        self._has_started = True
        if config.hydra.sweep.dir == ".":  # where Hydra puts its multirun.yaml
            runs = run_directory(self._jobs[0].config).parent
            config.hydra.sweep.dir = str(new_record_folder(runs))


def expand(config: DictConfig, loader: ConfigLoaderImpl) -> list[list[str]]:
    """The overrides of each job of a sweep, as the sweeper will make them."""
    sweeper = config.hydra.sweeper
    params = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    parser = OverridesParser.create(config_loader=loader)
    overrides = parser.parse_overrides([*params, *config.hydra.overrides.task])
    jobs = BasicSweeper.split_arguments(overrides, max_batch_size=None)[0]
    return with_rows(list(sweeper.get("rows") or ()), jobs)


def _own_part(composed: DictConfig) -> DictConfig:
    """A copy without Hydra's own settings, as a job gets it."""
    own = deepcopy(composed)
    with read_write(own), open_dict(own):
        del own["hydra"]
    return own
