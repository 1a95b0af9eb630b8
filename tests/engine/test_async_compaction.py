"""Compactions beside the step: the tokens, the kept sets and the logits of compactions before it."""

import threading
from typing import Any

import pytest
import torch

from growpage.budget.base import CapacityPolicy
from growpage.budget.fixed import Fixed
from growpage.budget.growpage import GrowPage
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.models.loader import LoadedModel, load_model
from growpage.engine.plan import Compaction
from growpage.engine.request import Request, RequestOutput, SamplingParams
from tests.engine import test_oracle as oracle_rows
from tests.oracle import Recorder, worst_difference
from tests.tiny_models import make_tiny

PAGE = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("models")
    return load_model(str(make_tiny(folder, "Qwen3ForCausalLM")), dtype="float32")


def _engine(model: LoadedModel, policy: CapacityPolicy, **settings: Any) -> Engine:
    defaults = {
        "page_size": PAGE, "num_pages": 200, "max_num_seqs": 4, "device": "cpu",
        "max_num_batched_tokens": 24, "async_compaction": True,
    }  # fmt: skip
    return Engine(model, EngineConfig(**(defaults | settings)), policy)


def _requests(count: int, max_tokens: int = 40) -> list[Request]:
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(0, 250, (3 + 4 * i,), generator=generator) for i in range(count)]
    return [
        Request(
            request_id=f"r{index}",
            prompt_token_ids=tuple(prompt.tolist()),
            sampling=SamplingParams(
                temperature=0.8, max_tokens=max_tokens, ignore_eos=True, seed=index
            ),
        )
        for index, prompt in enumerate(prompts)
    ]


Result = tuple[dict[str, RequestOutput], dict[str, list[torch.Tensor]]]


def _run(engine: Engine) -> Result:
    recorder = Recorder(engine)
    outputs = recorder.run(_requests(6))
    assert engine.stats().num_used_pages == 0
    kept = {n: [r.kept for t in ts for r in t.compactions] for n, ts in recorder.traces.items()}
    return outputs, kept


POLICIES = {
    "fixed": lambda: Fixed(budget_tokens=3 * PAGE, num_protected_tokens=2),
    "growpage": lambda: GrowPage(initial_pages=3, num_protected_tokens=3),
}


@pytest.mark.parametrize("is_ahead", [False, True], ids=["waiting", "ahead"])
@pytest.mark.parametrize("name", POLICIES)
def test_tokens_and_kept_sets_are_those_of_compactions_before_the_step(
    model: LoadedModel, name: str, is_ahead: bool
) -> None:
    settings = {"async_scheduling": is_ahead}
    before = _run(_engine(model, POLICIES[name](), async_compaction=False, **settings))
    beside = _run(_engine(model, POLICIES[name](), **settings))
    for request, output in before[0].items():
        twin = beside[0][request]
        assert output.token_ids == twin.token_ids
        assert output.metrics.counters == twin.metrics.counters
        assert output.metrics.num_decode_steps == twin.metrics.num_decode_steps
        pairs = zip(before[1][request], beside[1][request], strict=True)
        assert all(torch.equal(first, second) for first, second in pairs)
    assert sum(len(sets) for sets in beside[1].values()) > 10


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("num_pages", [21, 200])
@pytest.mark.parametrize("name", [n for n in oracle_rows.POLICIES if n != "fullkv"])
def test_logits_equal_the_masked_dense_model(
    model: LoadedModel, name: str, num_pages: int, mode: str
) -> None:
    engine = _engine(
        model,
        oracle_rows.POLICIES[name](PAGE),
        num_pages=num_pages,
        preempt_mode=mode,
        admission="prompt",
        async_scheduling=num_pages == 21,
    )
    assert engine.describe()["async_compaction"] is True
    recorder = Recorder(engine)
    outputs = recorder.run(_requests(5))
    worst = max(worst_difference(model.decoder, recorder, out) for out in outputs.values())
    assert worst <= oracle_rows.TOLERANCE


def test_a_compaction_runs_in_its_own_thread_while_the_others_decode(model: LoadedModel) -> None:
    engine = _engine(model, POLICIES["fixed"]())
    compact, seen = engine.compactor.compact, threading.Event()
    is_decoding = threading.Event()
    forward = engine.runner._run

    def compact_when_others_decode(compaction: Compaction) -> None:
        assert threading.current_thread() is not threading.main_thread()
        if is_decoding.wait(2.0):
            seen.set()
        compact(compaction)

    def decode(plan: Any) -> Any:
        if plan.compactions:
            names = {c.sequence.request_id for c in plan.compactions}
            assert not names & {s.request_id for s in plan.decodes}
            is_decoding.set()
        return forward(plan)

    engine.compactor.compact = compact_when_others_decode  # type: ignore[method-assign]
    engine.runner._run = decode  # type: ignore[method-assign]
    Recorder(engine).run(_requests(3, max_tokens=20))
    assert seen.is_set()


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_fault_in_the_thread_stops_the_engine_in_the_step(
    model: LoadedModel, is_ahead: bool
) -> None:
    engine = _engine(model, POLICIES["fixed"](), async_scheduling=is_ahead, num_pages=20)
    steps = []

    def broken(compaction: Compaction) -> None:
        steps.append(engine.scheduler.log.step)
        raise ZeroDivisionError("injected")

    engine.compactor.compact = broken  # type: ignore[method-assign]
    for request in _requests(6):
        engine.add_request(request)
    with pytest.raises(ZeroDivisionError, match="injected") as caught:
        _finish(engine)
    assert "broken" in [entry.name for entry in caught.traceback]
    assert steps == [engine.scheduler.log.step]
    engine.check_integrity()
    assert not engine.has_unfinished_requests()
    assert engine.scheduler.pool.num_available == 20


def _finish(engine: Engine) -> None:
    while engine.has_unfinished_requests():
        engine.step()
