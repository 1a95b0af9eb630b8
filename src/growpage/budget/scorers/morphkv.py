"""MorphKV: attention of the window's queries, joined by sum or maximum (arXiv 2503.00979)."""

from growpage.budget.observation import merged_attention
from growpage.budget.scorer_settings import Fusion
from growpage.budget.scorers.base import Scored, ScoringInput


def morphkv(inputs: ScoringInput) -> Scored:
    """The group's logits are summed before the softmax over the tokens older than the window."""
    attention = merged_attention(inputs, "sum")
    is_max = inputs.settings.fusion is Fusion.max
    fused = attention.amax(2) if is_max else attention.sum(2)
    return Scored(fused[..., : inputs.num_candidates])
