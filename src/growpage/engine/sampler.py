"""Batched sampling with counter-based noise: a token depends on its request, never on its batch.

The noise of (request seed, output position, token id) is one fixed Gumbel variable, computed with the same integer
arithmetic on every device; the sample is the argmax of logits / temperature + noise.

Shape legend: B rows, V vocabulary.
"""

from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from growpage.engine.request import SamplingParams


def sample(
    logits: Tensor, params: Sequence[SamplingParams], output_positions: Sequence[int]
) -> Tensor:
    """One token a row: logits [B, V] fp32 → [B] int64. Rows with temperature 0 take the argmax."""
    drawn = [row for row, p in enumerate(params) if p.temperature > 0]
    if not drawn:
        return logits.argmax(-1)
    device = logits.device
    everything = len(drawn) == len(params)
    rows = slice(None) if everything else torch.tensor(drawn, device=device)
    chosen = [params[row] for row in drawn]
    temperature = torch.tensor([p.temperature for p in chosen], device=device)
    scaled = logits[rows] / temperature[:, None]
    if any(p.top_k > 0 or p.top_p < 1.0 or p.min_p > 0.0 for p in chosen):
        scaled = _filtered(scaled, chosen)
    keys = [_row_key(params[row].seed, output_positions[row]) for row in drawn]
    noisy = scaled + gumbel_noise(
        torch.tensor(keys, dtype=torch.int32, device=device), logits.shape[1]
    )
    if everything:
        return noisy.argmax(-1)
    tokens = logits.argmax(-1)
    tokens[rows] = noisy.argmax(-1)
    return tokens


def gumbel_noise(keys: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel variables [B, V] from row keys [B, 2] int32 and the token id as the counter."""
    token = torch.arange(vocab_size, dtype=torch.int32, device=keys.device)
    bits = token * -1640531527  # 2^32 / golden ratio, odd: distinct tokens stay distinct
    bits = _mix(bits[None, :] ^ keys[:, :1])
    bits = _mix(bits + keys[:, 1:])
    # 23 bits: the midpoint of a 24-bit cell at the top would round to 1, and log(1) has no logarithm.
    uniform = ((bits >> 9) & 0x7FFFFF).to(torch.float32).add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def _mix(bits: Tensor) -> Tensor:
    """A bijection of 32-bit integers in which each input bit changes about half of the output bits."""
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    bits = bits * 0x7FEB352D
    bits = bits ^ ((bits >> 15) & 0x1FFFF)
    bits = bits * -2073319541  # 0x846CA68B as a signed integer
    return bits ^ ((bits >> 16) & 0xFFFF)


def _row_key(seed: int, output_position: int) -> tuple[int, int]:
    """Two signed 32-bit words that stand for (request seed, output position)."""
    digest = blake2b(f"{seed}:{output_position}".encode(), digest_size=8).digest()
    low = int.from_bytes(digest[:4], "little", signed=True)
    high = int.from_bytes(digest[4:], "little", signed=True)
    return low, high


def _filtered(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Rows with everything outside top-k, top-p and min-p at -inf; the best token always stays."""
    device, vocab_size = scaled.device, scaled.shape[1]
    top_k = torch.tensor([p.top_k or vocab_size for p in params], device=device)
    top_p = torch.tensor([p.top_p for p in params], device=device)
    min_p = torch.tensor([p.min_p for p in params], device=device)
    ranked, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab_size, device=device)
    ranked = ranked.masked_fill(rank >= top_k[:, None], -torch.inf)
    probs = ranked.softmax(-1)
    # A token stays while the mass before it is below top_p, so the one that crosses it stays too.
    before = probs.cumsum(-1) - probs
    is_out = (before >= top_p[:, None]) | (probs < min_p[:, None] * probs[:, :1])
    is_out[:, 0] = False
    ranked = ranked.masked_fill(is_out, -torch.inf)
    return torch.empty_like(scaled).scatter_(-1, order, ranked)
