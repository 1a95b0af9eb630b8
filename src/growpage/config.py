"""The configuration: one dataclass a group, its ranges, and who owns a `null`.

Hydra composes into these classes; after `to_config` the program sees plain dataclasses only.
"""

import re
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from omegaconf import MISSING, DictConfig, OmegaConf

from growpage import host, places
from growpage.bench.registry import BENCHMARKS
from growpage.budget.base import (
    PAPER_BETA_LONG,
    PAPER_BUDGET_TOKENS,
    PAPER_INITIAL_PAGES,
    CapacityPolicy,
)
from growpage.budget.registry import POLICIES
from growpage.engine.arrivals import ArrivalConfig
from growpage.engine.config import CPU_PAGE_SIZE, GPU_PAGE_SIZE, EngineConfig
from growpage.engine.request import SamplingParams
from growpage.errors import UsageError, closest, require, unknown
from growpage.grade.policy import CodePolicy, MathPolicy

T = TypeVar("T")


# ---- the groups ----------------------------------------------------------------------------------


class LoadFormat(str, Enum):
    auto = "auto"
    dummy = "dummy"  # random weights in the checkpoint's shape, for timing


@dataclass(slots=True, kw_only=True)
class KvDefaults:
    """What a model prefers when neither the command line nor the policy says (docs/algorithm.md §1)."""

    page_size: int | None = None  # tokens
    initial_pages: int | None = None  # P0
    beta_long: float | None = None
    ema_bias_correction: bool | None = None
    budget_tokens: int | None = None


@dataclass(slots=True, kw_only=True)
class SamplingCard:
    """What the model's authors advise; used by `sampling=card`. `None`: they advise nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None


@dataclass(slots=True, kw_only=True)
class ModelConfig:
    name: str = MISSING  # part of the run directory's name
    path: str = MISSING  # a folder, "bundled:name", a .gguf file, "gguf:package/file", or a hub id
    revision: str | None = None  # of the hub repository
    load_format: LoadFormat = LoadFormat.auto
    dtype: str | None = None  # None: engine.dtype
    enable_thinking: bool | None = None  # None: the chat template's own default
    needs_gpu: bool = False  # too large to be of use on a CPU
    params_b: float | None = None  # parameters, in billions
    install: str = ""  # the command that brings the weights, where they are a package
    kv_defaults: KvDefaults = field(default_factory=KvDefaults)
    card: SamplingCard = field(default_factory=SamplingCard)

    def __post_init__(self) -> None:
        require(bool(_SLUG.fullmatch(self.name)), "model.name", self.name, _SLUG_WORDS)


@dataclass(slots=True, kw_only=True)
class BenchConfig:
    """A set of questions and how often, how long and with which words they are asked."""

    name: str = MISSING
    family: str = MISSING  # key of growpage.bench.registry
    hub_id: str | None = None
    hub_config: str | None = None
    split: str | None = None
    revision: str | None = None  # pinned commit of the hub data set
    path: str | None = None  # JSON lines with question and answer, instead of the hub
    limit: int | None = None  # the first so many problems; None: all
    num_problems_expected: int | None = None  # how many are made; of data sets: else the load fails
    num_samples: int = MISSING  # answers a problem
    max_tokens: int = MISSING  # output tokens, unless sampling.max_tokens says otherwise
    budget_tokens: int | None = None  # KV budget of the paper for this benchmark
    prompt_role: str = "user"
    instruction: str = ""  # follows the question
    seed: int = 0  # of generated problems; has no part in sampling
    gsm8k_samples: int | None = None  # of bench=mixed: answers a problem of GSM8K
    gsm8k_thinking: bool | None = None  # false: GSM8K's prompts close the think block
    # difficulty of bench=sequences (growpage.bench.sequences.generator); null: as it was trained
    kinds: list[str] | None = None
    max_items: int | None = None  # rows of a table, facts of a list, items of a ledger
    max_steps: int | None = None  # of one phase
    max_phases: int | None = None

    def __post_init__(self) -> None:
        require(bool(_SLUG.fullmatch(self.name)), "bench.name", self.name, _SLUG_WORDS)
        require(self.limit is None or self.limit >= 1, "bench.limit", self.limit, ">= 1 or null")
        require(
            1 <= self.num_samples <= 10_000, "bench.num_samples", self.num_samples, "in 1..10000"
        )
        require(
            self.gsm8k_samples is None or 1 <= self.gsm8k_samples <= 10_000,
            "bench.gsm8k_samples", self.gsm8k_samples, "in 1..10000 or null",
        )  # fmt: skip
        require(self.max_tokens >= 1, "bench.max_tokens", self.max_tokens, ">= 1")
        require(
            self.budget_tokens is None or self.budget_tokens >= 1,
            "bench.budget_tokens", self.budget_tokens, ">= 1 or null",
        )  # fmt: skip
        if self.prompt_role not in ("user", "system"):
            raise unknown("bench.prompt_role", self.prompt_role, ("user", "system"))


class PoolKind(str, Enum):
    auto = "auto"  # elastic for policy=elastic-reserve, else static
    static = "static"
    elastic = "elastic"


@dataclass(slots=True, kw_only=True)
class PoolConfig:
    kind: PoolKind = PoolKind.auto


@dataclass(slots=True, kw_only=True)
class SamplingConfig:
    """How tokens are drawn. Names and ranges of `SamplingParams`."""

    temperature: float = 0.6
    top_p: float = 1.0
    top_k: int = 0  # 0: the whole vocabulary
    min_p: float = 0.0
    max_tokens: int | None = None  # None: bench.max_tokens
    ignore_eos: bool = False  # for timing: every output has max_tokens tokens

    def __post_init__(self) -> None:
        require(
            self.max_tokens is None or self.max_tokens >= 1,
            "sampling.max_tokens", self.max_tokens, ">= 1 or null (null: bench.max_tokens)",
        )  # fmt: skip
        SamplingParams(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p
        )  # raises on a value out of range


@dataclass(slots=True, kw_only=True)
class GraderConfig:
    name: str = "math"  # key of growpage.grade.registry
    timeout_s: float = 10.0  # wall clock an answer; then its worker is killed
    memory_gib: float = 4.0  # address space of a worker
    num_workers: int = 1
    whole_output: bool = True  # also math-verify on the full text, as a second number
    policy: MathPolicy = field(default_factory=MathPolicy)  # of grader=math
    code: CodePolicy = field(default_factory=CodePolicy)  # of grader=code

    def __post_init__(self) -> None:
        require(0.0 < self.timeout_s <= 3600.0, "grader.timeout_s", self.timeout_s, "in (0, 3600]")
        require(
            0.05 <= self.memory_gib <= 1024.0, "grader.memory_gib", self.memory_gib, "in 0.05..1024"
        )
        require(1 <= self.num_workers <= 1024, "grader.num_workers", self.num_workers, "in 1..1024")


@dataclass(slots=True, kw_only=True)
class PathsConfig:
    """Relative paths count from the folder of the command; `resolve` makes them absolute."""

    runs: str | None = None  # None: places.default_runs_folder


class Stage(str, Enum):
    all = "all"
    generate = "generate"  # samples only
    grade = "grade"  # grade and summarise samples that exist


@dataclass(slots=True, kw_only=True)
class Config:
    model: ModelConfig = MISSING
    bench: BenchConfig = MISSING
    policy: CapacityPolicy = MISSING
    pool: PoolConfig = MISSING
    engine: EngineConfig = MISSING
    sampling: SamplingConfig = MISSING
    grader: GraderConfig = MISSING
    paths: PathsConfig = MISSING
    arrivals: ArrivalConfig = field(default_factory=ArrivalConfig)
    seed: int = 0  # base of every request's seed
    stage: Stage = Stage.all
    fresh: bool = False  # start over where a run directory exists
    trace: bool = False  # a row a step in events.jsonl; timeline.json and pages.png from them
    dry_run: bool = False  # show the configuration and the plan, start nothing

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, "seed", self.seed, "in 0..2^63-1")
        if self.fresh and self.stage is Stage.grade:
            raise UsageError(
                "fresh=true stage=grade: starting over leaves no samples to grade. Leave one out."
            )


GROUPS: dict[str, type] = {
    "model": ModelConfig,
    "bench": BenchConfig,
    "pool": PoolConfig,
    "engine": EngineConfig,
    "sampling": SamplingConfig,
    "grader": GraderConfig,
    "paths": PathsConfig,
    "arrivals": ArrivalConfig,
}

_SLUG = re.compile(r"[a-z0-9][a-z0-9_.-]{,63}")
_SLUG_WORDS = (
    "up to 64 lower-case letters, digits, '_', '.' and '-', since it is part of a folder's name"
)


# ---- from what Hydra composed to dataclasses -------------------------------------------------------


def to_config(composed: DictConfig) -> Config:
    """The composed configuration as dataclasses, ranges checked.

    Raises `UsageError` for keys that nothing reads or that are missing, and what OmegaConf and the
    ranges raise for values.
    """
    _check_keys(composed)
    if missing := sorted(OmegaConf.missing_keys(composed)):
        hints = "".join(
            f" {key}: {_MISSING_WORDS[key]}." for key in missing if key in _MISSING_WORDS
        )
        raise UsageError(f"No value for {', '.join(missing)}.{hints}")
    config = OmegaConf.to_object(composed)
    assert isinstance(config, Config)
    return config


_MISSING_WORDS = {
    "model.path": "a folder with config.json and safetensors files, a .gguf file, or a hub id",
}


def _check_keys(node: DictConfig, path: str = "") -> None:
    """Raise for keys that no dataclass field reads (`+policy.tua=3`) and for deleted ones (`~seed`)."""
    if node._is_none() or node._is_missing():
        return
    schema = OmegaConf.get_type(node)
    if not is_dataclass(schema):
        return
    known, present = {item.name for item in fields(schema)}, {str(key) for key in node}
    for key in sorted(present - known):
        raise no_such_key(path + key, known)
    for key in sorted(known - present):
        raise UsageError(f"~{path}{key}: this key cannot be removed. Set {path}{key}=… instead.")
    for key in sorted(known):
        child = node._get_node(key)
        if isinstance(child, DictConfig):
            _check_keys(child, f"{path}{key}.")


def no_such_key(path: str, known: set[str], guess: str = "") -> UsageError:
    """The error for a key outside the schema; `known` are its group's keys, `guess` a better hint."""
    group, _, key = path.rpartition(".")
    prefix, place = (f"{group}.", f" in {group}") if group else ("", "")
    guess = guess or closest(key, known, prefix)
    return UsageError(f"{path}: no such key. Known{place}: {', '.join(sorted(known))}.{guess}")


def to_dict(config: Config) -> dict[str, Any]:
    """Plain containers and values, as stored in config.yaml."""
    plain = _plain(asdict(config))
    assert isinstance(plain, dict)
    return plain


def from_dict(values: dict[str, Any]) -> Config:
    """The inverse of `to_dict`. Raises `UsageError` for an unknown policy, TypeError for other keys."""
    name = values["policy"]["name"]
    if name not in POLICIES:
        raise unknown("policy", name, POLICIES)
    schema = OmegaConf.structured(Config)
    schema.policy = POLICIES[name]
    for group, cls in GROUPS.items():
        schema[group] = cls
    merged = OmegaConf.merge(schema, values)
    assert isinstance(merged, DictConfig)
    return to_config(merged)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


# ---- who owns a null -------------------------------------------------------------------------------


def resolve(config: Config, *, on_gpu: bool | None = None) -> Config:
    """A copy in which every `null` that has an owner holds its effective value (docs/algorithm.md §1).

    Order: command line and policy file (already in `config`), the model's kv_defaults, the benchmark,
    the paper. `on_gpu` None: looked up on this machine, where engine.device=auto. Resolving twice
    changes nothing. Raises `UsageError` for settings that contradict each other.
    """
    engine = _resolve_engine(config, on_gpu)
    assert engine.page_size is not None
    resolved = replace(
        config,
        model=replace(config.model, dtype=engine.dtype, path=_absolute_model(config.model.path)),
        bench=replace(config.bench, path=_absolute("bench.path", config.bench.path)),
        policy=_resolve_policy(config, engine.page_size),
        pool=PoolConfig(kind=_resolve_pool(config)),
        engine=engine,
        sampling=_fill(config.sampling, max_tokens=config.bench.max_tokens),
        paths=PathsConfig(runs=_absolute_runs(config.paths.runs)),
    )
    resolved.policy.check(engine.page_size)
    return resolved


def _resolve_engine(config: Config, on_gpu: bool | None) -> EngineConfig:
    engine, device = config.engine, config.engine.device
    if device == "auto":
        is_cuda = host.has_cuda_device() if on_gpu is None else on_gpu
        device = "cuda" if is_cuda else "cpu"
    is_cpu = device == "cpu"
    dtype = engine.dtype
    if dtype == "auto":
        dtype = config.model.dtype or ("float32" if is_cpu else "auto")
    default_page = CPU_PAGE_SIZE if is_cpu else GPU_PAGE_SIZE
    engine = _fill(engine, page_size=config.model.kv_defaults.page_size or default_page)
    return replace(engine, device=device, dtype=dtype)


def _resolve_policy(config: Config, page_size: int) -> CapacityPolicy:
    own = config.model.kv_defaults
    budget = own.budget_tokens or config.bench.budget_tokens or PAPER_BUDGET_TOKENS
    is_corrected = False if own.ema_bias_correction is None else own.ema_bias_correction
    return _fill(
        config.policy,
        initial_pages=own.initial_pages or PAPER_INITIAL_PAGES,
        beta_long=PAPER_BETA_LONG if own.beta_long is None else own.beta_long,
        ema_bias_correction=is_corrected,
        k_loc=page_size // 4,
        budget_tokens=budget,
        buffer_tokens=page_size,
    )


def _resolve_pool(config: Config) -> PoolKind:
    is_elastic = config.policy.name == "elastic-reserve"
    kind = config.pool.kind
    if is_elastic and kind is PoolKind.static:
        raise UsageError(
            "policy=elastic-reserve pool=static: this policy is full KV on the elastic page pool. "
            "Leave pool out, or use policy=fullkv pool=static."
        )
    if kind is not PoolKind.auto:
        return kind
    return PoolKind.elastic if is_elastic else PoolKind.static


def _fill(values: T, **defaults: Any) -> T:
    """A copy with the fields that are None set; names that the class lacks are passed over."""
    names = {item.name for item in fields(values)}  # type: ignore[arg-type]
    empty = {k: v for k, v in defaults.items() if k in names and getattr(values, k) is None}
    return replace(values, **empty)  # type: ignore[type-var]


def _absolute(key: str, path: str | None) -> str | None:
    if path is None:
        return None
    require(path.strip() != "", key, path, "a path", f"Leave {key} out for its default.")
    return str(places.expand(path, f"{key}={path}").absolute())


def _absolute_runs(path: str | None) -> str:
    return _absolute("paths.runs", path) or str(places.default_runs_folder())


def _absolute_model(path: str) -> str:
    is_local = path.strip() != "" and host.is_local_path(path)
    return str(_absolute("model.path", path)) if is_local else path


# ---- how many samples -----------------------------------------------------------------------------


def is_generated(bench: BenchConfig) -> bool:
    """Whether the family makes its own problems, `num_problems_expected` of them."""
    return not hasattr(BENCHMARKS.get(bench.family), "HUB")


def num_samples_planned(config: Config) -> int | None:
    """Problems times samples, or None when the number of problems shows only on loading."""
    bench = config.bench
    if bench.gsm8k_samples is not None:
        return None  # not all problems have as many
    known = None if bench.path else bench.num_problems_expected
    counts = [count for count in (bench.limit, known) if count is not None]
    return min(counts) * bench.num_samples if counts else None
