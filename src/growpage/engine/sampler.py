"""Batched sampling with counter-based noise: a token depends on its request, never on its batch.

The noise of (request seed, output position, token id) is one fixed Gumbel variable, computed with the same integer
arithmetic on every device; the sample is the argmax of logits / temperature + noise. The seed is hashed once a
request, on the host (`seed_words`); everything after it is wrap-around arithmetic of 32-bit integers, so a device
can go on to the next position by itself.

Shape legend: B rows, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from growpage.engine.plan import NOT_FINITE
from growpage.engine.request import SamplingParams

_ROWS_AT_A_TIME = 64  # of those that are sorted
_GOLDEN = -1640531527  # 2^32 / golden ratio, odd: distinct counters stay distinct


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What cuts the vocabulary of each row; `top_k` = V, `top_p` = 1 and `min_p` = 0 cut nothing."""

    top_k: Tensor  # [B] int64, in 1..V
    top_p: Tensor  # [B] fp32
    min_p: Tensor  # [B] fp32

    @classmethod
    def of(
        cls, params: Sequence[SamplingParams], vocab_size: int, device: torch.device
    ) -> "Filters | None":
        """None when no row that draws is filtered; rows with temperature 0 are left alone."""
        chosen = [p if p.temperature > 0 else _UNFILTERED for p in params]
        if not any(p.top_k > 0 or p.top_p < 1.0 or p.min_p > 0.0 for p in chosen):
            return None
        top_k = [min(p.top_k or vocab_size, vocab_size) for p in chosen]
        return cls(
            top_k=torch.tensor(top_k, dtype=torch.int64, device=device),
            top_p=torch.tensor([p.top_p for p in chosen], dtype=torch.float32, device=device),
            min_p=torch.tensor([p.min_p for p in chosen], dtype=torch.float32, device=device),
        )


_UNFILTERED = SamplingParams(temperature=0.0)


def sample(
    logits: Tensor, params: Sequence[SamplingParams], output_positions: Sequence[int]
) -> Tensor:
    """One token a row: logits [B, V] fp32 → [B] int64. Rows with temperature 0 take the argmax."""
    if all(p.temperature == 0 for p in params):
        return draw_greedily(logits)
    device = logits.device
    temperature = torch.tensor([p.temperature for p in params], device=device)
    words = torch.tensor([seed_words(p.seed) for p in params], dtype=torch.int32, device=device)
    positions = torch.tensor(output_positions, dtype=torch.int32, device=device)
    filters = Filters.of(params, logits.shape[1], device)
    return draw(logits, temperature, row_keys(words, positions), filters)


def draw(
    logits: Tensor, temperature: Tensor, keys: Tensor, filters: Filters | None = None
) -> Tensor:
    """One token a row: logits [B, V], temperature [B] fp32 (0: argmax), keys [B, 2] int32 → [B] int64.

    Of equal logits the lower token id wins. NOT_FINITE where NaN or infinity wins, or there is nothing else.
    """
    is_drawn = temperature > 0
    scaled = logits.float() / torch.where(is_drawn, temperature, 1.0)[:, None]
    if filters is not None:
        scaled = _filtered(scaled, filters)
    noisy = scaled + gumbel_noise(keys, logits.shape[1])
    tokens = torch.where(is_drawn, noisy.argmax(-1), logits.argmax(-1))
    return torch.where(has_finite_logit(logits, tokens), tokens, NOT_FINITE)


def draw_filtered(logits: Tensor, temperature: Tensor, keys: Tensor, filters: Filters) -> Tensor:
    """Tokens of the first rows, those that `filters` has.

    Some at a time: sorting takes many times the memory of the logits.
    """
    count = len(filters.top_k)
    tokens = []
    for start in range(0, count, _ROWS_AT_A_TIME):
        rows = slice(start, min(start + _ROWS_AT_A_TIME, count))
        part = Filters(
            top_k=filters.top_k[rows], top_p=filters.top_p[rows], min_p=filters.min_p[rows]
        )
        tokens.append(draw(logits[rows], temperature[rows], keys[rows], part))
    return torch.cat(tokens)


def draw_greedily(logits: Tensor) -> Tensor:
    """`draw` where all temperatures are 0."""
    tokens = logits.argmax(-1)
    return torch.where(has_finite_logit(logits, tokens), tokens, NOT_FINITE)


def has_finite_logit(logits: Tensor, tokens: Tensor) -> Tensor:
    """Whether each row drew a token with a finite logit: logits [B.., V], tokens [B] int64 → [B] bool.

    NaN and infinity win every draw, so that looking at the tokens finds them without reading all logits again.
    """
    index = tokens.clamp(0, logits.shape[1] - 1)[:, None]
    return logits[: len(tokens)].gather(1, index)[:, 0].isfinite()


def seed_words(seed: int) -> tuple[int, int]:
    """Two signed 32-bit words that stand for a request's seed."""
    digest = blake2b(str(seed).encode(), digest_size=8).digest()
    low = int.from_bytes(digest[:4], "little", signed=True)
    high = int.from_bytes(digest[4:], "little", signed=True)
    return low, high


def row_keys(words: Tensor, output_positions: Tensor) -> Tensor:
    """Keys [B, 2] int32 from seed words [B, 2] int32 and output positions [B] int32.

    For one seed the first word never repeats, since each step of it is a bijection of the position; two seeds
    meet in both words only if their second words are equal, a chance of 2^-32.
    """
    low = mix(output_positions * _GOLDEN ^ words[:, 0])
    high = mix(low + words[:, 1])
    return torch.stack((low, high), 1)


def gumbel_noise(keys: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel variables [B, V] from row keys [B, 2] int32 and the token id as the counter."""
    token = torch.arange(vocab_size, dtype=torch.int32, device=keys.device)
    bits = mix(token * _GOLDEN ^ keys[:, :1])
    bits = mix(bits + keys[:, 1:])
    # 23 bits: the midpoint of a 24-bit cell at the top would round to 1, and log(1) has no logarithm.
    uniform = ((bits >> 9) & 0x7FFFFF).to(torch.float32).add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def mix(bits: Tensor) -> Tensor:
    """A bijection of 32-bit integers in which each input bit changes about half of the output bits."""
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    bits = bits * 0x7FEB352D
    bits = bits ^ ((bits >> 15) & 0x1FFFF)
    bits = bits * -2073254261  # 0x846CA68B as a signed integer
    return bits ^ ((bits >> 16) & 0xFFFF)


def _filtered(scaled: Tensor, filters: Filters) -> Tensor:
    """Rows with everything outside top-k, top-p and min-p at -inf; the best token always stays."""
    ranked, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scaled.shape[1], device=scaled.device)
    ranked = ranked.masked_fill(rank >= filters.top_k[:, None], -torch.inf)
    probs = ranked.softmax(-1)
    # A token stays while the mass before it is below top_p, so the one that crosses it stays too.
    before = probs.cumsum(-1) - probs
    # top_p = 1 keeps all: the sums of a flat row may pass 1 by rounding
    is_cut = (before >= filters.top_p[:, None]) & (filters.top_p < 1.0)[:, None]
    is_out = is_cut | (probs < filters.min_p[:, None] * probs[:, :1])
    is_out[:, 0] = False
    ranked = ranked.masked_fill(is_out, -torch.inf)
    return torch.empty_like(scaled).scatter_(-1, order, ranked)
