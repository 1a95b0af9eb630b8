"""The scheduler without a model: random requests, pools and policies; pages conserved, everybody finishes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growpage.budget.base import Action, Boundary, CapacityPolicy, EvictingPolicy
from growpage.budget.fixed import Fixed
from growpage.budget.fullkv import FullKV
from growpage.engine.config import Admission, PreemptMode
from growpage.engine.request import FinishReason, Request, SamplingParams
from growpage.engine.scheduler import Scheduler, SchedulerConfig
from growpage.errors import UsageError


class Erratic(EvictingPolicy):
    """Any action at any boundary, keyed by request and boundary."""

    NAME = "erratic"

    def decide(self, boundary: Boundary) -> Action:
        draw = random.Random(f"{boundary.request_seed}:{boundary.index}").random()
        if draw < 0.5:
            return Action.GROW
        if draw < 0.8 or boundary.num_pages <= 2:
            return Action.COMPRESS
        return Action.SHRINK


def _request(name: str, prompt: tuple[int, ...], max_tokens: int) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=len(name) + sum(prompt))
    return Request(request_id=name, prompt_token_ids=prompt, sampling=sampling)


def _config(**overrides: object) -> SchedulerConfig:
    values = {
        "page_size": 4,
        "num_pages": 12,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 16,
        "max_model_len": 200,
    }
    return SchedulerConfig(**(values | overrides))  # type: ignore[arg-type]


def _finish_all(scheduler: Scheduler, max_steps: int = 20_000) -> list:
    outputs = []
    for _ in range(max_steps):
        if not scheduler.has_unfinished():
            return outputs
        plan = scheduler.schedule({})
        assert not plan.is_empty or not scheduler.running, "a step that does nothing"
        ran = [
            c.sequence
            for c in plan.prefills
            if c.sequence.position + c.num_tokens == c.sequence.prefill_target
        ]
        tokens = {s.request_id: len(s.token_ids) % 50 for s in plan.decodes + ran}
        outputs += scheduler.update(plan, tokens)
        scheduler.check_integrity()
    raise AssertionError("not finished: starvation")


@settings(max_examples=150, deadline=None)
@given(
    num_pages=st.integers(3, 24),
    initial_pages=st.integers(1, 4),
    num_protected=st.integers(0, 6),
    max_num_seqs=st.integers(1, 5),
    num_swap_pages=st.sampled_from([0, 5, 1000]),
    mode=st.sampled_from(PreemptMode),
    admission=st.sampled_from(Admission),
    kind=st.sampled_from(["fullkv", "fixed", "erratic"]),
    requests=st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 40), st.booleans()), min_size=1, max_size=8
    ),
)
def test_pages_are_conserved_and_every_request_ends(
    num_pages: int,
    initial_pages: int,
    num_protected: int,
    max_num_seqs: int,
    num_swap_pages: int,
    mode: PreemptMode,
    admission: Admission,
    kind: str,
    requests: list[tuple[int, int, bool]],
) -> None:
    policy: CapacityPolicy = FullKV()
    if kind == "fixed":
        policy = Fixed(budget_tokens=12, num_protected_tokens=num_protected)
    elif kind == "erratic":
        policy = Erratic(initial_pages=initial_pages, num_protected_tokens=num_protected)
    scheduler = Scheduler(
        policy,
        _config(
            num_pages=num_pages,
            max_num_seqs=max_num_seqs,
            num_swap_pages=num_swap_pages,
            preempt_mode=mode,
            admission=admission,
        ),
    )
    accepted = {}
    for index, (length, max_tokens, is_common) in enumerate(requests):
        first = 7 if is_common else 100 + index
        prompt = tuple((first + i) % 300 for i in range(length))
        try:
            scheduler.add(_request(f"r{index}", prompt, max_tokens))
            accepted[f"r{index}"] = max_tokens
        except UsageError:
            pass
    outputs = {out.request_id: out for out in _finish_all(scheduler)}
    assert outputs.keys() == accepted.keys()
    for name, output in outputs.items():
        if output.finish_reason is FinishReason.ERROR:
            assert "swap" in (output.error or "")
        else:
            assert len(output.token_ids) == accepted[name]
    assert scheduler.pool.num_available == num_pages
    totals = scheduler.log.totals
    executed = totals.executed_grow + totals.executed_compress + totals.executed_shrink
    assert executed >= totals.grow + totals.compress + totals.shrink
    assert totals.fallback <= totals.grow


def test_admission_by_p0_never_asks_for_more_than_the_budget() -> None:
    policy = Fixed(budget_tokens=12, num_protected_tokens=0)
    scheduler = Scheduler(policy, _config(num_pages=3, admission=Admission.initial))
    scheduler.add(_request("a", (1,), max_tokens=12))
    (output,) = _finish_all(scheduler, max_steps=50)
    assert len(output.token_ids) == 12


def test_growth_without_a_free_page_falls_back_to_compression_once() -> None:
    class AlwaysGrow(EvictingPolicy):
        NAME = "always-grow"

        def decide(self, boundary: Boundary) -> Action:
            return Action.GROW

    policy = AlwaysGrow(initial_pages=2, num_protected_tokens=1)
    scheduler = Scheduler(policy, _config(num_pages=3))
    scheduler.add(_request("a", (1, 2, 3), max_tokens=12))
    (output,) = _finish_all(scheduler)
    counters = output.metrics.counters
    assert (counters.grow, counters.fallback, counters.executed_compress) == (2, 1, 1)
    assert len(output.token_ids) == 12


def test_fixed_budget_is_a_peak_that_is_never_exceeded() -> None:
    scheduler = Scheduler(
        Fixed(budget_tokens=12, num_protected_tokens=2), _config(num_pages=40, max_num_seqs=2)
    )
    scheduler.add(_request("a", tuple(range(5)), max_tokens=100))
    (output,) = _finish_all(scheduler)
    assert output.metrics.peak_capacity_tokens == 12
    assert output.metrics.counters.compress >= 7
    assert output.metrics.counters.grow == 0


def test_long_prompt_returns_its_surplus_pages_at_the_first_compaction() -> None:
    scheduler = Scheduler(
        Fixed(budget_tokens=12, num_protected_tokens=2), _config(num_pages=40, max_num_seqs=2)
    )
    scheduler.add(_request("a", tuple(range(30)), max_tokens=40))
    used = []
    while scheduler.has_unfinished():
        plan = scheduler.schedule({})
        used.append(scheduler.pool.num_used)
        tokens = {s.request_id: 1 for s in plan.decodes}
        tokens |= {
            c.sequence.request_id: 1
            for c in plan.prefills
            if c.sequence.position + c.num_tokens == c.sequence.prefill_target
        }
        scheduler.update(plan, tokens)
        scheduler.check_integrity()
    assert max(used) == 8
    assert used[-1] == 3


def test_never_more_running_requests_than_slots() -> None:
    scheduler = Scheduler(FullKV(), _config(num_pages=100, max_num_seqs=2))
    for index in range(5):
        scheduler.add(_request(f"r{index}", (index, 1), max_tokens=6))
    outputs = []
    while scheduler.has_unfinished():
        plan = scheduler.schedule({})
        assert len(scheduler.running) <= 2
        done = [c.sequence for c in plan.prefills]
        outputs += scheduler.update(plan, {s.request_id: 1 for s in plan.decodes + done})
    assert len(outputs) == 5


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "says"),
    [
        ((), 5, "empty"),
        (tuple(range(200)), 5, "max_model_len"),
        (tuple(range(60)), 5, "KV pages"),
    ],
)
def test_request_that_can_never_run_is_refused_at_submission(
    prompt: tuple[int, ...], max_tokens: int, says: str
) -> None:
    scheduler = Scheduler(FullKV(), _config())
    with pytest.raises(UsageError, match=says):
        scheduler.add(_request("a", prompt, max_tokens))
    assert not scheduler.has_unfinished()


def test_max_tokens_zero_ends_at_once_without_a_token() -> None:
    scheduler = Scheduler(FullKV(), _config())
    scheduler.add(_request("a", (1, 2), max_tokens=0))
    (output,) = _finish_all(scheduler)
    assert output.token_ids == ()
    assert output.finish_reason is FinishReason.LENGTH


def test_aborted_requests_give_everything_back() -> None:
    scheduler = Scheduler(FullKV(), _config(num_pages=8))
    for index in range(4):
        scheduler.add(_request(f"r{index}", (index, 1, 2), max_tokens=20))
    outputs = []
    for step in range(200):
        if not scheduler.has_unfinished():
            break
        plan = scheduler.schedule({})
        done = [c.sequence for c in plan.prefills]
        outputs += scheduler.update(plan, {s.request_id: 1 for s in plan.decodes + done})
        if step % 5 == 0:
            scheduler.abort(f"r{step // 5 % 4}")
        scheduler.check_integrity()
    assert len(outputs) == 4
    assert scheduler.pool.num_available == 8
