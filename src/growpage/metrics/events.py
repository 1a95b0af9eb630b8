"""Capacity events: totals and per request (docs/algorithm.md §8; paper Tables 8 and 9). No torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMetrics:
    """Counts over all requests and their mean per request.

    `grow_ratio` is grow / (grow + compress + shrink) over primary decisions, as the paper's four
    ratios; None when nothing was decided.
    """

    totals: dict[str, int]
    per_request: dict[str, float]
    grow_ratio: float | None
    num_requests: int


def event_metrics(counters: Sequence[Mapping[str, int]]) -> EventMetrics:
    """`counters`: the capacity counters of every request, by name."""
    totals: Counter[str] = Counter()
    for row in counters:
        totals.update(row)
    num_decisions = sum(totals[name] for name in ("grow", "compress", "shrink"))
    num_requests = len(counters)
    return EventMetrics(
        totals=dict(totals),
        per_request={name: count / num_requests for name, count in totals.items()},
        grow_ratio=totals["grow"] / num_decisions if num_decisions else None,
        num_requests=num_requests,
    )
