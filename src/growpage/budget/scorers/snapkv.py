"""SnapKV: attention of the window's queries, pooled along the tokens (as G-KV's authors run it)."""

from growpage.budget.observation import max_pool, num_before_window, window_attention
from growpage.budget.scorers.base import Scored, ScoringInput


def snapkv(inputs: ScoringInput) -> Scored:
    """max_pool of the mean over queries of the largest attention of the group, softmax over all tokens."""
    size = inputs.settings.kernel_size
    assert size is not None
    attention = window_attention(inputs)[..., : num_before_window(inputs)]
    return Scored(max_pool(attention, size)[..., : inputs.num_candidates])
