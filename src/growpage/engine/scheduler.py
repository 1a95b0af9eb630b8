"""Who runs in the next step, and on which pages. A pure step over sequences and the pool; no torch.

Running requests come first, then preempted ones, then new ones, each first come first served. The newest running
request is the victim of preemption, so the oldest always makes progress.
"""

import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from growpage.budget.base import CapacityPolicy, EvictingPolicy, Signals, SwapSummaries
from growpage.budget.retaining import RetainingPolicy
from growpage.engine.block_pool import BlockPool, page_hash
from growpage.engine.capacity import CapacityControl
from growpage.engine.config import Admission, PreemptMode
from growpage.engine.event_log import NO_SIGNALS, EventLog
from growpage.engine.events import EventKind
from growpage.engine.plan import NOT_FINITE, Plan, PrefillChunk, SwapIn, SwapOut
from growpage.engine.request import FinishReason, Request, RequestMetrics, RequestOutput
from growpage.engine.sequence import UNKNOWN_TOKEN, Sequence, Status
from growpage.errors import UsageError

UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Plain numbers; pages are physical KV pages of `page_size` tokens."""

    page_size: int
    num_pages: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_swap_pages: int = UNLIMITED
    admission: Admission = Admission.auto
    preempt_mode: PreemptMode = PreemptMode.swap
    enable_prefix_caching: bool = True
    async_compaction: bool = False
    eos_token_ids: frozenset[int] = frozenset()


class Scheduler:
    """Each step: ask `boundaries`, measure, `schedule`, run the plan, `update` with the new tokens.

    `update` is `advance`, which needs counts alone, and `commit`, which needs the tokens. Between the two the next
    plan may be made: an end by a token is then seen a step late, and the surplus token is dropped.
    """

    def __init__(
        self,
        policy: CapacityPolicy,
        config: SchedulerConfig,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.policy = policy
        self.config = config
        self.pool = BlockPool(config.num_pages, enable_prefix_caching=config.enable_prefix_caching)
        self.log = EventLog(self.pool, clock)
        self.capacity = CapacityControl(
            policy, self.pool, self.log, config.page_size, is_async=config.async_compaction
        )
        self.waiting: deque[Sequence] = deque()
        self.preempted: list[Sequence] = []  # by arrival
        self.running: list[Sequence] = []  # by arrival
        self._clock = clock
        self._spares_compressed = (
            isinstance(policy, RetainingPolicy) and not policy.preempt_compressed
        )
        self._reinitialises_summaries = (
            isinstance(policy, EvictingPolicy) and policy.swap_summaries is SwapSummaries.reinit
        )
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self._num_swapped_pages = 0
        self._num_arrivals = 0
        self._draining: list[Sequence] = []
        self.token_listener: Callable[[str, int, int, float], None] | None = None
        self.num_output_tokens = 0  # of all requests, without dropped ones
        self._live_ids: set[str] = set()
        self._ended: list[tuple[Sequence, FinishReason, str | None]] = []

    # -- submission ---------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request. Raises `UsageError` when it can never run."""
        self._check_fits(request)
        sequence = Sequence(
            request=request,
            arrival=self._num_arrivals,
            metrics=RequestMetrics(arrival_time=self._clock()),
            token_ids=list(request.prompt_token_ids),
            num_prompt_tokens=len(request.prompt_token_ids),
            max_output_tokens=self.max_new_tokens(request),
            stop_token_ids=self._stop_token_ids(request),
        )
        self._num_arrivals += 1
        self._live_ids.add(request.request_id)
        if sequence.max_output_tokens == 0:
            self._ended.append((sequence, FinishReason.LENGTH, None))
        else:
            self.waiting.append(sequence)

    def abort(self, request_id: str) -> None:
        """End a request between two steps; its pages and slot come back at once."""
        queues: tuple[list[Sequence] | deque[Sequence], ...] = (
            self.waiting,
            self.preempted,
            self.running,
        )
        for queue in queues:
            for sequence in queue:
                if sequence.request_id == request_id:
                    self._end(sequence, FinishReason.ABORT)
                    return

    def fail_all(self, error: str) -> None:
        """End every request after a step that broke: what its pages hold is unknown, so nothing stays findable."""
        for queue in (self._draining, self.running, self.preempted, self.waiting):
            for sequence in list(queue):
                self._end(sequence, FinishReason.ERROR, error)
        self.capacity.release_parked()
        self.pool.forget_all()

    def has_unfinished(self) -> bool:
        return any((self.waiting, self.preempted, self.running, self._draining, self._ended))

    def max_new_tokens(self, request: Request) -> int:
        """Output tokens this request can reach: `max_tokens`, cut by `max_model_len`."""
        room = self.config.max_model_len - len(request.prompt_token_ids)
        return min(request.sampling.max_tokens, room)

    def _stop_token_ids(self, request: Request) -> frozenset[int]:
        own = frozenset(request.sampling.stop_token_ids)
        return own if request.sampling.ignore_eos else own | self.config.eos_token_ids

    # -- one step -----------------------------------------------------------------------------

    def boundaries(self) -> list[Sequence]:
        """Requests whose policy must be told signals before the next `schedule`."""
        if not self.policy.signals():
            return []
        return [s for s in self.running if s.pending is None and self.capacity.is_asked(s)]

    def schedule(self, signals: Mapping[str, Signals]) -> Plan:
        """Decide, allocate, preempt and admit; return what to run.

        signals: request id → what was measured. A request of `boundaries` that is not there sits this step out.
        """
        self.log.begin_step()
        plan = Plan()
        is_measured = bool(self.policy.signals())
        unknown: set[Sequence] = set()
        for sequence in self.running:
            if sequence.pending is None and self.capacity.is_asked(sequence):
                if is_measured and sequence.request_id not in signals:
                    unknown.add(sequence)
                else:
                    self.capacity.decide(sequence, signals.get(sequence.request_id, NO_SIGNALS))
        plan.num_measured = len(unknown)
        self.capacity.hold_back(self.running)
        num_preempted = len(self.preempted)
        b = self.config.page_size
        for sequence in list(self.running):
            if sequence.status is not Status.RUNNING or sequence.is_prefilling:
                continue
            if unknown and sequence in unknown:
                continue
            has_room = sequence.restore_pages is None and sequence.has_free_slot(b)
            if has_room or self._make_room(sequence, plan):
                if self._compacts_aside(sequence, plan):
                    plan.num_compacting += 1
                else:
                    plan.decodes.append(sequence)
        budget = self._continue_prefills(plan)
        # Pages that a preemption freed are for those who run: admitting now would only thrash.
        if len(self.preempted) == num_preempted:
            self._admit(plan, budget)
        completed = [chunk.sequence for chunk in plan.prefills if chunk.completes]
        plan.sampled = plan.decodes + completed
        return plan

    def update(self, plan: Plan, new_tokens: Mapping[str, int]) -> list[RequestOutput]:
        """Take the tokens of a finished plan; return the requests that ended.

        new_tokens: request id → sampled token, for each request of `plan.sampled`.
        """
        self.advance(plan)
        return self.commit(plan, [new_tokens[s.request_id] for s in plan.sampled])

    def advance(self, plan: Plan) -> None:
        """Count the plan as done. Its tokens are unknown yet; who needs no other token gives its pages back."""
        b, is_caching = self.config.page_size, self.config.enable_prefix_caching
        self.capacity.release_parked()
        for sequence in plan.decodes:
            num_tokens = sequence.num_resident_tokens + 1
            sequence.position += 1
            sequence.num_resident_tokens = num_tokens
            sequence.has_query = True
            if is_caching and (sequence.num_hashed_pages + 1) * b <= num_tokens:
                self._register_pages(sequence)
        plan.capacities = [len(s.block_table) * b for s in plan.decodes]
        plan.residents = [s.num_resident_tokens for s in plan.decodes]
        for chunk in plan.prefills:
            chunk.sequence.position += chunk.num_tokens
            chunk.sequence.num_resident_tokens += chunk.num_tokens
            self._register_pages(chunk.sequence)
        for sequence in plan.sampled:
            sequence.token_ids.append(UNKNOWN_TOKEN)
            sequence.num_unknown_tokens += 1
            if sequence.num_tokens_left <= 0:
                self.running.remove(sequence)
                self._free(sequence)
                sequence.status = Status.DRAINING
                self._draining.append(sequence)

    def commit(self, plan: Plan, tokens: Iterable[int]) -> list[RequestOutput]:
        """Take the tokens of `plan.sampled`, in order; return the requests that ended.

        Plans are committed in the order in which they were made. The token of a request that ended before is dropped.
        """
        now = self._clock()
        num_decodes = len(plan.decodes)
        for row, (sequence, token) in enumerate(zip(plan.sampled, tokens, strict=True)):
            if sequence.status is Status.FINISHED:
                continue
            if row < num_decodes:
                _count_decode_step(sequence, plan.capacities[row], plan.residents[row])
            if token == NOT_FINITE:
                self._end(sequence, FinishReason.ERROR, "the logits of the model are not finite")
                continue
            self._set_token(sequence, token, now)
            if token in sequence.stop_token_ids:
                self._end(sequence, FinishReason.STOP)
            elif sequence.num_tokens_left + sequence.num_unknown_tokens <= 0:
                self._end(sequence, FinishReason.LENGTH)
        return self.take_ended()

    def take_ended(self) -> list[RequestOutput]:
        """Outputs of the requests that ended since the last call."""
        ended, self._ended = self._ended, []
        return [self._output(*end) for end in ended]

    def check_integrity(self) -> None:
        """Assert page ownership, slots, reservations and counts; cheap enough for each step in tests."""
        reserved = sum(s.num_reserved_pages for s in self.running)
        owners = [s.block_table for s in self.running] + [[p] for p in self.capacity.parked]
        self.pool.check_integrity(owners, reserved)
        for sequence in (*self.waiting, *self.preempted):
            assert not sequence.block_table, f"{sequence.request_id} waits with pages"
            assert sequence.query_slot is None, f"{sequence.request_id} waits with a slot"
        used = [s.query_slot for s in self.running if s.query_slot is not None]
        assert len(used) == len(self.running), "a running request without a slot"
        assert sorted(used + self._free_slots) == list(range(self.config.max_num_seqs))
        assert self._num_swapped_pages == sum(s.num_swapped_pages for s in self.preempted)
        for sequence in self.running:
            assert sequence.num_resident_tokens <= sequence.num_pages * self.config.page_size
            assert sequence.num_resident_tokens <= sequence.position
            assert sequence.position <= len(sequence.token_ids)

    def _compacts_aside(self, sequence: Sequence, plan: Plan) -> bool:
        """Whether the room just made is a compaction that runs beside this step."""
        last = plan.compactions[-1:] if self.config.async_compaction else []
        return any(compaction.sequence is sequence for compaction in last)

    # -- preemption ---------------------------------------------------------------------------

    def _make_room(self, sequence: Sequence, plan: Plan) -> bool:
        """Give the next token a slot, preempting the newest requests as needed.

        False when the request itself had to go.
        """
        while sequence.status is Status.RUNNING:
            if self.capacity.try_advance(sequence, plan):
                return True
            self._preempt(self._victim(), plan)
        return False

    def _victim(self) -> Sequence:
        """The newest running request, or the newest that was never compacted.

        Where compacted ones are spared, only others ever lack a page: who is over its budget compacts again.
        """
        if self._spares_compressed:
            return next(s for s in reversed(self.running) if s.is_dense)
        return self.running[-1]

    def _preempt(self, sequence: Sequence, plan: Plan) -> None:
        """Take a running request off the device: swap, recompute, or end it when neither can bring it back."""
        assert len(self.running) > 1, f"{sequence.request_id} is alone and finds no page"
        num_pages = sequence.num_pages
        is_recomputable = self._num_dense_pages(sequence) <= self.pool.num_pages
        if self._may_swap(sequence, is_recomputable):
            self._swap_out(sequence, plan)
            kind = EventKind.PREEMPT_SWAP
        elif is_recomputable:
            _forget_progress(sequence)
            kind = EventKind.PREEMPT_RECOMPUTE
        else:
            self._end(sequence, FinishReason.ERROR, self._no_way_back(sequence))
            return
        self.running.remove(sequence)
        self._free(sequence)
        sequence.status = Status.SWAPPED if kind is EventKind.PREEMPT_SWAP else Status.EVICTED
        insort(self.preempted, sequence, key=lambda s: s.arrival)
        self.log.record(sequence, kind, num_pages)

    def _may_swap(self, sequence: Sequence, is_recomputable: bool) -> bool:
        wants_swap = self.config.preempt_mode is PreemptMode.swap or not is_recomputable
        room = self.config.num_swap_pages - self._num_swapped_pages
        return wants_swap and not sequence.is_prefilling and sequence.num_pages <= room

    def _swap_out(self, sequence: Sequence, plan: Plan) -> None:
        slot = sequence.query_slot if sequence.has_query else None
        pages = tuple(sequence.block_table)
        plan.swap_outs.append(SwapOut(sequence=sequence, pages=pages, query_slot=slot))
        sequence.num_swapped_pages = sequence.num_pages
        self._num_swapped_pages += sequence.num_pages

    def _num_dense_pages(self, sequence: Sequence) -> int:
        """Pages for all tokens and the next one, without eviction."""
        return self._num_pages_for(len(sequence.token_ids) + 1)

    def _num_pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.page_size)

    def _no_way_back(self, sequence: Sequence) -> str:
        return (
            f"request {sequence.request_id}: preempted with {len(sequence.token_ids)} tokens; swap "
            f"space is full and a recompute exceeds the pool of {self.pool.num_pages} pages. "
            "Raise engine.swap_space_gib or engine.num_pages."
        )

    # -- admission ----------------------------------------------------------------------------

    def _continue_prefills(self, plan: Plan) -> int:
        """Chunks for requests still in prefill; returns the tokens left of the step's budget."""
        budget = self.config.max_num_batched_tokens - len(plan.decodes)
        for sequence in self.running:
            if sequence.is_prefilling:
                budget -= self._add_chunk(plan, sequence, budget)
        return budget

    def _add_chunk(self, plan: Plan, sequence: Sequence, budget: int) -> int:
        num_tokens = max(0, min(budget, sequence.prefill_target - sequence.position))
        if num_tokens > 0:
            plan.prefills.append(PrefillChunk(sequence=sequence, num_tokens=num_tokens))
        return num_tokens

    def _admit(self, plan: Plan, budget: int) -> None:
        """Bring back preempted requests, then start new ones, while slots, pages and tokens last."""
        while self._free_slots and budget > 0 and (self.preempted or self.waiting):
            queue: list[Sequence] | deque[Sequence] = self.preempted or self.waiting
            sequence = queue[0]
            if sequence.status is Status.SWAPPED:
                if not self._try_swap_in(sequence, plan):
                    return
            elif self._try_start(sequence):
                budget -= self._add_chunk(plan, sequence, budget)
            else:
                return
            del queue[0]
            insort(self.running, sequence, key=lambda s: s.arrival)

    def _num_admission_pages(self, request: Request) -> int:
        """Pages that admission counts for a request: its prompt, P0 or its budget."""
        num_prompt = len(request.prompt_token_ids)
        prompt_pages = self._num_pages_for(num_prompt)
        if not isinstance(self.policy, EvictingPolicy) or self.config.admission is Admission.prompt:
            return prompt_pages
        initial, bound = self.policy.num_initial_pages, self.capacity.max_pages
        if bound is not None:
            by_initial = self.config.admission is Admission.initial
            initial = min(initial, bound) if by_initial else bound
        at_most = self._num_pages_for(num_prompt + self.max_new_tokens(request))
        return max(prompt_pages, min(initial, at_most))

    def _try_start(self, sequence: Sequence) -> bool:
        """Admit a new or evicted request for prefill, over cached prefix pages where there are some."""
        assert sequence.num_unknown_tokens == 0, sequence.request_id
        num_tokens = len(sequence.token_ids)
        num_pages = self._num_pages_for(num_tokens)
        needed = max(num_pages, self._num_admission_pages(sequence.request))
        kind = EventKind.ADMIT
        if sequence.status is Status.EVICTED:
            kind = EventKind.RESUME
            needed = min(max(needed, self._num_dense_pages(sequence)), self.pool.num_pages)
        hashes = self._prefix_hashes(sequence)
        found = self.pool.find(hashes)
        if needed - len(found) + self.pool.num_unowned(found) > self.pool.num_spare:
            return False
        self.pool.share(found)
        sequence.block_table = found + self.pool.allocate(num_pages - len(found))
        self._reserve(sequence, needed)
        self._bind_slot(sequence)
        sequence.position = len(found) * self.config.page_size
        sequence.num_resident_tokens = sequence.position
        sequence.prefill_target = num_tokens
        sequence.num_hashed_pages = len(found)
        sequence.last_hash = hashes[len(found) - 1] if found else b""
        if sequence.restore_pages is not None:
            fits = self._num_dense_pages(sequence) <= sequence.restore_pages
            sequence.restore_pages = None if fits else sequence.restore_pages
        else:
            self.capacity.note_warmed_up(sequence)
        if kind is EventKind.ADMIT:
            sequence.metrics.num_cached_tokens = sequence.position
        self.log.record(sequence, kind, 0)
        return True

    def _prefix_hashes(self, sequence: Sequence) -> list[bytes]:
        """Hashes of the full pages that may come from the cache: never the last, so that a token is left."""
        if not self.config.enable_prefix_caching:
            return []
        b, tokens = self.config.page_size, sequence.token_ids
        hashes: list[bytes] = []
        parent = b""
        for start in range(0, (len(tokens) - 1) // b * b, b):
            parent = page_hash(parent, tokens[start : start + b])
            hashes.append(parent)
        return hashes

    def _try_swap_in(self, sequence: Sequence, plan: Plan) -> bool:
        num_pages = sequence.num_swapped_pages
        is_full = sequence.num_resident_tokens >= num_pages * self.config.page_size
        needed = num_pages + is_full
        if not sequence.has_warmed_up:
            needed = max(needed, self._num_admission_pages(sequence.request))
        needed = min(needed, self.pool.num_pages)
        if needed > self.pool.num_spare:
            return False
        sequence.block_table = self.pool.allocate(num_pages)
        self._reserve(sequence, num_pages if sequence.has_warmed_up else needed)
        slot = self._bind_slot(sequence)
        self._num_swapped_pages -= num_pages
        sequence.num_swapped_pages = 0
        if self._reinitialises_summaries:
            sequence.has_query = False
            sequence.pending = None
        plan.swap_ins.append(
            SwapIn(sequence=sequence, pages=tuple(sequence.block_table), query_slot=slot)
        )
        self.log.record(sequence, EventKind.RESUME, 0)
        return True

    def _reserve(self, sequence: Sequence, num_pages: int) -> None:
        """Promise the request `num_pages` in all, those it holds included."""
        sequence.num_reserved_pages = num_pages - sequence.num_pages
        self.pool.reserve(sequence.num_reserved_pages)

    def _bind_slot(self, sequence: Sequence) -> int:
        slot = self._free_slots.pop()
        sequence.query_slot = slot
        sequence.status = Status.RUNNING
        if sequence.metrics.first_scheduled_time is None:
            sequence.metrics.first_scheduled_time = self._clock()
        return slot

    def _check_fits(self, request: Request) -> None:
        num_prompt = len(request.prompt_token_ids)
        config, name = self.config, request.request_id
        if num_prompt == 0:
            raise UsageError(f"request {name}: the prompt is empty; it needs at least one token.")
        if num_prompt >= config.max_model_len:
            raise UsageError(
                f"request {name}: the prompt has {num_prompt} tokens and engine.max_model_len="
                f"{config.max_model_len} leaves no room for output. Shorten the prompt or raise it."
            )
        if name in self._live_ids:
            raise UsageError(f"request {name}: this id is already in use by an unfinished request.")
        needed = self._num_pages_for(num_prompt + self.max_new_tokens(request))
        if self.capacity.warmup_pages is not None:
            least = max(self._num_pages_for(num_prompt) + 1, self.capacity.warmup_pages)
            needed = min(needed, least)
        if needed > config.num_pages:
            raise UsageError(
                f"request {name}: needs {needed} KV pages of {config.page_size} tokens and the pool "
                f"has {config.num_pages}. Raise engine.num_pages or engine.kv_cache_gib, or lower "
                "sampling.max_tokens or the policy's initial pages or budget."
            )

    # -- tokens and ends ----------------------------------------------------------------------

    def _register_pages(self, sequence: Sequence) -> None:
        """Make the full pages of a request that evicted nothing findable, once their tokens are known."""
        if not (self.config.enable_prefix_caching and sequence.is_dense):
            return
        b = self.config.page_size
        num_known = len(sequence.token_ids) - sequence.num_unknown_tokens
        num_tokens = min(sequence.num_resident_tokens, num_known)
        while (sequence.num_hashed_pages + 1) * b <= num_tokens:
            index = sequence.num_hashed_pages
            tokens = sequence.token_ids[index * b : (index + 1) * b]
            sequence.last_hash = page_hash(sequence.last_hash, tokens)
            self.pool.register(sequence.block_table[index], sequence.last_hash)
            sequence.num_hashed_pages += 1

    def _set_token(self, sequence: Sequence, token: int, now: float) -> None:
        """The oldest unknown token is now known."""
        sequence.token_ids[-sequence.num_unknown_tokens] = token
        sequence.num_unknown_tokens -= 1
        self.num_output_tokens += 1
        metrics = sequence.metrics
        if sequence.last_token_time is None:
            metrics.first_token_time = now
        else:
            metrics.max_itl_s = max(metrics.max_itl_s or 0.0, now - sequence.last_token_time)
        sequence.last_token_time = now
        if self.token_listener is not None:
            num_known = sequence.num_output_tokens - sequence.num_unknown_tokens
            self.token_listener(sequence.request_id, token, num_known - 1, now)

    def _end(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """Out of the queue it is in, with all that it holds."""
        if sequence.status is Status.DRAINING:
            self._draining.remove(sequence)
        elif sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        else:
            self.preempted.remove(sequence)
        self._free(sequence)
        sequence.status = Status.FINISHED
        self._ended.append((sequence, reason, error))

    def _output(self, sequence: Sequence, reason: FinishReason, error: str | None) -> RequestOutput:
        self._live_ids.discard(sequence.request_id)
        num_known = len(sequence.token_ids) - sequence.num_unknown_tokens
        metrics = sequence.metrics
        metrics.finished_time = self._clock()
        if metrics.num_decode_steps:
            steps = metrics.num_decode_steps
            metrics.avg_capacity_tokens = sequence.num_capacity_token_steps / steps
            metrics.avg_resident_tokens = sequence.num_resident_token_steps / steps
        self.log.record(sequence, EventKind.FINISH, sequence.num_pages)
        return RequestOutput(
            request_id=sequence.request_id,
            prompt_token_ids=sequence.request.prompt_token_ids,
            token_ids=tuple(sequence.token_ids[sequence.num_prompt_tokens : num_known]),
            finish_reason=reason,
            metrics=metrics,
            error=error,
        )

    def _free(self, sequence: Sequence) -> None:
        """Give back pages, promised pages and the slot, whatever the request holds of them."""
        self.pool.release(reversed(sequence.block_table))
        sequence.block_table = []
        self.capacity.drop_reservation(sequence)
        if sequence.query_slot is not None:
            self._free_slots.append(sequence.query_slot)
            sequence.query_slot = None
        if sequence.status is Status.SWAPPED:
            self._num_swapped_pages -= sequence.num_swapped_pages
            sequence.num_swapped_pages = 0


def _forget_progress(sequence: Sequence) -> None:
    """Back to the tokens alone. A compacted request remembers the capacity to compact back to."""
    if not sequence.is_dense:
        sequence.restore_pages = sequence.num_pages
    sequence.position = 0
    sequence.num_resident_tokens = 0
    sequence.prefill_target = 0
    sequence.has_query = False
    sequence.is_dense = True
    sequence.num_hashed_pages = 0
    sequence.last_hash = b""
    sequence.pending = None


def _count_decode_step(sequence: Sequence, capacity: int, num_resident_tokens: int) -> None:
    """One decode step over `capacity` tokens of pages, `num_resident_tokens` of them in use."""
    metrics = sequence.metrics
    metrics.num_decode_steps += 1
    metrics.peak_capacity_tokens = max(metrics.peak_capacity_tokens, capacity)
    sequence.num_capacity_token_steps += capacity
    sequence.num_resident_token_steps += num_resident_tokens
