"""A Qwen3 decoder that trains fast: weights fused, tokens flattened, one shape for all sequence lengths.

The per-token parts (`before_attention`, `after_attention`, `token_loss`) see [tokens, hidden] only. As every batch
has the same number of tokens, each of them is compiled once; attention alone knows documents.

Legend: B documents, T tokens a document, N = B * T, H query heads, K KV heads, D head size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from growpage.sequences_training.config import ModelShape

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # q [B,T,H,D], k and v [B,T,K,D] -> [B,T,H,D]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """What one layer read with: query before and after RoPE, key after RoPE; [B, T, heads, D]."""

    q_raw: Tensor
    q: Tensor
    k: Tensor


class Layer(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        hidden, size = shape.hidden_size, shape.head_dim
        heads = shape.num_heads + 2 * shape.num_kv_heads
        self.input_norm = nn.Parameter(torch.ones(hidden))
        self.qkv = nn.Parameter(torch.empty(heads * size, hidden))
        self.q_norm = nn.Parameter(torch.ones(size))
        self.k_norm = nn.Parameter(torch.ones(size))
        self.o = nn.Parameter(torch.empty(hidden, shape.num_heads * size))
        self.mlp_norm = nn.Parameter(torch.ones(hidden))
        self.gate_up = nn.Parameter(torch.empty(2 * shape.intermediate_size, hidden))
        self.down = nn.Parameter(torch.empty(hidden, shape.intermediate_size))


class Reasoner(nn.Module):
    """Weights and the forward pass. `compile_parts` speeds it up for one fixed N."""

    def __init__(self, shape: ModelShape, vocab_size: int) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.empty(vocab_size, shape.hidden_size))
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.num_layers)])
        self.norm = nn.Parameter(torch.ones(shape.hidden_size))
        self._before, self._after, self._loss = before_attention, after_attention, token_loss

    def initialise(self, seed: int) -> None:
        """N(0, 0.02); the two projections into the residual stream smaller by sqrt(2 * layers)."""
        generator = torch.Generator().manual_seed(seed)
        small = 0.02 / (2 * len(self.layers)) ** 0.5
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                std = small if name.endswith((".o", ".down")) else 0.02
                weight.data.copy_(torch.randn(weight.shape, generator=generator) * std)

    def compile_parts(self) -> None:
        self._before = torch.compile(before_attention, dynamic=False)
        self._after = torch.compile(after_attention, dynamic=False)
        self._loss = torch.compile(token_loss, dynamic=False)

    def forward(
        self, ids: Tensor, positions: Tensor, attend: Callable[[int], Attend]
    ) -> tuple[Tensor, list[Heads]]:
        """ids, positions: [B, T]; attend(layer) gives the attention of a layer.

        Returns the last hidden states [N, hidden], not normalised, and the heads of every layer.
        """
        batch, length = ids.shape
        shape = self.shape
        x = F.embedding(ids.flatten(), self.embedding)
        cos, sin = rotation(positions.flatten(), shape.head_dim, shape.rope_theta)
        sizes = (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.rms_norm_eps)
        heads = []
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            q_raw, q, k, v = (
                part.view(batch, length, -1, shape.head_dim)
                for part in self._before(
                    x, layer.input_norm, layer.qkv, layer.q_norm, layer.k_norm, cos, sin, *sizes
                )
            )
            heads.append(Heads(q_raw=q_raw, q=q, k=k))
            mixed = attend(index)(q, k, v).reshape(batch * length, -1)
            x = self._after(
                x, mixed, layer.o, layer.mlp_norm, layer.gate_up, layer.down, shape.rms_norm_eps
            )
        return x, heads

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden] -> [N, vocabulary] fp32."""
        normed = rms_norm(hidden, self.norm, self.shape.rms_norm_eps)
        return F.linear(normed, self.embedding).float()

    def loss(self, hidden: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Mean cross entropy over the tokens whose weight is 1; targets, weights: [N]."""
        eps = self.shape.rms_norm_eps
        return self._loss(hidden, self.norm, self.embedding, targets, weights, eps)


def before_attention(
    x: Tensor, norm: Tensor, qkv: Tensor, q_norm: Tensor, k_norm: Tensor, cos: Tensor, sin: Tensor,
    num_heads: int, num_kv_heads: int, size: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """x [N, hidden] -> query before RoPE, query, key, value; [N, heads, D]."""
    normed = rms_norm(x, norm, eps)
    parts = F.linear(normed, qkv).view(x.shape[0], -1, size)
    q, k, v = torch.split(parts, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    q_raw = rms_norm(q, q_norm, eps)
    k_raw = rms_norm(k, k_norm, eps)
    dtype = v.dtype
    q_turned, k_turned = rotate(q_raw, cos, sin), rotate(k_raw, cos, sin)
    return q_raw.to(dtype), q_turned.to(dtype), k_turned.to(dtype), v.contiguous()


def after_attention(
    x: Tensor, mixed: Tensor, o: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, eps: float
) -> Tensor:
    """Output projection, residual, SwiGLU, residual; [N, hidden]."""
    x = x + F.linear(mixed, o)
    normed = rms_norm(x, norm, eps)
    gate, up = F.linear(normed, gate_up).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, down)


def token_loss(
    hidden: Tensor, norm: Tensor, embedding: Tensor, targets: Tensor, weights: Tensor, eps: float
) -> Tensor:
    """Logits stay fp32: in bf16 a probability near 1 could not be told from 1."""
    with torch.autocast(hidden.device.type, enabled=False):
        logits = F.linear(rms_norm(hidden, norm, eps), embedding)
        losses = F.cross_entropy(logits, targets, reduction="none")
        return (losses * weights).sum() / weights.sum()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """fp32 inside and out; compiled, it costs no pass over memory of its own."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps) * weight


def rotation(positions: Tensor, size: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin of RoPE, [..., 1, D/2] fp32 for positions [...]."""
    steps = torch.arange(0, size, 2, dtype=torch.float32, device=positions.device) / size
    angles = positions.float().unsqueeze(-1) * theta**-steps
    return angles.cos().unsqueeze(-2), angles.sin().unsqueeze(-2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE with the halves of a head as pairs (Hugging Face's layout); x [..., heads, D]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Causal attention, or attention under an additive bias [B, 1, T, S]; shapes as in `Attend`."""
    group = q.shape[2] // k.shape[2]
    q_BHTD = q.transpose(1, 2)
    k_BHSD, v_BHSD = _repeat_heads(k, group), _repeat_heads(v, group)
    if bias is not None:
        bias = bias.expand(-1, q_BHTD.shape[1], -1, -1)
    mixed = F.scaled_dot_product_attention(
        q_BHTD, k_BHSD, v_BHSD, attn_mask=bias, is_causal=bias is None
    )
    return mixed.transpose(1, 2)


def _repeat_heads(x: Tensor, group: int) -> Tensor:
    """[B, S, K, D] -> [B, K * group, S, D], each head `group` times in a row."""
    batch, length, heads, size = x.shape
    repeated = x.transpose(1, 2).unsqueeze(2).expand(batch, heads, group, length, size)
    return repeated.reshape(batch, heads * group, length, size)
