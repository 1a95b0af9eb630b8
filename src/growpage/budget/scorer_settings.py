"""Hyperparameters of the token scorers and their recipes' defaults, one row a scorer. No torch.

`None` means: as the recipe says. Values that a scorer does not read are refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from growpage.errors import UsageError, require, unknown


class Fusion(str, Enum):
    """How MorphKV joins the attention of the window's queries."""

    sum = "sum"
    max = "max"


@dataclass(slots=True, kw_only=True)
class ScorerSettings:
    """All that any scorer can be told; each reads some of it."""

    window: int | None = None  # newest decode queries that vote; their tokens are protected
    kernel_size: int | None = None  # of max-pooling along the tokens; 1: none
    mix_lambda: float | None = None  # weight of importance; redundancy has 1 - this
    similarity_threshold: float | None = None  # keys with a larger cosine are alike
    redundancy_temperature: float | None = None  # T_r of Zipage
    decay_factor: float | None = None  # alpha of scores remembered from the last compaction
    fusion: Fusion | None = None
    num_sinks: int | None = None  # oldest tokens that stay

    def __post_init__(self) -> None:
        whole = {"window": (1, 4096), "kernel_size": (1, 255), "num_sinks": (0, 4096)}
        for name, (least, most) in whole.items():
            self._require(name, least, most, f"in {least}..{most}")
        size = self.kernel_size
        require(size is None or size % 2 == 1, f"{_KEY}.kernel_size", size, "odd")
        for name in ("mix_lambda", "decay_factor"):
            self._require(name, 0.0, 1.0, "in 0..1")
        self._require("similarity_threshold", -1.0, 1.0, "in -1..1 (a cosine)")
        self._require("redundancy_temperature", 1e-3, 1e3, "in 0.001..1000")

    def _require(self, name: str, least: float, most: float, words: str) -> None:
        value = getattr(self, name)
        require(value is None or least <= value <= most, f"{_KEY}.{name}", value, words)


_KEY = "policy.scorer_settings"

RECIPES: dict[str, ScorerSettings] = {
    "dual_timescale": ScorerSettings(),
    "streaming_llm": ScorerSettings(num_sinks=4),
    "snapkv": ScorerSettings(window=16, kernel_size=5),
    "h2o": ScorerSettings(window=1, decay_factor=1.0),
    "rkv": ScorerSettings(window=8, kernel_size=7, mix_lambda=0.1, similarity_threshold=0.5),
    "gkv": ScorerSettings(
        window=16, kernel_size=1, mix_lambda=0.5, similarity_threshold=0.5, decay_factor=0.8
    ),
    "morphkv": ScorerSettings(window=32, fusion=Fusion.sum),
    "zipage": ScorerSettings(
        window=16,
        kernel_size=5,
        mix_lambda=0.2,
        similarity_threshold=0.5,
        redundancy_temperature=0.4,
        decay_factor=0.8,
    ),
}


def resolved(scorer: str, settings: ScorerSettings) -> ScorerSettings:
    """The settings with the recipe's defaults. Raises `UsageError` for an unknown scorer or a foreign setting."""
    if scorer not in RECIPES:
        raise unknown("policy.scorer", scorer, RECIPES)
    recipe, given = _values(RECIPES[scorer]), _values(settings)
    for name in sorted(given.keys() - recipe.keys()):
        value = getattr(given[name], "value", given[name])
        takes = f"It takes {', '.join(recipe)}" if recipe else "It takes no settings"
        raise UsageError(f"{_KEY}.{name}={value}: no effect with policy.scorer={scorer}. {takes}.")
    return replace(settings, **{**recipe, **given})


def _values(settings: ScorerSettings) -> Mapping[str, Any]:
    """Those that are not None."""
    pairs = ((item.name, getattr(settings, item.name)) for item in fields(settings))
    return {name: value for name, value in pairs if value is not None}
