"""KV capacity decided while decoding: a research framework for KV-cache budgets of reasoning LLMs.

`LLM` and `SamplingParams` are loaded on first use, so that importing the package costs no torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from growpage.engine.llm import LLM as LLM
    from growpage.engine.request import SamplingParams as SamplingParams

__all__ = ["LLM", "SamplingParams", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from growpage.engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from growpage.engine.request import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'growpage' has no attribute {name!r}")
