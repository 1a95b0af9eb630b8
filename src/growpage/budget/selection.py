"""Which tokens a compaction keeps: block-local quota, then global top-k (paper Eq. 10).

Shape legend: L layers, H KV heads, n stored tokens, c historical candidates (all but the protected ones).
"""

import torch
from torch import Tensor


def select_tokens(
    scores: Tensor, *, num_tokens: int, num_retained: int, page_size: int, k_loc: int
) -> Tensor:
    """Slots that stay, per layer and KV head, in their order.

    scores: [L, H, c], higher stays; slots c..num_tokens are protected. Returns [L, H, num_retained] int64,
    increasing. Each historical page keeps at least `k_loc` of its candidates; when the quotas exceed what may stay,
    each is lowered to an equal share. Among equal scores the newer token stays.
    """
    num_candidates = scores.shape[-1]
    num_chosen = num_retained - (num_tokens - num_candidates)
    assert 0 < num_chosen <= num_candidates, (num_chosen, num_candidates)
    num_pages = -(-num_candidates // page_size)
    if local_quota_total(num_candidates, page_size, k_loc) > num_chosen:
        k_loc = num_chosen // num_pages
    ranked = _newest_first_ranking(_lift_local(scores, page_size, k_loc))
    kept = torch.zeros((*scores.shape[:2], num_tokens), dtype=torch.bool, device=scores.device)
    kept.scatter_(-1, ranked[..., :num_chosen], True)
    kept[..., num_candidates:] = True
    return kept.nonzero()[:, 2].view(*scores.shape[:2], num_retained)


def local_quota_total(num_candidates: int, page_size: int, k_loc: int) -> int:
    """Tokens that the block-local rule keeps in all; the last page may hold fewer candidates than k_loc."""
    full, rest = divmod(num_candidates, page_size)
    return full * k_loc + min(rest, k_loc)


def _lift_local(scores: Tensor, page_size: int, k_loc: int) -> Tensor:
    """Scores with the k_loc best of each historical page lifted above all others."""
    if k_loc == 0:
        return scores
    num_candidates = scores.shape[-1]
    padding = -num_candidates % page_size
    paged = torch.nn.functional.pad(scores, (0, padding), value=-torch.inf)
    paged = paged.view(*scores.shape[:2], -1, page_size)
    best = _newest_first_ranking(paged)[..., :k_loc]
    # Padding is "newest" among equal scores but never equal: candidates are finite.
    lifted: Tensor = paged.scatter(-1, best, torch.inf).flatten(-2)
    return lifted[..., :num_candidates]


def _newest_first_ranking(scores: Tensor) -> Tensor:
    """Indices by falling score along the last axis; among equals the higher index comes first."""
    last = scores.shape[-1] - 1
    return last - scores.flip(-1).sort(dim=-1, descending=True, stable=True).indices
