# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
"""How broad an attention row is, without a sort.

Twins: `working_set`, `entropy_ratio` and `demand_ratios` of `growpage.budget.demand`.

The working set is found by bisection on the value of its smallest member. Floats that are not negative are ordered as
their bits are, so that 31 halvings end at the very float v for which the keys above v hold less than the mass and the
keys from v on hold it; the ties at v that are still needed follow by one division. A sum here always adds the same keys
in the same order, and floating-point addition is monotone, so that the bisection never contradicts itself. Against the
sorted sum the count can differ only where the two orders of summation round to different sides of the mass.

Shape legend: X summaries, L layers, H KV heads, n tokens.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from growpage.budget import demand
from growpage.budget.base import DemandMetric

MAX_TOKENS = 32768  # a row in the registers of one program: 32 values a thread
TOKENS_PER_WARP = 1024
ENTROPY = {"BLOCK": 4096, "num_warps": 8}


def working_set(attention: Tensor, mass: float) -> Tensor:
    """Smallest number of keys whose attention sums to at least `mass` (Eq. 2): [..., n] fp32 → [...] int64.

    Rows are not negative. Rows of more than MAX_TOKENS go to the twin. Raises ValueError unless 0 < mass < 1.
    """
    num_tokens = attention.shape[-1]
    if num_tokens > MAX_TOKENS or not 0.0 < mass < 1.0:
        return demand.working_set(attention, mass)
    rows = attention.reshape(-1, num_tokens).contiguous()
    sizes = torch.empty(rows.shape[0], dtype=torch.int64, device=rows.device)
    block = max(TOKENS_PER_WARP, triton.next_power_of_2(num_tokens))
    _working_set_kernel[(rows.shape[0],)](
        rows,
        sizes,
        num_tokens,
        mass,
        BLOCK=block,
        num_warps=min(32, max(4, block // TOKENS_PER_WARP)),
    )
    return sizes.view(attention.shape[:-1])


def working_set_ratio(attention: Tensor, mass: float) -> Tensor:
    """r of Eq. 7 and 8: attention [X, L, H, n] → [X], the mean over layers and KV heads of K / n."""
    return (working_set(attention, mass).to(torch.float32) / attention.shape[-1]).mean((1, 2))


def entropy_ratio(attention: Tensor) -> Tensor:
    """Entropy over its maximum log n in place of K / n (Table 2): [X, L, H, n] → [X]."""
    num_tokens = attention.shape[-1]
    if num_tokens == 1:
        return demand.entropy_ratio(attention)
    rows = attention.reshape(-1, num_tokens).contiguous()
    entropy = torch.empty(rows.shape[0], dtype=torch.float32, device=rows.device)
    _entropy_kernel[(rows.shape[0],)](rows, entropy, num_tokens, **ENTROPY)
    ratio: Tensor = (entropy / math.log(num_tokens)).view(attention.shape[:-1]).mean((1, 2))
    return ratio


def demand_ratios(attention: Tensor, metric: DemandMetric, mass: float) -> Tensor:
    """r of each summary of one request: attention [X, L, H, n] → [X]."""
    if metric is DemandMetric.entropy:
        return entropy_ratio(attention)
    return working_set_ratio(attention, mass)


@triton.jit
def _working_set_kernel(
    rows_ptr,
    sizes_ptr,
    num_tokens,
    mass,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slots = tl.arange(0, BLOCK)
    attention = tl.load(rows_ptr + row * num_tokens + slots, mask=slots < num_tokens, other=0.0)
    bits = attention.to(tl.int32, bitcast=True)
    # The keys above `low` hold the mass, those above `high` do not: nothing is above infinity.
    low = -1
    high = 0x7F800000
    while low + 1 < high:
        middle = low + (high - low) // 2
        is_enough = tl.sum(tl.where(bits > middle, attention, 0.0), 0) >= mass
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle)
    is_above = bits > high
    num_above = tl.sum(is_above.to(tl.int32), 0)
    missing = mass - tl.sum(tl.where(is_above, attention, 0.0), 0)
    num_ties = tl.sum((bits == high).to(tl.int32), 0)
    value = tl.max(tl.where(bits == high, attention, 0.0), 0)
    # A row that never reaches the mass, by rounding, ends at value 0: all of it is needed. `/` is approximate on a GPU:
    # a quotient a little above the whole number that it should be would ask for one key more.
    needed = tl.div_rn(missing, tl.where(value > 0.0, value, 1.0))
    needed = tl.ceil(tl.minimum(needed, num_ties))
    size = tl.where(value > 0.0, num_above + tl.maximum(needed.to(tl.int32), 1), num_tokens)
    tl.store(sizes_ptr + row, size.to(tl.int64))


@triton.jit
def _entropy_kernel(rows_ptr, entropy_ptr, num_tokens, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, num_tokens, BLOCK):
        slots = start + tl.arange(0, BLOCK)
        a = tl.load(rows_ptr + row * num_tokens + slots, mask=slots < num_tokens, other=0.0)
        total -= tl.where(a > 0.0, a * tl.log(tl.where(a > 0.0, a, 1.0)), 0.0)
    tl.store(entropy_ptr + row, tl.sum(total, 0))
