"""GrowPage's importance: the larger attention of the two summaries (paper Eq. 9)."""

from torch import Tensor

from growpage.budget.demand import group_attention
from growpage.budget.scorers.base import ScoringInput


def dual_timescale(inputs: ScoringInput) -> Tensor:
    """max(a_S, a_L) over the historical candidates: [L, H, num_candidates]."""
    logits = inputs.logits[..., : inputs.num_candidates]
    return group_attention(logits, inputs.group_reduce).amax(0)
