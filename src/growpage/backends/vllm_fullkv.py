"""vLLM behind the backend protocol: its own full-KV serving, as a baseline for our engine.

Imports vllm only when an engine is built. Token ids go in and come out, never text. What vLLM does not tell is
absent: preemptions are counted in total and not by request, and there are no capacity events.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from growpage.engine.config import EngineConfig
from growpage.engine.events import CapacityEvent
from growpage.engine.request import (
    EngineStats,
    FinishReason,
    Request,
    RequestMetrics,
    RequestOutput,
)
from growpage.errors import UsageError

GIB = 1 << 30
INSTALL = "pip install -e '.[vllm]'"

_REASONS = {
    "stop": FinishReason.STOP,
    "repetition": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}


def is_installed() -> bool:
    return find_spec("vllm") is not None


def not_installed() -> UsageError:
    return UsageError(
        "engine.backend=vllm: vLLM is not installed here. It pins its own torch, so give it an environment of its own: "
        f"{INSTALL} (the extra `vllm`), or use engine=auto."
    )


def engine_args(
    config: EngineConfig,
    *,
    model: str,
    load_format: str = "auto",
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments of vLLM's `EngineArgs` for our settings. `model`: a checkpoint folder."""
    args: dict[str, Any] = {
        "model": model,
        "load_format": load_format,
        "seed": seed,
        "dtype": config.dtype,
        "block_size": config.page_size,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": max(config.max_num_batched_tokens, config.max_num_seqs),
        "max_model_len": config.max_model_len,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "enable_prefix_caching": config.enable_prefix_caching,
        "enforce_eager": config.enforce_eager,
        "async_scheduling": config.async_scheduling,
    }
    if config.kv_cache_gib is not None:
        args["kv_cache_memory_bytes"] = int(config.kv_cache_gib * GIB)
    if config.num_pages is not None:
        args["num_gpu_blocks_override"] = config.num_pages
    return args


@dataclass(slots=True, kw_only=True)
class _Live:
    """A request that vLLM holds."""

    request: Request
    metrics: RequestMetrics
    token_ids: list[int] = field(default_factory=list)
    last_token_time: float | None = None


class _Recorder:
    """Stands where vLLM keeps its loggers and takes the statistics of each step."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_running = 0
        self.num_waiting = 0
        self.num_preemptions = 0
        self.cache_usage = 0.0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: object, **__: object) -> None:
        self.num_steps += 1
        self.num_running = scheduler_stats.num_running_reqs
        self.num_waiting = scheduler_stats.num_waiting_reqs
        self.cache_usage = scheduler_stats.kv_cache_usage
        if iteration_stats is not None:
            self.num_preemptions += iteration_stats.num_preempted_reqs

    def log(self) -> None:
        """vLLM asks for a line now and then; the run has its own."""


class VllmFullKV:
    """A vLLM engine in this process (`VLLM_ENABLE_V1_MULTIPROCESSING=1` puts its core in another one).

    args: of vLLM's `EngineArgs`. eos_token_ids end a request as in our engine. Without `per_request_seeds` the noise
    is drawn for a whole batch at once, which is faster and depends on the batch.
    Raises `UsageError` when vLLM is not installed or refuses its settings.
    """

    def __init__(
        self,
        args: Mapping[str, Any],
        *,
        eos_token_ids: tuple[int, ...] = (),
        per_request_seeds: bool = True,
    ) -> None:
        if not is_installed():
            raise not_installed()
        set_environment()
        self._vllm = import_module("vllm")
        self._tokens_input = import_module("vllm.inputs").tokens_input
        self._delta = import_module("vllm.sampling_params").RequestOutputKind.DELTA
        self._engine = self._start(args)
        self._recorder = _Recorder()
        self._engine.logger_manager = self._recorder
        config = self._engine.vllm_config
        self._page_size = int(config.cache_config.block_size)
        self._vocab_size = int(config.model_config.get_vocab_size())
        self._eos_token_ids = eos_token_ids
        self._per_request_seeds = per_request_seeds
        self._live: dict[str, _Live] = {}
        self._ended: list[RequestOutput] = []  # without a step of vLLM
        self._stats = EngineStats(num_pages=int(config.cache_config.num_gpu_blocks or 0))
        self._decode_start: float | None = None
        self._num_decode_steps = 0
        self._num_resident_steps = 0

    # -- the backend protocol -----------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises `UsageError` at once when it can never run."""
        name, prompt = request.request_id, request.prompt_token_ids
        unknown = [token for token in prompt if not 0 <= token < self._vocab_size]
        if unknown:
            raise UsageError(
                f"request {name}: token id {unknown[0]} is not in 0..{self._vocab_size - 1}, the vocabulary of the "
                "model. Use the tokenizer of this checkpoint."
            )
        if name in self._live:
            raise UsageError(f"request {name}: this id is in use. Give each request its own.")
        live = _Live(request=request, metrics=RequestMetrics(arrival_time=time.perf_counter()))
        if request.sampling.max_tokens == 0:
            self._end(live, FinishReason.LENGTH)
            return
        try:
            inputs = self._tokens_input(list(prompt))
            self._engine.add_request(name, inputs, self._sampling_params(request))
        except ValueError as error:
            raise UsageError(f"request {name}: {_first_line(error)}") from error
        self._live[name] = live

    def abort(self, request_id: str) -> None:
        """End a request early; its output comes back from the next `step`."""
        live = self._live.pop(request_id, None)
        if live is not None:
            self._engine.abort_request([request_id])
            self._end(live, FinishReason.ABORT)

    def step(self) -> list[RequestOutput]:
        """One step of vLLM; tokens are dated by this process's clock when it returns."""
        finished, self._ended = self._ended, []
        self._stats.num_finished += len(finished)
        if not self._live:
            return finished
        num_recorded, num_tokens, num_ended = self._recorder.num_steps, 0, 0
        outputs = self._engine.step()
        now = time.perf_counter()
        for output in outputs:
            live = self._live.get(output.request_id)
            if live is None:  # aborted while its step ran
                continue
            num_tokens += len(output.outputs[0].token_ids)
            self._take_tokens(live, output, now)
            if output.finished:
                num_ended += 1
                del self._live[output.request_id]
                finished.append(self._finish(live, output, now))
        self._count(now, num_tokens, num_ended, is_step=self._recorder.num_steps > num_recorded)
        return finished

    def has_unfinished_requests(self) -> bool:
        return bool(self._live or self._ended)

    def stats(self) -> EngineStats:
        """Preemptions are all by recompute, and of all requests together."""
        stats, recorder = self._stats, self._recorder
        stats.num_steps = recorder.num_steps
        stats.num_running = min(recorder.num_running, len(self._live))
        stats.num_waiting = len(self._live) - stats.num_running
        stats.num_used_pages = round(recorder.cache_usage * stats.num_pages)
        stats.counters.preempt_recompute = recorder.num_preemptions
        if self._num_decode_steps:
            stats.avg_resident_requests = self._num_resident_steps / self._num_decode_steps
        return stats

    def take_events(self) -> list[CapacityEvent]:
        return []

    def describe(self) -> dict[str, Any]:
        """Plain values for the run record; settings as vLLM resolved them."""
        config = self._engine.vllm_config
        scheduler, cache = config.scheduler_config, config.cache_config
        return {
            "engine": "vllm",
            "version": str(self._vllm.__version__),
            "model": str(config.model_config.model),
            "device": str(config.device_config.device_type),
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "attention": "vllm",
            "cuda_graphs": str(config.compilation_config.cudagraph_mode),
            "async_scheduling": bool(scheduler.async_scheduling),
            "page_size": self._page_size,
            "num_pages": self._stats.num_pages,
            "max_model_len": int(config.model_config.max_model_len),
            "max_num_seqs": int(scheduler.max_num_seqs),
            "max_num_batched_tokens": int(scheduler.max_num_batched_tokens),
            "enable_prefix_caching": bool(cache.enable_prefix_caching),
            "preempt_mode": "recompute",
            "per_request_seeds": self._per_request_seeds,
            "policy": {"name": "fullkv"},
            "environment": {k: v for k, v in sorted(os.environ.items()) if k in _ENVIRONMENT},
        }

    def shutdown(self) -> None:
        """Free the device memory; the engine cannot be used afterwards."""
        self._engine.engine_core.shutdown()
        del self._engine

    # -- mapping ------------------------------------------------------------------------------

    def _start(self, args: Mapping[str, Any]) -> Any:
        settings = {
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # no sampling defaults or EOS ids of its own
            "disable_log_stats": False,  # the recorder takes them
            **_without_flashinfer(),
            **args,
        }
        # vLLM's defaults depend on who asks: those of its offline class, not of a bare engine.
        usage = import_module("vllm.usage.usage_lib").UsageContext.LLM_CLASS
        try:
            given = self._vllm.EngineArgs(**settings)
            return self._vllm.LLMEngine.from_engine_args(given, usage_context=usage)
        except ValueError as error:  # pydantic's errors are ValueErrors too
            raise UsageError(f"engine.backend=vllm: {_first_line(error)}") from error

    def _sampling_params(self, request: Request) -> Any:
        own = request.sampling
        eos = () if own.ignore_eos else self._eos_token_ids
        return self._vllm.SamplingParams(
            temperature=own.temperature,
            top_p=own.top_p,
            top_k=own.top_k,
            min_p=own.min_p,
            max_tokens=own.max_tokens,
            stop_token_ids=sorted({*own.stop_token_ids, *eos}),
            ignore_eos=own.ignore_eos,
            seed=own.seed if self._per_request_seeds else None,
            detokenize=False,
            output_kind=self._delta,
        )

    def _take_tokens(self, live: _Live, output: Any, now: float) -> None:
        token_ids, metrics = output.outputs[0].token_ids, live.metrics
        if not token_ids:
            return
        if live.last_token_time is None:
            metrics.first_token_time = now
            metrics.num_cached_tokens = output.num_cached_tokens or 0
        else:
            metrics.max_itl_s = max(metrics.max_itl_s or 0.0, now - live.last_token_time)
        live.last_token_time = now
        live.token_ids.extend(token_ids)

    def _finish(self, live: _Live, output: Any, now: float) -> RequestOutput:
        word = output.outputs[0].finish_reason
        reason = _REASONS.get(word, FinishReason.ERROR)
        error = None if word in _REASONS else f"vLLM ended the request: {word}"
        self._stats.num_finished += 1
        self._stats.num_prompt_tokens += len(live.request.prompt_token_ids)
        live.metrics.finished_time = now
        live.metrics.first_scheduled_time = _scheduled_time(output.metrics)
        return self._output(live, reason, error)

    def _end(self, live: _Live, reason: FinishReason) -> None:
        live.metrics.finished_time = time.perf_counter()
        self._ended.append(self._output(live, reason))

    def _output(self, live: _Live, reason: FinishReason, error: str | None = None) -> RequestOutput:
        self._measure_capacity(live)
        return RequestOutput(
            request_id=live.request.request_id,
            prompt_token_ids=live.request.prompt_token_ids,
            token_ids=tuple(live.token_ids),
            finish_reason=reason,
            metrics=live.metrics,
            error=error,
        )

    def _measure_capacity(self, live: _Live) -> None:
        """Nothing is evicted, so the pages at each decode step follow from the lengths."""
        metrics, page = live.metrics, self._page_size
        num_steps = len(live.token_ids) - 1  # the first token is the prompt's
        if num_steps < 1:
            return
        first = len(live.request.prompt_token_ids) + 1
        capacities = [-(-n // page) * page for n in range(first, first + num_steps)]
        metrics.num_decode_steps = num_steps
        metrics.avg_capacity_tokens = sum(capacities) / num_steps
        metrics.avg_resident_tokens = first + (num_steps - 1) / 2
        metrics.peak_capacity_tokens = capacities[-1]

    def _count(self, now: float, num_tokens: int, num_ended: int, *, is_step: bool) -> None:
        """Decoding starts when the first token has come back: the next step decodes its request."""
        stats = self._stats
        stats.num_output_tokens += num_tokens
        if self._decode_start is None:
            if num_tokens:
                self._decode_start = now
            return
        stats.num_decode_output_tokens += num_tokens
        stats.decode_wall_s = now - self._decode_start
        if is_step:
            self._num_decode_steps += 1
            self._num_resident_steps += self._recorder.num_running + num_ended


_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: less to start, and its memory can be measured
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # where flashinfer is not installed
}


def set_environment() -> None:
    """What vLLM reads when it is imported; variables that the user has set stay."""
    for name, value in _ENVIRONMENT.items():
        if name != "VLLM_USE_FLASHINFER_SAMPLER" or find_spec("flashinfer") is None:
            os.environ.setdefault(name, value)


def _without_flashinfer() -> dict[str, Any]:
    if find_spec("flashinfer") is not None:
        return {}
    return {"kernel_config": {"enable_flashinfer_autotune": False}}


def _scheduled_time(metrics: Any) -> float | None:
    """vLLM's monotonic clock is the one of `time.perf_counter` on Linux."""
    moment = getattr(metrics, "scheduled_ts", None)
    return float(moment) if moment else None


def _first_line(error: Exception) -> str:
    """One line; of pydantic's errors the one that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    is_pydantic = len(lines) > 2 and "validation error" in lines[0]
    return lines[1] if is_pydantic else lines[0]
