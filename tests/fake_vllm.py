"""A pure-python stand-in for the offline engine of vLLM: one token a request and step; it keeps what it was given.

Names and fields as in vLLM 0.23.0. `install(monkeypatch)` puts it where `import vllm` finds it.
"""

import sys
import time
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

VOCAB_SIZE, MAX_MODEL_LEN, EOS, NUM_BLOCKS = 100, 64, 3, 50
PREEMPT_AT_STEP = 4


class SamplingParams(SimpleNamespace):
    pass


class EngineArgs(SimpleNamespace):
    def __init__(self, **settings: Any) -> None:
        if settings.get("gpu_memory_utilization", 0) > 1:
            raise ValueError(
                "1 validation error for CacheConfig\n  Value error, gpu_memory_utilization must be at most 1\n"
                "    For further information visit errors.example"
            )
        super().__init__(**settings)


class LLMEngine:
    """Tokens are 10, 11, 12, ... and EOS as the fifth; ends by stop token, length or a full context."""

    last: "LLMEngine"

    def __init__(self, args: EngineArgs) -> None:
        LLMEngine.last = self
        self.args = args
        self.requests: dict[str, tuple[list[int], SamplingParams, list[int]]] = {}
        self.aborted: list[str] = []
        self.is_shut_down = False
        self.num_steps = 0
        self.logger_manager: Any = None
        self.engine_core = SimpleNamespace(shutdown=self._shut_down)
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(
                block_size=args.block_size, num_gpu_blocks=NUM_BLOCKS, enable_prefix_caching=True
            ),
            model_config=SimpleNamespace(
                get_vocab_size=lambda: VOCAB_SIZE,
                max_model_len=MAX_MODEL_LEN,
                model=args.model,
                dtype="torch.bfloat16",
            ),
            scheduler_config=SimpleNamespace(
                async_scheduling=True, max_num_seqs=8, max_num_batched_tokens=32
            ),
            compilation_config=SimpleNamespace(cudagraph_mode="FULL_AND_PIECEWISE"),
            device_config=SimpleNamespace(device_type="cuda"),
        )

    @classmethod
    def from_engine_args(cls, args: EngineArgs, usage_context: str) -> "LLMEngine":
        assert usage_context == "LLM_CLASS"
        return cls(args)

    def add_request(self, name: str, prompt: dict[str, Any], params: SamplingParams) -> None:
        if len(prompt["prompt_token_ids"]) > MAX_MODEL_LEN:
            raise ValueError("The decoder prompt is longer than the maximum model length\nmore")
        self.requests[name] = (prompt["prompt_token_ids"], params, [])

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        for name in names:
            self.requests.pop(name, None)

    def step(self) -> list[SimpleNamespace]:
        self.num_steps += 1
        outputs = [self._advance(name) for name in list(self.requests)]
        self.logger_manager.record(
            scheduler_stats=SimpleNamespace(
                num_running_reqs=len(self.requests), num_waiting_reqs=0, kv_cache_usage=0.5
            ),
            iteration_stats=SimpleNamespace(
                num_preempted_reqs=int(self.num_steps == PREEMPT_AT_STEP)
            ),
            mm_cache_stats=None,
        )
        return outputs

    def _advance(self, name: str) -> SimpleNamespace:
        prompt, params, tokens = self.requests[name]
        tokens.append(EOS if len(tokens) == 4 else 10 + len(tokens))
        reason = None
        if tokens[-1] in params.stop_token_ids:
            reason = "stop"
        elif len(tokens) == params.max_tokens or len(prompt) + len(tokens) == MAX_MODEL_LEN:
            reason = "length"
        if reason is not None:
            del self.requests[name]
        return SimpleNamespace(
            request_id=name,
            outputs=[SimpleNamespace(token_ids=tokens[-1:], finish_reason=reason)],
            finished=reason is not None,
            num_cached_tokens=2,
            metrics=SimpleNamespace(scheduled_ts=time.monotonic()) if reason else None,
        )

    def _shut_down(self) -> None:
        self.is_shut_down = True


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("vllm", "vllm.inputs", "vllm.sampling_params", "vllm.usage.usage_lib")
    vllm, inputs, sampling, usage = (ModuleType(name) for name in names)
    vllm.__spec__ = ModuleSpec("vllm", None)
    vllm.__dict__.update(
        __version__="0.23.0",
        LLMEngine=LLMEngine,
        EngineArgs=EngineArgs,
        SamplingParams=SamplingParams,
    )
    inputs.__dict__["tokens_input"] = lambda ids: {"type": "token", "prompt_token_ids": ids}
    sampling.__dict__["RequestOutputKind"] = SimpleNamespace(DELTA="delta")
    usage.__dict__["UsageContext"] = SimpleNamespace(LLM_CLASS="LLM_CLASS")
    for module in (vllm, inputs, sampling, usage):
        monkeypatch.setitem(sys.modules, module.__name__, module)
