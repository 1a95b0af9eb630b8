"""Rotary position embedding, plain or scaled (linear, llama3, YaRN), as `transformers` has it.

The order of the float32 operations is theirs too: at position 100,000 one unit in the last place of
a frequency turns a pair by up to 0.01 rad.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from growpage.errors import UsageError, require, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """The `rope_scaling` (or `rope_parameters`) of a config.json; a kind reads only its fields."""

    kind: str  # linear | llama3 | yarn
    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: whole-numbered bounds of the ramp
    attention_factor: float = 1.0  # yarn: factor on cos and sin

    @classmethod
    def from_hf(
        cls, entry: Mapping[str, Any], max_position_embeddings: int
    ) -> "RopeScaling | None":
        """None for plain RoPE. UsageError for an unknown kind or a factor that is no number >= 1."""
        kind = entry.get("rope_type") or entry.get("type") or "default"
        if kind == "default":
            return None
        if kind not in _INV_FREQ:
            raise unknown("rope_scaling.rope_type", str(kind), ["default", *_INV_FREQ])
        factor = entry.get("factor")
        original = entry.get("original_max_position_embeddings") or max_position_embeddings
        if factor is None and kind == "yarn":
            factor = max_position_embeddings / original
        require(
            isinstance(factor, (int, float)) and factor >= 1,
            "rope_scaling.factor", factor, ">= 1", "Mend config.json.",
        )  # fmt: skip
        assert factor is not None
        return cls(
            kind=kind,
            factor=float(factor),
            original_max_position_embeddings=int(original),
            low_freq_factor=float(entry.get("low_freq_factor") or 1.0),
            high_freq_factor=float(entry.get("high_freq_factor") or 4.0),
            beta_fast=float(entry.get("beta_fast") or 32.0),
            beta_slow=float(entry.get("beta_slow") or 1.0),
            truncate=bool(entry.get("truncate", True)),
            attention_factor=_attention_factor(entry, float(factor)) if kind == "yarn" else 1.0,
        )


def rope_entry(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope settings of a config.json: old keys (rope_theta, rope_scaling) and rope_parameters.

    Raises UsageError when RoPE covers only a part of the head, which the decoder does not do.
    """
    entry: dict[str, Any] = {
        "rope_theta": config.get("rope_theta", 10000.0),
        "original_max_position_embeddings": config.get("original_max_position_embeddings"),
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
    }
    entry |= config.get("rope_scaling") or {}
    entry |= config.get("rope_parameters") or {}
    partial = entry["partial_rotary_factor"]
    require(partial in (None, 1), "partial_rotary_factor", partial, "1 (RoPE on the whole head)")
    if any(isinstance(value, Mapping) for value in entry.values()):
        raise UsageError("rope_parameters: must be one set for all layers, not one a layer type.")
    return entry


class Rope(nn.Module):
    """The rotation of one model; angles are float32 whatever the dtype of the weights."""

    inv_freq: Tensor  # [d / 2], float32

    def __init__(
        self,
        head_dim: int,
        theta: float,
        scaling: RopeScaling | None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.head_dim, self.theta, self.scaling = head_dim, theta, scaling
        self.factor = scaling.attention_factor if scaling else 1.0
        self.register_buffer("inv_freq", self._frequencies().to(device), persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [T] -> cos and sin, [T, 1, d]; the first half of sin is negated for `apply`."""
        angles = (positions[:, None].float() * self.inv_freq)[:, None]
        cos, sin = angles.cos(), angles.sin()
        if self.factor != 1.0:
            cos, sin = cos * self.factor, sin * self.factor
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

    def _frequencies(self) -> Tensor:
        kind = self.scaling.kind if self.scaling else "default"
        return _INV_FREQ[kind](self.head_dim, self.theta, self.scaling)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Rope":
        # `.to(bfloat16)` and `.to_empty()` would spoil the frequencies: make them anew
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.inv_freq = self._frequencies().to(self.inv_freq.device)
        return self


def apply(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., T, H, d] in float32; the dtype comes out as it went in.

    The two halves of the head are the pairs, so that half-turn(x) * sin is roll(x) * (-sin, sin).
    """
    x32 = x.float()
    rolled = x32.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x32 * cos, rolled, sin).to(x.dtype)


def _plain(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    inv_freq: Tensor = 1.0 / (theta ** _exponents(head_dim))
    return inv_freq


def _exponents(head_dim: int) -> Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.int64, device="cpu").float() / head_dim


def _linear(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    assert scaling is not None
    return _plain(head_dim, theta, None) / scaling.factor


def _llama3(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Llama 3.1: long waves are slowed down by `factor`, short ones kept, the rest interpolated."""
    assert scaling is not None
    inv_freq = _plain(head_dim, theta, None)
    turns = scaling.original_max_position_embeddings / (2 * math.pi / inv_freq)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return keep * inv_freq + (1 - keep) * inv_freq / scaling.factor


def _yarn(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """YaRN (arXiv:2309.00071): a ramp over dimensions from kept to slowed-down frequencies."""
    assert scaling is not None
    inv_freq = _plain(head_dim, theta, None)

    def dimension(num_turns: float) -> float:
        wavelength = scaling.original_max_position_embeddings / (num_turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(head_dim // 2, device="cpu").float() - low) / width).clamp(0.0, 1.0)
    keep = 1 - ramp
    slowed = 1.0 / (scaling.factor * theta ** _exponents(head_dim))
    return slowed * (1 - keep) + inv_freq * keep


def _attention_factor(entry: Mapping[str, Any], factor: float) -> float:
    given = entry.get("attention_factor")
    if given is not None:
        return float(given)

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0

    if entry.get("mscale") and entry.get("mscale_all_dim"):
        return mscale(float(entry["mscale"])) / mscale(float(entry["mscale_all_dim"]))
    return mscale(1.0)


_INV_FREQ: dict[str, Callable[[int, float, RopeScaling | None], Tensor]] = {
    "default": _plain,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
