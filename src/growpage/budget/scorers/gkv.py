"""G-KV: a global score that remembers, against redundancy (arXiv 2512.00504)."""

import torch
import torch.nn.functional as F

from growpage.budget.observation import (
    max_pool,
    num_before_window,
    redundancy,
    remembered,
    window_attention,
)
from growpage.budget.scorers.base import Scored, ScoringInput


def gkv(inputs: ScoringInput) -> Scored:
    """S = lambda F - (1 - lambda) R, F = max(alpha F_old, A); A and R have their maximum at 1 in each head."""
    settings, count = inputs.settings, inputs.num_candidates
    assert settings.kernel_size is not None
    assert settings.mix_lambda is not None
    assert settings.decay_factor is not None
    assert settings.similarity_threshold is not None
    stop = num_before_window(inputs)
    attention = _with_maximum_1(window_attention(inputs)[..., :stop])
    # Tokens of the window have no score yet: they are new at the next compaction.
    attention = F.pad(attention, (0, inputs.keys.shape[1] - stop))
    old = settings.decay_factor * remembered(inputs) + torch.zeros_like(attention)
    total = torch.maximum(attention, old)
    total[..., stop:] = 0.0
    pooled = max_pool(total[..., :stop], settings.kernel_size)
    alike = _with_maximum_1(redundancy(inputs.keys, settings.similarity_threshold)[..., :stop])
    mix = settings.mix_lambda
    return Scored(mix * pooled[..., :count] - (1 - mix) * alike[..., :count], total)


def _with_maximum_1(x: torch.Tensor) -> torch.Tensor:
    return x / x.amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
