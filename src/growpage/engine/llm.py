"""The engine in five lines: `LLM("path").generate(["..."], SamplingParams(max_tokens=64))`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from growpage.budget.base import CapacityPolicy
from growpage.budget.registry import POLICIES
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.models.loader import load_model
from growpage.engine.request import Request, RequestOutput, SamplingParams
from growpage.errors import UsageError, unknown


class LLM:
    """A model and its engine. `engine` settings are the fields of `EngineConfig`."""

    def __init__(
        self,
        model: str,
        *,
        policy: str | CapacityPolicy = "fullkv",
        load_format: str = "auto",
        revision: str | None = None,
        **engine: Any,
    ) -> None:
        """model: a checkpoint folder, a hub id or a GGUF source; policy: a name or a policy with settings."""
        config = _engine_config(engine)
        loaded = load_model(
            model,
            dtype=config.dtype,
            device=_device(config.device),
            load_format=load_format,
            revision=revision,
        )
        self.tokenizer = loaded.tokenizer
        self.engine = Engine(loaded, config, _policy(policy))
        self._num_requests = 0

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete texts or token ids; outputs in the order of the prompts, with `text` and `metrics`.

        One `SamplingParams` for all prompts gives prompt i the seed `seed + i`. Raises `UsageError` for a prompt that
        can never run; nothing is generated then.
        """
        params = self._params(sampling_params, len(prompts))
        names = []
        try:
            for prompt, sampling in zip(prompts, params, strict=True):
                name = str(self._num_requests)
                self.engine.add_request(
                    Request(
                        request_id=name,
                        prompt_token_ids=tuple(self._token_ids(prompt)),
                        sampling=sampling,
                    )
                )
                self._num_requests += 1
                names.append(name)
        except UsageError:
            for name in names:
                self.engine.abort(name)
            self.engine.step()
            raise
        outputs: dict[str, RequestOutput] = {}
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if self.tokenizer is not None:
                    output.text = self.tokenizer.decode(output.token_ids)
                outputs[output.request_id] = output
        return [outputs[name] for name in names]

    def _token_ids(self, prompt: str | Sequence[int]) -> Sequence[int]:
        if not isinstance(prompt, str):
            return prompt
        if self.tokenizer is None:
            raise UsageError("this checkpoint has no tokenizer: pass token ids instead of text.")
        return self.tokenizer.encode(prompt)

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> Sequence[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            base = given or SamplingParams()
            return [replace(base, seed=base.seed + i) for i in range(num_prompts)]
        if len(given) != num_prompts:
            raise UsageError(f"{len(given)} sampling parameters for {num_prompts} prompts.")
        return given


def _engine_config(settings: dict[str, Any]) -> EngineConfig:
    for name in settings:
        if name not in EngineConfig.__slots__:
            raise unknown("engine setting", name, EngineConfig.__slots__)
    return EngineConfig(**settings)


def _device(name: str) -> str:
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _policy(policy: str | CapacityPolicy) -> CapacityPolicy:
    if not isinstance(policy, str):
        return policy
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    return POLICIES[policy]()
