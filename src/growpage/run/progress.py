"""What a user sees while samples are made: a live display; without a terminal a line every 30 s."""

import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from growpage.engine.request import EngineStats

LINE_EVERY_S = 30.0
_REFRESH_S = 0.25
_RATE_WINDOW_S = 10.0


class Progress:
    """`update` is cheap to call after every step; ask `is_due` first to save the statistics."""

    def __init__(
        self,
        name: str,
        *,
        num_total: int,
        num_before: int = 0,
        console: Console | None = None,
        line_every_s: float = LINE_EVERY_S,
    ) -> None:
        self._name = name
        self._num_total = num_total
        self._num_before = num_before
        self._console = console or Console(stderr=True)
        self._is_live = self._console.is_terminal
        self._interval = _REFRESH_S if self._is_live else line_every_s
        self._rate = TokenRate()
        self._live: Live | None = None
        self._started = self._last = time.monotonic()
        self._rate.add(self._started, 0)

    def __enter__(self) -> "Progress":
        if self._is_live:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def is_due(self) -> bool:
        return time.monotonic() - self._last >= self._interval

    def update(self, stats: EngineStats, num_finished: int) -> None:
        """`num_finished`: requests of this session that are stored."""
        self._last = time.monotonic()
        self._rate.add(self._last, stats.num_output_tokens)
        num_done = self._num_before + num_finished
        cells = progress_cells(
            stats,
            num_done=num_done,
            num_total=self._num_total,
            tokens_per_s=self._rate.value,
        )
        if self._live is not None:
            self._live.update(self._render(cells, num_done), refresh=True)
        else:
            text = "  ".join(f"{label} {value}" for label, value in cells)
            elapsed = _clock(self._last - self._started)
            self._console.print(f"[{elapsed}] {text}", markup=False, soft_wrap=True)

    def _render(self, cells: list[tuple[str, str]], num_done: int) -> Group:
        grid = Table.grid(padding=(0, 2))
        for start in range(0, len(cells), 4):
            row = cells[start : start + 4]
            grid.add_row(*(f"[dim]{label}[/dim] {value}" for label, value in row))
        bar = ProgressBar(total=max(self._num_total, 1), completed=num_done, width=48)
        elapsed = _clock(self._last - self._started)
        return Group(f"[bold]{self._name}[/bold]  {elapsed}", bar, grid)


class TokenRate:
    """Output tokens a second over the last ten seconds."""

    def __init__(self, window_s: float = _RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._points: list[tuple[float, int]] = []

    def add(self, now: float, num_tokens: int) -> None:
        self._points.append((now, num_tokens))
        while len(self._points) > 2 and self._points[1][0] <= now - self._window_s:
            self._points.pop(0)

    @property
    def value(self) -> float | None:
        """None until there are two points in time."""
        if len(self._points) < 2:
            return None
        (start, before), (end, after) = self._points[0], self._points[-1]
        return (after - before) / (end - start) if end > start else None


def progress_cells(
    stats: EngineStats, *, num_done: int, num_total: int, tokens_per_s: float | None
) -> list[tuple[str, str]]:
    """Label and value of everything that is shown, the requests that are done first."""
    counters = stats.counters
    num_preempts = counters.preempt_swap + counters.preempt_recompute
    waiting = str(stats.num_waiting)
    if stats.num_preempted:
        waiting += f" (+{stats.num_preempted} preempted)"
    return [
        ("done", f"{num_done}/{num_total}"),
        ("running", str(stats.num_running)),
        ("waiting", waiting),
        ("tok/s", "–" if tokens_per_s is None else f"{tokens_per_s:.1f}"),
        ("KV pages", f"{stats.num_used_pages}/{stats.num_pages}"),
        ("grow", str(counters.grow)),
        ("compress", str(counters.compress)),
        ("preempt", str(num_preempts)),
    ]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
