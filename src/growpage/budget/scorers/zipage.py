"""Zipage: a global score that remembers, against redundancy inside each page (arXiv 2603.08743)."""

import torch

from growpage.budget.observation import (
    max_pool,
    num_before_window,
    page_redundancy,
    remembered,
    window_attention,
)
from growpage.budget.scorers.base import Scored, ScoringInput


def zipage(inputs: ScoringInput) -> Scored:
    """S = lambda F - (1 - lambda) R, F = max(A, alpha F_old), pooled at a request's first compaction only."""
    settings, count = inputs.settings, inputs.num_candidates
    assert settings.kernel_size is not None
    assert settings.mix_lambda is not None
    assert settings.decay_factor is not None
    assert settings.similarity_threshold is not None
    assert settings.redundancy_temperature is not None
    assert count <= num_before_window(inputs)
    attention = window_attention(inputs)
    total = torch.maximum(
        attention, settings.decay_factor * remembered(inputs) + torch.zeros_like(attention)
    )
    pooled = max_pool(total, settings.kernel_size) if inputs.memory is None else total
    alike = page_redundancy(
        inputs.keys,
        inputs.page_size,
        settings.similarity_threshold,
        settings.redundancy_temperature,
    )
    mix = settings.mix_lambda
    return Scored(mix * pooled[..., :count] - (1 - mix) * alike[..., :count], total)
