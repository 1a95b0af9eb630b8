"""Serving metrics with vLLM's definitions, on timelines small enough to check by eye."""

import pytest

from growpage.metrics.serving import (
    RequestTiming,
    SessionTotals,
    percentile,
    serving_metrics,
    summarise,
)


def timing(num_tokens: int, ttft: float | None, e2el: float | None) -> RequestTiming:
    return RequestTiming(num_output_tokens=num_tokens, ttft_s=ttft, e2el_s=e2el)


def session(**changes: float) -> SessionTotals:
    values = {
        "wall_s": 10.0, "num_output_tokens": 200, "decode_wall_s": 8.0,
        "num_decode_output_tokens": 180, "avg_resident_requests": 4.0, **changes,
    }  # fmt: skip
    return SessionTotals(**values)  # type: ignore[arg-type]


def test_tpot_leaves_the_first_token_out() -> None:
    metrics = serving_metrics([timing(11, 1.0, 3.0)], [session()])
    assert metrics.tpot_ms is not None
    assert metrics.tpot_ms.mean == pytest.approx(200.0)  # 2 s over 10 gaps


def test_request_of_one_token_has_ttft_and_no_tpot() -> None:
    metrics = serving_metrics([timing(1, 1.0, 1.0)], [session()])
    assert metrics.tpot_ms is None
    assert metrics.itl_mean_ms is None
    assert metrics.ttft_ms is not None
    assert metrics.ttft_ms.mean == pytest.approx(1000.0)


def test_tpot_is_averaged_over_requests_and_itl_over_gaps() -> None:
    metrics = serving_metrics([timing(2, 0.0, 1.0), timing(10, 0.0, 0.9)], [session()])
    assert metrics.tpot_ms is not None
    assert metrics.tpot_ms.mean == pytest.approx((1000 + 100) / 2)
    assert metrics.itl_mean_ms == pytest.approx(1900 / 10)


def test_request_without_tokens_counts_in_no_latency() -> None:
    metrics = serving_metrics([timing(0, None, None)], [session()])
    assert (metrics.ttft_ms, metrics.tpot_ms, metrics.e2el_ms) == (None, None, None)


def test_throughputs_have_their_own_clocks() -> None:
    metrics = serving_metrics([timing(11, 1.0, 3.0)], [session()])
    assert metrics.output_throughput == pytest.approx(200 / 10)
    assert metrics.decode_throughput == pytest.approx(180 / 8)


def test_sessions_of_a_continued_run_are_added_up() -> None:
    second = session(
        wall_s=5.0, num_output_tokens=50, decode_wall_s=2.0, num_decode_output_tokens=40,
        avg_resident_requests=9.0,
    )  # fmt: skip
    metrics = serving_metrics([], [session(), second])
    assert metrics.output_throughput == pytest.approx(250 / 15)
    assert metrics.decode_throughput == pytest.approx(220 / 10)
    assert metrics.avg_resident_requests == pytest.approx((4 * 8 + 9 * 2) / 10)
    assert metrics.num_sessions == 2


def test_what_was_not_measured_is_absent_not_zero() -> None:
    metrics = serving_metrics([], [])
    assert metrics.decode_throughput is None
    assert metrics.avg_resident_requests is None


def test_longest_gap_is_reported() -> None:
    slow = RequestTiming(num_output_tokens=3, ttft_s=0.1, e2el_s=2.0, max_itl_s=1.5)
    assert serving_metrics([slow, timing(3, 0.1, 0.2)], [session()]).itl_max_ms == 1500.0


@pytest.mark.parametrize(("percent", "expected"), [(0, 1.0), (50, 2.5), (90, 3.7), (100, 4.0)])
def test_percentiles_interpolate_between_ranks(percent: float, expected: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == pytest.approx(expected)


def test_summary_of_nothing_is_absent() -> None:
    assert summarise([]) is None
