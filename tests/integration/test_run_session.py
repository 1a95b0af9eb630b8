"""A session in this process: what it makes, what it leaves to the next one, what it refuses."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from growpage.config import Stage, resolve
from growpage.engine.request import FinishReason
from growpage.errors import UsageError
from growpage.grade.base import Answer, Verdict
from growpage.identity import config_hash, run_directory
from growpage.run.build import Parts, ReadyEngine
from growpage.run.frozen import freeze, thaw
from growpage.run.session import Session, Stopped
from growpage.store.atomic import write_json
from growpage.store.frames import read_metrics, read_runs
from growpage.store.run_dir import RunDir, find_or_create
from growpage.store.samples import read_records, read_rows
from growpage.store.schema import SampleRow, VerdictRow
from tests.fake_run import FakeEngine, FakeGrader, make_config, make_parts


def prepare(runs: Path, **changes: Any) -> RunDir:
    """A run directory as the job leaves it to its worker."""
    config = resolve(make_config(runs, **changes))
    run, _ = find_or_create(run_directory(config), config_hash(config))
    freeze(config, run.config)
    if not run.provenance.exists():
        write_json(run.provenance, {"sessions": [{}]})
    return run


def work(run: RunDir, parts: Parts | None = None, **options: Any) -> None:
    Session(run, thaw(run.config), parts or make_parts(), **options).run()


def stop_after(num_checks: int) -> Callable[[], bool]:
    left = [num_checks]

    def should_stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    return should_stop


def outputs(run: RunDir) -> list[tuple[Any, ...]]:
    rows = read_rows(run.samples, SampleRow)
    return sorted((*row.key, row.token_ids, row.text, row.finish_reason) for row in rows)


def no_engine(_: Any) -> ReadyEngine:
    raise AssertionError("no engine is needed")


@pytest.mark.parametrize("num_steps", [1, 4, 9, 17])
def test_stopped_and_continued_equals_undisturbed(tmp_path: Path, num_steps: int) -> None:
    whole = prepare(tmp_path / "a")
    work(whole)
    parts = prepare(tmp_path / "b")
    with pytest.raises(Stopped):
        work(parts, should_stop=stop_after(num_steps))
    assert not parts.is_complete
    work(parts)
    assert outputs(parts) == outputs(whole)
    columns = ["problem_id", "sample_index", "seed", "text", "is_correct", "num_events_grow"]
    frames = [pd.read_parquet(run.parquet)[columns] for run in (whole, parts)]
    pd.testing.assert_frame_equal(frames[0], frames[1])


def test_many_stops_in_a_row_still_finish(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    for _ in range(40):
        try:
            work(run, should_stop=stop_after(10))
        except Stopped:
            continue
        break
    assert run.is_complete
    assert len(outputs(run)) == len(set(outputs(run))) == 18


def test_samples_that_exist_are_never_submitted_again(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    with pytest.raises(Stopped):
        work(run, should_stop=stop_after(9))
    stored = {f"{row.problem_id}/{row.sample_index}" for row in read_rows(run.samples, SampleRow)}
    submitted: list[str] = []

    class Watched(FakeEngine):
        def add_request(self, request: Any) -> None:
            submitted.append(request.request_id)
            super().add_request(request)

    parts = make_parts()
    engine = replace(parts.build_engine(thaw(run.config)), backend=Watched())
    work(run, replace(parts, build_engine=lambda _: engine))
    assert stored
    assert not stored & set(submitted)
    assert len(stored) + len(submitted) == 18


def test_a_traced_run_leaves_a_timeline_with_its_steps(tmp_path: Path) -> None:
    run = prepare(tmp_path, trace=True)
    work(run)
    events = json.loads(run.timeline.read_text())["traceEvents"]
    steps = [event for event in events if event["name"] == "step"]
    assert len(steps) == max(event["args"]["step"] for event in steps) > 1
    assert run.pages_plot.read_bytes().startswith(b"\x89PNG")


def test_a_timeline_of_a_complete_run_needs_no_engine(tmp_path: Path) -> None:
    work(prepare(tmp_path))
    run = prepare(tmp_path, trace=True)
    work(run, replace(make_parts(), build_engine=no_engine))
    assert run.timeline.is_file()
    assert run.is_complete


@pytest.mark.parametrize("kind", ["poisson", "bursts", "chat", "long_prompts"])
def test_requests_that_come_over_time_give_the_samples_of_all_at_once(
    tmp_path: Path, kind: str
) -> None:
    at_once = prepare(tmp_path / "a")
    work(at_once)
    settings = {"rate": 200.0, "think_time_s": 0.01, "long_every_s": 0.02, "kind": kind}
    spread = prepare(tmp_path / "b", **{f"arrivals.{k}": v for k, v in settings.items()})
    work(spread)
    assert [row[4:] for row in outputs(spread)] == [row[4:] for row in outputs(at_once)]
    arrivals = [row.times.arrival_s for row in read_rows(spread.samples, SampleRow)]
    assert len(set(arrivals)) > 4


def test_samples_of_one_problem_differ_and_have_their_own_seeds(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    work(run)
    rows = [row for row in read_rows(run.samples, SampleRow) if row.problem_id == "q1"]
    assert len({row.seed for row in rows}) == len({row.text for row in rows}) == 3


def test_another_base_seed_is_another_run(tmp_path: Path) -> None:
    assert prepare(tmp_path, seed=1).path != prepare(tmp_path, seed=2).path


def test_grading_alone_loads_no_model(tmp_path: Path) -> None:
    run = prepare(tmp_path, stage=Stage.generate)
    work(run)
    assert not run.is_complete
    prepare(tmp_path)
    work(run, replace(make_parts(), build_engine=no_engine))
    assert run.is_complete


def test_stage_grade_refuses_missing_samples(tmp_path: Path) -> None:
    run = prepare(tmp_path, stage=Stage.grade)
    with pytest.raises(UsageError, match="18 of 18 samples are missing"):
        work(run, replace(make_parts(), build_engine=no_engine))


def test_stage_grade_judges_again_only_for_another_grader(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    work(run)
    prepare(tmp_path, stage=Stage.grade)
    same, newer = FakeGrader(), FakeGrader()
    newer.version = "fake-2"
    work(run, replace(make_parts(), make_grader=lambda _: same))
    work(run, replace(make_parts(), make_grader=lambda _: newer))
    assert (same.num_graded, newer.num_graded) == (0, 18)
    assert set(pd.read_parquet(run.parquet)["grader_version"]) == {"fake-2"}


def test_other_grader_settings_are_noticed_by_the_plain_command(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    work(run)
    assert prepare(tmp_path, **{"grader.timeout_s": 3.0}).path == run.path
    grader = FakeGrader()
    work(run, replace(make_parts(), make_grader=lambda _: grader, build_engine=no_engine))
    assert grader.num_graded == 18


class FailingGrader(FakeGrader):
    """Fails on every answer to q0, and on the first try of q1."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def grade(self, answers: Sequence[Answer]) -> list[Verdict]:
        self.sizes.append(len(answers))
        broken = Verdict(correct=False, reason="worker died", flags=("grader_error",))
        fails = {"q0", "q1"} if len(answers) > 1 else {"q0"}
        verdicts = super().grade(answers)
        return [
            broken if answer.problem.id in fails else verdict
            for answer, verdict in zip(answers, verdicts, strict=True)
        ]


def test_grader_failure_is_tried_once_more_alone_then_reported(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    grader = FailingGrader()
    work(run, replace(make_parts(), make_grader=lambda _: grader))
    assert grader.sizes == [18] + [1] * 6
    metrics = read_metrics(run)
    assert metrics is not None
    assert metrics["shares"]["num_grader_errors"] == 3
    assert metrics["accuracy"] == {"value": None, "reason": "question q0 has no verdict"}


def test_stop_while_grading_keeps_the_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("growpage.run.session.BATCH_SIZE", 4)
    run = prepare(tmp_path, stage=Stage.generate)
    work(run)
    prepare(tmp_path)
    with pytest.raises(Stopped):
        work(run, should_stop=stop_after(2))
    assert len(read_rows(run.verdicts, VerdictRow)) == 8
    grader = FakeGrader()
    work(run, replace(make_parts(), make_grader=lambda _: grader))
    assert grader.num_graded == 10
    assert run.is_complete


def test_numbers_of_a_run_come_from_its_samples(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    work(run)
    metrics, frame = read_metrics(run), read_runs([run])
    assert metrics is not None
    assert metrics["tokens"]["output_per_request"] == frame["num_output_tokens"].mean()
    is_cut = frame["finish_reason"] == "length"
    assert metrics["shares"]["truncated"] == is_cut.mean() > 0
    assert metrics["shares"]["no_answer"] == is_cut.mean()
    lenient = [row[0] == "whole_output_right" for row in frame["flags"] if "no_answer" not in row]
    assert metrics["shares"]["whole_output_right"] == pytest.approx(sum(lenient) / len(lenient))
    assert metrics["capacity"]["avg_tokens"] == 64.0
    assert metrics["capacity"]["retained_tokens"] == 48.5
    assert metrics["events"]["totals"]["grow"] == 36
    per_problem = frame.assign(right=frame["is_correct"].astype(bool)).groupby("problem_id")
    assert metrics["accuracy"]["value"] == pytest.approx(per_problem["right"].mean().mean())


def test_limit_asks_the_first_problems_only(tmp_path: Path) -> None:
    run = prepare(tmp_path, **{"bench.limit": 2})
    work(run)
    assert {row.problem_id for row in read_rows(run.samples, SampleRow)} == {"q0", "q1"}


def test_events_name_their_session_and_request(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    with pytest.raises(Stopped):
        work(run, should_stop=stop_after(9))
    work(run)
    events = read_records(run.events)
    assert {event["session"] for event in events} == {0, 1}
    compressions = [event for event in events if event["kind"] == "compress"]
    assert len(compressions) == 18
    assert compressions[0]["delta"] == -0.01
    assert [event["kind"] for event in events].count("session_started") == 2


def test_provenance_names_data_model_and_kernel_path(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    work(run)
    record = json.loads(run.provenance.read_text())
    assert record["bench"]["source"] == "made up"
    assert record["model"]["files"] == {"model.safetensors": "a" * 64}
    assert record["sessions"][-1]["engine"]["kernel_path"] == "scripted"


def test_engine_is_shut_down_also_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CRASH_AT", "3")
    run, backend = prepare(tmp_path), FakeEngine()
    parts = make_parts()
    engine = replace(parts.build_engine(thaw(run.config)), backend=backend)
    with pytest.raises(RuntimeError, match="kernel launch failed"):
        work(run, replace(parts, build_engine=lambda _: engine))
    assert backend.is_shut_down


def test_progress_counts_stored_samples_too(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    with pytest.raises(Stopped):
        work(run, should_stop=stop_after(9))
    num_stored = len(read_rows(run.samples, SampleRow))
    seen: list[dict[str, int]] = []
    work(run, on_progress=lambda **values: seen.append(values))
    assert seen[0] == {"num_done": num_stored, "num_total": 18}
    assert seen[-1] == {"num_done": 18}


def test_reasons_of_engine_errors_are_in_the_metrics(tmp_path: Path) -> None:
    class Failing(FakeEngine):
        def step(self) -> list[Any]:
            reason = FinishReason.ERROR
            return [replace(item, finish_reason=reason, error="lost") for item in super().step()]

    run = prepare(tmp_path)
    parts = make_parts()
    engine = replace(parts.build_engine(thaw(run.config)), backend=Failing())
    work(run, replace(parts, build_engine=lambda _: engine))
    shares = (read_metrics(run) or {})["shares"]
    assert (shares["num_engine_errors"], shares["engine_errors"]) == (18, {"lost": 18})
