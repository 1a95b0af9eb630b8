"""The recipe as dataclasses, read from conf/training/*.yaml with `section.key=value` overrides. No torch."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from growpage.bench.sequences.generator import ALL_KINDS, Difficulty
from growpage.errors import UsageError, require, unknown


@dataclass(slots=True, kw_only=True)
class DataConfig:
    """The training problems; none of them is in a test split."""

    num_problems: int = 220_000
    num_workers: int | None = None  # processes; None: all cores; 0: in this one
    kinds: list[str] = field(default_factory=lambda: list(ALL_KINDS))
    max_items: int = 128
    max_steps: int = 120
    max_phases: int = 3
    buckets: list[int] = field(default_factory=lambda: [256, 384, 512, 768, 1024, 1536, 2048])

    def __post_init__(self) -> None:
        require(self.num_problems >= 1, "data.num_problems", self.num_problems, ">= 1")
        require(
            len(self.buckets) > 0 and self.buckets == sorted(self.buckets) and self.buckets[0] > 0,
            "data.buckets", self.buckets, "lengths in rising order",
        )  # fmt: skip

    @property
    def difficulty(self) -> Difficulty:
        return Difficulty(
            kinds=tuple(self.kinds),
            max_items=self.max_items,
            max_steps=self.max_steps,
            max_phases=self.max_phases,
        )


@dataclass(slots=True, kw_only=True)
class ModelShape:
    """A Qwen3 decoder with tied embeddings."""

    num_layers: int = 4
    hidden_size: int = 256
    intermediate_size: int = 768
    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 32
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048

    def __post_init__(self) -> None:
        require(
            self.num_heads % self.num_kv_heads == 0,
            "model.num_heads", self.num_heads, f"a multiple of model.num_kv_heads={self.num_kv_heads}",
        )  # fmt: skip
        require(self.head_dim % 2 == 0, "model.head_dim", self.head_dim, "even")


@dataclass(slots=True, kw_only=True)
class OptimConfig:
    """AdamW with linear warm-up and a cosine to `final_lr_share` of the peak."""

    num_steps: int = 7000
    tokens_per_step: int = 98_304  # padded; every bucket must divide it
    lr: float = 2e-3
    final_lr_share: float = 0.01
    warmup_steps: int = 200
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.05
    clip_norm: float = 1.0
    short_share: float = 0.08  # of the steps, at the start, on the shortest `short_buckets` only
    short_buckets: int = 2

    def __post_init__(self) -> None:
        require(self.num_steps >= 1, "optim.num_steps", self.num_steps, ">= 1")
        require(self.lr > 0, "optim.lr", self.lr, "> 0")


@dataclass(slots=True, kw_only=True)
class NoiseConfig:
    """Eviction noise: a share of the tokens vanishes from attention once it is no longer needed."""

    shares: list[float] = field(
        default_factory=lambda: [0.3, 0.7, 1.0, 1.0]
    )  # one drawn a document
    ages_tokens: list[int] = field(default_factory=lambda: [0, 8, 24, 64])  # least age, likewise


@dataclass(slots=True, kw_only=True)
class SummaryConfig:
    """The regulariser of query summaries: where a summary looks, queries around it really read."""

    weight: float = 0.03
    final_weight_share: float = 0.25  # of `weight`, in the last tenth
    beta_short: float = 0.9
    beta_long: float = 0.99
    # Queries whose reads are the target, in tokens [before, after] the boundary.
    window_short: list[int] = field(default_factory=lambda: [0, 224])
    window_long: list[int] = field(default_factory=lambda: [0, 224])
    num_queries: int = 48
    read_floor: float = 0.05  # a smaller attention is no read
    bos_weight: float = 0.5  # before normalisation
    recent_tokens: int = 16  # newer keys are left out

    def __post_init__(self) -> None:
        for name in ("window_short", "window_long"):
            window = getattr(self, name)
            require(
                len(window) == 2 and min(window) >= 0 and sum(window) >= 1,
                f"summaries.{name}", window, "[before, after] in tokens, not both 0",
            )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class MixConfig:
    """Which steps get what: plain language modelling first, then a mixture."""

    plain_until: float = 0.3  # share of the steps
    noise_and_summaries: float = 0.45  # of the later steps
    summaries: float = 0.30  # of the later steps; the rest is plain

    def __post_init__(self) -> None:
        total = self.noise_and_summaries + self.summaries
        require(0.0 <= total <= 1.0, "mix.noise_and_summaries + mix.summaries", total, "in 0..1")


@dataclass(slots=True, kw_only=True)
class EvaluateConfig:
    """What the script itself measures, all with full KV."""

    num_problems: int = 200  # of each split
    temperature: float = 0.6
    num_demand_problems: int = 100  # of a third split
    page_size: int = 16  # boundaries of the demand measurement
    mass: float = 0.99


@dataclass(slots=True, kw_only=True)
class TrainingConfig:
    name: str = "sequences_reasoner"
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelShape = field(default_factory=ModelShape)
    optim: OptimConfig = field(default_factory=OptimConfig)
    mix: MixConfig = field(default_factory=MixConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    summaries: SummaryConfig = field(default_factory=SummaryConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)

    def __post_init__(self) -> None:
        for length in self.data.buckets:
            require(
                self.optim.tokens_per_step % length == 0,
                "optim.tokens_per_step", self.optim.tokens_per_step, f"a multiple of {length} (data.buckets)",
            )  # fmt: skip
        require(
            self.data.buckets[-1] <= self.model.max_position_embeddings,
            "data.buckets", self.data.buckets, "at most model.max_position_embeddings",
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def load_config(path: Path, overrides: Sequence[str] = ()) -> TrainingConfig:
    """The recipe in `path`, changed by overrides such as `optim.num_steps=100`.

    Raises `UsageError` for a missing file, an unknown key or a value out of range.
    """
    if not path.is_file():
        raise UsageError(f"config={path}: no such file.")
    values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for override in overrides:
        _apply(values, override)
    config = _build(TrainingConfig, values, "")
    assert isinstance(config, TrainingConfig)
    return config


def _apply(values: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    if not sign:
        raise UsageError(f"override {override!r}: must look like section.key=value.")
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise UsageError(f"override {override!r}: {section} is not a section.")
    values[last] = yaml.safe_load(text)


def _build(kind: type[Any], values: object, prefix: str) -> Any:
    if not isinstance(values, dict):
        raise UsageError(f"{prefix or 'config'}: must be a section with keys, not {values!r}.")
    default = kind()
    known = [item.name for item in fields(kind)]
    arguments = {}
    for key, value in values.items():
        if key not in known:
            raise unknown(f"{prefix}key", str(key), known)
        section = _SECTIONS.get(key) if not prefix else None
        arguments[key] = _build(section, value, f"{key}.") if section else value
        _check_type(f"{prefix}{key}", arguments[key], getattr(default, key))
    return kind(**arguments)


def _check_type(key: str, value: object, default: object) -> None:
    """Numbers where numbers stand, lists where lists stand; an integer may stand for a float."""
    if is_dataclass(value) or default is None or isinstance(value, type(default)):
        return
    if isinstance(default, float) and isinstance(value, int):
        return
    raise UsageError(f"{key}={value!r}: must be of type {type(default).__name__}.")


_SECTIONS: dict[str, type[Any]] = {
    "data": DataConfig,
    "model": ModelShape,
    "optim": OptimConfig,
    "mix": MixConfig,
    "noise": NoiseConfig,
    "summaries": SummaryConfig,
    "evaluate": EvaluateConfig,
}
