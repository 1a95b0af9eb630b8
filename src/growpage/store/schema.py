"""Rows of a run directory. Every line on disk carries `schema_version`.

A sample is what generation made and is written once; a verdict can be given again by a newer
grader. Times are seconds since the start of the session that made the sample, capacities are
tokens (docs/algorithm.md §8).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

SCHEMA_VERSION = 1


class SampleKey(NamedTuple):
    """What makes a sample the same sample; never its position in a file."""

    problem_id: str
    sample_index: int
    seed: int
    config_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTimes:
    """Seconds since the session began. None: the request never got that far."""

    arrival_s: float
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    max_itl_s: float | None = None  # longest gap between two output tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCapacity:
    """KV capacity of one request in tokens; averages over its decode steps, None without any."""

    avg_capacity_tokens: float | None = None
    avg_resident_tokens: float | None = None
    peak_capacity_tokens: int = 0
    num_decode_steps: int = 0
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One finished output. `error` is set when the engine gave the request up."""

    problem_id: str
    sample_index: int
    seed: int
    config_hash: str
    kind: str
    prompt_hash: str
    num_prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    reasoning_open: bool = False
    error: str | None = None
    session: int = 0
    times: SampleTimes
    capacity: SampleCapacity = field(default_factory=SampleCapacity)
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> SampleKey:
        return SampleKey(self.problem_id, self.sample_index, self.seed, self.config_hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """The verdict on one sample; the last one written counts."""

    problem_id: str
    sample_index: int
    seed: int
    config_hash: str
    grader: str
    grader_version: str
    grader_hash: str  # of the grader's settings
    correct: bool
    reason: str
    extracted: str | None = None
    rule: str = ""
    flags: tuple[str, ...] = ()

    @property
    def key(self) -> SampleKey:
        return SampleKey(self.problem_id, self.sample_index, self.seed, self.config_hash)


Row = TypeVar("Row", SampleRow, VerdictRow)
_NESTED: dict[str, type] = {"times": SampleTimes, "capacity": SampleCapacity}
_TUPLES = ("token_ids", "flags")


def row_to_dict(row: SampleRow | VerdictRow) -> dict[str, Any]:
    """Plain values for JSON, `schema_version` first."""
    return {"schema_version": SCHEMA_VERSION, **asdict(row)}


def row_from_dict(row_type: type[Row], record: Any) -> Row:
    """The inverse of `row_to_dict`. Raises ValueError for anything else, also a newer schema."""
    if not isinstance(record, dict):
        raise ValueError("not an object")
    values = dict(record)
    version = values.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema_version {version}, this program reads {SCHEMA_VERSION}")
    names = {item.name for item in fields(row_type)}
    if stray := sorted(set(values) - names):
        raise ValueError(f"unknown fields {', '.join(stray)}")
    try:
        for name, nested in _NESTED.items():
            if name in values:
                values[name] = nested(**values[name])
        for name in _TUPLES:
            if name in values:
                values[name] = tuple(values[name])
        return row_type(**values)
    except TypeError as error:
        raise ValueError(str(error)) from None
