"""One session of a run: makes the missing samples, grades them, writes the results."""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from growpage.backends.base import Backend
from growpage.bench.base import Benchmark, ProblemSet
from growpage.config import Config, Stage
from growpage.engine.request import EngineStats, RequestOutput
from growpage.errors import UsageError
from growpage.grade.base import Grader
from growpage.identity import config_hash, grader_hash
from growpage.metrics.serving import SessionTotals
from growpage.paper.timeline import read_timeline, write_chrome_trace, write_pages_plot
from growpage.run.build import Parts, ReadyEngine
from growpage.run.generation import Prompt, make_prompts, sample_row
from growpage.run.grading import BATCH_SIZE, grade_answers, to_answer, verdict_row
from growpage.run.load import Load
from growpage.run.progress import Progress
from growpage.run.report import make_console
from growpage.run.resume import (
    WorkItem,
    check_same_data,
    check_same_files,
    check_same_prompts,
    missing,
    plan,
)
from growpage.run.summary import read_sessions, summarise_run
from growpage.store.atomic import write_json
from growpage.store.frames import build_frame, read_samples, read_verdicts, write_parquet
from growpage.store.run_dir import RunDir
from growpage.store.samples import AppendFile, cut_half_line, read_records
from growpage.store.schema import SampleKey, SampleRow, VerdictRow
from growpage.store.shapes import EVENT_SHAPE

logger = logging.getLogger(__name__)

_STATS_EVERY_S = 5.0


class Stopped(Exception):
    """The job was told to end; what is stored stays."""


class Session:
    """What one process does for a run: everything that is left, in the order of the files."""

    def __init__(
        self,
        run_dir: RunDir,
        config: Config,
        parts: Parts,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        on_progress: Callable[..., None] = lambda **_: None,
    ) -> None:
        self._dir = run_dir
        self._config = config
        self._parts = parts
        self._should_stop = should_stop
        self._on_progress = on_progress
        self._hash = config_hash(config)
        self._grader_hash = grader_hash(config)
        self._console = make_console(is_error=True)
        self._steps: list[dict[str, Any]] = []  # rows of trace=true, not yet written

    def run(self) -> None:
        """Raises UsageError, StoreError, Stopped, or whatever engine and grader raise."""
        self._cut_half_lines()
        with AppendFile(self._dir.events) as events:
            self._events = events
            self._session = _next_session(self._dir)
            benchmark = self._parts.make_benchmark(self._config)
            problem_set = benchmark.load()
            self._record_data(problem_set)
            items = self._plan(problem_set)
            self._log_event("session_started", num_planned=len(items))
            self._make_samples(benchmark, items)
            self._draw_trace()
            if self._config.stage is Stage.generate:
                return
            self._grade(items)
            self._write_results(items)

    # ---- samples ---------------------------------------------------------------------------------

    def _plan(self, problem_set: ProblemSet) -> list[WorkItem]:
        bench = self._config.bench
        return plan(
            problem_set.problems[: bench.limit],
            num_samples=bench.num_samples,
            base_seed=self._config.seed,
            config_hash=self._hash,
        )

    def _make_samples(self, benchmark: Benchmark, items: list[WorkItem]) -> None:
        samples = read_samples(self._dir, self._hash)
        todo = missing(items, samples)
        num_stored = len(items) - len(todo)
        self._on_progress(num_done=num_stored, num_total=len(items))
        if not todo:
            return
        if self._config.stage is Stage.grade:
            raise UsageError(
                f"stage=grade: {len(todo)} of {len(items)} samples are missing. Run with stage=all."
            )
        if num_stored:
            self._say(f"continuing: {num_stored} of {len(items)} samples exist")
        self._say(f"loading model {self._config.model.name}")
        engine = self._parts.build_engine(self._config)
        try:
            self._record_engine(engine)
            prompts = make_prompts(
                benchmark,
                engine.tokenizer,
                items,
                enable_thinking=self._config.model.enable_thinking,
            )
            check_same_prompts(samples, {name: prompt.hash for name, prompt in prompts.items()})
            self._generate(engine, prompts, todo, num_stored=num_stored)
        finally:
            engine.backend.shutdown()

    def _generate(
        self,
        engine: ReadyEngine,
        prompts: dict[str, Prompt],
        todo: list[WorkItem],
        *,
        num_stored: int,
    ) -> None:
        backend = engine.backend
        load = Load(backend, todo, prompts, self._config)
        started = load.started
        num_total, num_finished, last_stats = num_stored + len(todo), 0, started
        progress = Progress(
            self._dir.name, num_total=num_total, num_before=num_stored, console=self._console
        )
        with progress, AppendFile(self._dir.samples) as file:
            while load.is_unfinished:
                if self._should_stop():
                    self._log_engine(backend, started)
                    raise Stopped
                if not load.wait_for_arrivals():
                    continue
                rows = []
                for output in self._step(backend, started):
                    item = load.answered(output.request_id)
                    text = output.text or engine.tokenizer.decode(output.token_ids)
                    rows.append(
                        sample_row(
                            item,
                            prompts[item.problem.id],
                            output,
                            text,
                            session=self._session,
                            start=started,
                        )
                    )
                file.append_rows(*rows)
                num_finished += len(rows)
                if rows:
                    self._on_progress(num_done=num_stored + num_finished)
                if progress.is_due():
                    progress.update(backend.stats(), num_finished)
                if time.perf_counter() - last_stats > _STATS_EVERY_S:
                    last_stats = time.perf_counter()
                    self._log_engine(backend, started)
        self._log_engine(backend, started)
        load.check_complete()

    def _step(self, backend: Backend, started: float) -> list[RequestOutput]:
        """One step of the engine; with trace=true a row in events.jsonl says when and with whom."""
        if not self._config.trace:
            return backend.step()
        before = time.perf_counter()
        outputs = backend.step()
        after, stats = time.perf_counter(), backend.stats()
        self._steps.append(
            {
                "session": self._session,
                "kind": "step",
                "step": stats.num_steps,
                "time_s": round(before - started, 6),
                "duration_s": round(after - before, 6),
                "num_running": stats.num_running,
                "num_waiting": stats.num_waiting,
                "num_preempted": stats.num_preempted,
                "num_used_pages": stats.num_used_pages,
                "num_cached_pages": stats.num_cached_pages,
                "num_output_tokens": stats.num_output_tokens,
            }
        )
        return outputs

    # ---- verdicts --------------------------------------------------------------------------------

    def _grade(self, items: list[WorkItem]) -> None:
        """Grade what has no verdict or one by other settings; with stage=grade, by other versions too."""
        samples, verdicts = read_samples(self._dir, self._hash), read_verdicts(self._dir)
        todo = [item for item in items if not self._is_graded(verdicts.get(item.key))]
        if not todo and self._config.stage is not Stage.grade:
            return
        grader = self._parts.make_grader(self._config)
        try:
            if self._config.stage is Stage.grade:
                todo = [
                    item
                    for item in items
                    if not self._is_graded(verdicts.get(item.key), grader.version)
                ]
            self._grade_all(grader, todo, samples)
        finally:
            grader.close()

    def _grade_all(
        self, grader: Grader, todo: list[WorkItem], samples: dict[SampleKey, SampleRow]
    ) -> None:
        if todo:
            self._say(f"grading {len(todo)} samples")
        with AppendFile(self._dir.verdicts) as file:
            for start in range(0, len(todo), BATCH_SIZE):
                if self._should_stop():
                    raise Stopped
                batch = todo[start : start + BATCH_SIZE]
                answers = [to_answer(item.problem, samples[item.key]) for item in batch]
                rows = [
                    verdict_row(
                        item,
                        verdict,
                        grader=self._config.grader.name,
                        version=grader.version,
                        grader_hash=self._grader_hash,
                    )
                    for item, verdict in zip(batch, grade_answers(grader, answers), strict=True)
                ]
                file.append_rows(*rows)

    def _is_graded(self, verdict: VerdictRow | None, version: str | None = None) -> bool:
        if verdict is None or verdict.grader_hash != self._grader_hash:
            return False
        return version is None or verdict.grader_version == version

    # ---- files -----------------------------------------------------------------------------------

    def _write_results(self, items: list[WorkItem]) -> None:
        """samples.parquet, metrics.json, DONE. Refuses an incomplete set."""
        samples, verdicts = read_samples(self._dir, self._hash), read_verdicts(self._dir)
        wanted = [item.key for item in items]
        absent = [key for key in wanted if key not in samples or key not in verdicts]
        assert not absent, f"{len(absent)} samples or verdicts are missing, such as {absent[0]}"
        frame = build_frame([samples[key] for key in wanted], verdicts)
        self._events.sync()
        metrics = summarise_run(
            frame,
            name=self._dir.name,
            config=self._config,
            config_hash=self._hash,
            grader_hash=self._grader_hash,
            provenance=self._dir.read_provenance() or {},
            sessions=read_sessions(read_records(self._dir.events, EVENT_SHAPE)),
        )
        write_parquet(frame, self._dir.parquet)
        write_json(self._dir.metrics, metrics)
        self._dir.mark_done(len(frame))

    def _draw_trace(self) -> None:
        if not self._config.trace:
            return
        timeline = read_timeline(read_records(self._dir.events, EVENT_SHAPE))
        write_chrome_trace(timeline, self._dir.timeline)
        write_pages_plot(timeline, self._dir.pages_plot)
        self._say(f"timeline: {self._dir.timeline} (https://ui.perfetto.dev opens it)")

    def _cut_half_lines(self) -> None:
        for path in (self._dir.samples, self._dir.verdicts, self._dir.events):
            if num_bytes := cut_half_line(path):
                logger.warning("half line cut off file=%s bytes=%d", path.name, num_bytes)
                self._say(f"{path.name}: {num_bytes} bytes of a half-written last line cut off")

    def _record_data(self, problem_set: ProblemSet) -> None:
        provenance = self._dir.read_provenance() or {"sessions": []}
        check_same_data(provenance.get("bench"), problem_set)
        provenance["bench"] = {
            "name": problem_set.name,
            "source": problem_set.source,
            "sha256": problem_set.sha256,
            "num_problems": len(problem_set.problems),
        }
        write_json(self._dir.provenance, provenance)

    def _record_engine(self, engine: ReadyEngine) -> None:
        """Kernel path, ledger and model files of this session. Raises for other model files."""
        provenance = self._dir.read_provenance() or {"sessions": []}
        check_same_files((provenance.get("model") or {}).get("files"), engine.model_files)
        provenance["model"] = {"path": self._config.model.path, "files": engine.model_files}
        if provenance.get("sessions"):
            provenance["sessions"][-1]["engine"] = engine.backend.describe()
        write_json(self._dir.provenance, provenance)

    def _log_engine(self, backend: Backend, started: float) -> None:
        """Capacity events since the last call, then the totals of this session so far."""
        events = [{"session": self._session, **e.as_dict()} for e in backend.take_events()]
        for event in events:
            if "time_s" in event:
                event["time_s"] = round(event["time_s"] - started, 6)
            if "duration_s" in event:
                event["duration_s"] = round(event["duration_s"], 6)
        self._events.append(*events, *self._steps)
        self._steps.clear()
        totals = session_totals(backend.stats(), time.perf_counter() - started)
        self._log_event("stats", totals=totals)

    def _log_event(self, kind: str, **values: Any) -> None:
        record = {"session": self._session, "kind": kind, "time": round(time.time(), 3), **values}
        self._events.append(record)

    def _say(self, text: str) -> None:
        logger.info(text)
        self._console.print(text, markup=False, soft_wrap=True)


def session_totals(stats: EngineStats, wall_s: float) -> dict[str, Any]:
    """The fields of `SessionTotals`, as stored in events.jsonl."""
    totals = SessionTotals(
        wall_s=wall_s,
        num_output_tokens=stats.num_output_tokens,
        decode_wall_s=stats.decode_wall_s,
        num_decode_output_tokens=stats.num_decode_output_tokens,
        num_steps=stats.num_steps,
        avg_resident_requests=stats.avg_resident_requests,
    )
    return asdict(totals)


def _next_session(run_dir: RunDir) -> int:
    events = read_records(run_dir.events, EVENT_SHAPE)
    return 1 + max((event.get("session") or 0 for event in events), default=-1)
