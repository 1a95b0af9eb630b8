"""What the engine did, from events.jsonl: a timeline for Perfetto and the pages of each request over time.

Sessions of a continued run follow one another. Times are seconds since the first began.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from growpage.store.atomic import write_atomically, write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STEPS = 0  # the row of the engine's steps, above those of the requests
_PREEMPTIONS = ("preempt_swap", "preempt_recompute")
_MAX_TIMES = 2000  # points of time in the plot
_MAX_COLOURED = 400  # requests with an area of their own in the plot


@dataclass(slots=True, kw_only=True)
class Timeline:
    """Capacity events and steps in the order of time, on one clock."""

    events: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)


def read_timeline(records: Iterable[dict[str, Any]]) -> Timeline:
    """The timed records of events.jsonl. A session starts where the one before ended."""
    timeline = Timeline()
    session, start, end = None, 0.0, 0.0
    for record in records:
        if not isinstance(record.get("time_s"), (int, float)):
            continue
        if record.get("session") != session:
            session, start = record.get("session"), end
        row = record | {"time_s": start + record["time_s"]}
        end = max(end, row["time_s"] + row.get("duration_s", 0.0))
        (timeline.steps if row["kind"] == "step" else timeline.events).append(row)
    for rows in (timeline.steps, timeline.events):
        rows.sort(key=lambda row: row["time_s"])
    return timeline


def write_chrome_trace(timeline: Timeline, path: Path) -> None:
    """A file that https://ui.perfetto.dev and chrome://tracing open. Raises StoreError."""
    trace = {"displayTimeUnit": "ms", "traceEvents": list(_trace_events(timeline))}
    write_bytes(path, json.dumps(trace).encode())


def _trace_events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Chrome trace format: a row (`tid`) for the steps and one a request, and two counters; microseconds."""
    yield _named("process_name", _STEPS, "engine")
    yield _named("thread_name", _STEPS, "steps")
    for row in timeline.steps:
        yield _slice(_STEPS, "step", row["time_s"], row["duration_s"], _arguments(row))
        yield _counter("requests", row, running="num_running", waiting="num_waiting")
    for row in timeline.events:
        yield _counter("pages", row, used="num_used_pages", cached="num_cached_pages")
    for number, (name, rows) in enumerate(_by_request(timeline.events).items(), 1):
        yield _named("thread_name", number, name)
        yield from _request_row(number, rows)


def _request_row(number: int, rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A slice while the request holds so many pages or waits outside, and a mark at each event."""
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        mark = {"ph": "i", "s": "t", "name": row["kind"], "ts": _micros(row["time_s"])}
        yield mark | {"pid": 0, "tid": number, "args": _arguments(row)}
        if following is not None and row["kind"] != "finish":
            is_outside = row["kind"] in _PREEMPTIONS
            label = "preempted" if is_outside else f"{row['num_pages_after']} pages"
            length = following["time_s"] - row["time_s"]
            yield _slice(number, label, row["time_s"], length, {"since": row["kind"]})


def _by_request(events: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The events of each request, requests by their first one."""
    requests: dict[str, list[dict[str, Any]]] = {}
    for row in events:
        requests.setdefault(row["request_id"], []).append(row)
    return requests


def _slice(
    tid: int, name: str, start_s: float, length_s: float, args: dict[str, Any]
) -> dict[str, Any]:
    span = {"ph": "X", "ts": _micros(start_s), "dur": _micros(length_s)}
    return span | {"pid": 0, "tid": tid, "name": name, "args": args}


def _counter(name: str, row: dict[str, Any], **series: str) -> dict[str, Any]:
    values = {label: row.get(key, 0) for label, key in series.items()}
    return {"ph": "C", "pid": 0, "name": name, "ts": _micros(row["time_s"]), "args": values}


def _named(kind: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": tid, "name": kind, "args": {"name": name}}


def _arguments(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in ("kind", "time_s", "schema_version")}


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 1)


# ---- the plot --------------------------------------------------------------------------------------


def pages_over_time(
    events: Sequence[dict[str, Any]],
) -> tuple[list[float], dict[str, list[int]]]:
    """Times, and the pages that each request held from then on; at most about `_MAX_TIMES` of them."""
    requests = _by_request(events)
    held = dict.fromkeys(requests, 0)
    times: list[float] = []
    pages: dict[str, list[int]] = {name: [] for name in requests}
    stride = max(1, len(events) // _MAX_TIMES)
    for index, row in enumerate(events):
        held[row["request_id"]] = row["num_pages_after"]
        if index % stride == 0 or index == len(events) - 1:
            times.append(row["time_s"])
            for name, count in held.items():
                pages[name].append(count)
    return times, pages


def write_pages_plot(timeline: Timeline, path: Path) -> None:
    """Pages in use over time, one colour a request, as PNG. Raises StoreError."""
    figure = _draw(timeline)

    def write(temporary: Path) -> None:
        figure.savefig(temporary, format="png", dpi=150, metadata={"Software": None})

    write_atomically(path, write)


def _draw(timeline: Timeline) -> "Figure":
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    times, pages = pages_over_time(timeline.events)
    rows = list(pages.values())
    rest = [sum(column) for column in zip(*rows[_MAX_COLOURED:], strict=True)]
    areas = [*rows[:_MAX_COLOURED], rest] if rest else rows
    if areas:
        palette = colormaps["tab20"].colors  # type: ignore[attr-defined]
        axes.stackplot(times, *areas, colors=palette, step="post", linewidth=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel("KV pages held, one colour a request")
    axes.set_title(f"{len(rows)} requests, shared pages counted for each owner", fontsize=9)
    axes.margins(x=0)
    axes.grid(alpha=0.25)
    return figure
