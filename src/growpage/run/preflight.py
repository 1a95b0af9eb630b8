"""What can be known to fail before a worker starts: names, settings without effect, this machine.

Imports no torch, reads no weights. Every finding is a `UsageError` that names a way out.
"""

import pkgutil
import re
from dataclasses import fields
from importlib.util import find_spec

from growpage import budget, host
from growpage.backends import vllm_fullkv
from growpage.backends.base import BACKENDS
from growpage.bench.registry import make_benchmark
from growpage.bench.sequences.benchmark import KNOBS
from growpage.config import (
    BenchConfig,
    Config,
    GraderConfig,
    LoadFormat,
    ModelConfig,
    PoolKind,
    Stage,
    is_generated,
)
from growpage.engine.config import Admission, PreemptMode
from growpage.errors import UsageError, require, unknown
from growpage.grade.policy import CodePolicy, MathPolicy
from growpage.grade.registry import GRADERS

DTYPES = ("auto", "float32", "bfloat16", "float16")
SMALL_MODEL = "model=smollm2_135m bench.limit=4 bench.num_samples=1 sampling.max_tokens=192"
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def check(config: Config) -> None:
    """Raise `UsageError` for what this resolved configuration cannot do here."""
    _check_names(config)
    _check_bench(config.bench)
    _check_grader(config.grader)
    _check_pool(config)
    if config.engine.backend == "vllm":
        _check_vllm(config)
    if config.stage is not Stage.grade:
        _check_device(config)
        _check_model(config.model, config.engine.device, is_plan=config.dry_run)


def scorer_names() -> list[str]:
    """The token scorers, one file each; their registry imports torch."""
    folders = [f"{path}/scorers" for path in budget.__path__]
    modules = {module.name for module in pkgutil.iter_modules(folders)}
    return sorted(modules - {"base", "registry"})


def _check_names(config: Config) -> None:
    names = {
        "engine.backend": (config.engine.backend, BACKENDS),
        "engine.dtype": (config.engine.dtype, DTYPES),
        "grader.name": (config.grader.name, GRADERS),
    }
    if hasattr(config.policy, "scorer"):
        names["policy.scorer"] = (config.policy.scorer, scorer_names())
    for key, (value, known) in names.items():
        if value not in known:
            raise unknown(key, value, known)


def _check_bench(bench: BenchConfig) -> None:
    make_benchmark(bench)  # raises for its family and its own settings
    for key in ("path", "hub_id", "revision"):
        value = getattr(bench, key)
        if is_generated(bench) and value is not None:
            raise UsageError(
                f"bench.{key}={value}: no effect, since bench={bench.name} makes its own problems. "
                "Choose the benchmark that fits, for example bench=gsm8k."
            )
    for key, families in (("gsm8k_samples", ("mixed",)), ("gsm8k_thinking", ("mixed", "gsm8k"))):
        value = getattr(bench, key)
        if bench.family not in families and value is not None:
            raise UsageError(
                f"bench.{key}={value}: no effect, since bench={bench.name} does not ask GSM8K"
                f"{' beside others' if bench.family == 'gsm8k' else ''}. Leave it out, or choose bench=mixed."
            )
    for key in KNOBS:
        value = getattr(bench, key)
        if bench.family != "sequences" and value is not None:
            raise UsageError(
                f"bench.{key}={value}: no effect, since bench={bench.name} has no such setting. "
                "Leave it out, or choose bench=sequences."
            )


def _check_grader(grader: GraderConfig) -> None:
    """Only grader=math has a policy, and only grader=code finds programs."""
    if grader.name != "code" and grader.code != CodePolicy():
        raise UsageError(
            f"grader.code: no effect, since grader={grader.name} runs no programs. Leave it out, or "
            "choose grader=code."
        )
    if grader.name == "math":
        return
    usual = MathPolicy()
    for item in fields(MathPolicy):
        value = getattr(grader.policy, item.name)
        if value != getattr(usual, item.name):
            raise UsageError(
                f"grader.policy.{item.name}={value}: no effect, since grader={grader.name} has no "
                "policy. Leave it out, or choose grader=math."
            )


def _check_pool(config: Config) -> None:
    if config.pool.kind is PoolKind.elastic:
        name = "policy" if config.policy.name == "elastic-reserve" else "pool"
        value = "elastic-reserve" if name == "policy" else "elastic"
        raise UsageError(
            f"{name}={value}: this version has no elastic page pool, on a CUDA GPU neither. "
            "policy=fullkv pool=static is the same capacity on a fixed pool."
        )


_OF_VLLM = {  # the one value that vLLM knows
    "preempt_mode": PreemptMode.recompute,
    "async_compaction": False,
    "admission": Admission.auto,
    "swap_space_gib": 0.0,
    "attention_backend": "auto",
    "num_threads": None,
    "profile_capacity_events": False,
}


def _check_vllm(config: Config) -> None:
    if config.policy.name != "fullkv":
        raise UsageError(
            f"policy={config.policy.name}: vLLM serves full KV only. Use engine=vllm policy=fullkv, "
            f"or leave engine=vllm out for policy={config.policy.name} on our engine."
        )
    for key, only in _OF_VLLM.items():
        value = getattr(config.engine, key)
        if value != only:
            shown = [getattr(item, "value", item) for item in (value, only)]
            raise UsageError(
                f"engine.{key}={shown[0]}: no effect in vLLM. Leave it out, as engine=vllm does "
                f"(engine.{key}={'null' if only is None else shown[1]})."
            )
    if config.stage is not Stage.grade and not vllm_fullkv.is_installed():
        raise vllm_fullkv.not_installed()
    if config.engine.device.startswith("cuda:"):
        raise UsageError(
            f"engine.device={config.engine.device}: vLLM takes the first visible card. Use "
            f"CUDA_VISIBLE_DEVICES={config.engine.device[5:]} and engine.device=cuda."
        )
    if config.model.path.startswith("gguf:") or config.model.path.endswith(".gguf"):
        raise UsageError(
            f"model={config.model.name}: engine=vllm reads folders of safetensors files and hub ids, "
            "no GGUF. Choose another model, for example model=qwen3_8b."
        )


def _check_device(config: Config) -> None:
    device = config.engine.device
    require(bool(_DEVICE.fullmatch(device)), "engine.device", device, "auto, cpu, cuda or cuda:N")
    if device != "cpu" and not host.has_cuda_device():
        raise UsageError(
            f"engine.device={device}: no CUDA device here. Use engine.device=auto or "
            "engine.device=cpu."
        )


def _check_model(model: ModelConfig, device: str, *, is_plan: bool) -> None:
    """is_plan: nothing will be loaded, so that a model for other machines can be looked at here."""
    require(bool(model.path), "model.path", model.path, "a folder, a .gguf file or a hub id")
    if model.path.startswith("gguf:"):
        _check_package(model)
    elif model.path.startswith(host.BUNDLED):
        host.bundled_model(model.path)
    elif host.is_local_path(model.path):
        if not host.exists(model.path):
            raise UsageError(f"model.path={model.path}: no such file or folder.")
    elif not is_plan:
        _check_hub_model(model, device)


def _check_package(model: ModelConfig) -> None:
    is_there = host.package_file(model.path) is not None and find_spec("gguf") is not None
    if not is_there:
        command = f" Run: {model.install}" if model.install else ""
        raise UsageError(
            f"model={model.name}: its weights ({model.path.removeprefix('gguf:')}) or the package "
            f"gguf are not installed.{command}"
        )


def _check_hub_model(model: ModelConfig, device: str) -> None:
    is_dummy = model.load_format is LoadFormat.dummy
    lacks_files = not (is_dummy or host.has_hub_snapshot(model.path))
    lacks_gpu = model.needs_gpu and device == "cpu"
    if not lacks_gpu and not (lacks_files and host.is_hub_offline()):
        return
    facts = []
    if lacks_gpu:
        facts.append("no CUDA device in use")
    if lacks_files:
        facts.append(f"no checkpoint {model.path} in the local Hugging Face cache")
    size = f" ({model.params_b:g} B parameters)" if model.params_b else ""
    raise UsageError(
        f"model={model.name}{size} cannot run here: {' and '.join(facts)}. "
        f"Use a folder that holds it (model.path=FOLDER), or try {SMALL_MODEL}"
    )
