"""The child process of one job: makes the missing samples, grades them, writes the results.

`python -m growpage.run.worker RUN_DIR`, started by `growpage.run.job`. Ends with 0, 1 (failed), 2
(the user can mend it) or 143 (told to stop).
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from growpage.backends.base import Backend
from growpage.bench.base import Benchmark, Problem, ProblemSet
from growpage.config import Config, Stage, config_hash, grader_hash
from growpage.engine.request import (
    EngineStats,
    FinishReason,
    Request,
    RequestOutput,
    SamplingParams,
)
from growpage.errors import UsageError
from growpage.grade.base import Answer, Grader, Verdict
from growpage.metrics.serving import SessionTotals
from growpage.run.build import REAL_PARTS, ChatTokenizer, Engine, Parts
from growpage.run.frozen import thaw
from growpage.run.heartbeat import Heartbeat, die_with_parent
from growpage.run.progress import Progress
from growpage.run.report import make_console
from growpage.run.resume import (
    WorkItem,
    check_same_data,
    check_same_files,
    check_same_prompts,
    missing,
    plan,
    prompt_hash,
)
from growpage.run.summary import read_sessions, summarise_run
from growpage.store.atomic import read_json, write_json
from growpage.store.errors import StoreError
from growpage.store.frames import build_frame, read_samples, read_verdicts, write_parquet
from growpage.store.run_dir import RunDir
from growpage.store.samples import AppendFile, cut_half_line, read_records
from growpage.store.schema import (
    SampleCapacity,
    SampleKey,
    SampleRow,
    SampleTimes,
    VerdictRow,
)
from growpage.store.status import RunState, Status

logger = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_STOPPED = 0, 1, 2, 143
GRADE_BATCH = 32
_STATS_EVERY_S = 5.0
_OPEN_THINK = "<think>"


class Stopped(Exception):
    """The job was told to end; what is stored stays."""


@runtime_checkable
class EventSource(Protocol):
    """A backend that also lists its capacity events."""

    def take_events(self) -> Sequence[Any]:
        """Events since the last call, each with `as_dict()`."""


class Prompt:
    """The token ids of one problem and what the run needs to know about them."""

    __slots__ = ("hash", "is_reasoning_open", "token_ids")

    def __init__(self, text: str, token_ids: Sequence[int]) -> None:
        self.token_ids = tuple(token_ids)
        self.hash = prompt_hash(self.token_ids)
        self.is_reasoning_open = text.rstrip().endswith(_OPEN_THINK)


class Worker:
    """One session of one run.

    `run` does everything that is left to do, in the order of the files.
    """

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
            prompts = self._prompts(benchmark, engine.tokenizer, items)
            check_same_prompts(samples, {name: prompt.hash for name, prompt in prompts.items()})
            self._generate(engine, prompts, todo, num_stored=num_stored)
        finally:
            engine.backend.shutdown()

    def _prompts(
        self, benchmark: Benchmark, tokenizer: ChatTokenizer, items: list[WorkItem]
    ) -> dict[str, Prompt]:
        prompts: dict[str, Prompt] = {}
        for item in items:
            if item.problem.id not in prompts:
                prompts[item.problem.id] = self._prompt(benchmark, tokenizer, item.problem)
        return prompts

    def _prompt(self, benchmark: Benchmark, tokenizer: ChatTokenizer, problem: Problem) -> Prompt:
        thinking = self._config.model.enable_thinking
        text = tokenizer.render(benchmark.messages(problem), enable_thinking=thinking)
        return Prompt(text, tokenizer.encode(text))

    def _generate(
        self, engine: Engine, prompts: dict[str, Prompt], todo: list[WorkItem], *, num_stored: int
    ) -> None:
        backend, by_id = engine.backend, {item.request_id: item for item in todo}
        started = time.perf_counter()
        for item in todo:
            _submit(backend, item, prompts[item.problem.id].token_ids, self._config)
        num_total, num_finished, last_stats = num_stored + len(todo), 0, started
        progress = Progress(
            self._dir.name, num_total=num_total, num_before=num_stored, console=self._console
        )
        with progress, AppendFile(self._dir.samples) as file:
            while backend.has_unfinished_requests():
                if self._should_stop():
                    self._log_engine(backend, started)
                    raise Stopped
                rows = []
                for output in backend.step():
                    item = by_id.pop(output.request_id)
                    prompt = prompts[item.problem.id]
                    rows.append(self._row(item, prompt, output, engine.tokenizer, started))
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
        assert not by_id, f"the engine lost {sorted(by_id)[:3]}"

    def _row(
        self,
        item: WorkItem,
        prompt: Prompt,
        output: RequestOutput,
        tokenizer: ChatTokenizer,
        started: float,
    ) -> SampleRow:
        assert output.finish_reason is not FinishReason.ABORT, output.request_id
        metrics = output.metrics
        text = output.text or tokenizer.decode(output.token_ids)
        return SampleRow(
            problem_id=item.problem.id,
            sample_index=item.sample_index,
            seed=item.seed,
            config_hash=self._hash,
            kind=item.problem.kind,
            prompt_hash=prompt.hash,
            num_prompt_tokens=len(prompt.token_ids),
            token_ids=tuple(output.token_ids),
            text=text.encode(errors="replace").decode(),  # no lone surrogates on disk
            finish_reason=output.finish_reason.value,
            reasoning_open=prompt.is_reasoning_open,
            error=output.error,
            session=self._session,
            times=SampleTimes(
                arrival_s=metrics.arrival_time - started,
                first_scheduled_s=_after(started, metrics.first_scheduled_time),
                first_token_s=_after(started, metrics.first_token_time),
                finished_s=_after(started, metrics.finished_time),
                max_itl_s=metrics.max_itl_s,
            ),
            capacity=SampleCapacity(
                avg_capacity_tokens=metrics.avg_capacity_tokens,
                avg_resident_tokens=metrics.avg_resident_tokens,
                peak_capacity_tokens=metrics.peak_capacity_tokens,
                num_decode_steps=metrics.num_decode_steps,
                num_cached_tokens=metrics.num_cached_tokens,
            ),
            counters={name: getattr(metrics.counters, name) for name in metrics.counters.__slots__},
        )

    # ---- verdicts --------------------------------------------------------------------------------

    def _grade(self, items: list[WorkItem]) -> None:
        """Grade what has no verdict, or one by other grader settings; with stage=grade also what
        another version of the grader judged.
        """
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
            for start in range(0, len(todo), GRADE_BATCH):
                if self._should_stop():
                    raise Stopped
                batch = todo[start : start + GRADE_BATCH]
                answers = [_answer(item.problem, samples[item.key]) for item in batch]
                rows = [
                    self._verdict_row(item, verdict, grader.version)
                    for item, verdict in zip(batch, grade_answers(grader, answers), strict=True)
                ]
                file.append_rows(*rows)

    def _is_graded(self, verdict: VerdictRow | None, version: str | None = None) -> bool:
        if verdict is None or verdict.grader_hash != self._grader_hash:
            return False
        return version is None or verdict.grader_version == version

    def _verdict_row(self, item: WorkItem, verdict: Verdict, version: str) -> VerdictRow:
        return VerdictRow(
            problem_id=item.problem.id,
            sample_index=item.sample_index,
            seed=item.seed,
            config_hash=self._hash,
            grader=self._config.grader.name,
            grader_version=version,
            grader_hash=self._grader_hash,
            correct=verdict.correct,
            reason=verdict.reason,
            extracted=_clean(verdict.extracted),
            rule=verdict.rule,
            flags=tuple(verdict.flags),
        )

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
            provenance=read_json(self._dir.provenance) or {},
            sessions=read_sessions(read_records(self._dir.events)),
        )
        write_parquet(frame, self._dir.parquet)
        write_json(self._dir.metrics, metrics)
        self._dir.mark_done(len(frame))

    def _cut_half_lines(self) -> None:
        for path in (self._dir.samples, self._dir.verdicts, self._dir.events):
            if num_bytes := cut_half_line(path):
                logger.warning("half line cut off file=%s bytes=%d", path.name, num_bytes)
                self._say(f"{path.name}: {num_bytes} bytes of a half-written last line cut off")

    def _record_data(self, problem_set: ProblemSet) -> None:
        provenance = read_json(self._dir.provenance) or {}
        check_same_data(provenance.get("bench"), problem_set)
        provenance["bench"] = {
            "name": problem_set.name,
            "source": problem_set.source,
            "sha256": problem_set.sha256,
            "num_problems": len(problem_set.problems),
        }
        write_json(self._dir.provenance, provenance)

    def _record_engine(self, engine: Engine) -> None:
        """Kernel path, ledger and model files of this session. Raises for other model files."""
        provenance = read_json(self._dir.provenance) or {}
        check_same_files((provenance.get("model") or {}).get("files"), engine.model_files)
        provenance["model"] = {"path": self._config.model.path, "files": engine.model_files}
        if provenance.get("sessions"):
            provenance["sessions"][-1]["engine"] = engine.backend.describe()
        write_json(self._dir.provenance, provenance)

    def _log_engine(self, backend: Backend, started: float) -> None:
        """Capacity events since the last call, then the totals of this session so far."""
        if isinstance(backend, EventSource):
            events = [event.as_dict() for event in backend.take_events()]
            self._events.append(*({"session": self._session, **event} for event in events))
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
    return {name: getattr(totals, name) for name in totals.__slots__}


def grade_answers(grader: Grader, answers: Sequence[Answer]) -> list[Verdict]:
    """One verdict an answer; a failure of the grader itself is tried once more, alone."""
    verdicts = grader.grade(answers)
    assert len(verdicts) == len(answers), (len(verdicts), len(answers))
    return [
        grader.grade([answer])[0] if "grader_error" in verdict.flags else verdict
        for answer, verdict in zip(answers, verdicts, strict=True)
    ]


def _submit(backend: Backend, item: WorkItem, token_ids: tuple[int, ...], config: Config) -> None:
    sampling = config.sampling
    assert sampling.max_tokens is not None, "resolve() fills it"
    params = SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=sampling.max_tokens,
        ignore_eos=sampling.ignore_eos,
        seed=item.seed,
    )
    request = Request(request_id=item.request_id, prompt_token_ids=token_ids, sampling=params)
    try:
        backend.add_request(request)
    except UsageError as error:
        raise UsageError(f"{error} (problem {item.problem.id})") from error


def _answer(problem: Problem, sample: SampleRow) -> Answer:
    return Answer(
        problem=problem,
        text=sample.text,
        finish_reason=sample.finish_reason,
        reasoning_open=sample.reasoning_open,
    )


def _next_session(run_dir: RunDir) -> int:
    events = read_records(run_dir.events)
    return 1 + max((event["session"] for event in events if "session" in event), default=-1)


def _after(started: float, moment: float | None) -> float | None:
    return None if moment is None else moment - started


def _clean(text: str | None) -> str | None:
    return None if text is None else text.encode(errors="replace").decode()


# ---- the process ---------------------------------------------------------------------------------


class _QuietFileHandler(logging.FileHandler):
    """A log that cannot be written (a full disk) must not flood the terminal with tracebacks."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    handler = _QuietFileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        root.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


def main(argv: Sequence[str], parts: Parts = REAL_PARTS) -> int:
    """Work on the run directory `argv[0]` as the child of a job."""
    stop = threading.Event()
    # Ctrl-C reaches the whole process group; the parent alone decides and sends SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    run_dir = RunDir(Path(argv[0]))
    status = run_dir.read_status()
    assert status is not None, f"{run_dir.path} has no status.json"
    die_with_parent(status.pid)
    with _logging_to(run_dir.log):
        return _work(run_dir, status.beat(worker_pid=os.getpid()), parts, stop.is_set)


def _work(run_dir: RunDir, status: Status, parts: Parts, should_stop: Callable[[], bool]) -> int:
    with run_dir.lock_for_worker(), Heartbeat(run_dir.status, status) as heartbeat:
        try:
            worker = Worker(
                run_dir,
                thaw(run_dir.config),
                parts,
                should_stop=should_stop,
                on_progress=heartbeat.update,
            )
            worker.run()
        except Stopped:
            heartbeat.finish(RunState.interrupted)
            return EXIT_STOPPED
        except UsageError as error:
            return _fail(heartbeat, str(error), EXIT_USAGE)
        except StoreError as error:
            return _fail(heartbeat, str(error), EXIT_FAILED)
        except Exception as error:  # the boundary of the process: the traceback goes to run.log
            logger.exception("the run failed")
            reason = str(error).strip().splitlines()
            line = f"{type(error).__name__}: {reason[0] if reason else 'no message'}"
            return _fail(heartbeat, f"{line} (traceback in {run_dir.log})", EXIT_FAILED)
        heartbeat.finish(RunState.ok)
        return EXIT_OK


def _fail(heartbeat: Heartbeat, line: str, code: int) -> int:
    logger.error(line)
    heartbeat.finish(RunState.failed, line)
    make_console(is_error=True).print(f"error: {line}", markup=False, soft_wrap=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
