"""The scheduler under random load, without a model.

A `Simulation` plays the engine: it submits, aborts, measures, runs plans on a memory of plain lists, and draws the
tokens. After each step it asserts what must hold of any schedule: no page lost or owned wrongly, every stored token
where its request reads it, arrival order kept, the oldest request done in bounded steps, counters that add up.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from random import Random

from growpage.budget.base import Action, Boundary, CapacityPolicy, EvictingPolicy, Signals
from growpage.budget.coverage import Coverage
from growpage.budget.fixed import Fixed
from growpage.budget.fullkv import FullKV
from growpage.budget.growpage import GrowPage
from growpage.budget.random import Random as RandomPolicy
from growpage.budget.scorer_settings import ScorerSettings
from growpage.budget.shrink import Shrink
from growpage.budget.zipage import Zipage
from growpage.engine.config import Admission, PreemptMode
from growpage.engine.plan import NOT_FINITE, Plan
from growpage.engine.request import FinishReason, Request, RequestOutput, SamplingParams
from growpage.engine.scheduler import UNLIMITED, Scheduler, SchedulerConfig
from growpage.engine.sequence import Sequence as Running
from growpage.errors import UsageError

PAGE_SIZE = 4
EOS = 1
MAX_WAITING = 12
STEPS_A_WORLD = 1000
Cell = tuple[int, int]  # logical position, token


class Erratic(EvictingPolicy):
    """Any action at any boundary, keyed by request and boundary."""

    NAME = "erratic"

    def decide(self, boundary: Boundary) -> Action:
        draw = Random(boundary.request_seed * 1009 + boundary.index).random()
        if draw < 0.5:
            return Action.GROW
        if draw < 0.8 or boundary.num_pages <= 2:
            return Action.COMPRESS
        return Action.SHRINK


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Chances a step: of an arrival, an abort, a failed launch; and of a token that ends its request."""

    arrival: float
    abort: float
    failure: float
    eos: float
    not_finite: float


class Simulation:
    def __init__(
        self,
        policy: CapacityPolicy,
        config: SchedulerConfig,
        rates: Rates,
        rng: Random,
        *,
        is_async: bool,
    ) -> None:
        self.scheduler = Scheduler(policy, config, clock=lambda: 0.0)
        self.rates, self.rng, self.is_async = rates, rng, is_async
        self.outputs: dict[str, RequestOutput] = {}
        self.events: Counter[str] = Counter()
        self.num_steps = self.num_requests = self.num_refused = self.num_failures = 0
        self._signal_names = policy.signals()
        self._num_protected = getattr(policy, "num_protected_tokens", 0)
        self._memory: list[Cell | None] = [None] * (config.num_pages * config.page_size)
        self._parked: dict[str, list[Cell]] = {}
        self._stored: dict[str, list[Cell]] = {}  # what a running request must read
        self._tokens: dict[str, list[int]] = {}  # prompt and all tokens drawn, told or not
        self._live: dict[str, int] = {}  # unfinished, by arrival: steps it may be the oldest
        self._oldest: tuple[str, int] = ("", 0)
        self._measuring: dict[str, Signals] = {}
        self._in_flight: tuple[Plan, list[int]] | None = None

    # -- what a client does ---------------------------------------------------------------------

    def submit(self, num_prompt: int, max_tokens: int, family: int | None) -> None:
        """A request; prompts of one family begin alike."""
        name, rng = f"r{self.num_requests}", self.rng
        first = rng.randrange(10**6, 10**9) if family is None else 1000 * (family + 1)
        prompt = list(range(first, first + num_prompt))
        if family is not None and num_prompt > 1 and rng.random() < 0.5:
            prompt[rng.randrange(num_prompt) :] = [rng.randrange(10**6, 10**9)]
        sampling = SamplingParams(max_tokens=max_tokens, seed=self.num_requests)
        request = Request(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling)
        try:
            self.scheduler.add(request)
        except UsageError:
            self.num_refused += 1
            return
        self.num_requests += 1
        self._tokens[name] = list(request.prompt_token_ids)
        self._live[name] = self._num_steps_needed(request)

    def abort(self, name: str) -> None:
        self.scheduler.abort(name)
        self._parked.pop(name, None)

    def step(self) -> None:
        """One step of the engine, as `Engine.step` makes it."""
        self.num_steps += 1
        plan = self.scheduler.schedule(self._signals())
        self._check_plan(plan)
        tokens = self._run(plan)
        self.scheduler.advance(plan)
        due: tuple[Plan, list[int]] | None = (plan, tokens)
        if self.is_async:
            due, self._in_flight = self._in_flight, due
        self._take(self.scheduler.take_ended() if due is None else self.scheduler.commit(*due))
        self._check()

    def fail(self) -> None:
        """A step that is planned and breaks: nothing of it is known to have happened, all requests end."""
        self.num_steps += 1
        self.num_failures += 1
        self.scheduler.schedule(self._signals())
        self.scheduler.fail_all("a fault of the test")
        self._in_flight, self._measuring = None, {}
        self._parked.clear()
        self._take(self.scheduler.take_ended())
        assert not self._live, f"{self._live} outlived the failure"
        assert self.scheduler.pool.num_cached == 0, "content of unknown pages can be found"
        self.check_idle()

    def random_step(self) -> None:
        rng, rates = self.rng, self.rates
        if rng.random() < rates.arrival and len(self.scheduler.waiting) < MAX_WAITING:
            self.submit_random()
        if self._live and rng.random() < rates.abort:
            self.abort(rng.choice(list(self._live)))
        if rng.random() < rates.failure:
            self.fail()
        else:
            self.step()

    def submit_random(self) -> None:
        rng = self.rng
        family = rng.randrange(3) if rng.random() < 0.7 else None
        self.submit(rng.randint(1, 30), rng.randint(0, 40), family)

    def drain(self) -> None:
        """Step until nobody is left; the bound of the oldest request makes this end."""
        while self.scheduler.has_unfinished():
            self.step()
        if self._in_flight is not None:
            self.step()
        self.check_idle()
        totals = self.scheduler.log.totals
        added = Counter[str]()
        for output in self.outputs.values():
            added.update(asdict(output.metrics.counters))
        assert +added == +Counter(asdict(totals)), (
            "counters of requests do not add up to the totals"
        )
        assert len(self.outputs) == self.num_requests, "a request was lost"

    # -- what must hold ---------------------------------------------------------------------------

    @property
    def _spares_compressed(self) -> bool:
        """Whether an older request may be preempted in place of a younger one."""
        return not getattr(self.scheduler.policy, "preempt_compressed", True)

    def check_idle(self) -> None:
        self.scheduler.check_integrity()
        assert self.scheduler.pool.num_used == 0, "pages without a request"
        assert not self._parked, f"{list(self._parked)} left pages in host memory"

    def _check(self) -> None:
        scheduler = self.scheduler
        scheduler.check_integrity()
        arrivals = [s.arrival for s in scheduler.running]
        arrivals += [s.arrival for s in scheduler.preempted]
        if scheduler.waiting:
            arrivals += [scheduler.waiting[0].arrival, scheduler.waiting[-1].arrival + 1]
        if not self._spares_compressed:
            assert arrivals == sorted(arrivals), "a younger request is ahead of an older one"
        for event in scheduler.log.take():
            self.events[event.kind.value] += 1
        oldest = next(iter(self._live), "")
        since = self._oldest[1] if oldest == self._oldest[0] else self.num_steps
        self._oldest = (oldest, since)
        if oldest:
            waited, bound = self.num_steps - since, self._live[oldest]
            if self._spares_compressed:  # then it may wait for those to end
                bound += max(self._live.values())
            assert waited <= bound, f"{oldest} starves: oldest for {waited} steps, bound {bound}"

    def _num_steps_needed(self, request: Request) -> int:
        """Steps in which the oldest request ends: prefill in the smallest chunks, a step a token, and measured ones."""
        config = self.scheduler.config
        num_new = self.scheduler.max_new_tokens(request)
        num_tokens = len(request.prompt_token_ids) + num_new
        chunk = config.max_num_batched_tokens - config.max_num_seqs + 1
        num_sat_out = 2 * (num_new // config.page_size + 1)  # measured, then compacting
        return -(-num_tokens // chunk) + num_new + num_sat_out + 4

    def _check_plan(self, plan: Plan) -> None:
        scheduler, config = self.scheduler, self.scheduler.config
        if plan.is_empty:
            assert plan.num_measured or plan.num_compacting or not scheduler.running, (
                "a step that does nothing"
            )
            queue = scheduler.preempted or scheduler.waiting
            assert plan.num_measured or not queue, "nobody runs, somebody waits"
        assert len(scheduler.running) <= config.max_num_seqs
        num_tokens = len(plan.decodes) + sum(chunk.num_tokens for chunk in plan.prefills)
        assert num_tokens <= config.max_num_batched_tokens
        assert len({id(s) for s in plan.decodes}) == len(plan.decodes)

    # -- the device ---------------------------------------------------------------------------------

    def _signals(self) -> dict[str, Signals]:
        boundaries = self.scheduler.boundaries()
        if not self.is_async:
            return self._measure(boundaries)
        signals = self._measuring
        self._measuring = self._measure(s for s in boundaries if s.request_id not in signals)
        return signals

    def _measure(self, sequences: Iterable[Running]) -> dict[str, Signals]:
        draw = self.rng.random
        return {
            s.request_id: Signals(r_short=draw(), r_long=draw(), lost_mass=0.002 * draw())
            for s in sequences
        }

    def _run(self, plan: Plan) -> list[int]:
        """Carry a plan out in the order of its fields; the tokens of `plan.sampled`."""
        stored, tokens = self._stored, self._tokens
        for out in plan.swap_outs:
            name = out.sequence.request_id
            self._parked[name] = self._read(out.pages, len(stored[name]))
            assert self._parked[name] == stored[name], f"{name} was swapped out damaged"
        # Beside the step a compaction may run before all else or after it, and must give the same.
        is_late = self.scheduler.config.async_compaction and self.rng.random() < 0.5
        if not is_late:
            self._compact(plan)
        for back in plan.swap_ins:
            name = back.sequence.request_id
            stored[name] = self._parked.pop(name)
            self._write(back.pages, 0, stored[name])
        if plan.decodes:
            self._check_stored(self.rng.choice(plan.decodes))
        for sequence in plan.decodes:
            name, position = sequence.request_id, sequence.position
            cell = (position, tokens[name][position])
            self._write(sequence.block_table, sequence.num_resident_tokens, [cell])
            stored[name].append(cell)
        for chunk in plan.prefills:
            sequence = chunk.sequence
            assert sequence.is_dense, f"{sequence.request_id}: a chunk over evicted tokens"
            name, start = sequence.request_id, sequence.position
            cells = list(enumerate(tokens[name][: start + chunk.num_tokens]))
            assert self._read(sequence.block_table, start) == cells[:start], (
                f"{name}: a wrong prefix"
            )
            self._write(sequence.block_table, start, cells[start:])
            stored[name] = cells
        if is_late:
            self._compact(plan)
        return [self._draw(sequence) for sequence in plan.sampled]

    def _compact(self, plan: Plan) -> None:
        for compaction in plan.compactions:
            name = compaction.sequence.request_id
            cells = self._read(compaction.source_pages, compaction.num_tokens)
            assert cells == self._stored[name], f"{name} compacts pages that are not its own"
            self._stored[name] = kept = self._keep(cells, compaction.num_retained)
            self._write(compaction.target_pages, 0, kept)

    def _check_stored(self, sequence: Running) -> None:
        cells = self._read(sequence.block_table, sequence.num_resident_tokens)
        assert cells == self._stored[sequence.request_id], f"{sequence.request_id} lost a token"

    def _keep(self, cells: list[Cell], num_retained: int) -> list[Cell]:
        """Any choice of old tokens and the newest ones, in their order."""
        num_old = num_retained - self._num_protected
        split = len(cells) - self._num_protected
        assert 0 <= num_old <= split, "a compaction that cannot keep its protected tokens"
        return sorted(self.rng.sample(cells[:split], num_old)) + cells[split:]

    def _read(self, pages: Sequence[int], num_tokens: int) -> list[Cell]:
        b, cells = PAGE_SIZE, []
        for page in pages:
            cells += self._memory[page * b : page * b + b]
        del cells[num_tokens:]
        return cells  # type: ignore[return-value]

    def _write(self, pages: Sequence[int], start: int, cells: Sequence[Cell]) -> None:
        b, memory = PAGE_SIZE, self._memory
        for slot, cell in enumerate(cells, start):
            memory[pages[slot // b] * b + slot % b] = cell

    def _draw(self, sequence: Running) -> int:
        draw, rates = self.rng.random(), self.rates
        token = 2 + int(draw * 1e6)
        if draw < rates.eos:
            token = EOS
        elif draw > 1.0 - rates.not_finite:
            token = NOT_FINITE
        self._tokens[sequence.request_id].append(token)
        return token

    # -- what comes out -----------------------------------------------------------------------------

    def _take(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            name = output.request_id
            assert name in self._live, f"{name} ended twice"
            del self._live[name]
            self._stored.pop(name, None)
            self._parked.pop(name, None)
            self.outputs[name] = output
            num_prompt, num_new = len(output.prompt_token_ids), len(output.token_ids)
            drawn = self._tokens.pop(name)[num_prompt:]
            assert list(output.token_ids) == drawn[:num_new], f"{name}: tokens lost or repeated"
            assert EOS not in output.token_ids[:-1]
            counters = asdict(output.metrics.counters)
            assert min(counters.values()) >= 0, counters
            assert counters["fallback"] <= counters["grow"]
            if output.finish_reason is FinishReason.STOP:
                assert output.token_ids[-1] == EOS
            elif output.finish_reason is FinishReason.ERROR:
                assert output.error


# ---- random worlds -----------------------------------------------------------------------------------


def random_policy(rng: Random) -> CapacityPolicy:
    initial, protected = rng.randint(1, 5), rng.randint(0, 6)
    common = {"initial_pages": initial, "num_protected_tokens": protected}
    kinds = ["fullkv", "fixed", "growpage", "erratic", "shrink", "coverage", "random", "retaining"]
    kind = rng.choice(kinds)
    if kind == "fullkv":
        return FullKV()
    if kind == "fixed":
        least = -(-(PAGE_SIZE + protected + 1) // PAGE_SIZE)
        budget = PAGE_SIZE * rng.randint(least, least + 5)
        return Fixed(budget_tokens=budget, num_protected_tokens=protected)
    if kind == "retaining":
        return Zipage(
            budget_tokens=PAGE_SIZE * rng.randint(protected // PAGE_SIZE + 1, 5),
            buffer_tokens=PAGE_SIZE * rng.randint(1, 3),
            num_protected_tokens=protected,
            scorer_settings=ScorerSettings(window=1),
            preempt_compressed=rng.random() < 0.5,
        )
    if kind == "growpage":
        return GrowPage(tau=rng.uniform(-0.5, 0.5), **common)
    if kind == "shrink":
        return Shrink(min_pages=rng.randint(3, 5), **common)
    if kind == "coverage":
        return Coverage(**common)
    if kind == "random":
        return RandomPolicy(**common)
    return Erratic(**common)


def random_config(rng: Random) -> SchedulerConfig:
    max_num_seqs = rng.randint(1, 8)
    return SchedulerConfig(
        page_size=PAGE_SIZE,
        num_pages=int(3 * (64 / 3) ** rng.random()) if rng.random() < 0.95 else 64,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=rng.randint(max_num_seqs, 32),
        max_model_len=rng.choice([25, 60, 200]),
        num_swap_pages=rng.choice([0, 5, UNLIMITED]),
        admission=rng.choice([Admission.prompt, *Admission]),
        preempt_mode=rng.choice(list(PreemptMode)),
        enable_prefix_caching=rng.random() < 0.8,
        async_compaction=rng.random() < 0.4,
        eos_token_ids=frozenset({EOS}),
    )


def random_rates(rng: Random) -> Rates:
    return Rates(
        arrival=rng.choice([0.1, 0.3, 0.8]),
        abort=rng.choice([0.0, 0.0, 0.05]),
        failure=rng.choice([0.0, 0.001]),
        eos=rng.choice([0.0, 0.02]),
        not_finite=rng.choice([0.0, 0.002]),
    )


def random_simulation(seed: int) -> Simulation:
    rng = Random(seed)
    policy, config, rates = random_policy(rng), random_config(rng), random_rates(rng)
    return Simulation(policy, config, rates, rng, is_async=rng.random() < 0.5)


def simulate(seeds: Iterable[int], num_steps: int) -> tuple[int, Counter[str]]:
    """Run a world a seed for `num_steps` and to its end; steps made and events seen. The failing seed is named."""
    total, events = 0, Counter[str]()
    for seed in seeds:
        simulation = random_simulation(seed)
        try:
            while simulation.num_steps < num_steps:
                simulation.random_step()
            simulation.drain()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {simulation.num_steps}: {error}") from error
        total += simulation.num_steps
        events += simulation.events
        events["request"] += simulation.num_requests
        events["failure"] += simulation.num_failures
    return total, events


def main() -> None:
    """python -m tests.simulator [WORLDS] [FIRST SEED]: more worlds than the tests have time for."""
    num_worlds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    started = time.perf_counter()
    num_steps, events = simulate(range(first, first + num_worlds), STEPS_A_WORLD)
    seconds = time.perf_counter() - started
    print(f"{num_steps} steps of {num_worlds} worlds, {num_steps / seconds:.0f} a second")
    print(", ".join(f"{name} {count}" for name, count in sorted(events.items())))


if __name__ == "__main__":
    main()
