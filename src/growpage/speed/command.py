"""The command: starts one child an engine, in random order, and keeps the results on disk as they come. No torch."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any

from growpage.backends import vllm_fullkv
from growpage.engine.config import EngineConfig
from growpage.errors import EXIT_FAILED, EXIT_USAGE, UsageError, require, unknown
from growpage.places import CHECKOUT
from growpage.run.provenance import git_facts, hardware_facts, package_versions
from growpage.speed.presets import KERNELS, PRESETS, Preset, Row, Workload, tiny
from growpage.speed.report import Report
from growpage.speed.spec import Spec
from growpage.store.errors import StoreError

_POLL_S = 0.5
_GRACE_S = 60.0  # past the time limit, before a child is killed
_PACKAGES = ("torch", "triton", "transformers", "vllm")
_TAIL_LINES = 40  # of a child's log, shown when it died


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    preset: Preset
    is_tiny: bool
    out: Path  # without suffix
    num_repeats: int
    seed: int
    device: str
    time_limit_s: float | None
    commit: str | None
    logs: Path | None
    only: tuple[str, ...]
    rows: tuple[Row, ...]
    workloads: tuple[Workload, ...]
    settings: Mapping[str, Any]
    vllm_settings: Mapping[str, Any]


def main(arguments: Sequence[str]) -> int:
    """0: all measured, but for engines that are not installed; 1: something failed; 2: a mistake of the user."""
    try:
        options = parse(arguments)
        return _Bench(options, arguments).run()
    except (UsageError, StoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED


# -- arguments ---------------------------------------------------------------------------------


def parse(arguments: Sequence[str]) -> Options:
    """key=value or --key value; engine.KEY=VALUE and vllm.KEY=VALUE go to the engines. Raises UsageError."""
    flags, settings = [], {"engine": dict[str, Any](), "vllm": dict[str, Any]()}
    for text in arguments:
        key, equals, value = text.partition("=")
        group, _, name = key.partition(".")
        if equals and group in settings and name:
            settings[group][name] = _value(value)
        else:
            flags.append(f"--{text}" if equals and not text.startswith("-") else text)
    known = {item.name for item in fields(EngineConfig)}
    for name in settings["engine"]:
        if name not in known:
            raise unknown("engine setting", name, known)
    given = _parser().parse_args(flags)
    if given.preset not in PRESETS:
        raise unknown("preset", str(given.preset), PRESETS)
    preset = tiny(PRESETS[given.preset]) if given.tiny else PRESETS[given.preset]
    require(given.repeats >= 1, "repeats", given.repeats, ">= 1")
    return Options(
        preset=preset,
        is_tiny=given.tiny,
        out=given.out or _results_folder() / preset.name,
        num_repeats=given.repeats,
        seed=given.seed,
        device="cpu" if given.tiny else "cuda",
        time_limit_s=given.time_limit,
        commit=given.commit,
        logs=given.logs,
        only=_chosen_names("only", given.only, KERNELS),
        rows=_chosen("rows", given.rows, preset.rows),
        workloads=_chosen("workloads", given.workloads, preset.workloads),
        settings=settings["engine"],
        vllm_settings=settings["vllm"],
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench_engine.py",
        description="Speed of the engine, beside vLLM where it is installed. Options as key=value or --key value.",
        epilog="Examples: preset=vs_vllm · preset=pressure rows=vllm,fullkv_swap engine.max_num_seqs=256 "
        "· preset=kernels only='decode attention' · preset=pressure --tiny",
    )
    add = parser.add_argument
    add("--preset", help=", ".join(PRESETS))
    add("--out", type=Path, help="results as OUT.json and OUT.md (results/engine/PRESET)")
    add("--rows", default="", help="only these, with commas between")
    add("--workloads", default="", help="only these")
    add("--only", default="", help="of preset=kernels: only these")
    add(
        "--repeats",
        type=int,
        default=1,
        help="of each workload, after its warm-up; the median counts",
    )
    add("--seed", type=int, default=0, help="of prompts and order")
    add("--time-limit", type=float, help="seconds after which nothing new starts")
    add("--commit", help="what to record where there is no git")
    add("--logs", type=Path, help="folder for the output of the children")
    add("--tiny", action="store_true", help="a tiny shape on a CPU, our engine only")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _chosen(key: str, text: str, known: Sequence[Any]) -> tuple[Any, ...]:
    by_name = {item.name: item for item in known}
    names = _names(text) or tuple(by_name)
    for name in names:
        if name not in by_name:
            raise unknown(key, name, by_name)
    return tuple(by_name[name] for name in names)


def _chosen_names(key: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    for name in _names(text):
        if name not in known:
            raise unknown(key, name, known)
    return _names(text)


def _value(text: str) -> Any:
    """A number, true, false, null or a piece of JSON; else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _results_folder() -> Path:
    return (CHECKOUT or Path.cwd()) / "results" / "engine"


# -- running -----------------------------------------------------------------------------------


class _Bench:
    def __init__(self, options: Options, arguments: Sequence[str]) -> None:
        self._options = options
        self._deadline = (
            None if options.time_limit_s is None else time.time() + options.time_limit_s
        )
        self._children = self._plan()
        self._report = Report(options.preset, self._facts(arguments))

    def run(self) -> int:
        self._skip_absent_engines()
        num_skipped = len(self._report.missing)
        self._report.save(self._options.out)
        with _folder(self._options.logs) as folder:
            model = folder / "shape"
            model.mkdir(exist_ok=True)
            text = json.dumps(dict(self._options.preset.shape), indent=1)
            (model / "config.json").write_text(text, encoding="utf-8")
            for engine, jobs in self._children:
                self._run_child(engine, jobs, folder)
        self._lose_what_is_left()
        self._report.save(self._options.out)
        print(self._report.markdown(self._report.summary()))
        return EXIT_FAILED if len(self._report.missing) > num_skipped else 0

    def _plan(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Engines in random order, and in each its rows and their workloads."""
        options, random = self._options, Random(self._options.seed)
        if options.preset.name == "kernels":
            return [("kernels", [])]
        children = []
        for engine in ("growpage", "vllm"):
            rows = [row for row in options.rows if row.engine == engine]
            random.shuffle(rows)
            jobs: list[tuple[str, str]] = []
            for row in rows:
                names = [workload.name for workload in self._workloads_of(row)]
                random.shuffle(names)
                jobs += [(row.name, name) for name in names]
            if jobs and self._is_there(engine):
                children.append((engine, jobs))
        random.shuffle(children)
        return [("device", []), *children]

    def _workloads_of(self, row: Row) -> list[Workload]:
        return [
            workload
            for workload in self._options.workloads
            if row.workloads is None or workload.name in row.workloads
        ]

    def _is_there(self, engine: str) -> bool:
        return engine != "vllm" or (vllm_fullkv.is_installed() and not self._options.is_tiny)

    def _skip_absent_engines(self) -> None:
        if self._is_there("vllm"):
            return
        reason = "our engine only, on a CPU" if self._options.is_tiny else "vLLM is not installed"
        for row in self._options.rows:
            if row.engine == "vllm":
                self._report.lose(row.name, None, reason)

    def _lose_what_is_left(self) -> None:
        for _, jobs in self._children:
            for row, workload in jobs:
                known = {row, f"{row} / {workload}"} & set(self._report.missing)
                if not known and not self._report.has(row, workload):
                    self._report.lose(row, workload, "no result")

    def _run_child(self, engine: str, jobs: list[tuple[str, str]], folder: Path) -> None:
        """Run one process to its end, or to the time limit; its death is recorded, not passed on."""
        options = self._options
        results, log = folder / f"{engine}.jsonl", folder / f"{engine}.log"
        spec = Spec(
            preset=options.preset.name,
            engine=engine,
            out=str(results),
            is_tiny=options.is_tiny,
            device=options.device,
            model_folder=str(folder / "shape"),
            jobs=tuple(jobs),
            num_repeats=options.num_repeats,
            seed=options.seed,
            deadline=self._deadline,
            settings=options.settings,
            vllm_settings=options.vllm_settings,
            only=options.only,
        )
        spec.write(folder / f"{engine}.spec.json")
        results.write_text("")
        command = [
            sys.executable,
            "-m",
            "growpage.speed.child",
            str(folder / f"{engine}.spec.json"),
        ]
        print(f"{engine}: {', '.join('/'.join(job) for job in jobs) or 'measuring'}", flush=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=self._environment(engine)
            )
            reason = self._watch(process, results)
        if reason or process.returncode:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
            print("\n".join(lines[-_TAIL_LINES:]), file=sys.stderr, flush=True)
            reason = reason or f"the process ended with {process.returncode}: {lines[-1][:300]}"
            print(f"{engine}: {reason}", flush=True)
            self._blame(engine, jobs, reason)

    def _watch(self, process: "subprocess.Popen[bytes]", results: Path) -> str | None:
        """Take results as they come; returns why the process was killed, if it was."""
        num_taken = 0
        try:
            while process.poll() is None:
                num_taken = self._take(results, num_taken)
                if self._deadline is not None and time.time() > self._deadline + _GRACE_S:
                    return "killed at the time limit"
                time.sleep(_POLL_S)
            return None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            self._take(results, num_taken)

    def _take(self, results: Path, num_taken: int) -> int:
        lines = results.read_text(encoding="utf-8").split("\n")[:-1]  # the last may be half written
        for line in lines[num_taken:]:
            record = json.loads(line)
            print(_line(record), flush=True)
            self._report.take(record)
        if len(lines) > num_taken:
            self._report.save(self._options.out)
        return len(lines)

    def _blame(self, engine: str, jobs: Sequence[tuple[str, str]], reason: str) -> None:
        for row, workload in jobs:
            if not self._report.has(row, workload):
                self._report.lose(row, workload, reason)
        if not jobs:
            self._report.lose(engine, None, reason)

    def _environment(self, engine: str) -> dict[str, str]:
        source = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        own = {}
        if self._options.is_tiny:
            own["CUDA_VISIBLE_DEVICES"] = ""
            if engine == "kernels":
                own["TRITON_INTERPRET"] = "1"
        return {**os.environ, "PYTHONPATH": path, **own}

    def _facts(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Where the numbers come from; no names of hosts or folders."""
        git = git_facts(CHECKOUT) if CHECKOUT else None
        hardware = hardware_facts()
        versions = package_versions()
        return {
            "command": " ".join(["python scripts/bench_engine.py", *_shown(arguments)]),
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commit": self._options.commit or (git or {}).get("commit"),
            "is_dirty": not self._options.commit and bool((git or {}).get("is_dirty")),
            "python": sys.version.split()[0],
            "packages": {name: versions[name] for name in _PACKAGES if name in versions},
            "gpus": hardware["gpus"],
            "cpu": hardware["cpu"],
            "num_cores": hardware["num_cores"],
            "seed": self._options.seed,
            "order": {
                engine: ["/".join(job) for job in jobs] for engine, jobs in self._children if jobs
            },
        }


@contextmanager
def _folder(logs: Path | None) -> Iterator[Path]:
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
        yield logs.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="bench_engine-") as name:
        yield Path(name)


def _shown(arguments: Sequence[str]) -> list[str]:
    """The arguments without those that say where things go or what to record, and without their values."""
    kept, is_value = [], False
    for item in arguments:
        name, has_value, _ = item.removeprefix("--").partition("=")
        if not is_value and name not in ("out", "logs", "commit"):
            kept.append(item)
        is_value = not is_value and name in ("out", "logs", "commit") and not has_value
    return kept


def _line(record: Mapping[str, Any]) -> str:
    kind = record["kind"]
    if kind == "measured":
        return (
            f"  {record['row']} {record['workload']}: {record['output_throughput'] or 0:,.1f} output tok/s, "
            f"{record['decode_throughput'] or 0:,.1f} decode tok/s, {record['wall_s']:.1f} s"
        )
    if kind == "failed":
        return f"  {record['row']} {record['workload'] or ''}: {record['reason']}"
    if kind == "kernel":
        return (
            f"  {record['name']}: {record.get('error') or record['shape']} {record.get('ms', '')}"
        )
    return f"  {kind} {record.get('row', '')}".rstrip()
