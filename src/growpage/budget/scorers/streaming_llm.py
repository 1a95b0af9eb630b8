"""StreamingLLM: the oldest tokens (attention sinks) and the newest stay, whatever they say."""

import torch

from growpage.budget.scorers.base import Scored, ScoringInput


def streaming_llm(inputs: ScoringInput) -> Scored:
    """A token's score is its age turned round; sinks stand above all."""
    num_layers, num_tokens, num_heads, _ = inputs.keys.shape
    assert inputs.settings.num_sinks is not None
    rank = torch.arange(inputs.num_candidates, dtype=torch.float32, device=inputs.keys.device)
    rank[: inputs.settings.num_sinks] += num_tokens
    return Scored(rank.expand(num_layers, num_heads, -1).contiguous())
