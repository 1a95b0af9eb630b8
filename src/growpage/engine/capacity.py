"""What happens to a request's pages at a boundary: grow, compress, shrink or fall back. No torch.

A boundary is reached when the next token of a decoding request has no slot. Growth below P0, with a single page
or before the first decode query is warm-up; everything else is a primary decision of the policy.
"""

from collections.abc import Iterable

from growpage.budget.base import Action, Boundary, CapacityPolicy, EvictingPolicy, Signals
from growpage.engine.block_pool import BlockPool
from growpage.engine.event_log import EventLog
from growpage.engine.events import EventKind
from growpage.engine.plan import Compaction, Plan
from growpage.engine.sequence import Decision, Sequence


class CapacityControl:
    """Turns decisions into pages. `try_` methods change nothing when they return False."""

    def __init__(
        self,
        policy: CapacityPolicy,
        pool: BlockPool,
        log: EventLog,
        page_size: int,
        *,
        is_async: bool = False,
    ) -> None:
        """is_async: compactions run beside their step, so that the pages they leave come back when it is over."""
        self.policy = policy
        self.warmup_pages = policy.warmup_pages(page_size)
        self.max_pages = policy.max_pages(page_size)
        self._pool = pool
        self._log = log
        self._page_size = page_size
        self._num_protected = (
            policy.num_kept_newest(page_size) if isinstance(policy, EvictingPolicy) else 0
        )
        self.parked: list[int] = []  # left by compactions that may still read them
        self._is_async = is_async
        self._num_held_back = 0  # pages that this step's compactions of shared pages still need

    def is_asked(self, sequence: Sequence) -> bool:
        """Whether the request is at a boundary that is a primary decision."""
        return (
            self.warmup_pages is not None
            and not sequence.has_free_slot(self._page_size)
            and not sequence.is_prefilling
            and sequence.has_warmed_up
            and sequence.has_query
            and sequence.restore_pages is None
            and self._exceeds_protected(sequence.num_pages - 1)
        )

    def decide(self, sequence: Sequence, signals: Signals) -> None:
        """Ask the policy; the decision stays pending until its pages are there."""
        boundary = Boundary(
            request_seed=sequence.request.sampling.seed,
            index=sequence.num_decisions,
            num_pages=sequence.num_pages,
            page_size=self._page_size,
            position=sequence.position,
            delta=signals.delta,
            lost_mass=signals.lost_mass,
        )
        action = self.policy.decide(boundary)
        if action is Action.SHRINK and not self._exceeds_protected(sequence.num_pages - 2):
            action = Action.COMPRESS  # the protected tokens need the page
        sequence.pending = Decision(action=action, signals=signals)

    def hold_back(self, sequences: Iterable[Sequence]) -> None:
        """Keep growth away from the fresh pages that decided compactions of shared pages need."""
        self._num_held_back = sum(
            self._num_missing_targets(s, self._target_pages(s))
            for s in sequences
            if s.pending is not None and s.pending.action is not Action.GROW
        )

    def try_advance(self, sequence: Sequence, plan: Plan) -> bool:
        """Give the next token a slot if the pages for it are there."""
        if sequence.restore_pages is not None and sequence.has_query:
            return self._try_compact(sequence, sequence.restore_pages, EventKind.RESTORE, plan)
        if sequence.has_free_slot(self._page_size):
            return True
        if sequence.pending is None:
            return self._try_grow(sequence, EventKind.WARMUP)
        if sequence.pending.action is not Action.GROW:
            kind = EventKind(sequence.pending.action.value)
            return self._try_compact(sequence, self._target_pages(sequence), kind, plan)
        if self._try_grow(sequence, EventKind.GROW):
            return True
        return self._may_fall_back(sequence) and self._try_compact(
            sequence, sequence.num_pages, EventKind.FALLBACK, plan
        )

    def note_warmed_up(self, sequence: Sequence) -> None:
        """Remember that a request has held P0 pages once; shrinking does not undo it."""
        if self.warmup_pages is not None and sequence.num_pages >= self.warmup_pages:
            sequence.has_warmed_up = True

    def release_parked(self) -> None:
        """The step is over, and with it its compactions."""
        self._pool.release(self.parked)
        self.parked.clear()

    def drop_reservation(self, sequence: Sequence) -> None:
        self._pool.unreserve(sequence.num_reserved_pages)
        sequence.num_reserved_pages = 0

    def _exceeds_protected(self, num_pages: int) -> bool:
        return num_pages * self._page_size > self._num_protected

    def _may_fall_back(self, sequence: Sequence) -> bool:
        """Only from P0 pages on: otherwise pressure would freeze every request where it stands."""
        return self.warmup_pages is not None and sequence.num_pages >= self.warmup_pages

    def _target_pages(self, sequence: Sequence) -> int:
        """Pages after the decided compaction; a prompt beyond the policy's bound returns its surplus."""
        assert sequence.pending is not None
        shrinks = sequence.pending.action is Action.SHRINK
        target = sequence.num_pages - 1 if shrinks else sequence.num_pages
        return target if self.max_pages is None else min(target, self.max_pages)

    def _try_grow(self, sequence: Sequence, kind: EventKind) -> bool:
        if sequence.num_reserved_pages > 0:
            sequence.num_reserved_pages -= 1
            self._pool.unreserve(1)
        elif self._pool.num_spare - self._num_held_back < 1:
            return False
        before = sequence.num_pages
        sequence.block_table += self._pool.allocate(1)
        self.note_warmed_up(sequence)
        self._record(sequence, kind, before)
        return True

    def _num_missing_targets(self, sequence: Sequence, num_pages: int) -> int:
        """Fresh pages a compaction needs beyond those it may write in place."""
        num_own = sum(not self._pool.is_shared(page) for page in sequence.block_table)
        return max(0, num_pages - num_own)

    def _try_compact(self, sequence: Sequence, num_pages: int, kind: EventKind, plan: Plan) -> bool:
        """Compact to `num_pages` pages, the last one empty. Shared pages are copied out, never written."""
        num_fresh = self._num_missing_targets(sequence, num_pages)
        if num_fresh > self._pool.num_spare:
            return False
        if kind in (EventKind.COMPRESS, EventKind.SHRINK):
            self._num_held_back = max(0, self._num_held_back - num_fresh)
        sources = tuple(sequence.block_table)
        targets = self._take_targets(sources, num_pages, num_fresh)
        num_retained = (num_pages - 1) * self._page_size
        plan.compactions.append(
            Compaction(
                sequence=sequence,
                source_pages=sources,
                num_tokens=sequence.num_resident_tokens,
                target_pages=tuple(targets),
                num_retained=num_retained,
            )
        )
        sequence.block_table = targets
        sequence.num_resident_tokens = num_retained
        sequence.is_dense = False
        sequence.restore_pages = None
        self.drop_reservation(sequence)
        self._record(sequence, kind, len(sources))
        return True

    def _take_targets(self, sources: tuple[int, ...], num_pages: int, num_fresh: int) -> list[int]:
        """Own pages keep their places; surplus own pages, then fresh ones, stand in for shared pages.

        The other sources are released. Tokens can be moved in place unless a surplus page had to come forward.
        """
        spare = [page for page in sources[num_pages:] if not self._pool.is_shared(page)]
        spare += self._pool.allocate(num_fresh)
        substitutes = iter(spare)
        targets = [
            next(substitutes) if self._pool.is_shared(page) else page
            for page in sources[:num_pages]
        ]
        for page in targets:
            self._pool.forget(page)
        left = [page for page in sources if page not in targets]
        if self._is_async:
            self.parked += left
        else:
            self._pool.release(left)
        return targets

    def _record(self, sequence: Sequence, kind: EventKind, num_pages_before: int) -> None:
        """Log what was done; a primary decision is counted here, once, when it is carried out."""
        if sequence.pending is None:
            self._log.record(sequence, kind, num_pages_before)
            return
        self._log.record(sequence, kind, num_pages_before, sequence.pending.signals)
        sequence.pending = None
        sequence.num_decisions += 1
