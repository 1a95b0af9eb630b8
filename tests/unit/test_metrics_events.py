"""Capacity events: totals, means per request, and the paper's grow ratio."""

import pytest

from growpage.metrics.events import event_metrics


def test_totals_and_means_are_over_all_requests() -> None:
    metrics = event_metrics([{"grow": 3, "compress": 1}, {"grow": 1, "compress": 3}])
    assert metrics.totals == {"grow": 4, "compress": 4}
    assert metrics.per_request == {"grow": 2.0, "compress": 2.0}


def test_grow_ratio_is_over_primary_decisions_only() -> None:
    counters = {"grow": 3, "compress": 5, "shrink": 2, "fallback": 2, "warmup_pages": 40}
    assert event_metrics([counters]).grow_ratio == pytest.approx(0.3)


def test_ratio_without_decisions_is_absent() -> None:
    assert event_metrics([{"warmup_pages": 8}]).grow_ratio is None
    assert event_metrics([]).totals == {}
