"""The summary regulariser: a query summary should look where queries around its boundary really read.

At one boundary a document, each head's two summaries (exponential averages of its queries before RoPE, scaled to the
RMS of the newest query and rotated to the next position, as at inference) must put their attention on the keys that
sampled queries of a window read, and on <bos>. The reads are the target and get no gradient. This builds the premise
of query summaries into the model; the decision to grow or to hold is never trained.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from growpage.sequences_training.config import SummaryConfig
from growpage.sequences_training.model import Heads, rotate, rotation


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """What the regulariser must know of a batch; all [B] but expiry [B, T]."""

    prompt_lengths: Tensor
    lengths: Tensor
    expiry: Tensor


def summary_loss(
    heads: list[Heads],
    documents: Documents,
    config: SummaryConfig,
    theta: float,
    generator: torch.Generator,
) -> Tensor:
    """Cross entropy between reads and summary attention, mean over layers, heads, summaries, documents."""
    boundary = draw_boundary(documents, config, generator)
    candidates = _candidates(documents, boundary, config)
    windows = [(config.window_short[0], config.window_short[1])]
    windows += [(config.window_long[0], config.window_long[1])]
    samples = {
        window: _draw_queries(documents, boundary, window, config.num_queries, generator)
        for window in dict.fromkeys(windows)
    }
    weights = ema_weights(
        documents.prompt_lengths, boundary, documents.expiry.shape[1],
        [config.beta_short, config.beta_long],
    )  # fmt: skip
    total = torch.zeros((), device=boundary.device)
    for layer in heads:
        found = {
            window: _reads(layer, documents, candidates, queries, config)
            for window, queries in samples.items()
        }
        target = torch.stack([found[window] for window in windows], dim=1)  # [B, 2, H, T]
        scores = summary_scores(layer, weights, boundary, theta)
        scores = scores.masked_fill(~candidates[:, None, None], torch.finfo(scores.dtype).min)
        total = total - (target * scores.log_softmax(dim=-1)).sum(dim=-1).mean()
    return total / len(heads)


def draw_boundary(
    documents: Documents, config: SummaryConfig, generator: torch.Generator
) -> Tensor:
    """A position of the solution after which one boundary falls, [B]; some tokens stay on both sides."""
    first = documents.prompt_lengths + config.recent_tokens
    last = documents.lengths - 2 - config.recent_tokens
    chance = torch.rand(first.shape, generator=generator, device=first.device)
    return (first + chance * (last - first + 1)).long().clamp(max=last)


def ema_weights(
    prompt_lengths: Tensor, boundary: Tensor, length: int, betas: list[float]
) -> Tensor:
    """Weights of the queries in each summary at the boundary, [B, betas, T]; they sum to 1.

    Queries of the prompt have no part. This equals the bias-corrected exponential average.
    """
    positions = torch.arange(length, device=boundary.device)
    age = boundary[:, None] - positions
    counted = (age >= 0) & (positions >= prompt_lengths[:, None])
    weights = torch.stack([beta ** age.clamp(min=0) * counted for beta in betas], dim=1)
    return weights / weights.sum(dim=-1, keepdim=True)


def summary_scores(layer: Heads, weights: Tensor, boundary: Tensor, theta: float) -> Tensor:
    """Attention scores of the summaries on all keys, [B, S, H, T] fp32 (paper Eq. 12)."""
    batch, length, num_heads, size = layer.q_raw.shape
    rows = torch.arange(batch, device=boundary.device)
    q_raw = layer.q_raw
    mean = torch.bmm(weights.to(q_raw.dtype), q_raw.reshape(batch, length, -1))
    mean = mean.view(batch, -1, num_heads, size).float()
    newest = q_raw[rows, boundary].float().unsqueeze(1)
    summary = mean * (_rms(newest) / _rms(mean).clamp(min=1e-6))
    cos, sin = rotation(boundary + 1, size, theta)
    turned = rotate(summary, cos.unsqueeze(1), sin.unsqueeze(1))
    return head_scores(turned, layer.k)


def head_scores(q: Tensor, k: Tensor) -> Tensor:
    """Scaled dot products, [B, S, H, T] fp32, of queries [B, S, H, D] with keys [B, T, K, D]."""
    batch, count, num_heads, size = q.shape
    grouped = q.to(k.dtype).view(batch, count, k.shape[2], -1, size)
    scores = torch.einsum("bskgd,btkd->bskgt", grouped, k)
    scaled: Tensor = scores.reshape(batch, count, num_heads, -1).float() * size**-0.5
    return scaled


def _rms(x: Tensor) -> Tensor:
    return x.pow(2).mean(dim=-1, keepdim=True).sqrt()


def _candidates(documents: Documents, boundary: Tensor, config: SummaryConfig) -> Tensor:
    """Old keys that are still there at the boundary, [B, T]."""
    positions = torch.arange(documents.expiry.shape[1], device=boundary.device)
    old = positions <= boundary[:, None] - config.recent_tokens
    return old & (documents.expiry >= boundary[:, None])


def _draw_queries(
    documents: Documents,
    boundary: Tensor,
    window: tuple[int, int],
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """Positions of sampled queries within the window around the boundary, [B, count]."""
    low = torch.maximum(boundary - window[0] + 1, documents.prompt_lengths)
    high = torch.minimum(boundary + window[1], documents.lengths - 2)
    chance = torch.rand((len(boundary), count), generator=generator, device=boundary.device)
    return (low[:, None] + chance * (high - low + 1)[:, None]).long().clamp(max=high[:, None])


@torch.no_grad()
def _reads(
    layer: Heads, documents: Documents, candidates: Tensor, queries: Tensor, config: SummaryConfig
) -> Tensor:
    """What the queries read among the candidates, and <bos>, as a distribution [B, H, T]."""
    rows = torch.arange(len(queries), device=queries.device)[:, None]
    scores = head_scores(layer.q[rows, queries], layer.k)  # [B, Q, H, T]
    positions = torch.arange(scores.shape[-1], device=queries.device)
    seen = (positions <= queries[..., None]) & (queries[..., None] <= documents.expiry[:, None])
    scores = scores.masked_fill(~seen[:, :, None], float("-inf"))
    most = scores.softmax(dim=-1).amax(dim=1)
    target = (most - config.read_floor).clamp(min=0) * candidates[:, None]
    target[..., 0] += config.bos_weight
    return target / target.sum(dim=-1, keepdim=True)
