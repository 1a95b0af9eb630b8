"""What goes into an engine and what comes out. No torch."""

from dataclasses import dataclass, field
from enum import Enum

from growpage.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn; names as in vLLM. `temperature=0` is argmax.

    `seed` keys the noise with the output position and the token id, so a sample does not depend on its batch.
    """

    temperature: float = 0.6
    top_p: float = 1.0
    top_k: int = 0  # 0: the whole vocabulary
    min_p: float = 0.0
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()  # besides the model's own EOS ids
    ignore_eos: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            0.0 <= self.temperature <= 100.0, "sampling.temperature", self.temperature, "in 0..100"
        )
        require(0.0 < self.top_p <= 1.0, "sampling.top_p", self.top_p, "in (0, 1]")
        require(
            0 <= self.top_k < 2**31,
            "sampling.top_k",
            self.top_k,
            "in 0..2^31-1",
            "0 keeps the whole vocabulary.",
        )
        require(0.0 <= self.min_p <= 1.0, "sampling.min_p", self.min_p, "in 0..1")
        require(self.max_tokens >= 0, "sampling.max_tokens", self.max_tokens, ">= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to complete. `request_id` is unique among unfinished requests."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams


class FinishReason(str, Enum):
    STOP = "stop"  # EOS or a stop token
    LENGTH = "length"  # max_tokens or max_model_len
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True, kw_only=True)
class CapacityCounters:
    """Capacity events of one request, or of all (docs/algorithm.md §8; paper Tables 8 and 9).

    grow, compress and shrink count *primary decisions*; fallbacks are a subset of grow; growth below P0 or below
    a fixed budget is `warmup_pages`, never grow. `executed_*` count what was done.
    """

    grow: int = 0
    compress: int = 0
    shrink: int = 0
    fallback: int = 0
    warmup_pages: int = 0
    executed_grow: int = 0
    executed_compress: int = 0
    executed_shrink: int = 0
    preempt_swap: int = 0
    preempt_recompute: int = 0

    def add(self, other: "CapacityCounters") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True, kw_only=True)
class RequestMetrics:
    """Times are `time.perf_counter` seconds of the engine's process; capacities are tokens.

    `avg_capacity_tokens` is the mean of P*b over the request's decode steps, `avg_resident_tokens` that of the
    stored tokens. Absent (None) when the request never decoded.
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_cached_tokens: int = 0
    num_decode_steps: int = 0
    avg_capacity_tokens: float | None = None
    avg_resident_tokens: float | None = None
    peak_capacity_tokens: int = 0
    max_itl_s: float | None = None  # longest gap between two output tokens
    counters: CapacityCounters = field(default_factory=CapacityCounters)


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A finished request. `text` is filled by who holds the tokenizer."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    metrics: RequestMetrics
    error: str | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """One stage of the capacity events so far. The median leaves out what the first calls compile."""

    num_events: int
    mean_ms: float
    median_ms: float


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """A snapshot between two steps. Pages are physical KV pages."""

    num_steps: int = 0
    num_waiting: int = 0
    num_running: int = 0
    num_preempted: int = 0  # swapped out, or waiting to be recomputed
    num_finished: int = 0
    num_pages: int = 0
    num_used_pages: int = 0
    num_cached_pages: int = 0  # without an owner, kept for prefix hits
    num_output_tokens: int = 0
    num_prompt_tokens: int = 0
    num_decode_output_tokens: int = 0  # output tokens since the first decode step began
    decode_wall_s: float = 0.0  # wall time since the first decode step began (docs/algorithm.md §8)
    avg_resident_requests: float = 0.0  # C, mean over decode steps
    counters: CapacityCounters = field(default_factory=CapacityCounters)
    stage_times: dict[str, StageTime] = field(default_factory=dict)  # when profiled
