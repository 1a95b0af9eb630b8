"""The parts of one job, made from its configuration.

The only place that knows which engine is meant.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from growpage.backends.base import Backend
from growpage.bench.base import Benchmark
from growpage.config import Config, LoadFormat
from growpage.errors import UsageError, unknown
from growpage.grade.base import Grader

if TYPE_CHECKING:
    from growpage.engine.models.loader import LoadedModel

logger = logging.getLogger(__name__)

BACKENDS = ("growpage", "vllm")


class ChatTokenizer(Protocol):
    """What a run needs of a tokenizer."""

    def render(
        self, messages: list[dict[str, str]], *, enable_thinking: bool | None = None
    ) -> str: ...

    def encode(self, text: str) -> list[int]: ...

    def unknown_words(self, text: str) -> list[str]: ...

    def decode(self, ids: Any) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A backend that is ready, its tokenizer, and fingerprints of the model's files by name."""

    backend: Backend
    tokenizer: ChatTokenizer
    model_files: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """How the worker gets its parts. Each is called at most once, and only when it is needed."""

    make_benchmark: Callable[[Config], Benchmark]
    build_engine: Callable[[Config], Engine]
    make_grader: Callable[[Config], Grader]


def build_benchmark(config: Config) -> Benchmark:
    from growpage.bench.registry import make_benchmark

    return make_benchmark(config.bench)


def build_grader(config: Config) -> Grader:
    from growpage.grade.registry import make_grader

    return make_grader(config.grader.name, config.grader)


def build_backend(config: Config) -> "tuple[Backend, ChatTokenizer, LoadedModel | None]":
    """Load the model and start an engine on it. Raises `UsageError` for what the user can mend."""
    if config.engine.backend not in BACKENDS:
        raise unknown("engine.backend", config.engine.backend, BACKENDS)
    from growpage.engine.engine import Engine as GrowpageEngine
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
    engine = GrowpageEngine(model, config.engine, config.policy)
    return engine, model.tokenizer, model


def build_vllm(config: Config) -> Engine:
    """vLLM on a checkpoint folder or a hub id, with our tokenizer. Raises `UsageError`."""
    from growpage.backends.vllm_fullkv import VllmFullKV, engine_args
    from growpage.engine.models import loader
    from growpage.engine.models.tokenizer import Tokenizer

    model, is_dummy = config.model, config.model.load_format is LoadFormat.dummy
    folder, _ = loader._folder(model.path, model.revision, not is_dummy)
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
    return Engine(
        backend=backend, tokenizer=tokenizer, model_files=loader.fingerprints([*files, *weights])
    )


def _no_tokenizer(path: str) -> UsageError:
    return UsageError(f"model.path={path}: no tokenizer. Put tokenizer.json beside the weights.")


def build_engine(config: Config) -> Engine:
    if config.engine.backend == "vllm":
        return build_vllm(config)
    backend, tokenizer, model = build_backend(config)
    files = dict(model.files) if model is not None else {}
    return Engine(backend=backend, tokenizer=tokenizer, model_files=files)


REAL_PARTS = Parts(
    make_benchmark=build_benchmark, build_engine=build_engine, make_grader=build_grader
)
