"""Measures a request at a boundary and compacts its pages (paper §3.2, §3.3).

Shape legend: L layers, H KV heads, G query heads a group, n stored tokens, d head dim.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from growpage.budget.base import DemandMetric, DemandPolicy, EvictingPolicy, Signal, Signals
from growpage.budget.demand import attention_logits, demand_ratios, group_attention
from growpage.budget.scorers.base import ScoringInput
from growpage.budget.scorers.registry import SCORERS
from growpage.budget.selection import select_tokens
from growpage.engine.kv_cache import KVCache
from growpage.engine.plan import Compaction
from growpage.engine.query_state import QuerySummaries
from growpage.engine.sequence import Sequence
from growpage.errors import unknown

Rotate = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRecord:
    """What a compaction kept, for whoever listens: `kept` [L, H, retained], slots before it, increasing."""

    request_id: str
    position: int
    num_tokens: int
    kept: Tensor


@dataclass(slots=True, kw_only=True)
class _View:
    """A request's stored tokens and what its summaries see of them, at one position."""

    tokens: Tensor  # [L, 2, n, H, d]
    logits: Tensor  # [2, L, H, G, n]
    kept: dict[int, Tensor]  # num_retained → selection


class Compactor:
    """Signals and compactions of one step share what they gather; `clear` ends the step."""

    def __init__(
        self,
        policy: EvictingPolicy,
        cache: KVCache,
        summaries: QuerySummaries,
        *,
        rotate: Rotate,
        softmax_scale: float,
    ) -> None:
        """rotate: the model's RoPE, (x [T, Hq, d], positions [T]) → x rotated."""
        if policy.scorer not in SCORERS:
            raise unknown("policy.scorer", policy.scorer, SCORERS)
        self.listener: Callable[[CompactionRecord], None] | None = None
        self._scorer = SCORERS[policy.scorer]
        self._policy = policy
        self._cache = cache
        self._summaries = summaries
        self._rotate = rotate
        self._scale = softmax_scale
        self._views: dict[str, _View] = {}

    def measure(self, sequence: Sequence) -> Signals:
        """What the policy asks for at this boundary (Eq. 7, 8; Theorem 3.1 for the lost mass)."""
        view = self._view(sequence, sequence.block_table, sequence.num_resident_tokens)
        r_short = r_long = lost_mass = None
        if Signal.DELTA in self._policy.signals():
            r_short, r_long = self._demand(view)
        if Signal.LOST_MASS in self._policy.signals():
            lost_mass = self._lost_mass(view, sequence.num_pages)
        return Signals(r_short=r_short, r_long=r_long, lost_mass=lost_mass)

    def compact(self, compaction: Compaction) -> None:
        """Move the kept tokens of every layer and KV head into the target pages, in their order."""
        view = self._view(compaction.sequence, compaction.source_pages, compaction.num_tokens)
        kept = self._kept(view, compaction.num_retained)
        index = kept.transpose(1, 2)[:, None, :, :, None]
        head_dim = view.tokens.shape[-1]
        tokens = view.tokens.gather(2, index.expand(-1, 2, -1, -1, head_dim))
        num_pages = compaction.num_retained // self._cache.page_size
        self._cache.scatter(compaction.target_pages[:num_pages], tokens)
        if self.listener is not None:
            self.listener(
                CompactionRecord(
                    request_id=compaction.sequence.request_id,
                    position=compaction.sequence.position,
                    num_tokens=compaction.num_tokens,
                    kept=kept,
                )
            )

    def clear(self) -> None:
        self._views.clear()

    def _view(
        self, sequence: Sequence, pages: list[int] | tuple[int, ...], num_tokens: int
    ) -> _View:
        view = self._views.get(sequence.request_id)
        if view is None:
            tokens = self._cache.gather(pages, num_tokens)
            queries = self._queries(sequence)
            logits = attention_logits(queries, tokens[:, 0], self._scale)
            view = _View(tokens=tokens, logits=logits, kept={})
            self._views[sequence.request_id] = view
        return view

    def _queries(self, sequence: Sequence) -> Tensor:
        """Calibrated summaries, rotated to the position of the next token: [2, L, Hq, d]."""
        assert sequence.query_slot is not None
        assert sequence.has_query
        queries = self._summaries.calibrated(sequence.query_slot)
        flat = queries.flatten(0, 1)
        positions = torch.full((flat.shape[0],), sequence.position, device=flat.device)
        return self._rotate(flat, positions).view_as(queries)

    def _demand(self, view: _View) -> tuple[float, float]:
        """r_short, r_long over all stored tokens but the newest page."""
        policy = self._policy
        metric, mass = DemandMetric.topp, 0.99
        if isinstance(policy, DemandPolicy):
            metric, mass = policy.metric, policy.mass
        candidates = view.logits[..., : -self._cache.page_size]
        return demand_ratios(group_attention(candidates, policy.group_reduce), metric, mass)

    def _kept(self, view: _View, num_retained: int) -> Tensor:
        if num_retained not in view.kept:
            num_tokens = view.tokens.shape[2]
            page_size = self._cache.page_size
            num_candidates = num_tokens - self._policy.num_kept_newest(page_size)
            scores = self._scorer(
                ScoringInput(
                    keys=view.tokens[:, 0],
                    values=view.tokens[:, 1],
                    logits=view.logits,
                    num_candidates=num_candidates,
                    group_reduce=self._policy.group_reduce,
                )
            )
            view.kept[num_retained] = select_tokens(
                scores,
                num_tokens=num_tokens,
                num_retained=num_retained,
                page_size=page_size,
                k_loc=self._policy.local_quota(page_size),
            )
        return view.kept[num_retained]

    def _lost_mass(self, view: _View, num_pages: int) -> float:
        """Attention over the historical candidates that Compress & Hold would evict.

        Per layer and KV head the worse of the two summaries, then the mean.
        """
        page_size = self._cache.page_size
        bound = self._policy.max_pages(page_size)
        held = num_pages if bound is None else min(num_pages, bound)
        kept = self._kept(view, (held - 1) * page_size)
        num_candidates = view.tokens.shape[2] - self._policy.num_kept_newest(page_size)
        attention = group_attention(view.logits[..., :num_candidates], self._policy.group_reduce)
        is_kept = torch.zeros(
            (*kept.shape[:2], view.tokens.shape[2]), dtype=torch.bool, device=kept.device
        ).scatter_(-1, kept, True)[..., :num_candidates]
        lost = attention.masked_fill(is_kept, 0.0).sum(-1)
        return float(lost.amax(0).mean())
