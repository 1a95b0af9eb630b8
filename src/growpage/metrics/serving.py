"""Serving speed with the definitions of vLLM's benchmark, from durations in seconds. No torch.

TTFT: arrival to first token. E2EL: arrival to last token.
TPOT: (E2EL - TTFT) / (output tokens - 1), for requests with more than one.
ITL: the gaps between output tokens, here their mean over all gaps and the longest one; other
percentiles need every gap and are absent.
`decode_throughput` is the paper's TPS (docs/algorithm.md §8).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTiming:
    """One finished request. None: it ended before that point."""

    num_output_tokens: int
    ttft_s: float | None
    e2el_s: float | None
    max_itl_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTotals:
    """What one process of a run did; a run that was continued has several."""

    wall_s: float  # first submission to last step
    num_output_tokens: int
    decode_wall_s: float = 0.0
    num_decode_output_tokens: int = 0
    num_steps: int = 0
    avg_resident_requests: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Mean and percentiles of one quantity, in its own unit."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMetrics:
    """Throughputs in output tokens a second, times in milliseconds. None: could not be measured."""

    decode_throughput: float | None
    output_throughput: float | None
    avg_resident_requests: float | None
    ttft_ms: Summary | None
    tpot_ms: Summary | None
    e2el_ms: Summary | None
    itl_mean_ms: float | None
    itl_max_ms: float | None
    num_sessions: int
    wall_s: float


def serving_metrics(
    requests: Sequence[RequestTiming], sessions: Sequence[SessionTotals]
) -> ServingMetrics:
    """Throughputs from the sessions, latencies from the requests."""
    timed = [item for item in requests if item.e2el_s is not None and item.ttft_s is not None]
    gaps = [max(item.num_output_tokens - 1, 0) for item in timed]
    spans = [(item.e2el_s or 0.0) - (item.ttft_s or 0.0) for item in timed]
    tpot = [span / gap for span, gap in zip(spans, gaps, strict=True) if gap > 0]
    in_gaps = math.fsum(span for span, gap in zip(spans, gaps, strict=True) if gap > 0)
    longest = [item.max_itl_s for item in requests if item.max_itl_s is not None]
    wall_s = math.fsum(item.wall_s for item in sessions)
    decode_s = math.fsum(item.decode_wall_s for item in sessions)
    return ServingMetrics(
        decode_throughput=_rate(sum(item.num_decode_output_tokens for item in sessions), decode_s),
        output_throughput=_rate(sum(item.num_output_tokens for item in sessions), wall_s),
        avg_resident_requests=_mean_resident(sessions),
        ttft_ms=summarise(1e3 * item.ttft_s for item in requests if item.ttft_s is not None),
        tpot_ms=summarise(1e3 * value for value in tpot),
        e2el_ms=summarise(1e3 * item.e2el_s for item in requests if item.e2el_s is not None),
        itl_mean_ms=1e3 * in_gaps / sum(gaps) if sum(gaps) else None,
        itl_max_ms=1e3 * max(longest) if longest else None,
        num_sessions=len(sessions),
        wall_s=wall_s,
    )


def summarise(values: Iterable[float]) -> Summary | None:
    """None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Summary(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        max=ordered[-1],
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Linear interpolation between ranks, as numpy's default.

    `ordered` ascends and is not empty.
    """
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 and count > 0 else None


def _mean_resident(sessions: Sequence[SessionTotals]) -> float | None:
    """C: mean number of requests resident on the device, weighted by decode time."""
    total = math.fsum(item.decode_wall_s for item in sessions)
    if total <= 0:
        return None
    return math.fsum(item.avg_resident_requests * item.decode_wall_s for item in sessions) / total
