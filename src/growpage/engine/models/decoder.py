"""Llama, Qwen2 and Qwen3 as one decoder over flattened tokens, without caches or batches.

Shapes: T tokens of any number of requests in a row, Hq query heads, Hkv KV heads, d the dimension
of a head.
"""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from growpage.engine.models.rope import Rope, RopeScaling, apply, rope_entry
from growpage.errors import UsageError, require, unknown

# attend(layer, q_raw, q, k, v) -> [T, Hq, d]. q_raw [T, Hq, d] is the query after q-norm (if any)
# before RoPE; q [T, Hq, d] and k [T, Hkv, d] are rotated; v [T, Hkv, d]. All four may be strided
# views; do not write to them.
Attend = Callable[[int, Tensor, Tensor, Tensor, Tensor], Tensor]

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


_COUNTS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
    "head_dim", "max_position_embeddings",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """What of a Hugging Face config.json shapes the computation."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: int  # tokens, after rope scaling
    tie_word_embeddings: bool = False
    attention_bias: bool = False  # on q, k and v
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise unknown("architecture", self.architecture, ARCHITECTURES)
        for name in _COUNTS:
            require(getattr(self, name) >= 1, name, getattr(self, name), ">= 1")
        require(self.head_dim % 2 == 0, "head_dim", self.head_dim, "even, because RoPE turns pairs")
        require(
            self.num_heads % self.num_kv_heads == 0,
            "num_kv_heads", self.num_kv_heads, f"a divisor of num_heads={self.num_heads}",
        )  # fmt: skip
        require(self.rms_norm_eps > 0, "rms_norm_eps", self.rms_norm_eps, "> 0")
        require(self.rope_theta > 1, "rope_theta", self.rope_theta, "> 1")

    @property
    def softmax_scale(self) -> float:
        return float(self.head_dim**-0.5)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "DecoderConfig":
        """Read a config.json; UsageError for what the decoder would compute wrongly."""
        architecture = _architecture(config)
        _refuse_unsupported(config, architecture)
        rope = rope_entry(config)
        longest = int(_key(config, "max_position_embeddings"))
        scaling = RopeScaling.from_hf(rope, longest)
        if scaling is not None and scaling.kind != "llama3":
            # llama3 configs state the length after scaling, the others that before
            longest = max(longest, int(scaling.factor * scaling.original_max_position_embeddings))
        num_heads = int(_key(config, "num_attention_heads"))
        has_bias = bool(config.get("attention_bias", False))
        is_qwen2 = architecture == "Qwen2ForCausalLM"
        return cls(
            architecture=architecture,
            vocab_size=int(_key(config, "vocab_size")),
            hidden_size=int(_key(config, "hidden_size")),
            intermediate_size=int(_key(config, "intermediate_size")),
            num_layers=int(_key(config, "num_hidden_layers")),
            num_heads=num_heads,
            num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
            head_dim=int(config.get("head_dim") or int(_key(config, "hidden_size")) // num_heads),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope["rope_theta"]),
            rope_scaling=scaling,
            max_position_embeddings=longest,
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=has_bias or is_qwen2,
            o_bias=has_bias and not is_qwen2,
            mlp_bias=bool(config.get("mlp_bias", False)) and architecture == "LlamaForCausalLM",
            qk_norm=architecture == "Qwen3ForCausalLM",
            eos_token_ids=token_ids(config.get("eos_token_id")),
        )


class Decoder(nn.Module):
    """A decoder with fused projections and plain parameters (it trains), uninitialised at first."""

    def __init__(
        self,
        config: DecoderConfig,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.config = config
        new = _Maker(dtype, torch.device(device))
        self.embed = new.parameter(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, index, new) for index in range(config.num_layers))
        self.norm = new.parameter(config.hidden_size)
        self.lm_head = new.linear(config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed
        self.rope = Rope(config.head_dim, config.rope_theta, config.rope_scaling, device)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """token_ids [T] int64, positions [T] int64 -> final-normed hidden states [T, hidden]."""
        hidden = F.embedding(token_ids, self.embed)
        cos, sin = self.rope(positions)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, attend)
        return F.rms_norm(hidden, self.norm.shape, self.norm, self.config.rms_norm_eps)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, hidden] -> [N, vocab], float32."""
        logits: Tensor = self.lm_head(hidden)
        return logits.float()

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """The model's own RoPE of x [..., T, H, d] at positions [T], in float32; keeps the dtype."""
        cos, sin = self.rope(positions)
        return apply(x, cos, sin)

    def init_weights(self, seed: int = 0, std: float = 0.02) -> None:
        """Fill with N(0, std), norms with 1, biases with 0; a seed fixes it for a device type."""
        generator = torch.Generator(self.embed.device).manual_seed(seed)
        with torch.no_grad():
            for name, tensor in self.hf_tensors().items():
                if name.endswith("norm.weight"):
                    tensor.fill_(1.0)
                elif name.endswith(".bias"):
                    tensor.zero_()
                else:
                    tensor.normal_(0.0, std, generator=generator)

    def hf_tensors(self) -> dict[str, Tensor]:
        """Hugging Face names -> views into the fused parameters, to load or to save a checkpoint."""
        views = {
            "model.embed_tokens.weight": self.embed.detach(),
            "model.norm.weight": self.norm.detach(),
        }
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            parts = layer.hf_tensors().items()
            views |= {f"model.layers.{index}.{name}": view for name, view in parts}
        if not self.config.tie_word_embeddings:
            views["lm_head.weight"] = self.lm_head.weight.detach()
        return views

    def pack(self) -> None:
        """Keep a second copy of the weights in oneDNN's blocked layout, for inference on x86 CPUs.

        Two to four times faster than the plain layout for 2 to 32 tokens, at the price of twice the
        memory. The copy of a weight that changes in place is dropped. A no-op elsewhere.
        """
        if not can_pack(self.embed):
            return
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack()

    def packed_bytes(self) -> int:
        """Memory of the copies that `pack` made; what the layout pads is not counted."""
        return sum(m.packed_bytes() for m in self.modules() if isinstance(m, Linear))


class Layer(nn.Module):
    """Pre-norm attention and SwiGLU, each added to the residual stream [T, hidden]."""

    def __init__(self, config: DecoderConfig, index: int, new: "_Maker") -> None:
        super().__init__()
        self.index = index
        self.eps = config.rms_norm_eps
        self.head_dim, self.num_heads = config.head_dim, config.num_heads
        self.num_rotated = config.num_heads + config.num_kv_heads
        self.num_fused = config.num_heads + 2 * config.num_kv_heads
        hidden, inner, d = config.hidden_size, config.intermediate_size, config.head_dim
        self.attn_norm = new.parameter(hidden)
        self.qkv = new.linear(hidden, self.num_fused * d, config.attention_bias)
        # row 0 for queries, row 1 for keys
        self.qk_norm = new.parameter(2, d) if config.qk_norm else None
        self.o = new.linear(config.num_heads * d, hidden, config.o_bias)
        self.mlp_norm = new.parameter(hidden)
        self.gate_up = new.linear(hidden, 2 * inner, config.mlp_bias)
        self.down = new.linear(inner, hidden, config.mlp_bias)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = F.rms_norm(hidden, self.attn_norm.shape, self.attn_norm, self.eps)
        qkv = self.qkv(x).view(-1, self.num_fused, self.head_dim)
        raw = qkv[:, : self.num_rotated]
        if self.qk_norm is not None:
            raw = self._normed(raw, self.qk_norm)
        rotated = apply(raw, cos, sin)
        mixed = attend(
            self.index,
            raw[:, : self.num_heads],
            rotated[:, : self.num_heads],
            rotated[:, self.num_heads :],
            qkv[:, self.num_rotated :],
        )
        hidden = self.o(mixed.reshape(hidden.shape[0], -1), hidden)
        x = F.rms_norm(hidden, self.mlp_norm.shape, self.mlp_norm, self.eps)
        gate, up = self.gate_up(x).chunk(2, -1)
        out: Tensor = self.down(F.silu(gate) * up, hidden)
        return out

    def _normed(self, heads: Tensor, weights: Tensor) -> Tensor:
        """RMS norm of each head of [T, Hq + Hkv, d]; weights [2, d] for queries and for keys."""
        normed = F.rms_norm(heads, (self.head_dim,), None, self.eps)
        counts = (self.num_heads, self.num_rotated - self.num_heads)
        query, key = (row.expand(count, -1) for row, count in zip(weights, counts, strict=True))
        return normed * torch.cat((query, key))

    def hf_tensors(self) -> dict[str, Tensor]:
        d, num_kv_heads = self.head_dim, self.num_rotated - self.num_heads
        inner = self.gate_up.weight.shape[0] // 2
        views = {
            "input_layernorm.weight": self.attn_norm.detach(),
            "post_attention_layernorm.weight": self.mlp_norm.detach(),
            **self.qkv.hf_tensors(
                ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                (self.num_heads * d, num_kv_heads * d, num_kv_heads * d),
            ),
            **self.o.hf_tensors(("self_attn.o_proj",), (self.o.weight.shape[0],)),
            **self.gate_up.hf_tensors(("mlp.gate_proj", "mlp.up_proj"), (inner, inner)),
            **self.down.hf_tensors(("mlp.down_proj",), (self.down.weight.shape[0],)),
        }
        if self.qk_norm is not None:
            query, key = self.qk_norm.detach()
            views |= {"self_attn.q_norm.weight": query, "self_attn.k_norm.weight": key}
        return views


class Linear(nn.Module):
    """x [T, in] -> x Wᵀ + b (+ residual) [T, out], from a packed copy of W where there is one."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self._packed: Tensor | None = None
        self._packed_version = 0

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        packed = self._packed
        if packed is not None and not torch.is_grad_enabled():
            if self._packed_version == self.weight._version:
                return _packed_linear(x, packed, self.bias, residual)
            self._packed = None
        if residual is None:
            return F.linear(x, self.weight, self.bias)
        if self.bias is None:
            return torch.addmm(residual, x, self.weight.t())
        return residual + F.linear(x, self.weight, self.bias)

    def packed_bytes(self) -> int:
        return 0 if self._packed is None else self._packed.nbytes

    def pack(self) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
        self._packed_version = self.weight._version

    def hf_tensors(self, names: tuple[str, ...], rows: tuple[int, ...]) -> dict[str, Tensor]:
        """Views of the fused rows under the names of their parts."""
        weights = torch.split(self.weight.detach(), list(rows))
        views = {f"{name}.weight": view for name, view in zip(names, weights, strict=True)}
        if self.bias is not None:
            biases = torch.split(self.bias.detach(), list(rows))
            views |= {f"{name}.bias": view for name, view in zip(names, biases, strict=True)}
        return views

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Linear":
        self._packed = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


def can_pack(weight: Tensor) -> bool:
    """True where oneDNN's packed products are faster: float32 or bfloat16 on an x86 CPU."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and platform.machine().lower() in ("x86_64", "amd64")
        and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    )


def _packed_linear(
    x: Tensor, packed: Tensor, bias: Tensor | None, residual: Tensor | None
) -> Tensor:
    op = torch.ops.mkldnn._linear_pointwise
    out: Tensor = (
        op.default(x, packed, bias, "none", [], "")
        if residual is None
        else op.binary(x, residual, packed, bias, "add")
    )
    return out


class _Maker:
    """Makes uninitialised parameters of one dtype on one device."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device

    def parameter(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(shape, dtype=self.dtype, device=self.device))

    def linear(self, num_in: int, num_out: int, has_bias: bool = False) -> Linear:
        bias = self.parameter(num_out) if has_bias else None
        return Linear(self.parameter(num_out, num_in), bias)


def token_ids(value: object) -> tuple[int, ...]:
    """A token id, a list of them or None, as a tuple."""
    if value is None:
        return ()
    return tuple(int(v) for v in value) if isinstance(value, (list, tuple)) else (int(str(value)),)


def _key(config: Mapping[str, Any], name: str) -> Any:
    value = config.get(name)
    if value is None:
        raise UsageError(f"config.json has no {name}. Use the one that came with the weights.")
    return value


def _architecture(config: Mapping[str, Any]) -> str:
    found = config.get("architectures") or ()
    names = [str(name) for name in (found if isinstance(found, list | tuple) else [found])]
    for name in names:
        if name in ARCHITECTURES:
            return name
    raise unknown("config.json architectures", ", ".join(names) or "(none)", ARCHITECTURES)


def _refuse_unsupported(config: Mapping[str, Any], architecture: str) -> None:
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise UsageError(f"quantization_config ({method}): unsupported. Use the plain checkpoint.")
    slides = "sliding_attention" in (config.get("layer_types") or ()) or (
        config.get("use_sliding_window") and config.get("sliding_window") is not None
    )
    if slides:
        raise UsageError(
            "sliding-window attention: unsupported. Set use_sliding_window=false in config.json."
        )
    activation = config.get("hidden_act", "silu")
    require(activation == "silu", "hidden_act", activation, f"silu for {architecture}")
