"""H2O: tokens that gathered most attention so far, summed over compactions (as G-KV's authors run it)."""

from growpage.budget.observation import remembered, window_attention
from growpage.budget.scorers.base import Scored, ScoringInput


def h2o(inputs: ScoringInput) -> Scored:
    """F = alpha F_old + A, where A is the attention of the window's queries at this compaction."""
    alpha = inputs.settings.decay_factor
    assert alpha is not None
    total = window_attention(inputs) + alpha * remembered(inputs)
    return Scored(total[..., : inputs.num_candidates], total)
