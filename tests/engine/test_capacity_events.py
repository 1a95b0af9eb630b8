"""What a capacity event measures, holds and reports, beside the logits that test_oracle.py compares."""

from typing import Any

import pytest
import torch

from growpage.budget.base import Action
from growpage.budget.coverage import Coverage
from growpage.budget.growpage import GrowPage
from growpage.engine import compaction
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.event_log import NO_SIGNALS
from growpage.engine.events import EventKind
from growpage.engine.models.loader import LoadedModel, load_model
from growpage.engine.plan import Plan
from growpage.engine.request import Request, SamplingParams
from growpage.engine.scheduler import Scheduler, SchedulerConfig
from growpage.engine.sequence import Decision, Sequence
from tests.oracle import Recorder
from tests.tiny_models import make_tiny

PAGE = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("models")
    return load_model(str(make_tiny(folder, "Qwen3ForCausalLM")), dtype="float32")


def _engine(model: LoadedModel, policy: Any = None, **settings: Any) -> Engine:
    config = EngineConfig(page_size=PAGE, num_pages=100, max_num_seqs=4, device="cpu", **settings)
    return Engine(model, config, policy or GrowPage(initial_pages=2, num_protected_tokens=2))


def _requests(max_tokens: int = 30) -> list[Request]:
    """Prompts of one length, so that the requests meet their boundaries in the same steps."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return [
        Request(request_id=f"r{i}", prompt_token_ids=(i, 9, 8, 7, 6), sampling=sampling)
        for i in range(3)
    ]


def _kept(engine: Engine, max_tokens: int = 30) -> list[torch.Tensor]:
    recorder = Recorder(engine)
    recorder.run(_requests(max_tokens))
    traces = recorder.traces.values()
    return [record.kept for (trace,) in traces for record in trace.compactions]


def test_logits_that_are_not_held_are_computed_again(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = _kept(_engine(model))
    monkeypatch.setattr(compaction, "MAX_HELD_BYTES", 0)
    again = _kept(_engine(model))
    assert len(held) == len(again) > 0
    assert all(torch.equal(a, b) for a, b in zip(held, again, strict=True))


def test_the_host_reads_all_boundaries_of_a_step_at_once(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _engine(model, Coverage(initial_pages=2, num_protected_tokens=2))
    engine_measure = engine.compactor.measure
    num_reads: list[int] = []
    num_measured: list[int] = []
    tolist = torch.Tensor.tolist

    def count(tensor: torch.Tensor) -> Any:
        num_reads[-1] += 1
        return tolist(tensor)

    def measure(sequences: list[Sequence]) -> Any:
        num_reads.append(0)
        num_measured.append(len(sequences))
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "tolist", count)
            patch.setattr(torch.Tensor, "item", None)
            patch.setattr(torch.Tensor, "__float__", None)
            return engine_measure(sequences)

    monkeypatch.setattr(engine.compactor, "measure", measure)
    Recorder(engine).run(_requests())
    assert max(num_measured) == 3
    assert set(num_reads) == {1}


def test_profiled_stages_are_in_the_stats(model: LoadedModel) -> None:
    engine = _engine(model, profile_capacity_events=True)
    _kept(engine)
    times = engine.stats().stage_times
    assert list(times) == [
        "summary_logits",
        "online_demand",
        "attention_score",
        "window_mask+topk_selection",
        "kv_compaction",
    ]
    counters = engine.stats().counters
    num_decisions = counters.grow + counters.compress
    assert times["online_demand"].num_events == num_decisions
    assert times["kv_compaction"].num_events == counters.executed_compress > 0
    assert all(stage.mean_ms > 0 and stage.median_ms > 0 for stage in times.values())
    assert engine.describe()["capacity_stages"]["kv_compaction"]["num_events"] > 0
    engine.shutdown()
    assert engine.stats().stage_times == times


def test_nothing_is_timed_unless_asked(model: LoadedModel) -> None:
    engine = _engine(model)
    _kept(engine)
    assert engine.stats().stage_times == {}
    assert engine.describe()["capacity_ops"] == "torch"


@pytest.mark.parametrize("is_ahead", [False, True])
def test_events_tell_when_and_what_request_and_pool_held(
    model: LoadedModel, is_ahead: bool
) -> None:
    engine = _engine(model, async_scheduling=is_ahead)
    recorder = Recorder(engine)
    recorder.run(_requests())
    times = [event.time_s for event in recorder.events]
    assert times == sorted(times)
    for event in recorder.events:
        assert event.duration_s > 0
        assert 0 <= event.num_used_pages + event.num_cached_pages <= engine.num_pages
        assert event.num_tokens <= event.num_pages_after * PAGE or event.kind is EventKind.FINISH
    compressed = [event for event in recorder.events if event.kind is EventKind.COMPRESS]
    assert compressed
    for event in compressed:
        assert event.num_tokens == (event.num_pages_after - 1) * PAGE
        assert event.delta == pytest.approx(event.r_short - event.r_long)


@pytest.mark.parametrize(
    ("shared", "action", "expected"),
    [
        ((), Action.COMPRESS, [0, 1, 2, 3]),
        ((0, 1), Action.COMPRESS, [None, None, 2, 3]),
        ((0, 1), Action.SHRINK, [3, None, 2]),
        ((), Action.SHRINK, [0, 1, 2]),
    ],
)
def test_own_pages_keep_their_places(
    shared: tuple[int, ...], action: Action, expected: list[int | None]
) -> None:
    """None: a fresh page. A page that SHRINK gives up stands in for a shared one first."""
    config = SchedulerConfig(
        page_size=PAGE, num_pages=10, max_num_seqs=1, max_num_batched_tokens=16, max_model_len=99
    )
    scheduler = Scheduler(GrowPage(initial_pages=2, num_protected_tokens=2), config)
    scheduler.add(_requests()[0])
    sequence, pool = scheduler.waiting[0], scheduler.pool
    table = pool.allocate(4)
    pool.share([table[index] for index in shared])
    sequence.block_table = list(table)
    sequence.position = sequence.num_resident_tokens = 4 * PAGE
    sequence.pending = Decision(action=action, signals=NO_SIGNALS)
    plan = Plan()
    assert scheduler.capacity.try_advance(sequence, plan)
    (planned,) = plan.compactions
    places = [table.index(p) if p in table else None for p in planned.target_pages]
    assert places == expected
    assert planned.target_pages == tuple(sequence.block_table)
    pool.check_integrity([sequence.block_table, [table[index] for index in shared]])
