"""The timeline of a run: what Perfetto is given, and whose pages the plot stacks."""

import json
from pathlib import Path
from typing import Any

from growpage.paper.timeline import (
    Timeline,
    pages_over_time,
    read_timeline,
    write_chrome_trace,
    write_pages_plot,
)


def _event(request: str, kind: str, time_s: float, pages: int, **values: Any) -> dict[str, Any]:
    base = {"session": 0, "request_id": request, "kind": kind, "time_s": time_s, "step": 1}
    return base | {"num_pages_after": pages, "num_used_pages": 3, "num_cached_pages": 0} | values


RECORDS: list[dict[str, Any]] = [
    {"session": 0, "kind": "session_started", "time": 1e9},
    _event("a", "admit", 0.1, 2),
    _event("b", "admit", 0.2, 1),
    _event("a", "grow", 0.3, 3, delta=0.25, r_short=0.5, r_long=0.25),
    _event("b", "preempt_swap", 0.4, 0),
    _event("b", "resume", 0.6, 1),
    _event("a", "finish", 0.7, 0),
    _event("b", "finish", 0.8, 0),
    {
        "session": 0, "kind": "step", "step": 1, "time_s": 0.1, "duration_s": 0.05,
        "num_running": 2, "num_waiting": 5,
    },
]  # fmt: skip


def _trace(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "timeline.json"
    write_chrome_trace(read_timeline(RECORDS), path)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def test_each_request_has_a_row_with_its_pages_and_its_waits(tmp_path: Path) -> None:
    events = _trace(tmp_path)
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert rows == {0: "steps", 1: "a", 2: "b"}
    slices = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        (0, "step", 1e5, 5e4),
        (1, "2 pages", 1e5, 2e5),
        (1, "3 pages", 3e5, 4e5),
        (2, "1 pages", 2e5, 2e5),
        (2, "preempted", 4e5, 2e5),
        (2, "1 pages", 6e5, 2e5),
    ]


def test_a_decision_shows_what_it_saw(tmp_path: Path) -> None:
    (grow,) = [e for e in _trace(tmp_path) if e["ph"] == "i" and e["name"] == "grow"]
    assert (grow["args"]["delta"], grow["args"]["r_short"], grow["args"]["r_long"]) == (
        0.25,
        0.5,
        0.25,
    )
    assert grow["args"]["num_pages_after"] == 3


def test_counters_tell_pages_and_requests(tmp_path: Path) -> None:
    counters = [e for e in _trace(tmp_path) if e["ph"] == "C"]
    assert {"running": 2, "waiting": 5} in [e["args"] for e in counters if e["name"] == "requests"]
    assert {"used": 3, "cached": 0} in [e["args"] for e in counters if e["name"] == "pages"]


def test_sessions_follow_one_another() -> None:
    again = [record | {"session": 1} for record in RECORDS]
    timeline = read_timeline([*RECORDS, *again])
    times = [row["time_s"] for row in timeline.events]
    assert times == sorted(times)
    assert times[7] == 0.8 + 0.1
    assert timeline.steps[1]["time_s"] == 0.9


def test_pages_of_each_request_over_time() -> None:
    times, pages = pages_over_time(read_timeline(RECORDS).events)
    assert times == [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8]
    assert pages == {"a": [2, 2, 3, 3, 3, 0, 0], "b": [0, 1, 1, 0, 1, 1, 0]}


def test_the_plot_is_a_picture_with_or_without_events(tmp_path: Path) -> None:
    for name, timeline in (("full", read_timeline(RECORDS)), ("empty", Timeline())):
        path = tmp_path / f"{name}.png"
        write_pages_plot(timeline, path)
        assert path.read_bytes().startswith(b"\x89PNG")
