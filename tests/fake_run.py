"""A run without a model: scripted engine, benchmark and grader behind the real store and job.

As a program: `fake_run.py job RUNS_FOLDER [changes as JSON]` is what `run.py` does, and
`fake_run.py worker RUN_DIR` its child. Environment: FAKE_STEP_S slows a step, FAKE_CRASH_AT raises
in that step, FAKE_DATA_SUFFIX changes the questions, FAKE_PROMPT_SUFFIX the prompts, FAKE_REFUSE
makes the engine refuse a request, FAKE_MODEL_FILE is the fingerprint of the model.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from growpage.bench.base import Problem, ProblemSet
from growpage.budget.registry import POLICIES
from growpage.config import (
    BenchConfig,
    Config,
    GraderConfig,
    ModelConfig,
    PathsConfig,
    PoolConfig,
    SamplingConfig,
    Stage,
)
from growpage.engine.config import EngineConfig
from growpage.engine.events import CapacityEvent, EventKind
from growpage.engine.request import (
    CapacityCounters,
    EngineStats,
    FinishReason,
    Request,
    RequestMetrics,
    RequestOutput,
)
from growpage.errors import UsageError
from growpage.grade.base import Answer, Verdict
from growpage.run.build import Parts, ReadyEngine

MAX_RUNNING = 4
TOKENS_A_STEP = 5


class FakeBenchmark:
    def __init__(self, num_problems: int) -> None:
        self._num_problems = num_problems

    def load(self) -> ProblemSet:
        suffix = os.environ.get("FAKE_DATA_SUFFIX", "")
        problems = tuple(
            Problem(id=f"q{number}", question=f"question {number}{suffix}", answer=str(number % 2))
            for number in range(self._num_problems)
        )
        text = repr([(item.id, item.question, item.answer) for item in problems])
        return ProblemSet(
            name="fake",
            problems=problems,
            source="made up",
            sha256=sha256(text.encode()).hexdigest(),
        )

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        suffix = os.environ.get("FAKE_PROMPT_SUFFIX", "")
        return [{"role": "user", "content": problem.question + suffix}]


class FakeTokenizer:
    def render(self, messages: list[dict[str, str]], *, enable_thinking: bool | None = None) -> str:
        return messages[0]["content"] + "\n<think>\n"

    def unknown_words(self, text: str) -> list[str]:
        return []

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Any) -> str:
        return "".join(chr(65 + int(token) % 26) for token in ids)


class FakeEngine:
    """Five tokens a step for up to four requests; what comes out depends on the seed alone."""

    def __init__(self, num_decisions: int = 2) -> None:
        self._waiting: list[Request] = []
        self._running: list[tuple[Request, RequestMetrics, list[int]]] = []
        self._num_decisions = num_decisions
        self._stats = EngineStats(num_pages=64)
        self._crash_at = int(os.environ.get("FAKE_CRASH_AT", "-1"))
        self._step_s = float(os.environ.get("FAKE_STEP_S", "0"))
        self._events: list[CapacityEvent] = []
        self.is_shut_down = False

    def add_request(self, request: Request) -> None:
        if os.environ.get("FAKE_REFUSE"):
            raise UsageError("prompt of 99 tokens: longer than engine.max_model_len=64.")
        self._waiting.append(request)

    def abort(self, request_id: str) -> None:
        self._waiting = [item for item in self._waiting if item.request_id != request_id]

    def step(self) -> list[RequestOutput]:
        stats = self._stats
        if stats.num_steps == self._crash_at:
            raise RuntimeError("the kernel launch failed")
        time.sleep(self._step_s)
        stats.num_steps += 1
        while self._waiting and len(self._running) < MAX_RUNNING:
            metrics = RequestMetrics(arrival_time=time.perf_counter())
            metrics.first_scheduled_time = time.perf_counter()
            self._running.append((self._waiting.pop(0), metrics, []))
        finished = [output for entry in self._running if (output := self._advance(*entry))]
        names = {output.request_id for output in finished}
        self._running = [entry for entry in self._running if entry[0].request_id not in names]
        stats.num_running, stats.num_waiting = len(self._running), len(self._waiting)
        stats.num_finished += len(finished)
        stats.num_used_pages = 4 * len(self._running)
        stats.decode_wall_s += max(self._step_s, 1e-4)
        return finished

    def has_unfinished_requests(self) -> bool:
        return bool(self._waiting or self._running)

    def stats(self) -> EngineStats:
        return replace(self._stats)

    def take_events(self) -> list[CapacityEvent]:
        events, self._events = self._events, []
        return events

    def describe(self) -> dict[str, Any]:
        return {"device": "none", "kernel_path": "scripted"}

    def shutdown(self) -> None:
        self.is_shut_down = True

    def _advance(
        self, request: Request, metrics: RequestMetrics, tokens: list[int]
    ) -> RequestOutput | None:
        length = 8 + request.sampling.seed % 40
        is_cut = length > request.sampling.max_tokens
        length = min(length, request.sampling.max_tokens)
        for _ in range(min(TOKENS_A_STEP, length - len(tokens))):
            tokens.append((request.sampling.seed >> (len(tokens) % 32)) % 1000)
            self._stats.num_output_tokens += 1
            self._stats.num_decode_output_tokens += 1
        metrics.first_token_time = metrics.first_token_time or time.perf_counter()
        if len(tokens) < length:
            return None
        metrics.finished_time = time.perf_counter()
        metrics.num_decode_steps = length
        metrics.avg_capacity_tokens, metrics.avg_resident_tokens = 64.0, 48.5
        metrics.peak_capacity_tokens = 80
        metrics.counters = CapacityCounters(grow=self._num_decisions, compress=1, warmup_pages=3)
        self._stats.counters.add(metrics.counters)
        self._events.append(
            CapacityEvent(
                step=self._stats.num_steps,
                request_id=request.request_id,
                kind=EventKind.COMPRESS,
                position=64,
                num_pages_before=4,
                num_pages_after=4,
                delta=-0.01,
            )
        )
        return RequestOutput(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            token_ids=tuple(tokens),
            finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
            metrics=metrics,
        )


class FakeGrader:
    """Right when the parity of the text's first letter is the gold answer."""

    version = "fake-1"

    def __init__(self) -> None:
        self.num_graded = 0

    def grade(self, answers: Sequence[Answer]) -> list[Verdict]:
        self.num_graded += len(answers)
        return [self._verdict(answer) for answer in answers]

    def close(self) -> None:
        pass

    def _verdict(self, answer: Answer) -> Verdict:
        if answer.finish_reason == "length":
            return Verdict(correct=False, reason="cut off", flags=("no_answer", "truncated"))
        found = str(ord(answer.text[0]) % 2)
        return Verdict(
            correct=found == answer.problem.answer,
            reason="compared",
            extracted=found,
            rule="parity",
            flags=("whole_output_right" if found == "1" else "whole_output_wrong",),
        )


def fake_files() -> dict[str, str]:
    return {"model.safetensors": os.environ.get("FAKE_MODEL_FILE", "a" * 64)}


def make_parts() -> Parts:
    return Parts(
        make_benchmark=lambda config: FakeBenchmark(config.bench.num_problems_expected or 6),
        build_engine=lambda config: ReadyEngine(
            backend=FakeEngine(), tokenizer=FakeTokenizer(), model_files=fake_files()
        ),
        make_grader=lambda config: FakeGrader(),
    )


def make_config(runs: Path, policy: str = "growpage", **changes: Any) -> Config:
    """A small configuration; `changes` are "group.key" or "key" to values."""
    config = Config(
        model=ModelConfig(name="fake", path="fake-model"),
        bench=BenchConfig(
            name="made_up", family="fake", num_problems_expected=6, num_samples=3, max_tokens=44
        ),
        policy=POLICIES[policy](),
        pool=PoolConfig(),
        engine=EngineConfig(device="cpu"),
        sampling=SamplingConfig(temperature=0.6),
        grader=GraderConfig(),
        paths=PathsConfig(runs=str(runs)),
    )
    for key, value in changes.items():
        group, _, name = key.rpartition(".")
        value = Stage(value) if key == "stage" else value
        setattr(getattr(config, group) if group else config, name, value)
    return config


def job_command(runs: Path, policy: str = "growpage", **changes: Any) -> list[str]:
    arguments = json.dumps({"policy": policy, **changes})
    return [sys.executable, __file__, "job", str(runs), arguments]


def worker_command() -> list[str]:
    return [sys.executable, __file__, "worker"]


def _main(arguments: list[str]) -> int:
    if arguments[0] == "worker":
        from growpage.run.worker import main

        return main(arguments[1:], make_parts())
    from growpage.run.job import run_job

    changes = json.loads(arguments[2]) if len(arguments) > 2 else {}
    overrides = [f"{key}={value}" for key, value in changes.items()]
    try:
        return run_job(
            make_config(Path(arguments[1]), **changes), overrides, worker_command=worker_command()
        )
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
