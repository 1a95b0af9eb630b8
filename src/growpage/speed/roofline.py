"""The least time a decode step can take on a device whose copy bandwidth and matmul rate were measured. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SUMMARIES = 2  # short and long


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """Measured: bytes read and written by a copy, and operations of a large matrix product, a second."""

    copy_bytes_per_s: float
    matmul_flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Per step: memory and arithmetic; the larger one is the floor."""

    bytes_ms: float
    flops_ms: float

    @property
    def ms(self) -> float:
        return max(self.bytes_ms, self.flops_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of a shape: bytes and operations that no implementation can avoid."""

    weight_bytes: int  # read once a step; of the embedding only a few rows
    kv_bytes_per_token: int  # keys and values of all layers
    summary_bytes_per_row: int  # long and short query summaries, read and written
    flops_per_token: int  # matrix products of one token
    attention_flops_per_key: int

    @classmethod
    def of(cls, shape: Mapping[str, Any], dtype_bytes: int) -> "Costs":
        """shape: a Hugging Face config.json."""
        layers, hidden = shape["num_hidden_layers"], shape["hidden_size"]
        q = shape["num_attention_heads"] * shape["head_dim"]
        kv = shape["num_key_value_heads"] * shape["head_dim"]
        layer = hidden * (2 * q + 2 * kv) + 3 * hidden * shape["intermediate_size"]
        num_weights = layers * layer + hidden * shape["vocab_size"]
        return cls(
            weight_bytes=num_weights * dtype_bytes,
            kv_bytes_per_token=2 * layers * kv * dtype_bytes,
            summary_bytes_per_row=2 * SUMMARIES * layers * q * 4,
            flops_per_token=2 * num_weights,
            attention_flops_per_key=4 * layers * q,
        )


def floor(
    costs: Costs, rates: DeviceRates, measured: Mapping[str, Any], *, has_summaries: bool
) -> Floor | None:
    """Floor of the mean step of a measurement (`measurement.measure`); None without decode steps.

    Steps that also prefill count with the operations of their prompt tokens; recomputed tokens count for nothing.
    """
    num_steps = measured["num_decode_steps"]
    if not num_steps:
        return None
    num_rows = measured["num_decode_output_tokens"] / num_steps
    keys = measured["kv_token_steps"] / num_steps
    moved = costs.weight_bytes + costs.kv_bytes_per_token * (keys + num_rows)
    if has_summaries:
        moved += costs.summary_bytes_per_row * num_rows
    num_tokens = num_rows + measured["num_prompt_tokens"] / num_steps
    flops = costs.flops_per_token * num_tokens + costs.attention_flops_per_key * keys
    return Floor(
        bytes_ms=1e3 * moved / rates.copy_bytes_per_s,
        flops_ms=1e3 * flops / rates.matmul_flops_per_s,
    )
