"""A run as one point of a figure or one row of a table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from growpage.errors import UsageError
from growpage.paper.stored import StoredRun

_BUDGET = "policy.budget_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Accuracies are shares of 1, capacities tokens a request, throughput output tokens a second."""

    run: str
    label: str  # the policy, with the settings in which runs of the same policy differ
    policy: str
    bench: str
    model: str
    budget_tokens: int | None  # nominal
    num_questions: int
    num_samples: int
    accuracy: float
    low: float
    high: float
    capacity_tokens: float
    retained_tokens: float
    output_tokens: float
    decode_throughput: float
    grow: int
    compress: int
    shrink: int
    fallback: int


def read_points(runs: Sequence[StoredRun]) -> list[Point]:
    """Points of complete, graded runs of one benchmark and model, fullkv first, then by capacity.

    Raises `UsageError` for a run without numbers, and for runs that cannot share a figure.
    """
    if not runs:
        raise UsageError("no runs to show. Run a sweep first: python run.py -m experiment=budgets")
    for run in runs:
        if run.metrics is None or run.metrics["accuracy"]["value"] is None:
            raise UsageError(
                f"{run.name}: incomplete or not graded. The same command continues it."
            )
    for what in ("bench_sha256", "model"):
        found = sorted({str(run.metrics[what]) for run in runs if run.metrics})
        if len(found) > 1:
            raise UsageError(
                f"these runs differ in {what} ({', '.join(found)}), so they cannot share a figure."
            )
    labels = _labels([run.settings for run in runs])
    points = [_point(run, label) for run, label in zip(runs, labels, strict=True)]
    return sorted(points, key=lambda point: (point.policy != "fullkv", point.capacity_tokens))


def _point(run: StoredRun, label: str) -> Point:
    metrics = run.metrics
    assert metrics is not None
    accuracy, capacity, totals = (
        metrics["accuracy"],
        metrics["capacity"],
        metrics["events"]["totals"],
    )
    return Point(
        run=run.name,
        label=label,
        policy=metrics["policy"],
        bench=metrics["bench"],
        model=metrics["model"],
        budget_tokens=capacity["nominal_budget_tokens"],
        num_questions=accuracy["num_questions"],
        num_samples=accuracy["num_samples"],
        accuracy=accuracy["value"],
        low=accuracy["low"],
        high=accuracy["high"],
        capacity_tokens=capacity["avg_tokens"],
        retained_tokens=capacity["retained_tokens"],
        output_tokens=metrics["tokens"]["output_per_request"],
        decode_throughput=metrics["serving"]["decode_throughput"],
        grow=totals.get("grow", 0),
        compress=totals.get("compress", 0),
        shrink=totals.get("shrink", 0),
        fallback=totals.get("fallback", 0),
    )


def _labels(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The policy and its budget; then the settings in which a run differs from the first of its policy."""
    labels = []
    for own in settings:
        first = next(other for other in settings if other["policy.name"] == own["policy.name"])
        parts = [own["policy.name"]]
        if own.get(_BUDGET, "null") != "null":
            parts.append(own[_BUDGET])
        for key in sorted(own):
            is_ours = key.partition(".")[0] in ("policy", "seed") and key != _BUDGET
            if is_ours and own[key] != first.get(key):
                parts += [key.rpartition(".")[2], own[key]]
        labels.append(" ".join(parts))
    return labels


def footer(runs: Iterable[StoredRun]) -> str:
    """Where the numbers come from: benchmark, model, hardware, commits."""
    rows = list(runs)
    devices = sorted({device for run in rows for device in run.devices})
    commits = sorted({commit[:12] for run in rows for commit in (run.metrics or {})["commits"]})
    is_dirty = any((run.metrics or {})["is_dirty_tree"] for run in rows)
    first = rows[0].metrics or {}
    accuracy = first["accuracy"]
    temperatures = sorted({run.settings.get("sampling.temperature", "?") for run in rows})
    parts = [
        f"{len(rows)} runs",
        f"bench={first['bench']}, {accuracy['num_questions']} questions × {accuracy['num_samples']}, "
        f"temperature {', '.join(temperatures)}",
        f"model={first['model']}",
        ", ".join(devices),
        f"commit {', '.join(commits) or 'unknown'}{' with local changes' if is_dirty else ''}",
    ]
    return "; ".join(parts)
