"""The tensor work of a capacity event, behind one interface: plain torch anywhere, Triton kernels on CUDA.

Neither makes the host wait: what is measured stays on the device until the caller reads it.

Shape legend: X summaries (short, long), L layers, Hq query heads, H KV heads, G = Hq / H, d head dim, n stored tokens,
c candidates, r kept tokens.
"""

import logging
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from growpage.budget import demand
from growpage.budget.base import DemandMetric, GroupReduce
from growpage.budget.scorers.dual_timescale import larger_attention
from growpage.budget.selection import select_tokens
from growpage.engine.kernels.page_list import page_list
from growpage.engine.kv_cache import KVCache

logger = logging.getLogger(__name__)


class TorchOps:
    """The twins: written to be read, and what the kernels are compared with."""

    name = "torch"

    def logits(
        self, queries: Tensor, cache: KVCache, pages: Sequence[int], num_tokens: int, scale: float
    ) -> Tensor:
        """Scaled scores in float32: queries [X, L, Hq, d] over the first n slots of `pages` → [X, L, H, G, n]."""
        return demand.attention_logits(queries, cache.gather_keys(pages, num_tokens), scale)

    def attention(self, logits: Tensor, reduce: GroupReduce) -> Tensor:
        """One distribution a KV head: [X, L, H, G, c] → [X, L, H, c]."""
        return demand.group_attention(logits, reduce)

    def demand(self, attention: Tensor, metric: DemandMetric, mass: float) -> Tensor:
        """r of each summary (Eq. 7, 8): [X, L, H, c] → [X]."""
        return demand.demand_ratios(attention, metric, mass)

    def dual_timescale(self, logits: Tensor, reduce: GroupReduce) -> Tensor:
        """The larger attention of the summaries (Eq. 9): [X, L, H, G, c] → [L, H, c]."""
        return larger_attention(logits, reduce)

    def select(
        self, scores: Tensor, *, num_tokens: int, num_retained: int, page_size: int, k_loc: int
    ) -> Tensor:
        """Slots that stay (Eq. 10), increasing: scores [L, H, c] → [L, H, r] int64."""
        return select_tokens(
            scores,
            num_tokens=num_tokens,
            num_retained=num_retained,
            page_size=page_size,
            k_loc=k_loc,
        )

    def move(
        self, cache: KVCache, sources: Sequence[int], targets: Sequence[int], kept: Tensor
    ) -> None:
        """Token i of the target pages becomes token kept[..., i] of the sources; r fills whole pages."""
        tokens = cache.gather(sources, len(sources) * cache.page_size)
        index = kept.transpose(1, 2)[:, None, :, :, None]
        chosen = tokens.gather(2, index.expand(-1, 2, -1, -1, tokens.shape[-1]))
        cache.scatter(targets[: kept.shape[-1] // cache.page_size], chosen)


class TritonOps(TorchOps):
    """The kernels. Triton is imported here, so that a host without it can import this file."""

    name = "triton"

    def __init__(self) -> None:
        from growpage.engine.kernels import gather_kept, selection, summary_scores, working_set

        self._attention_logits = summary_scores.attention_logits
        self._group_attention = summary_scores.group_attention
        self._dual_timescale = summary_scores.dual_timescale
        self._demand_ratios = working_set.demand_ratios
        self._select_tokens = selection.select_tokens
        self._move_kept = gather_kept.move_kept

    def logits(
        self, queries: Tensor, cache: KVCache, pages: Sequence[int], num_tokens: int, scale: float
    ) -> Tensor:
        index = page_list(pages, cache.data.device)
        return self._attention_logits(queries, cache.data, index, num_tokens, scale)

    def attention(self, logits: Tensor, reduce: GroupReduce) -> Tensor:
        return self._group_attention(logits, reduce)

    def demand(self, attention: Tensor, metric: DemandMetric, mass: float) -> Tensor:
        return self._demand_ratios(attention, metric, mass)

    def dual_timescale(self, logits: Tensor, reduce: GroupReduce) -> Tensor:
        return self._dual_timescale(logits, reduce)

    def select(
        self, scores: Tensor, *, num_tokens: int, num_retained: int, page_size: int, k_loc: int
    ) -> Tensor:
        return self._select_tokens(
            scores,
            num_tokens=num_tokens,
            num_retained=num_retained,
            page_size=page_size,
            k_loc=k_loc,
        )

    def move(
        self, cache: KVCache, sources: Sequence[int], targets: Sequence[int], kept: Tensor
    ) -> None:
        self._move_kept(cache.data, sources, targets, kept)


def budget_ops(device: torch.device) -> TorchOps:
    """The kernels on a CUDA device with Triton, else the twins."""
    if device.type != "cuda":
        return TorchOps()
    if find_spec("triton") is None:
        logger.warning("triton is not installed: capacity events run in plain torch ops=torch")
        return TorchOps()
    return TritonOps()
