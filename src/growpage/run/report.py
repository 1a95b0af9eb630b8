"""The final table of a run, and several runs side by side. Reads stored numbers only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from growpage.bench.mixed import PARTS
from growpage.budget.base import EvictingPolicy
from growpage.budget.registry import POLICIES
from growpage.metrics.accuracy import paired_difference, paired_mixture
from growpage.run.summary import outcomes, outcomes_by_kind
from growpage.store.frames import read_metrics, read_run
from growpage.store.run_dir import RunDir
from growpage.store.settings import flat_settings
from growpage.store.status import RunState

ABSENT = "–"
_LABEL_WIDTH, _RUN_WIDTH = 26, 19
_PLAIN_WIDTH = 140  # columns where there is no terminal to ask

_NAMED_GROUPS = ("policy", "bench", "model")
_WITHOUT_EFFECT = frozenset({"paths", "stage", "fresh", "trace", "dry_run"})

Metrics = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One column of a table: a run and its numbers, None before it is complete."""

    run: RunDir
    metrics: Metrics | None
    state: str

    @classmethod
    def of(cls, run: RunDir) -> "RunView":
        return cls(run=run, metrics=read_metrics(run), state=state_label(run))


def make_console(*, is_error: bool = False) -> Console:
    """A console that never squeezes a table because its output goes to a file."""
    console = Console(stderr=is_error, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=is_error, highlight=False, width=_PLAIN_WIDTH)
    return console


def print_run(run: RunDir, console: Console) -> None:
    """The final table, the run directory and how to compare it."""
    console.print(comparison_table([RunView.of(run)]))
    for note in notes(read_metrics(run)):
        console.print(Text(note, style="yellow"), soft_wrap=True)
    console.print(f"results  {run.path}", soft_wrap=True, markup=False)
    console.print(f"compare  python run.py compare {run.name} RUN…", soft_wrap=True, markup=False)


def result_line(run: RunDir) -> str:
    """Accuracy and average capacity of a complete run."""
    pass_at_1, capacity = headline(run)
    return f"pass@1 {pass_at_1} %, KV capacity {capacity} tokens"


def headline(run: RunDir) -> tuple[str, str]:
    """pass@1 with its interval in percent, and the average KV capacity in tokens; as text."""
    metrics = read_metrics(run)
    if metrics is None:
        return ABSENT, ABSENT
    return _accuracy_cell(metrics), _number("capacity", "avg_tokens")(metrics)


def print_comparison(runs: Sequence[RunDir], console: Console) -> None:
    """Runs side by side, as many as fit; the first is the one that the others are paired with."""
    views = [RunView.of(run) for run in runs]
    paired = [None, *(paired_cell(views[0], view) for view in views[1:])]
    per_table = max(1, (console.width - _LABEL_WIDTH) // (_RUN_WIDTH + 2))
    for start in range(0, len(views), per_table):
        chosen = slice(start, start + per_table)
        console.print(comparison_table(views[chosen], paired[chosen]))
    names = {view.run.name: notes(view.metrics) for view in views}
    for name, lines in names.items():
        for line in lines:
            console.print(Text(f"{name}: {line}", style="yellow"), soft_wrap=True)


def comparison_table(views: Sequence[RunView], paired: Sequence[str | None] = ()) -> Table:
    """One row a quantity, one column a run."""
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True, style="dim")
    for view in views:
        table.add_column(_heading(view), justify="right", overflow="fold", min_width=10)
    if any(not view.run.is_complete for view in views):
        table.add_row("state", *(view.state for view in views))
    for key, values in distinguishing_settings(views).items():
        table.add_row(key, *values)
    for label, cell in ROWS:
        cells = [ABSENT if view.metrics is None else cell(view.metrics) for view in views]
        if any(text != ABSENT for text in cells) or label in _ALWAYS:
            table.add_row(label, *cells)
    if any(paired):
        table.add_row("pass@1 − first run, paired", *(text or ABSENT for text in paired))
    return table


def distinguishing_settings(views: Sequence[RunView]) -> dict[str, list[str]]:
    """Settings in which runs of the same policy, benchmark and model differ, one value a run."""
    settings = [flat_settings(view.run) for view in views]
    names = [tuple(values.get(f"{group}.name") for group in _NAMED_GROUPS) for values in settings]
    alike = [
        (settings[i], settings[j])
        for i in range(len(views))
        for j in range(i)
        if names[i] == names[j]
    ]
    keys = {key for a, b in alike for key in a.keys() | b.keys() if a.get(key) != b.get(key)}
    shown = sorted(key for key in keys if key.partition(".")[0] not in _WITHOUT_EFFECT)
    return {key: [values.get(key, ABSENT) for values in settings] for key in shown}


def paired_cell(first: RunView, other: RunView) -> str:
    """The paired difference of two runs over the same questions, or why there is none."""
    if first.metrics is None or other.metrics is None:
        return ABSENT
    if first.metrics["bench_sha256"] != other.metrics["bench_sha256"]:
        return "other questions"
    before, after = read_run(first.run), read_run(other.run)
    try:
        if "parts" in first.metrics["accuracy"]:
            gap = paired_mixture(outcomes_by_kind(before), outcomes_by_kind(after))
        else:
            gap = paired_difference(outcomes(before), outcomes(after))
    except ValueError:
        return "other questions"
    value = f"{100 * gap.value:+.1f}"
    if gap.low is None or gap.high is None:
        return value
    return f"{value} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"


def state_label(run: RunDir) -> str:
    """The state in a word or two, with the count while samples are missing."""
    status = run.read_status()
    if run.is_complete and (status is None or status.state is RunState.ok):
        return "complete"
    if run.is_damaged:
        return "damaged"
    if status is None:
        return "empty"
    if status.num_done is None or status.num_total is None:
        return status.label
    return f"{status.label} {status.num_done}/{status.num_total}"


def notes(metrics: Metrics | None) -> list[str]:
    """What a reader must know beside the numbers."""
    if metrics is None:
        return []
    shares, found = metrics["shares"], []
    if metrics["accuracy"].get("reason"):
        found.append(f"no accuracy: {metrics['accuracy']['reason']}")
    if shares["num_grader_errors"]:
        found.append(
            f"{shares['num_grader_errors']} answers could not be graded and are in no average"
        )
    if shares["num_engine_errors"]:
        reasons = "; ".join(shares.get("engine_errors") or {})
        found.append(
            f"{shares['num_engine_errors']} requests ended with an engine error and count as wrong"
            + (f" ({reasons})" if reasons else "")
        )
    if num_failed := (shares.get("flags") or {}).get("whole_output_failed"):
        found.append(f"{num_failed} answers lack the lenient verdict on their whole output")
    if pressure := _pressure(metrics):
        found.append(pressure)
    num_sessions, num_timed = metrics["num_sessions"], metrics["serving"]["num_sessions"]
    if num_sessions > 1:
        found.append(f"made in {num_sessions} sessions; throughputs are over {num_timed} of them")
    if metrics["is_dirty_tree"]:
        found.append("made from a changed working tree; the hash is in provenance.json")
    if len(metrics["commits"]) > 1:
        found.append(f"made by {len(metrics['commits'])} different commits")
    return found


def _pressure(metrics: Metrics) -> str:
    """Whether the pool was too small for the policy's own decisions (docs/algorithm.md §6)."""
    totals, policy = metrics["events"]["totals"], POLICIES.get(metrics["policy"])
    num_fallbacks = totals.get("fallback", 0)
    num_preemptions = totals.get("preempt_swap", 0) + totals.get("preempt_recompute", 0)
    is_evicting = policy is not None and issubclass(policy, EvictingPolicy)
    if not is_evicting or num_fallbacks + num_preemptions == 0:
        return ""
    return (
        f"capacity was decided under pressure: {num_fallbacks:,} fallbacks, {num_preemptions:,} "
        "preemptions; samples depend on what else ran"
    )


# ---- cells ---------------------------------------------------------------------------------------


def _accuracy_cell(metrics: Metrics) -> str:
    accuracy = metrics["accuracy"]
    if accuracy["value"] is None:
        return ABSENT
    low, high = 100 * accuracy["low"], 100 * accuracy["high"]
    return f"{100 * accuracy['value']:.1f} [{low:.1f}, {high:.1f}]"


def _size_cell(metrics: Metrics) -> str:
    accuracy = metrics["accuracy"]
    if accuracy["value"] is None:
        return str(metrics["tokens"]["num_requests"])
    if "num_requests" in accuracy:
        return f"{accuracy['num_questions']}, {accuracy['num_requests']:,} requests"
    return f"{accuracy['num_questions']} × {accuracy['num_samples']}"


def _part_cell(name: str) -> Callable[[Metrics], str]:
    """One benchmark of a mixture."""

    def cell(metrics: Metrics) -> str:
        part = (metrics["accuracy"].get("parts") or {}).get(name)
        return ABSENT if part is None else _accuracy_cell({"accuracy": part})

    return cell


def _average_cell(metrics: Metrics) -> str:
    accuracy = metrics["accuracy"]
    if "benchmark_average" not in accuracy:
        return ABSENT
    names = ("value", "low", "high")
    keys = ("benchmark_average", "benchmark_average_low", "benchmark_average_high")
    return _accuracy_cell({"accuracy": {n: accuracy[k] for n, k in zip(names, keys, strict=True)}})


def _number(group: str, name: str, digits: int = 1) -> Callable[[Metrics], str]:
    def cell(metrics: Metrics) -> str:
        value = metrics[group][name]
        return ABSENT if value is None else f"{value:,.{digits}f}"

    return cell


def _share(name: str) -> Callable[[Metrics], str]:
    def cell(metrics: Metrics) -> str:
        value = metrics["shares"][name]
        return ABSENT if value is None else f"{100 * value:.1f} %"

    return cell


def _latency(name: str) -> Callable[[Metrics], str]:
    def cell(metrics: Metrics) -> str:
        summary = metrics["serving"][name]
        return ABSENT if summary is None else f"{summary['mean']:,.1f} / {summary['p99']:,.1f}"

    return cell


def _events(*names: str) -> Callable[[Metrics], str]:
    def cell(metrics: Metrics) -> str:
        totals = metrics["events"]["totals"]
        return " / ".join(f"{totals.get(name, 0):,}" for name in names)

    return cell


def _heading(view: RunView) -> str:
    if view.metrics is None:
        return view.run.name
    metrics = view.metrics
    parts = (metrics["policy"], metrics["bench"], metrics["model"], metrics["config_hash"])
    return "\n".join(parts)


ROWS: tuple[tuple[str, Callable[[Metrics], str]], ...] = (
    ("pass@1 %, 95 % interval", _accuracy_cell),
    *((f"  {name}", _part_cell(name)) for name in PARTS),
    ("  mean of benchmarks", _average_cell),
    ("questions × samples", _size_cell),
    ("whole output (lenient) %", _share("whole_output_right")),
    ("truncated", _share("truncated")),
    ("no answer", _share("no_answer")),
    ("output tokens / request", _number("tokens", "output_per_request")),
    ("KV capacity, tokens", _number("capacity", "avg_tokens")),
    ("KV retained, tokens", _number("capacity", "retained_tokens")),
    ("KV peak, tokens", _number("capacity", "peak_tokens", 0)),
    ("KV budget, nominal", _number("capacity", "nominal_budget_tokens", 0)),
    ("TPS (decode), tok/s", _number("serving", "decode_throughput")),
    ("output tok/s, whole run", _number("serving", "output_throughput")),
    ("resident requests", _number("serving", "avg_resident_requests")),
    ("TPOT ms, mean / p99", _latency("tpot_ms")),
    ("TTFT ms, mean / p99", _latency("ttft_ms")),
    ("grow / compress / shrink", _events("grow", "compress", "shrink")),
    ("warm-up / fallback", _events("warmup_pages", "fallback")),
    ("preempt swap / recompute", _events("preempt_swap", "preempt_recompute")),
)
_ALWAYS = frozenset({"pass@1 %, 95 % interval"})
