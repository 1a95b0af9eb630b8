"""`metrics.json`: every number of a complete run, from its stored samples and sessions."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from growpage.config import Config
from growpage.metrics.accuracy import Outcomes, mixture, pass_at_1
from growpage.metrics.events import event_metrics
from growpage.metrics.serving import RequestTiming, SessionTotals, serving_metrics
from growpage.run.provenance import commits, is_dirty
from growpage.store.frames import COUNTER_PREFIX
from growpage.store.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    import pandas as pd


def summarise_run(
    frame: "pd.DataFrame",
    *,
    name: str,
    config: Config,
    config_hash: str,
    grader_hash: str,
    provenance: Mapping[str, Any],
    sessions: Sequence[SessionTotals],
) -> dict[str, Any]:
    """Plain values for JSON. `frame`: all samples of the run (`store.frames.FRAME_COLUMNS`)."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run": name,
        "config_hash": config_hash,
        "grader_hash": grader_hash,
        "model": config.model.name,
        "bench": config.bench.name,
        "bench_sha256": (provenance.get("bench") or {}).get("sha256"),
        "policy": config.policy.name,
        "seed": config.seed,
        "num_sessions": int(frame["session"].nunique()),
        "accuracy": _mixed_accuracy(frame) if is_mixed(config.bench.family) else _accuracy(frame),
        "shares": _shares(frame),
        "tokens": _tokens(frame),
        "capacity": _capacity(frame, config),
        "serving": asdict(serving_metrics(_timings(frame), sessions)),
        "events": asdict(event_metrics(_counters(frame))),
        "commits": commits(provenance),
        "is_dirty_tree": is_dirty(provenance),
    }


def outcomes(frame: "pd.DataFrame") -> Outcomes:
    """Right, wrong or ungraded (None) of every sample, by problem."""
    rows: dict[str, list[bool | None]] = {}
    for problem, is_correct in zip(frame["problem_id"], frame["is_correct"], strict=True):
        rows.setdefault(problem, []).append(None if _is_absent(is_correct) else bool(is_correct))
    return rows


def is_mixed(family: str) -> bool:
    """Whether the problems come from several benchmarks, which are averaged apart."""
    return family == "mixed"


def outcomes_by_kind(frame: "pd.DataFrame") -> dict[str, Outcomes]:
    """`outcomes` of each kind of problem."""
    return {str(kind): outcomes(rows) for kind, rows in frame.groupby("kind", sort=True)}


def read_sessions(events: Sequence[Mapping[str, Any]]) -> list[SessionTotals]:
    """What each session did, from its last statistics; a killed one counts until then."""
    last: dict[int, SessionTotals] = {}
    names = {item.name for item in fields(SessionTotals)}
    for event in events:
        if event.get("kind") == "stats" and (totals := event.get("totals")):
            known = {name: value for name, value in totals.items() if name in names}
            last[event.get("session") or 0] = SessionTotals(**known)
    return [totals for _, totals in sorted(last.items())]


def _accuracy(frame: "pd.DataFrame") -> dict[str, Any]:
    try:
        return asdict(pass_at_1(outcomes(frame)))
    except ValueError as error:  # a grader that failed on every answer to a question
        return {"value": None, "reason": str(error)}


def _mixed_accuracy(frame: "pd.DataFrame") -> dict[str, Any]:
    """As of one benchmark, with the numbers of each under `parts`."""
    try:
        return asdict(mixture(outcomes_by_kind(frame)))
    except ValueError as error:
        return {"value": None, "reason": str(error)}


def _shares(frame: "pd.DataFrame") -> dict[str, Any]:
    """Shares of all samples: cut off at their limit, without an answer; and what failed.

    `whole_output_right` is the lenient second number of docs/graders.md §6, over the samples that have
    it; None where it was not asked for.
    """
    flags = [set(row) for row in frame["flags"]]
    return {
        "truncated": _mean(reason == "length" for reason in frame["finish_reason"]),
        "no_answer": _mean("no_answer" in row for row in flags),
        "whole_output_right": _mean(
            "whole_output_right" in row
            for row in flags
            if "whole_output_right" in row or "whole_output_wrong" in row
        ),
        "num_grader_errors": sum("grader_error" in row for row in flags),
        "num_engine_errors": sum(reason == "error" for reason in frame["finish_reason"]),
        "engine_errors": dict(Counter(text for text in frame["error"] if not _is_absent(text))),
        "flags": dict(sorted(Counter(name for row in flags for name in row).items())),
    }


def _tokens(frame: "pd.DataFrame") -> dict[str, Any]:
    return {
        "num_requests": len(frame),
        "output_per_request": _mean(frame["num_output_tokens"]),
        "prompt_per_request": _mean(frame["num_prompt_tokens"]),
        "output_total": int(frame["num_output_tokens"].sum()),
    }


def _capacity(frame: "pd.DataFrame", config: Config) -> dict[str, Any]:
    """Means over requests of their time-averages, in tokens (docs/algorithm.md §8)."""
    budget = getattr(config.policy, "budget_tokens", None)
    return {
        "avg_tokens": _mean(frame["avg_capacity_tokens"].dropna()),
        "retained_tokens": _mean(frame["avg_resident_tokens"].dropna()),
        "peak_tokens": int(frame["peak_capacity_tokens"].max()),
        "nominal_budget_tokens": budget,
        "page_size": config.engine.page_size,
    }


def _timings(frame: "pd.DataFrame") -> list[RequestTiming]:
    columns = ("num_output_tokens", "ttft_s", "e2el_s", "max_itl_s")
    return [
        RequestTiming(
            num_output_tokens=int(num),
            ttft_s=None if _is_absent(ttft) else float(ttft),
            e2el_s=None if _is_absent(e2el) else float(e2el),
            max_itl_s=None if _is_absent(itl) else float(itl),
        )
        for num, ttft, e2el, itl in zip(*(frame[name] for name in columns), strict=True)
    ]


def _counters(frame: "pd.DataFrame") -> list[dict[str, int]]:
    names = [name for name in frame.columns if name.startswith(COUNTER_PREFIX)]
    rows = zip(*(frame[name] for name in names), strict=True) if names else [()] * len(frame)
    short = [name[len(COUNTER_PREFIX) :] for name in names]
    return [
        {name: int(count) for name, count in zip(short, row, strict=True) if not _is_absent(count)}
        for row in rows
    ]


def _mean(values: Iterable[float]) -> float | None:
    numbers = [float(value) for value in values]
    return sum(numbers) / len(numbers) if numbers else None


def _is_absent(value: Any) -> bool:
    """None or NaN, whichever pandas made of a missing value."""
    return value is None or value != value
