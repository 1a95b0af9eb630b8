"""What is measured: shapes, workloads, and the rows of each preset. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

# Hugging Face config.json of the shapes; weights are made up.
QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
TINY_SHAPE: dict[str, Any] = {
    **QWEN3_8B,
    "eos_token_id": 2,
    "head_dim": 32,
    "hidden_size": 32,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "max_window_layers": 2,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "torch_dtype": "float32",
    "vocab_size": 128,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests that all arrive at once; each gets `num_output_tokens`, whatever it samples."""

    name: str
    num_requests: int
    num_output_tokens: int
    min_prompt_tokens: int
    max_prompt_tokens: int

    @property
    def max_tokens(self) -> int:
        """Of one request, prompt and output."""
        return self.max_prompt_tokens + self.num_output_tokens

    def prompts(self, vocab_size: int, seed: str) -> list[tuple[int, ...]]:
        """Random token ids; the same for the same arguments on every machine."""
        random = Random(f"{self.name}/{seed}")
        lengths = [
            random.randint(self.min_prompt_tokens, self.max_prompt_tokens)
            for _ in range(self.num_requests)
        ]
        return [tuple(random.randrange(vocab_size) for _ in range(length)) for length in lengths]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An engine with its settings. `settings` are fields of `EngineConfig`; for vLLM only those it has."""

    name: str
    engine: str = "growpage"
    policy: str = "fullkv"
    policy_settings: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    workloads: tuple[str, ...] | None = None  # None: all
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Rows are compared with the row `baseline` and with the faster row of `own`, our full KV."""

    name: str
    title: str
    shape: Mapping[str, Any] = field(default_factory=lambda: QWEN3_8B)
    dtype: str = "bfloat16"
    workloads: tuple[Workload, ...] = ()
    rows: tuple[Row, ...] = ()
    kv_cache_gib: float = 0.0
    num_pages: int | None = None  # None: from kv_cache_gib
    page_size: int = 256  # of our engine; vLLM chooses its own
    max_num_seqs: int = 512
    gpu_memory_utilization: float = 0.9
    baseline: str = "vllm"
    own: tuple[str, ...] = ("fullkv_recompute", "fullkv_swap")
    notes: tuple[str, ...] = ()
    is_tiny: bool = False

    @property
    def max_model_len(self) -> int:
        """The same limit for every engine: the longest request, in whole pages of 256."""
        longest = max(workload.max_tokens for workload in self.workloads)
        return -(-longest // 256) * 256

    def jobs(self) -> list[tuple[Row, Workload]]:
        return [
            (row, workload)
            for row in self.rows
            for workload in self.workloads
            if row.workloads is None or workload.name in row.workloads
        ]


RECOMPUTE = Row(name="fullkv_recompute", settings={"preempt_mode": "recompute"})
SWAP = Row(name="fullkv_swap", settings={"preempt_mode": "swap", "swap_space_gib": 64.0})
VLLM = Row(name="vllm", engine="vllm")
RANDOM_NOTE = (
    "random: grows with the paper's probability of 30.9 %, and runs all demand kernels "
    "(evaluate_demand); on dummy weights the demand trend itself means nothing"
)
GROWPAGE_NOTE = "growpage: its own decisions; on dummy weights they are close to a coin flip"


def _budget_rows(page_size: int) -> tuple[Row, ...]:
    """P0 = 8 pages; fixed holds twice that, as the paper's 4,096 tokens of 256."""
    start = {"initial_pages": 8}
    return (
        Row(
            name="fixed",
            policy="fixed",
            policy_settings={**start, "budget_tokens": 16 * page_size},
            note=f"fixed: a budget of {16 * page_size} tokens",
        ),
        Row(name="growpage", policy="growpage", policy_settings=start, note=GROWPAGE_NOTE),
        Row(
            name="random_30.9",
            policy="random",
            policy_settings={**start, "compress_probability": 0.691, "evaluate_demand": True},
            note=RANDOM_NOTE,
        ),
    )


def _workload(
    num_requests: int, num_output_tokens: int, min_prompt: int = 128, max_prompt: int = 256
) -> Workload:
    return Workload(
        name=f"{num_requests}x{num_output_tokens}",
        num_requests=num_requests,
        num_output_tokens=num_output_tokens,
        min_prompt_tokens=min_prompt,
        max_prompt_tokens=max_prompt,
    )


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="vs_vllm",
            title="Full KV against vLLM, prompts of 128 to 256 random tokens",
            workloads=(
                _workload(1, 256),
                _workload(64, 256),
                _workload(256, 768),
                _workload(384, 1536),
            ),
            # swap and recompute differ only where requests are preempted
            rows=(VLLM, RECOMPUTE, replace(SWAP, workloads=("384x1536",))),
            kv_cache_gib=52.8,
            gpu_memory_utilization=0.5,
            notes=(
                "KV pool: 52.8 GiB for every engine, what gpu_memory_utilization=0.5 leaves to "
                "vLLM on an H200",
            ),
        ),
        Preset(
            name="nano",
            title="Full KV on the workload of the nano-vLLM measurement",
            workloads=(_workload(128, 1536),),
            rows=(VLLM, RECOMPUTE, SWAP),
            kv_cache_gib=8.0,
            notes=(
                "nano-vLLM v0.2.0 with graphs, measured earlier on an H200 on such a workload and "
                "pool: 5,405 tok/s output throughput",
            ),
        ),
        Preset(
            name="pressure",
            title="Memory pressure, pages of 64",
            workloads=(_workload(256, 2304, 64, 128),),
            rows=(VLLM, RECOMPUTE, SWAP, *_budget_rows(64)),
            kv_cache_gib=6.0,
            page_size=64,
        ),
        Preset(
            name="pressure_long",
            title="Memory pressure, pages of 256 and longer outputs",
            workloads=(_workload(42, 6144, 64, 128),),
            rows=(VLLM, RECOMPUTE, SWAP, *_budget_rows(256)),
            kv_cache_gib=6.0,
        ),
        Preset(name="kernels", title="Kernels against their byte floor"),
    )
}

KERNELS = (
    "decode attention",
    "prefill attention",
    "KV store",
    "norm + RoPE + store + summaries",
    "residual and RMS norm",
    "SwiGLU",
    "sampling",
    "capacity event",
)


def tiny(preset: Preset) -> Preset:
    """The same rows of our engine on a shape that a CPU runs in seconds: shows that the command works, no more."""
    workloads = tuple(
        replace(
            workload,
            num_requests=min(workload.num_requests, 4),
            num_output_tokens=24,
            min_prompt_tokens=8,
            max_prompt_tokens=12,
        )
        for workload in preset.workloads
    )
    rows = tuple(
        replace(row, policy_settings=_tiny_policy(row), settings=_tiny_settings(row))
        for row in preset.rows
    )
    return replace(
        preset,
        shape=TINY_SHAPE,
        dtype="float32",
        workloads=workloads,
        rows=rows,
        page_size=4,
        num_pages=24,
        max_num_seqs=8,
        is_tiny=True,
    )


def _tiny_policy(row: Row) -> dict[str, Any]:
    changes = {"initial_pages": 2, "num_protected_tokens": 1, "budget_tokens": 12}
    names = {*row.policy_settings, "num_protected_tokens" if row.policy_settings else ""}
    return {**row.policy_settings, **{k: v for k, v in changes.items() if k in names}}


def _tiny_settings(row: Row) -> dict[str, Any]:
    swap = {"swap_space_gib": 0.01} if "swap_space_gib" in row.settings else {}
    return {**row.settings, **swap}
