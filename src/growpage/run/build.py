"""The parts of one job, made from its configuration.

The only place that knows which engine is meant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from growpage.backends.base import BACKENDS, Backend
from growpage.bench.base import Benchmark
from growpage.config import Config, LoadFormat
from growpage.errors import UsageError, unknown
from growpage.grade.base import Grader


class ChatTokenizer(Protocol):
    """What a run needs of a tokenizer."""

    def render(
        self, messages: list[dict[str, str]], *, enable_thinking: bool | None = None
    ) -> str: ...

    def encode(self, text: str) -> list[int]: ...

    def unknown_words(self, text: str) -> list[str]: ...

    def decode(self, ids: Any) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyEngine:
    """A backend that is ready, its tokenizer, and fingerprints of the model's files by name."""

    backend: Backend
    tokenizer: ChatTokenizer
    model_files: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """How the worker gets its parts. Each is called at most once, and only when it is needed."""

    make_benchmark: Callable[[Config], Benchmark]
    build_engine: Callable[[Config], ReadyEngine]
    make_grader: Callable[[Config], Grader]


def build_benchmark(config: Config) -> Benchmark:
    from growpage.bench.registry import make_benchmark

    return make_benchmark(config.bench)


def build_grader(config: Config) -> Grader:
    from growpage.grade.registry import make_grader

    return make_grader(config.grader.name, config.grader)


def build_engine(config: Config) -> ReadyEngine:
    """Load the model and start an engine on it. Raises `UsageError` for what the user can mend."""
    if config.engine.backend not in BACKENDS:
        raise unknown("engine.backend", config.engine.backend, BACKENDS)
    return _build_vllm(config) if config.engine.backend == "vllm" else _build_growpage(config)


def _build_growpage(config: Config) -> ReadyEngine:
    from growpage.engine.engine import Engine
    from growpage.engine.models.loader import load_model

    model = load_model(
        config.model.path,
        dtype=config.engine.dtype,
        device=config.engine.device,
        load_format=config.model.load_format.value,
        revision=config.model.revision,
        seed=config.seed,
    )
    if model.tokenizer is None:
        raise _no_tokenizer(config.model.path)
    engine = Engine(model, config.engine, config.policy)
    return ReadyEngine(backend=engine, tokenizer=model.tokenizer, model_files=dict(model.files))


def _build_vllm(config: Config) -> ReadyEngine:
    """vLLM on a checkpoint folder or a hub id, with our tokenizer."""
    from growpage.backends.vllm_fullkv import VllmFullKV, engine_args
    from growpage.engine.models import loader
    from growpage.engine.models.tokenizer import Tokenizer

    model, is_dummy = config.model, config.model.load_format is LoadFormat.dummy
    folder, _ = loader.checkpoint_folder(model.path, model.revision, has_weights=not is_dummy)
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer is None:
        raise _no_tokenizer(model.path)
    args = engine_args(
        config.engine,
        model=str(folder),
        load_format=model.load_format.value,
        seed=config.seed,
    )
    backend = VllmFullKV(args, eos_token_ids=tokenizer.eos_token_ids)
    weights = () if is_dummy else loader.SafetensorsFolder(folder).files
    names = ("config.json", "tokenizer.json")
    files = [file for name in names if (file := folder / name).is_file()]
    return ReadyEngine(
        backend=backend, tokenizer=tokenizer, model_files=loader.fingerprints([*files, *weights])
    )


def _no_tokenizer(path: str) -> UsageError:
    return UsageError(f"model.path={path}: no tokenizer. Put tokenizer.json beside the weights.")


REAL_PARTS = Parts(
    make_benchmark=build_benchmark, build_engine=build_engine, make_grader=build_grader
)
