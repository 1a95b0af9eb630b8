"""How broad a summary's attention is: working set (Eq. 7), entropy, and their mean over heads (Eq. 8).

Shape legend: X summaries (short, long), L layers, Hq query heads, H KV heads, G = Hq / H, d head dim, n tokens.
"""

import math

import torch
from torch import Tensor

from growpage.budget.base import DemandMetric, GroupReduce


def attention_logits(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Scaled scores in float32: queries [X, L, Hq, d], keys [L, n, H, d] → [X, L, H, G, n]."""
    num_summaries, num_layers, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[2]
    grouped = queries.to(torch.float32).view(
        num_summaries, num_layers, num_kv_heads, num_heads // num_kv_heads, head_dim
    )
    return torch.einsum("xlhgd,lnhd->xlhgn", grouped, keys.to(torch.float32)) * scale


def group_attention(logits: Tensor, reduce: GroupReduce) -> Tensor:
    """Attention of a KV head's query heads as one distribution: [X, L, H, G, n] → [X, L, H, n].

    `mean` stays a distribution; `max` is normalised again.
    """
    attention = logits.softmax(-1)
    if reduce is GroupReduce.mean:
        return attention.mean(3)
    peak = attention.amax(3)
    return peak / peak.sum(-1, keepdim=True)


def working_set(attention: Tensor, mass: float) -> Tensor:
    """Smallest number of keys whose attention sums to at least `mass` (Eq. 2).

    attention: [..., n], fp32, rows sum to 1. Returns [...], int64, in 1..n. Ties: any order gives the same
    count. Raises ValueError unless 0 < mass < 1.
    """
    if not 0.0 < mass < 1.0:
        raise ValueError(f"mass={mass}: must be in (0, 1)")
    covered = attention.sort(-1, descending=True).values.cumsum(-1)
    return ((covered < mass).sum(-1) + 1).clamp(max=attention.shape[-1])


def working_set_ratio(attention: Tensor, mass: float) -> Tensor:
    """r of Eq. 7 and 8: attention [X, L, H, n] → [X], the mean over layers and KV heads of K / n."""
    return (working_set(attention, mass).to(torch.float32) / attention.shape[-1]).mean((1, 2))


def entropy_ratio(attention: Tensor) -> Tensor:
    """Entropy over its maximum log n in place of K / n (Table 2): [X, L, H, n] → [X]."""
    num_tokens = attention.shape[-1]
    if num_tokens == 1:
        return torch.ones(attention.shape[0], device=attention.device)
    entropy = torch.special.entr(attention).sum(-1) / math.log(num_tokens)
    mean: Tensor = entropy.mean((1, 2))
    return mean


def demand_ratios(attention: Tensor, metric: DemandMetric, mass: float) -> Tensor:
    """r of each summary of one request: attention [X, L, H, n] → [X]."""
    if metric is DemandMetric.entropy:
        return entropy_ratio(attention)
    return working_set_ratio(attention, mass)
