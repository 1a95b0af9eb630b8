"""Accuracy against average KV capacity: one point a run with its interval, fixed budgets as a curve."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from growpage.paper.markdown import markdown_table
from growpage.paper.points import Point
from growpage.store.atomic import make_folder, write_atomically, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADINGS = (
    "policy", "pass@1 %, 95 % interval", "KV capacity, tokens", "of fullkv", "KV retained", "output tokens",
    "grow / compress / shrink", "fallback", "TPS",
)  # fmt: skip
_MARKERS = "osD^v"  # of the runs of one policy
_COLOURED = (
    "fullkv", "growpage", "random", "inverse", "shrink", "coverage", "zipage", "rkv", "gkv", "morphkv",
)  # fmt: skip
_CURVE = "fixed"  # the policy whose budgets form the curve


def table_rows(points: Sequence[Point]) -> list[list[str]]:
    """One row a point under `HEADINGS`."""
    full = next((p.capacity_tokens for p in points if p.policy == "fullkv"), None)
    return [
        [
            point.label,
            f"{100 * point.accuracy:.1f} [{100 * point.low:.1f}, {100 * point.high:.1f}]",
            f"{point.capacity_tokens:.1f}",
            "–" if full is None else f"{100 * point.capacity_tokens / full:.0f} %",
            f"{point.retained_tokens:.1f}",
            f"{point.output_tokens:.0f}",
            f"{point.grow:,} / {point.compress:,} / {point.shrink:,}",
            f"{point.fallback:,}",
            f"{point.decode_throughput:,.0f}",
        ]
        for point in points
    ]


def write_figure(points: Sequence[Point], stem: Path, footer: str) -> list[Path]:
    """Write stem.pdf, .png, .csv (raw numbers) and .md (the table); return them. Raises StoreError."""
    paths = [stem.with_name(stem.name + suffix) for suffix in (".pdf", ".png", ".csv", ".md")]
    figure = _draw(points, footer)
    make_folder(stem.parent)
    # No date in the files: the same numbers give the same bytes.
    _save(figure, paths[0], {"CreationDate": None})
    _save(figure, paths[1], {"Software": None})
    write_bytes(paths[2], _csv(points).encode())
    write_bytes(paths[3], markdown_table(HEADINGS, table_rows(points), footer).encode())
    return paths


def _save(figure: "Figure", path: Path, metadata: dict[str, None]) -> None:
    def write(temporary: Path) -> None:
        figure.savefig(temporary, format=path.suffix[1:], dpi=150, metadata=metadata)

    write_atomically(path, write)


def _draw(points: Sequence[Point], footer: str) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    curve = [point for point in points if point.policy == _CURVE]
    if len(curve) > 1:
        axes.plot(
            [p.capacity_tokens for p in curve], [100 * p.accuracy for p in curve],
            color="0.6", zorder=1, label="fixed budgets",
        )  # fmt: skip
    seen: dict[str, int] = {}
    for point in points:
        _add_point(
            axes, point, _colour(point.policy), _MARKERS[seen.get(point.policy, 0) % len(_MARKERS)]
        )
        seen[point.policy] = seen.get(point.policy, 0) + 1
    first = points[0]
    axes.set_xlabel("average KV capacity, tokens a request")
    axes.set_ylabel("pass@1, % (95 % interval)")
    axes.set_title(f"{first.bench}, {first.model}", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=7, loc="lower right")
    figure.supxlabel(fill(footer, 150), fontsize=5, color="0.4")
    return figure


def _add_point(axes: "Axes", point: Point, colour: str, marker: str) -> None:
    centre = 100 * point.accuracy
    spread = [[max(0.0, centre - 100 * point.low)], [max(0.0, 100 * point.high - centre)]]
    is_curve = point.policy == _CURVE
    axes.errorbar(
        [point.capacity_tokens], [centre], yerr=spread, fmt="." if is_curve else marker, markersize=6,
        color=colour, capsize=2, linewidth=1, zorder=2 if is_curve else 3,
        label=None if is_curve else point.label,
    )  # fmt: skip
    if is_curve and point.budget_tokens is not None:
        axes.annotate(
            str(point.budget_tokens), (point.capacity_tokens, centre), fontsize=6, color="0.4",
            xytext=(4, -8), textcoords="offset points",
        )  # fmt: skip


def _colour(policy: str) -> str:
    """The same for a policy in every figure; black for one that has none."""
    if policy == _CURVE:
        return "0.45"
    return f"C{_COLOURED.index(policy)}" if policy in _COLOURED else "black"


def _csv(points: Sequence[Point]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [item.name for item in fields(Point)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(point) for point in points)
    return text.getvalue()
