"""GrowPage's importance: the larger attention of the two summaries (paper Eq. 9)."""

from torch import Tensor

from growpage.budget.base import GroupReduce
from growpage.budget.demand import group_attention
from growpage.budget.scorers.base import Scored, ScoringInput


def dual_timescale(inputs: ScoringInput) -> Scored:
    """max(a_S, a_L) over the historical candidates."""
    return Scored(
        larger_attention(inputs.logits[..., : inputs.num_candidates], inputs.group_reduce)
    )


def larger_attention(logits: Tensor, reduce: GroupReduce) -> Tensor:
    """The same from the candidates' logits alone: [2, L, H, G, c] → [L, H, c]."""
    return group_attention(logits, reduce).amax(0)
