"""Capacity events: what happened to a request's pages, in which step and why. No torch."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class EventKind(str, Enum):
    ADMIT = "admit"
    WARMUP = "warmup"  # a page below P0 or a fixed budget, or before the first decode query
    GROW = "grow"
    COMPRESS = "compress"
    SHRINK = "shrink"
    FALLBACK = "fallback"  # growth was decided, no page was free, so the request compressed
    RESTORE = "restore"  # compaction back to its capacity after a recompute
    PREEMPT_SWAP = "preempt_swap"
    PREEMPT_RECOMPUTE = "preempt_recompute"
    RESUME = "resume"
    FINISH = "finish"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityEvent:
    """One line of events.jsonl. `position` is logical (tokens computed); pages are physical counts.

    `time_s` is the clock of the request's metrics, `duration_s` the wall time of the whole step. The request then
    stores `num_tokens` tokens; of the pool `num_used_pages` have an owner and `num_cached_pages` wait for a prefix
    hit. Signals are those the decision saw: delta = r_short - r_long (Eq. 8), lost_mass for `coverage`.
    """

    step: int
    request_id: str
    kind: EventKind
    position: int
    num_pages_before: int
    num_pages_after: int
    num_tokens: int | None = None
    num_used_pages: int | None = None
    num_cached_pages: int | None = None
    time_s: float | None = None
    duration_s: float | None = None
    delta: float | None = None
    r_short: float | None = None
    r_long: float | None = None
    lost_mass: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values without absent signals, ready for JSON."""
        row = {key: value for key, value in asdict(self).items() if value is not None}
        row["kind"] = self.kind.value
        return row
