"""A step prepared while the last one runs gives the tokens of one that waits."""

from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from growpage import LLM, SamplingParams
from growpage.budget.base import CapacityPolicy, Signals
from growpage.budget.fixed import Fixed
from growpage.budget.fullkv import FullKV
from growpage.budget.growpage import GrowPage
from growpage.engine.plan import Plan
from growpage.engine.request import FinishReason, Request, RequestOutput
from growpage.engine.scheduler import Scheduler, SchedulerConfig
from tests.engine import test_oracle as oracle_rows
from tests.oracle import Recorder, worst_difference
from tests.tiny_models import make_tiny

Make = Callable[..., LLM]
POLICIES: dict[str, Callable[[], CapacityPolicy]] = {
    "fullkv": FullKV,
    "fixed": lambda: Fixed(budget_tokens=16, num_protected_tokens=3),
    "growpage": lambda: GrowPage(initial_pages=3, num_protected_tokens=3),
}


@pytest.fixture(scope="module")
def make_llm(tmp_path_factory: pytest.TempPathFactory) -> Make:
    path = make_tiny(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM")

    def make(policy: CapacityPolicy, is_async: bool, **settings: object) -> LLM:
        defaults = {"page_size": 4, "num_pages": 300, "max_num_seqs": 4, "device": "cpu"}
        values = defaults | {"dtype": "float32", "async_scheduling": is_async} | settings
        return LLM(str(path), policy=policy, **values)

    return make


def _prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 30, (count,), generator=generator).tolist()
    return [torch.randint(0, 250, (n,), generator=generator).tolist() for n in lengths]


def _run(llm: LLM, **sampling: object) -> list[RequestOutput]:
    values = {"temperature": 0.7, "max_tokens": 40, "ignore_eos": True, "seed": 5} | sampling
    outputs = llm.generate(_prompts(7), SamplingParams(**values))  # type: ignore[arg-type]
    llm.engine.check_integrity()
    assert llm.engine.stats().num_used_pages == 0
    return outputs


@pytest.mark.parametrize("tight", [{}, {"num_pages": 24}], ids=["roomy", "tight"])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_and_capacities_are_those_of_synchronous_steps(
    make_llm: Make, policy: str, mode: str, tight: dict
) -> None:
    settings = {"preempt_mode": mode, "max_num_batched_tokens": 24, "admission": "prompt", **tight}
    waiting = make_llm(POLICIES[policy](), False, **settings)
    ahead = make_llm(POLICIES[policy](), True, **settings)
    expected, outputs = _run(waiting), _run(ahead)
    for output, twin in zip(outputs, expected, strict=True):
        assert output.token_ids == twin.token_ids
        assert output.finish_reason == twin.finish_reason
        assert output.metrics.counters == twin.metrics.counters
        assert output.metrics.avg_capacity_tokens == twin.metrics.avg_capacity_tokens
        assert output.metrics.avg_resident_tokens == twin.metrics.avg_resident_tokens
    assert ahead.engine.stats().num_output_tokens == waiting.engine.stats().num_output_tokens
    if tight and policy == "fullkv":
        counters = ahead.engine.stats().counters
        assert counters.preempt_swap + counters.preempt_recompute > 0


def test_an_end_by_a_token_is_seen_late_and_nothing_of_the_surplus_is_told(make_llm: Make) -> None:
    stops = {"ignore_eos": False, "stop_token_ids": tuple(range(0, 250, 9))}
    expected = _run(make_llm(FullKV(), False), **stops)
    outputs = _run(make_llm(FullKV(), True), **stops)
    assert any(o.finish_reason is FinishReason.STOP for o in outputs)
    for output, twin in zip(outputs, expected, strict=True):
        assert output.token_ids == twin.token_ids
        assert output.finish_reason == twin.finish_reason
        assert output.metrics.num_decode_steps == twin.metrics.num_decode_steps
        assert output.metrics.avg_capacity_tokens == twin.metrics.avg_capacity_tokens


def test_filters_and_greedy_rows_mix(make_llm: Make) -> None:
    params = [
        SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True),
        SamplingParams(temperature=0.9, top_k=7, max_tokens=12, ignore_eos=True, seed=1),
        SamplingParams(temperature=0.9, max_tokens=5, ignore_eos=True, seed=2),
    ]
    results = [
        [o.token_ids for o in make_llm(FullKV(), a).generate(_prompts(3), params)]
        for a in (False, True)
    ]
    assert results[0] == results[1]


def test_an_abort_while_a_step_runs_gives_everything_back(make_llm: Make) -> None:
    engine = make_llm(FullKV(), True).engine
    for index, prompt in enumerate(_prompts(3)):
        sampling = SamplingParams(max_tokens=30, ignore_eos=True)
        engine.add_request(
            Request(request_id=str(index), prompt_token_ids=tuple(prompt), sampling=sampling)
        )
    for _ in range(6):
        engine.step()
    engine.abort("1")
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {o.request_id: o for o in engine.step()}
        engine.check_integrity()
    assert outputs["1"].finish_reason is FinishReason.ABORT
    assert -1 not in outputs["1"].token_ids
    assert len(outputs["0"].token_ids) == len(outputs["2"].token_ids) == 30
    assert engine.stats().num_used_pages == 0


@settings(max_examples=80, deadline=None)
@given(
    num_pages=st.integers(4, 24),
    max_num_seqs=st.integers(1, 5),
    mode=st.sampled_from(["swap", "recompute"]),
    budget=st.booleans(),
    requests=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 30)), min_size=1, max_size=8),
    data=st.data(),
)
def test_pages_are_conserved_when_tokens_come_a_step_late(
    num_pages: int,
    max_num_seqs: int,
    mode: str,
    budget: bool,
    requests: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    policy = Fixed(budget_tokens=12, num_protected_tokens=2) if budget else FullKV()
    scheduler = Scheduler(
        policy,
        SchedulerConfig(
            page_size=4, num_pages=num_pages, max_num_seqs=max_num_seqs, max_num_batched_tokens=16,
            max_model_len=200, preempt_mode=mode, eos_token_ids=frozenset({0}),
        ),
    )  # fmt: skip
    for index, (length, max_tokens) in enumerate(requests):
        fits = -(-(length + max_tokens) // 4) <= num_pages
        if fits or (budget and -(-length // 4) < min(num_pages, 3)):
            prompt = tuple(range(index * 20 + 1, index * 20 + 1 + length))
            sampling = SamplingParams(max_tokens=max_tokens, seed=index)
            scheduler.add(
                Request(request_id=str(index), prompt_token_ids=prompt, sampling=sampling)
            )
    num_added = len(scheduler.waiting)
    outputs: list[RequestOutput] = []
    in_flight: Plan | None = None
    for _ in range(3000):
        if not scheduler.has_unfinished():
            break
        plan = scheduler.schedule({})
        assert all(s.num_unknown_tokens <= 1 for s in plan.decodes)
        scheduler.advance(plan)
        scheduler.check_integrity()
        if in_flight is not None:
            tokens = [data.draw(st.integers(0, 15)) for _ in in_flight.sampled]
            outputs += scheduler.commit(in_flight, tokens)
        scheduler.check_integrity()
        in_flight = plan
    assert len(outputs) == num_added
    assert scheduler.pool.num_available == num_pages
    for output in outputs:
        assert -1 not in output.token_ids
        assert 0 not in output.token_ids[:-1]


@pytest.mark.parametrize("num_pages", [21, 200])
@pytest.mark.parametrize("name", oracle_rows.POLICIES)
def test_logits_of_steps_ahead_equal_the_masked_dense_model(
    make_llm: Make, name: str, num_pages: int
) -> None:
    policy = oracle_rows.POLICIES[name](4)
    settings = {"num_pages": num_pages, "max_num_batched_tokens": 24, "admission": "prompt"}
    engine = make_llm(policy, True, **settings).engine
    num_measured: list[int] = []
    schedule = engine.scheduler.schedule

    def noting(signals: Mapping[str, Signals]) -> Plan:
        plan = schedule(signals)
        num_measured.append(plan.num_measured)
        return plan

    engine.scheduler.schedule = noting  # type: ignore[method-assign]
    recorder = Recorder(engine)
    requests = [
        Request(
            request_id=f"r{index}",
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(temperature=0.8, max_tokens=40, ignore_eos=True, seed=index),
        )
        for index, prompt in enumerate(_prompts(4))
    ]
    outputs = recorder.run(requests)
    decoder = engine._model.decoder
    assert any(num_measured) == bool(policy.signals())
    assert max(worst_difference(decoder, recorder, out) for out in outputs.values()) <= 1e-4
