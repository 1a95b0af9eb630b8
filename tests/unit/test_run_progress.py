"""The progress display: what it says, and how often without a terminal."""

import io

import pytest
from rich.console import Console

from growpage.engine.request import CapacityCounters, EngineStats
from growpage.run.progress import Progress, TokenRate, progress_cells


def stats(**changes: int) -> EngineStats:
    counters = CapacityCounters(grow=5, compress=7, preempt_swap=1, preempt_recompute=2)
    values = {"num_running": 3, "num_waiting": 4, "num_pages": 64, "num_used_pages": 12, **changes}
    return EngineStats(counters=counters, **values)


def test_cells_say_requests_speed_pages_and_events() -> None:
    cells = dict(progress_cells(stats(), num_done=2, num_total=9, tokens_per_s=123.44))
    assert cells == {
        "done": "2/9", "running": "3", "waiting": "4", "tok/s": "123.4", "KV pages": "12/64",
        "grow": "5", "compress": "7", "preempt": "3",
    }  # fmt: skip


def test_preempted_requests_are_told_from_new_ones() -> None:
    cells = dict(progress_cells(stats(num_preempted=2), num_done=0, num_total=9, tokens_per_s=None))
    assert (cells["waiting"], cells["tok/s"]) == ("4 (+2 preempted)", "–")


def test_rate_is_over_a_window_not_over_the_whole_run() -> None:
    rate = TokenRate(window_s=10)
    assert rate.value is None
    for second in range(31):
        rate.add(float(second), 100 * second if second > 20 else 0)
    assert rate.value == pytest.approx(3000 / 10)


def test_without_a_terminal_there_is_one_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("growpage.run.progress.time.monotonic", lambda: now[0])
    text = io.StringIO()
    with Progress("run", num_total=9, num_before=1, console=Console(file=text)) as progress:
        assert not progress.is_due()
        now[0] = 29.0
        assert not progress.is_due()
        now[0] = 30.5
        assert progress.is_due()
        progress.update(stats(), 1)
        assert not progress.is_due()
    (line,) = text.getvalue().splitlines()
    assert line.startswith("[00:30] done 2/9  running 3  waiting 4")
    assert "KV pages 12/64  grow 5  compress 7  preempt 3" in line


def test_on_a_terminal_the_display_is_live_and_goes_away() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    with Progress("my-run", num_total=9, console=console) as progress:
        progress.update(stats(), 4)
    assert "my-run" in text.getvalue()
    assert "4/9" in text.getvalue()
