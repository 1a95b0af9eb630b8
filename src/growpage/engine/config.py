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
    page_size: int | None = (
        None  # tokens; the model's kv_defaults, else 16 on a CPU and 256 on a GPU
    )
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
    num_threads: int | None = None  # torch CPU threads; None: all cores
    profile_capacity_events: bool = False  # time the stages of capacity events (paper Figure 8)

    def __post_init__(self) -> None:
        self.admission = _member(Admission, "engine.admission", self.admission)
        self.preempt_mode = _member(PreemptMode, "engine.preempt_mode", self.preempt_mode)
        page = self.page_size
        require(
            page is None or (page >= 4 and page & (page - 1) == 0),
            "engine.page_size",
            page,
            "a power of two >= 4",
        )
        require(self.max_num_seqs >= 1, "engine.max_num_seqs", self.max_num_seqs, ">= 1")
        require(
            self.max_num_batched_tokens >= 1,
            "engine.max_num_batched_tokens",
            self.max_num_batched_tokens,
            ">= 1",
        )
        require(
            self.max_model_len is None or self.max_model_len >= 2,
            "engine.max_model_len",
            self.max_model_len,
            ">= 2",
        )
        require(
            self.num_pages is None or self.num_pages >= 2,
            "engine.num_pages",
            self.num_pages,
            ">= 2",
        )
        require(
            self.kv_cache_gib is None or self.kv_cache_gib > 0,
            "engine.kv_cache_gib",
            self.kv_cache_gib,
            "> 0",
        )
        require(
            0.0 < self.gpu_memory_utilization <= 1.0,
            "engine.gpu_memory_utilization",
            self.gpu_memory_utilization,
            "in (0, 1]",
        )
        require(self.swap_space_gib >= 0, "engine.swap_space_gib", self.swap_space_gib, ">= 0")
        require(
            self.num_threads is None or self.num_threads >= 1,
            "engine.num_threads",
            self.num_threads,
            ">= 1",
        )
