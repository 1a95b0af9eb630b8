"""Faults that other engines had, reproduced small; tests/faults.csv says which id is covered by which test."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from growpage.budget.base import Action, Boundary, CapacityPolicy, EvictingPolicy, GroupReduce
from growpage.budget.demand import attention_logits
from growpage.budget.fixed import Fixed
from growpage.budget.fullkv import FullKV
from growpage.budget.growpage import GrowPage
from growpage.budget.scorers.dual_timescale import larger_attention
from growpage.engine.compaction import CompactionRecord
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.events import EventKind
from growpage.engine.graphs import bucket_sizes
from growpage.engine.models.loader import LoadedModel, load_model
from growpage.engine.plan import Compaction
from growpage.engine.request import FinishReason, Request, RequestOutput, SamplingParams
from tests.oracle import Recorder, worst_difference
from tests.tiny_models import make_tiny

PAGE = 4
Make = Callable[..., Engine]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("models")
    return load_model(str(make_tiny(folder, "Qwen3ForCausalLM")), dtype="float32")


@pytest.fixture
def make(model: LoadedModel) -> Make:
    def make(policy: CapacityPolicy, **settings: Any) -> Engine:
        defaults = {"page_size": PAGE, "num_pages": 100, "max_num_seqs": 4, "device": "cpu"}
        return Engine(model, EngineConfig(**(defaults | settings)), policy)

    return make


def _request(name: str, prompt: list[int], max_tokens: int, **sampling: Any) -> Request:
    values = {"temperature": 0.0, "ignore_eos": True} | sampling
    params = SamplingParams(max_tokens=max_tokens, **values)
    return Request(request_id=name, prompt_token_ids=tuple(prompt), sampling=params)


def _finish(engine: Engine, *requests: Request) -> dict[str, RequestOutput]:
    for request in requests:
        engine.add_request(request)
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    assert engine.stats().num_used_pages == 0
    return outputs


def _growpage() -> GrowPage:
    return GrowPage(initial_pages=2, num_protected_tokens=2)


def _fixed(num_pages: int, **settings: Any) -> Fixed:
    values = {"num_protected_tokens": 2} | settings
    return Fixed(budget_tokens=num_pages * PAGE, **values)


# ---- state and lifetime of a policy --------------------------------------------------------------


def test_a_second_request_decides_as_on_a_fresh_engine(make: Make) -> None:
    first, second = _request("a", [3, 1, 4], 50), _request("b", [9, 2, 6, 5], 50)

    def decisions(engine: Engine) -> list[tuple[Any, ...]]:
        engine.take_events()
        (output,) = _finish(engine, second).values()
        events = engine.take_events()
        return [output.token_ids, *((e.kind, e.position, e.num_pages_after) for e in events)]

    used = make(_growpage())
    _finish(used, first)
    assert decisions(used) == decisions(make(_growpage()))


def test_a_fixed_budget_compresses_again_and_again(make: Make) -> None:
    engine = make(_fixed(3))
    engine.add_request(_request("a", [1, 2], 10 * PAGE))
    num_stored, num_compactions = [], 0
    while engine.has_unfinished_requests():
        before = engine.stats().counters.executed_compress
        engine.step()
        num_compactions = engine.stats().counters.executed_compress
        for sequence in engine.scheduler.running:
            num_stored.append(sequence.num_resident_tokens)
            if num_compactions > before:  # compacted, then the new token stored
                assert sequence.num_resident_tokens == 2 * PAGE + 1
    assert num_compactions >= 7
    assert max(num_stored) <= 3 * PAGE


def test_the_pages_of_a_long_prompt_come_back_at_its_first_compaction(make: Make) -> None:
    engine = make(_fixed(3), num_pages=60)
    engine.add_request(_request("a", list(range(158)), 110 * PAGE))
    num_used = []
    while engine.has_unfinished_requests():
        engine.step()
        engine.check_integrity()
        num_used.append(engine.stats().num_used_pages)
    assert max(num_used) == 40
    assert num_used[-2] == 3
    assert engine.stats().counters.executed_compress > 100
    assert engine.scheduler.pool.num_available == 60


# ---- positions ------------------------------------------------------------------------------------


def test_positions_are_logical_and_kept_entries_are_moved_bit_for_bit(make: Make) -> None:
    engine = make(_fixed(4))
    cache, compact = engine.cache, engine.compactor.compact
    kept: list[torch.Tensor] = []
    num_checked = 0

    def checked(compaction: Compaction) -> None:
        nonlocal num_checked
        before = cache.gather(compaction.source_pages, compaction.num_tokens)
        compact(compaction)
        after = cache.gather(compaction.target_pages, compaction.num_retained)
        index = kept[-1].transpose(1, 2)[:, None, :, :, None]
        expected = before.gather(2, index.expand(-1, 2, -1, -1, before.shape[-1]))
        assert torch.equal(after, expected)
        num_checked += 1

    def listen(record: CompactionRecord) -> None:
        kept.append(record.kept)

    engine.compactor.listener = listen
    engine.compactor.compact = checked  # type: ignore[method-assign]
    engine.add_request(_request("a", [1, 2, 3], 40))
    while engine.has_unfinished_requests():
        engine.step()
        for sequence in engine.scheduler.running:
            assert sequence.position == len(sequence.token_ids) - 1
    assert num_checked >= 2


# ---- shapes and boundaries ------------------------------------------------------------------------


def test_a_prompt_far_beyond_its_budget_stays_what_the_oracle_says(make: Make) -> None:
    engine = make(_fixed(2), max_num_batched_tokens=16)
    recorder = Recorder(engine)
    outputs = recorder.run([_request("a", list(range(5, 25)), 30)])
    assert worst_difference(engine._model.decoder, recorder, outputs["a"]) <= 1e-4
    _assert_protected(recorder, num_protected=2, num_retained=PAGE)


@pytest.mark.parametrize("k_loc", [0, PAGE])
def test_quotas_beyond_the_budget_keep_the_budget_and_the_protected(make: Make, k_loc: int) -> None:
    engine = make(_fixed(2, k_loc=k_loc))
    recorder = Recorder(engine)
    recorder.run([_request("a", [7, 8, 9], 30)])
    _assert_protected(recorder, num_protected=2, num_retained=PAGE)


def _assert_protected(recorder: Recorder, *, num_protected: int, num_retained: int) -> None:
    (trace,) = recorder.traces["a"]
    assert len(trace.compactions) >= 2
    for record in trace.compactions:
        newest = torch.arange(record.num_tokens - num_protected, record.num_tokens)
        assert record.kept.shape[-1] == num_retained
        assert (record.kept[..., -num_protected:] == newest).all()


@pytest.mark.parametrize("is_async", [False, True])
def test_the_longest_prompt_ends_at_the_limit_of_the_model(make: Make, is_async: bool) -> None:
    engine = make(FullKV(), max_model_len=40, max_num_batched_tokens=16, async_scheduling=is_async)
    outputs = _finish(engine, _request("a", [1] * 39, 9), _request("b", [1] * 38, 9))
    assert [len(outputs[name].token_ids) for name in "ab"] == [1, 2]
    assert {output.finish_reason for output in outputs.values()} == {FinishReason.LENGTH}


def test_one_full_page_grows_before_anything_is_chosen(make: Make) -> None:
    engine = make(GrowPage(initial_pages=1, num_protected_tokens=1))
    engine.add_request(_request("a", [1, 2, 3, 4], 2))
    _finish(engine)
    kinds = [e.kind for e in engine.take_events()]
    assert kinds == [EventKind.ADMIT, EventKind.WARMUP, EventKind.FINISH]


@pytest.mark.parametrize("max_tokens", [0, 1, 2])
def test_few_or_no_tokens_give_every_page_and_slot_back(make: Make, max_tokens: int) -> None:
    engine = make(_growpage())
    outputs = _finish(engine, *(_request(f"r{i}", [i, 1, 2, 3], max_tokens) for i in range(6)))
    assert {len(output.token_ids) for output in outputs.values()} == {max_tokens}
    assert len(engine.scheduler._free_slots) == 4


# ---- scores -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_all_zero_key_has_a_finite_score_and_a_fixed_place(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    keys = torch.randn(1, 9, 2, 8).to(dtype)
    keys[:, 4] = 0
    for queries in (torch.randn(2, 1, 4, 8), torch.zeros(2, 1, 4, 8)):
        scores = larger_attention(attention_logits(queries, keys, 0.3), GroupReduce.mean)
        again = larger_attention(attention_logits(queries, keys, 0.3), GroupReduce.mean)
        assert scores.isfinite().all()
        assert torch.equal(scores, again)


# ---- batches and the scheduler ------------------------------------------------------------------------


def test_prompts_of_unequal_lengths_give_the_tokens_of_each_alone(make: Make) -> None:
    requests = [_request("short", [5, 6, 7], 30), _request("long", list(range(40, 49)), 30)]
    together = _finish(make(_fixed(3)), *requests)
    for request in requests:
        (alone,) = _finish(make(_fixed(3)), request).values()
        assert together[request.request_id].token_ids == alone.token_ids


def test_equal_prompts_submitted_together_hit_nothing_that_is_unwritten(make: Make) -> None:
    prompt = list(range(30, 43))
    engine = make(FullKV())
    outputs = _finish(engine, _request("a", prompt, 9), _request("b", prompt, 9))
    assert all(output.metrics.num_cached_tokens == 0 for output in outputs.values())
    (alone,) = _finish(make(FullKV()), _request("a", prompt, 9)).values()
    assert {output.token_ids for output in outputs.values()} == {alone.token_ids}


def test_growth_without_a_page_is_one_fallback_and_keeps_the_pages(make: Make) -> None:
    class AlwaysGrow(EvictingPolicy):
        NAME = "always-grow"

        def decide(self, boundary: Boundary) -> Action:
            return Action.GROW

    engine = make(AlwaysGrow(initial_pages=2, num_protected_tokens=2), num_pages=3)
    _finish(engine, _request("a", [1, 2, 3], 3 * PAGE - 1))
    (event,) = [e for e in engine.take_events() if e.kind is EventKind.FALLBACK]
    assert (event.num_pages_before, event.num_pages_after) == (3, 3)
    assert engine.stats().counters.fallback == 1


@pytest.mark.parametrize("max_num_seqs", [1, 2, 12, 255, 256, 300, 512])
def test_graphs_reach_the_largest_batch(max_num_seqs: int) -> None:
    sizes = bucket_sizes(max_num_seqs)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_num_seqs


# ---- prefix cache ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("max_tokens", range(8, 15))
def test_an_end_near_a_compaction_frees_every_page_once(
    make: Make, max_tokens: int, is_async: bool
) -> None:
    engine = make(_fixed(2), async_scheduling=is_async)
    outputs = _finish(engine, *(_request(f"r{i}", [5, 6, 7, 8, 9], max_tokens) for i in range(2)))
    assert {len(output.token_ids) for output in outputs.values()} == {max_tokens}
    assert engine.scheduler.pool.num_available == 100


# ---- failures ---------------------------------------------------------------------------------------------


class Injected(Exception):
    pass


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("where", ["compact", "start_measuring", "launch"])
def test_a_fault_in_a_step_is_raised_in_it_and_frees_everything(
    make: Make, where: str, is_async: bool
) -> None:
    engine = make(_growpage(), num_pages=14, admission="prompt", async_scheduling=is_async)
    part: Any = engine.runner if where == "launch" else engine.compactor
    work, is_called = getattr(part, where), []

    def broken(*args: Any) -> Any:
        is_called.append(engine.scheduler.log.step)
        if len(is_called) > 20 or where != "launch":
            raise Injected
        return work(*args)

    setattr(part, where, broken)
    requests = [_request(f"r{index}", [index, *range(9)], 60) for index in range(6)]
    with pytest.raises(Injected) as caught:
        _finish(engine, *requests)
    assert "broken" in [entry.name for entry in caught.traceback]
    assert engine.scheduler.log.step - is_called[-1] <= 1
    engine.check_integrity()
    assert not engine.has_unfinished_requests()
    assert engine.scheduler.pool.num_available == 14
    assert engine.stats().num_cached_pages == 0
    assert not engine.runner._swap._parked
    with pytest.raises(RuntimeError, match="stopped") as later:
        engine.step()
    assert isinstance(later.value.__cause__, Injected)
