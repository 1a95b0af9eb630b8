"""What a scorer sees and returns."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor

from growpage.budget.base import GroupReduce
from growpage.budget.scorer_settings import ScorerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringInput:
    """One request at a compaction. L layers, n stored tokens, H KV heads, G query heads a group, d head dim.

    keys, values: [L, n, H, d], keys after RoPE; logits: [2, L, H, G, n], scaled scores of the short and the long
    summary at the current position. The first `num_candidates` tokens compete, the others are protected.
    `settings` are resolved: what this scorer reads is not None.

    Only with `settings.window`: window_queries [L, m, Hq, d], after RoPE, of the last m stored tokens, the oldest
    first. m is smaller than the window while a request has decoded fewer tokens, but at least 1.
    memory [L, H, n]: what the scorer remembered at the request's last compaction, zero for the tokens that came since;
    None before the first.
    """

    keys: Tensor
    values: Tensor
    logits: Tensor
    num_candidates: int
    group_reduce: GroupReduce
    page_size: int
    softmax_scale: float
    settings: ScorerSettings = field(default_factory=ScorerSettings)
    window_queries: Tensor | None = None
    memory: Tensor | None = None


class Scored(NamedTuple):
    """scores: [L, H, num_candidates] fp32, finite; higher stays.

    memory: [L, H, n] fp32, of which the kept tokens' part is there at the request's next compaction.
    """

    scores: Tensor
    memory: Tensor | None = None


class Scorer(Protocol):
    """A pure function of its input."""

    def __call__(self, inputs: ScoringInput) -> Scored: ...
