"""R-KV: importance against redundancy, both of single keys (arXiv 2505.24133; the reference, per KV head)."""

from growpage.budget.observation import max_pool, merged_attention, redundancy
from growpage.budget.scorers.base import Scored, ScoringInput


def rkv(inputs: ScoringInput) -> Scored:
    """Z = lambda I - (1 - lambda) R. The largest logit of the group stands for it before the softmax."""
    settings, count = inputs.settings, inputs.num_candidates
    assert settings.kernel_size is not None
    assert settings.mix_lambda is not None
    assert settings.similarity_threshold is not None
    importance = max_pool(merged_attention(inputs, "max").mean(2), settings.kernel_size)
    alike = redundancy(inputs.keys, settings.similarity_threshold)
    mix = settings.mix_lambda
    return Scored(mix * importance[..., :count] - (1 - mix) * alike[..., :count])
