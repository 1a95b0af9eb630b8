"""What the JSON files of a run and their lines must hold to be read. Said once, checked before use.

A shape is a type or a tuple of types, a dict of names to shapes (other names are ignored), or a list
with the shape of every item. A name that ends in "?" may be absent or null. An int is a version.
"""

from collections.abc import Iterator
from types import NoneType
from typing import Any

from growpage.store.schema import SCHEMA_VERSION, SampleRow, VerdictRow

Shape = Any

NUMBER = (int, float)
_NUMBER_OR_NULL = (int, float, NoneType)
_SPAN = {"mean": NUMBER, "p99": NUMBER}

STATUS_SHAPE: Shape = {
    "state": str, "pid": int, "worker_pid?": int, "host": str, "started": NUMBER,
    "heartbeat": NUMBER, "error?": str, "num_done?": int, "num_total?": int,
}  # fmt: skip
PROVENANCE_SHAPE: Shape = {
    "sessions": [{
        "started?": str, "host?": str, "overrides?": [str], "engine?": dict,
        "git?": {"commit": str, "is_dirty?": bool},
        "hardware?": {"cpu": str, "gpus": [{"name": str}]},
    }],
    "bench?": {"sha256": str, "source": str},
    "model?": {"files": dict},
}  # fmt: skip
METRICS_SHAPE: Shape = {
    "schema_version": SCHEMA_VERSION,
    "run": str, "config_hash": str, "grader_hash": str, "model": str, "bench": str, "policy": str,
    "bench_sha256?": str, "num_sessions": int, "commits": [str], "is_dirty_tree": bool,
    "accuracy": {
        "value": _NUMBER_OR_NULL, "reason?": str, "low?": NUMBER, "high?": NUMBER,
        "num_questions?": int, "num_samples?": int,
    },
    "shares": {
        "truncated": _NUMBER_OR_NULL, "no_answer": _NUMBER_OR_NULL,
        "whole_output_right": _NUMBER_OR_NULL, "num_grader_errors": int, "num_engine_errors": int,
    },
    "tokens": {"num_requests": int, "output_per_request": _NUMBER_OR_NULL},
    "capacity": {
        "avg_tokens": _NUMBER_OR_NULL, "retained_tokens": _NUMBER_OR_NULL,
        "peak_tokens": _NUMBER_OR_NULL, "nominal_budget_tokens": _NUMBER_OR_NULL,
    },
    "serving": {
        "num_sessions": int, "decode_throughput": _NUMBER_OR_NULL,
        "output_throughput": _NUMBER_OR_NULL, "avg_resident_requests": _NUMBER_OR_NULL,
        "tpot_ms?": _SPAN, "ttft_ms?": _SPAN,
    },
    "events": {"totals": dict},
}  # fmt: skip
_KEY = {"problem_id": str, "sample_index": int, "seed": int, "config_hash": str}
ROW_SHAPES: dict[type, Shape] = {
    SampleRow: {
        **_KEY, "kind": str, "prompt_hash": str, "num_prompt_tokens": int, "token_ids": [int],
        "text": str, "finish_reason": str, "reasoning_open?": bool, "error?": str, "session?": int,
        "times": {
            "arrival_s": NUMBER, "first_scheduled_s?": NUMBER, "first_token_s?": NUMBER,
            "finished_s?": NUMBER, "max_itl_s?": NUMBER,
        },
        "capacity?": {
            "avg_capacity_tokens?": NUMBER, "avg_resident_tokens?": NUMBER,
            "peak_capacity_tokens?": int, "num_decode_steps?": int, "num_cached_tokens?": int,
        },
        "counters?": dict,
    },
    VerdictRow: {
        **_KEY, "grader": str, "grader_version": str, "grader_hash": str, "correct": bool,
        "reason": str, "extracted?": str, "rule?": str, "flags?": [str],
    },
}  # fmt: skip
EVENT_SHAPE: Shape = {
    "session?": int,
    "totals?": {
        "wall_s": NUMBER, "num_output_tokens": int, "decode_wall_s?": NUMBER,
        "num_decode_output_tokens?": int, "num_steps?": int, "avg_resident_requests?": NUMBER,
    },
}  # fmt: skip
DONE_SHAPE: Shape = {"num_samples": int, "sizes?": dict}


def check_shape(value: Any, shape: Shape) -> None:
    """Raise ValueError that names the first place where `value` is not of `shape`."""
    fault = next(_faults(value, shape, ""), None)
    if fault is not None:
        raise ValueError(fault)


def _faults(value: Any, shape: Shape, place: str) -> Iterator[str]:
    if isinstance(shape, dict):
        yield from _object_faults(value, shape, place)
    elif isinstance(shape, list):
        yield from _list_faults(value, shape[0], place)
    elif isinstance(shape, int):
        if value != shape:
            yield f"it has another schema ({place} {value}, this program reads {shape})"
    elif not isinstance(value, shape):
        yield f"{place or 'the content'} is of type {type(value).__name__}"


def _list_faults(value: Any, shape: Shape, place: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{place or 'the content'} is not a list"
        return
    if isinstance(shape, type) and all(isinstance(item, shape) for item in value):
        return  # the short way for many thousand token ids
    for number, item in enumerate(value):
        yield from _faults(item, shape, f"{place}[{number}]")


def _object_faults(value: Any, shape: dict[str, Shape], place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place or 'the content'} is not an object"
        return
    for key, inner in shape.items():
        name = key.removesuffix("?")
        where = f"{place}.{name}" if place else name
        if value.get(name) is None and name != key:
            continue
        if name not in value:
            yield f"{where} is missing"
        else:
            yield from _faults(value[name], inner, where)
