"""What the newest queries look at, and which keys are alike: the parts of the scorers with a window.

Everything is float32 and done a layer at a time, since scores of all layers at once would be large.

Shape legend: L layers, H KV heads, G query heads a group, m queries of the window, w its size, n stored tokens, d
head dim, b tokens a page.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from growpage.budget.scorers.base import ScoringInput

_ROWS_AT_A_TIME = 1024


def window_logits(inputs: ScoringInput) -> Iterator[Tensor]:
    """Scaled scores of a layer, [H, G, m, n]; -inf where the token is newer than the query's own.

    The queries are those of the last m stored tokens.
    """
    assert inputs.window_queries is not None
    num_tokens, num_kv_heads = inputs.keys.shape[1:3]
    count = inputs.window_queries.shape[1]
    places = torch.arange(num_tokens, device=inputs.keys.device)
    is_newer = places > places[num_tokens - count :, None]
    for queries, keys in zip(inputs.window_queries, inputs.keys, strict=True):
        grouped = queries.float().unflatten(1, (num_kv_heads, -1))
        logits = torch.einsum("mhgd,nhd->hgmn", grouped, keys.float()) * inputs.softmax_scale
        yield logits.masked_fill(is_newer, -torch.inf)


def window_attention(inputs: ScoringInput) -> Tensor:
    """Softmax of each query head over all tokens, the largest of the group, the mean of the queries: [L, H, n]."""
    layers = [logits.softmax(-1).amax(1).mean(1) for logits in window_logits(inputs)]
    return torch.stack(layers)


def merged_attention(inputs: ScoringInput, merge: str) -> Tensor:
    """Logits of the group merged first, then softmax over the tokens before the window: [L, H, m, n - w].

    merge: "max" as R-KV, "sum" as MorphKV.
    """
    stop = num_before_window(inputs)
    layers = []
    for logits in window_logits(inputs):
        older = logits[..., :stop]
        merged = older.amax(1) if merge == "max" else older.sum(1)
        layers.append(merged.softmax(-1))
    return torch.stack(layers)


def num_before_window(inputs: ScoringInput) -> int:
    """Tokens older than the window's; all candidates are."""
    assert inputs.settings.window is not None
    stop = inputs.keys.shape[1] - inputs.settings.window
    assert inputs.num_candidates <= stop, "the tokens of the window are protected"
    return stop


def max_pool(scores: Tensor, size: int) -> Tensor:
    """The largest of `size` neighbours along the last axis; `size` is odd."""
    if size == 1:
        return scores
    return F.max_pool1d(scores, size, stride=1, padding=size // 2)


def remembered(inputs: ScoringInput) -> Tensor | float:
    """Scores of the last compaction, zero for tokens that came since: [L, H, n]."""
    return 0.0 if inputs.memory is None else inputs.memory


def redundancy(keys: Tensor, threshold: float) -> Tensor:
    """How alike a key is to all others: keys [L, n, H, d] → [L, H, n], rows sum to 1.

    As in R-KV: cosines with the diagonal at 0; each row forgives the last key above the threshold - or, where there
    is none, key 0, as the authors' code does; softmax of the columns' means.
    """
    return torch.stack([_redundancy(layer.float(), threshold) for layer in keys])


def _redundancy(keys: Tensor, threshold: float) -> Tensor:
    """[n, H, d] → [H, n]; rows of the table of cosines a block at a time, since it has n² entries."""
    unit = _unit(keys.transpose(0, 1))
    num_tokens = unit.shape[1]
    total = torch.zeros(unit.shape[:2], device=unit.device)
    for start in range(0, num_tokens, _ROWS_AT_A_TIME):
        cosine = unit[:, start : start + _ROWS_AT_A_TIME] @ unit.transpose(1, 2)
        cosine.diagonal(start, dim1=-2, dim2=-1).zero_()
        is_alike = cosine > threshold
        last = num_tokens - 1 - is_alike.flip(-1).int().argmax(-1)
        last = torch.where(is_alike.any(-1), last, 0)
        total += cosine.scatter_(-1, last.unsqueeze(-1), 0.0).sum(-2)
    return (total / num_tokens).softmax(-1)


def page_redundancy(keys: Tensor, page_size: int, threshold: float, temperature: float) -> Tensor:
    """How alike a key is to those of its page: keys [L, n, H, d] → [L, H, n], rows sum to 1.

    As in Zipage: each column forgives the newest key above the threshold; softmax of rows' sums over T_r b.
    """
    sums = torch.stack([_page_sums(layer.float(), page_size, threshold) for layer in keys])
    shares: Tensor = (sums[..., : keys.shape[1]] / (temperature * page_size)).softmax(-1)
    return shares


def _page_sums(keys: Tensor, page_size: int, threshold: float) -> Tensor:
    """[n, H, d] → [H, whole pages of tokens]."""
    padded = F.pad(keys, (0, 0, 0, 0, 0, -keys.shape[0] % page_size))
    heads = padded.transpose(0, 1)
    paged = heads.reshape(len(heads), -1, page_size, heads.shape[-1])  # [H, pages, b, d]
    cosine = _cosines(paged)
    is_alike = cosine > threshold
    newest = page_size - 1 - is_alike.flip(-2).int().argmax(-2, keepdim=True)
    is_forgiven = torch.zeros_like(is_alike).scatter(-2, newest, True) & is_alike
    sums: Tensor = cosine.masked_fill(is_forgiven, 0.0).sum(-1).flatten(1)
    return sums


def _cosines(keys: Tensor) -> Tensor:
    """Of all pairs, the diagonal 0: [..., n, d] → [..., n, n]."""
    unit = _unit(keys)
    cosine: Tensor = unit @ unit.transpose(-1, -2)
    cosine.diagonal(dim1=-2, dim2=-1).zero_()
    return cosine


def _unit(keys: Tensor) -> Tensor:
    """Of length 1; a zero key stays zero, so it is like no other."""
    unit: Tensor = keys / (keys.norm(dim=-1, keepdim=True) + 1e-8)
    return unit
