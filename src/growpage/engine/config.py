"""Settings of the engine: one dataclass, used as the config schema and by `LLM(...)`. No torch."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from growpage.errors import require, unknown


class Admission(str, Enum):
    """Free pages that admit a request (docs/algorithm.md §6): its prompt's, P0 or its budget.

    `auto` is `budget` for a fixed policy, else `initial`.
    """

    auto = "auto"
    prompt = "prompt"
    initial = "initial"
    budget = "budget"


class PreemptMode(str, Enum):
    swap = "swap"
    recompute = "recompute"


ATTENTION_BACKENDS = ("auto", "triton", "torch")
CPU_PAGE_SIZE, GPU_PAGE_SIZE = 16, 256  # tokens, where neither the user nor the model says

E = TypeVar("E", bound=Enum)


def _member(kind: type[E], key: str, value: E | str) -> E:
    """An enum member from itself or, as `LLM(...)` takes it, from its name."""
    if isinstance(value, kind):
        return value
    if value not in kind.__members__:
        raise unknown(key, str(value), kind.__members__)
    return kind[str(value)]


@dataclass(slots=True, kw_only=True)
class EngineConfig:
    """Names as in vLLM where vLLM has them. `None` means: ask the next owner (docs/algorithm.md §1)."""

    backend: str = "growpage"
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    dtype: str = "auto"  # auto: float32 on a CPU, the checkpoint's dtype on a GPU
    page_size: int | None = None  # tokens; None: the model's kv_defaults, else by the device
    max_num_seqs: int = 512
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None  # tokens; None: the model's own limit
    num_pages: int | None = None  # pool size in pages; None: from kv_cache_gib or the device
    kv_cache_gib: float | None = None  # pool size in GiB; None: 1 GiB on a CPU, profiled on a GPU
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    admission: Admission = Admission.auto
    preempt_mode: PreemptMode = PreemptMode.swap
    swap_space_gib: float = 8.0
    attention_backend: str = "auto"  # auto | triton | torch; auto: triton on a GPU that can run it
    enforce_eager: bool = False  # no CUDA graphs
    async_scheduling: bool | None = None  # prepare a step while the last runs; None: on a GPU
    async_compaction: bool = False  # compact beside the step, which the request sits out
    num_threads: int | None = None  # torch CPU threads; None: all cores
    profile_capacity_events: bool = False  # time the stages of capacity events (paper Figure 8)

    def __post_init__(self) -> None:
        self.admission = _member(Admission, "engine.admission", self.admission)
        self.preempt_mode = _member(PreemptMode, "engine.preempt_mode", self.preempt_mode)
        if self.attention_backend not in ATTENTION_BACKENDS:
            raise unknown("engine.attention_backend", self.attention_backend, ATTENTION_BACKENDS)
        page = self.page_size
        require(
            page is None or (4 <= page <= 2**16 and page & (page - 1) == 0),
            "engine.page_size",
            page,
            "a power of two, 4..65536",
        )
        require(
            1 <= self.max_num_seqs <= 2**16, "engine.max_num_seqs", self.max_num_seqs, "in 1..65536"
        )
        require(
            1 <= self.max_num_batched_tokens <= 2**24,
            "engine.max_num_batched_tokens",
            self.max_num_batched_tokens,
            "in 1..2^24",
        )
        require(
            self.max_model_len is None or 2 <= self.max_model_len <= 2**31,
            "engine.max_model_len",
            self.max_model_len,
            "in 2..2^31",
        )
        require(
            self.num_pages is None or 2 <= self.num_pages <= 2**24,
            "engine.num_pages",
            self.num_pages,
            "in 2..2^24",
        )
        require(
            self.kv_cache_gib is None or 0 < self.kv_cache_gib <= 2**20,
            "engine.kv_cache_gib",
            self.kv_cache_gib,
            "in (0, 2^20]",
        )
        require(
            0.0 < self.gpu_memory_utilization <= 1.0,
            "engine.gpu_memory_utilization",
            self.gpu_memory_utilization,
            "in (0, 1]",
        )
        require(
            0 <= self.swap_space_gib <= 2**20,
            "engine.swap_space_gib",
            self.swap_space_gib,
            "in [0, 2^20]",
        )
        require(
            self.num_threads is None or 1 <= self.num_threads <= 1024,
            "engine.num_threads",
            self.num_threads,
            "in 1..1024",
        )
