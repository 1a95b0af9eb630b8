"""Counts and lists what happened to requests' pages. No torch."""

from collections.abc import Callable
from dataclasses import replace

from growpage.budget.base import Signals
from growpage.engine.block_pool import BlockPool
from growpage.engine.events import CapacityEvent, EventKind
from growpage.engine.request import CapacityCounters
from growpage.engine.sequence import Sequence

NO_SIGNALS = Signals()

# A fallback is a growth decision (primary) that was carried out as a compaction.
_COUNTED: dict[EventKind, tuple[str, ...]] = {
    EventKind.WARMUP: ("warmup_pages",),
    EventKind.GROW: ("grow", "executed_grow"),
    EventKind.COMPRESS: ("compress", "executed_compress"),
    EventKind.SHRINK: ("shrink", "executed_shrink"),
    EventKind.FALLBACK: ("grow", "fallback", "executed_compress"),
    EventKind.RESTORE: ("executed_compress",),
    EventKind.PREEMPT_SWAP: ("preempt_swap",),
    EventKind.PREEMPT_RECOMPUTE: ("preempt_recompute",),
}


class EventLog:
    """Per-request counters, their totals, and the events since the last `take`."""

    def __init__(self, pool: BlockPool, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._clock = clock
        self.totals = CapacityCounters()
        self.step = 0
        self._num_before = 0  # events of earlier steps
        self._events: list[CapacityEvent] = []

    def record(
        self,
        sequence: Sequence,
        kind: EventKind,
        num_pages_before: int,
        signals: Signals = NO_SIGNALS,
    ) -> None:
        for name in _COUNTED.get(kind, ()):
            for counters in (sequence.metrics.counters, self.totals):
                setattr(counters, name, getattr(counters, name) + 1)
        self._events.append(
            CapacityEvent(
                step=self.step,
                request_id=sequence.request_id,
                kind=kind,
                position=sequence.position,
                num_pages_before=num_pages_before,
                num_pages_after=sequence.num_pages,
                num_tokens=sequence.num_resident_tokens,
                num_used_pages=self._pool.num_used,
                num_cached_pages=self._pool.num_cached,
                time_s=self._clock(),
                delta=signals.delta,
                r_short=signals.r_short,
                r_long=signals.r_long,
                lost_mass=signals.lost_mass,
            )
        )

    def begin_step(self) -> None:
        self.step += 1
        self._num_before = len(self._events)

    def end_step(self, duration_s: float) -> None:
        """The events of this step took part of this time."""
        new = self._events[self._num_before :]
        self._events[self._num_before :] = [replace(e, duration_s=duration_s) for e in new]

    def take(self) -> list[CapacityEvent]:
        events, self._events = self._events, []
        return events
