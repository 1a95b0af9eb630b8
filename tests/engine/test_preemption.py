"""Who is preempted, what comes back, and how it is counted."""

from dataclasses import asdict
from typing import Any

import pytest
import torch

from growpage.budget.base import CapacityPolicy
from growpage.budget.fixed import Fixed
from growpage.budget.fullkv import FullKV
from growpage.budget.growpage import GrowPage
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.events import EventKind
from growpage.engine.models.loader import LoadedModel, load_model
from growpage.engine.plan import Plan
from growpage.engine.request import FinishReason, Request, RequestOutput, SamplingParams
from tests.tiny_models import make_tiny

PAGE = 4
PREEMPTIONS = (EventKind.PREEMPT_SWAP, EventKind.PREEMPT_RECOMPUTE)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("models")
    return load_model(str(make_tiny(folder, "Qwen3ForCausalLM")), dtype="float32")


def _engine(model: LoadedModel, policy: CapacityPolicy, **settings: Any) -> Engine:
    defaults = {
        "page_size": PAGE, "num_pages": 16, "max_num_seqs": 6, "device": "cpu",
        "admission": "prompt",
    }  # fmt: skip
    return Engine(model, EngineConfig(**(defaults | settings)), policy)


def _request(index: int, prompt: tuple[int, ...], max_tokens: int) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=index)
    return Request(request_id=f"r{index}", prompt_token_ids=prompt, sampling=sampling)


def _add(engine: Engine, count: int, max_tokens: int = 30) -> None:
    for index in range(count):
        engine.add_request(_request(index, (index, 7, 5, 3, 1), max_tokens))


def _finish(engine: Engine) -> dict[str, RequestOutput]:
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    return outputs


@pytest.mark.parametrize(
    "policy", [FullKV(), GrowPage(initial_pages=3, num_protected_tokens=2)], ids=lambda p: p.name
)
def test_preempted_pages_and_summaries_come_back_bit_for_bit(
    model: LoadedModel, policy: CapacityPolicy
) -> None:
    engine = _engine(model, policy)
    launch, num_back = engine.runner.launch, 0
    parked: dict[str, list[torch.Tensor]] = {}

    def contents(pages: tuple[int, ...], slot: int | None) -> list[torch.Tensor]:
        state = [engine.cache.data[:, :, list(pages)].clone()]
        if engine.summaries is not None and slot is not None:
            held = engine.summaries
            state += [held.state[:, slot].clone(), held.rms[:, slot].clone()]
        return state

    def watched(plan: Plan) -> Any:
        nonlocal num_back
        for out in plan.swap_outs:
            parked[out.sequence.request_id] = contents(out.pages, out.query_slot)
        decodes, plan.decodes = plan.decodes, []
        prefills, plan.prefills = plan.prefills, []
        launch(plan)  # the moves alone
        for back in plan.swap_ins:
            before = parked.pop(back.sequence.request_id)
            after = contents(back.pages, back.query_slot)
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=False))
            num_back += 1
        plan.decodes, plan.prefills = decodes, prefills
        rest = Plan(decodes=decodes, prefills=prefills, sampled=plan.sampled)
        launched = launch(rest)
        return type(launched)(plan=plan, tokens=launched.tokens, done=launched.done)

    engine.runner.launch = watched  # type: ignore[method-assign]
    _add(engine, 6)
    assert len(_finish(engine)) == 6
    assert num_back > 0
    assert not parked


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_the_newest_running_request_is_preempted_and_the_oldest_never(
    model: LoadedModel, mode: str
) -> None:
    engine = _engine(model, FullKV(), preempt_mode=mode)
    _add(engine, 6)
    num_preempted = 0
    while engine.has_unfinished_requests():
        running = [sequence.request_id for sequence in engine.scheduler.running]
        engine.step()
        victims = [e.request_id for e in engine.take_events() if e.kind in PREEMPTIONS]
        num_preempted += len(victims)
        if victims:
            assert victims == running[::-1][: len(victims)]
            assert running[0] not in victims
    assert num_preempted > 0


@pytest.mark.parametrize("swap_space_gib", [0.0, 8.0])
def test_without_room_on_the_host_a_preemption_recomputes_and_is_counted_so(
    model: LoadedModel, swap_space_gib: float
) -> None:
    engine = _engine(model, FullKV(), swap_space_gib=swap_space_gib)
    _add(engine, 6)
    outputs = _finish(engine)
    totals = engine.stats().counters
    assert (totals.preempt_swap > 0) is (swap_space_gib > 0)
    assert (totals.preempt_recompute > 0) is (swap_space_gib == 0)
    assert all(output.finish_reason is FinishReason.LENGTH for output in outputs.values())


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_a_compressed_request_never_returns_larger_than_it_left_once_it_decodes(
    model: LoadedModel, mode: str
) -> None:
    """Three short prompts grow to their budget and push out a fourth, which compressed at once."""
    policy = Fixed(budget_tokens=4 * PAGE, num_protected_tokens=2)
    engine = _engine(model, policy, preempt_mode=mode, num_pages=14)
    for index, num_prompt in enumerate([1, 1, 1, 15]):
        engine.add_request(_request(index, tuple(range(num_prompt)), 40))
    outputs = _finish(engine)
    kinds = [e.kind for e in engine.take_events() if e.request_id == "r3"]
    preempted = kinds.index(PREEMPTIONS[mode == "recompute"])
    assert EventKind.COMPRESS in kinds[:preempted]
    assert (EventKind.RESTORE in kinds[preempted:]) is (mode == "recompute")
    assert outputs["r3"].metrics.peak_capacity_tokens <= (16 if mode == "swap" else 28)
    assert all(len(output.token_ids) == 40 for output in outputs.values())


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preemption_counters_of_requests_add_up_to_the_totals(
    model: LoadedModel, mode: str
) -> None:
    engine = _engine(model, GrowPage(initial_pages=3, num_protected_tokens=2), preempt_mode=mode)
    _add(engine, 6)
    outputs = _finish(engine)
    totals = asdict(engine.stats().counters)
    for name, total in totals.items():
        parts = [getattr(output.metrics.counters, name) for output in outputs.values()]
        assert sum(parts) == total
        assert min(parts) >= 0
    assert totals["preempt_swap"] + totals["preempt_recompute"] > 0
