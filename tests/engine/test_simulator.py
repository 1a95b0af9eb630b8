"""A million scheduler steps under random load, and schedules that hypothesis looks for by itself."""

from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from growpage.engine.config import Admission, PreemptMode
from growpage.engine.events import EventKind
from growpage.engine.scheduler import UNLIMITED, SchedulerConfig
from tests.simulator import (
    EOS,
    PAGE_SIZE,
    STEPS_A_WORLD,
    Rates,
    Simulation,
    random_policy,
    simulate,
)

# 1,000 worlds of 1,000 steps and more take about 90 seconds; `python -m tests.simulator 10000` runs ten times as many.
NUM_WORLDS, NUM_PARTS = 1000, 10


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_simulator_finds_no_violation_in_a_hundred_thousand_steps(part: int) -> None:
    size = NUM_WORLDS // NUM_PARTS
    num_steps, events = simulate(range(part * size, (part + 1) * size), STEPS_A_WORLD)
    assert num_steps >= size * STEPS_A_WORLD
    unseen = {kind.value for kind in EventKind} | {"failure"}
    assert not unseen - events.keys(), "random load no longer reaches all that the scheduler does"


class Schedules(RuleBasedStateMachine):
    """What a client and the device do, in the order that breaks something if any does."""

    @initialize(
        policy_seed=st.integers(0, 10_000),
        num_pages=st.integers(3, 64),
        max_num_seqs=st.integers(1, 6),
        extra_tokens=st.integers(0, 20),
        num_swap_pages=st.sampled_from([0, 4, UNLIMITED]),
        admission=st.sampled_from(Admission),
        preempt_mode=st.sampled_from(PreemptMode),
        caching=st.booleans(),
        beside=st.booleans(),
        is_async=st.booleans(),
    )
    def start(
        self,
        policy_seed: int,
        num_pages: int,
        max_num_seqs: int,
        extra_tokens: int,
        num_swap_pages: int,
        admission: Admission,
        preempt_mode: PreemptMode,
        caching: bool,
        beside: bool,
        is_async: bool,
    ) -> None:
        config = SchedulerConfig(
            page_size=PAGE_SIZE,
            num_pages=num_pages,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + extra_tokens,
            max_model_len=120,
            num_swap_pages=num_swap_pages,
            admission=admission,
            preempt_mode=preempt_mode,
            enable_prefix_caching=caching,
            async_compaction=beside,
            eos_token_ids=frozenset({EOS}),
        )
        rng = Random(policy_seed)
        rates = Rates(arrival=0.0, abort=0.0, failure=0.0, eos=0.02, not_finite=0.005)
        self.simulation = Simulation(random_policy(rng), config, rates, rng, is_async=is_async)

    @rule(
        num_prompt=st.integers(1, 40),
        max_tokens=st.integers(0, 60),
        family=st.none() | st.integers(0, 2),
    )
    def submit(self, num_prompt: int, max_tokens: int, family: int | None) -> None:
        self.simulation.submit(num_prompt, max_tokens, family)

    @rule(num_steps=st.integers(1, 12))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.simulation.step()

    @precondition(lambda self: self.simulation.num_requests > 0)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """Any request: waiting, running, swapped out, draining or long gone."""
        self.simulation.abort(f"r{data.draw(st.integers(0, self.simulation.num_requests - 1))}")

    @rule()
    def fail(self) -> None:
        self.simulation.fail()

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.drain()


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_simulator_draws_the_same_world_from_the_same_seed() -> None:
    first, second = simulate([5], 300), simulate([5], 300)
    assert first == second
    assert isinstance(first[1], Counter)
