"""Dual-timescale query summaries per running request (paper Eq. 6, 11, 12).

Shape legend: L layers, M slots, B rows of a step, Hq query heads, d head dim; index 0 is short, 1 is long.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """What one slot holds, on the host: everything that a swapped request needs back.

    From a GPU the copies are ordered by the stream and not waited for.
    """

    summaries: Tensor  # [L, 2, Hq, d]
    rms: Tensor  # [L, Hq]
    num_updates: Tensor  # []


class QuerySummaries:
    """`state` [L, M, 2, Hq, d] in float32: in bf16 an EMA with beta 0.999 stops moving.

    Beside it, per slot, the RMS of the last decode query [L, M, Hq] (Eq. 12 needs it at the boundary, when the
    query is gone) and the number of updates; 0 means that the slot's content is a previous owner's.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        num_heads: int,
        head_dim: int,
        beta_short: float,
        beta_long: float,
        bias_correction: bool,
        device: torch.device,
    ) -> None:
        self.state = torch.zeros(num_layers, num_slots, 2, num_heads, head_dim, device=device)
        self.rms = torch.zeros(num_layers, num_slots, num_heads, device=device)
        self.num_updates = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.beta_short, self.beta_long = beta_short, beta_long
        self.bias_correction = bias_correction
        self._betas = torch.tensor([beta_short, beta_long], device=device).view(2, 1, 1)

    def reset(self, slots: Tensor) -> None:
        """Forget the previous owner of these slots [B]."""
        self.num_updates[slots] = 0

    def update(self, slots: Tensor, queries: Tensor) -> None:
        """Fold one decode query a slot into its summaries.

        slots: [B]; queries: [L, B, Hq, d], after q-norm, before RoPE. The first query of a slot becomes both
        summaries; with bias correction it enters weighted, as if they had started from zero.
        """
        q = queries.to(torch.float32)
        fresh = (self.num_updates[slots] == 0).view(1, -1, 1, 1, 1)
        weighted = q.unsqueeze(2) * (1 - self._betas)
        first = weighted if self.bias_correction else q.unsqueeze(2).expand_as(weighted)
        later = self.state[:, slots] * self._betas + weighted
        self.state[:, slots] = torch.where(fresh, first, later)
        self.rms[:, slots] = _rms(q)
        self.num_updates[slots] += 1

    def summaries(self, slot: int) -> Tensor:
        """The running means themselves, [2, L, Hq, d]; bias-corrected if so configured."""
        state = self.state[:, slot].transpose(0, 1)
        if not self.bias_correction:
            return state.clone()
        weight = 1 - self._betas ** self.num_updates[slot]
        return state / weight.unsqueeze(1)

    def calibrated(self, slot: int) -> Tensor:
        """Summaries at the scale of the last query (Eq. 12): [2, L, Hq, d]. A zero summary stays zero."""
        mean = self.summaries(slot)
        scale = _rms(mean)
        gamma = torch.where(scale > 0, self.rms[:, slot] / scale, 0.0)
        return mean * gamma.unsqueeze(-1)

    def export(self, slot: int) -> SlotState:
        return SlotState(
            summaries=on_host(self.state[:, slot]),
            rms=on_host(self.rms[:, slot]),
            num_updates=on_host(self.num_updates[slot]),
        )

    def restore(self, slot: int, saved: SlotState) -> None:
        device = self.state.device
        self.state[:, slot] = saved.summaries.to(device, non_blocking=True)
        self.rms[:, slot] = saved.rms.to(device, non_blocking=True)
        self.num_updates[slot] = saved.num_updates.to(device, non_blocking=True)

    def num_bytes(self) -> int:
        return self.state.nbytes + self.rms.nbytes + self.num_updates.nbytes


def on_host(x: Tensor) -> Tensor:
    """A copy in host memory, pinned and not waited for where `x` is on a GPU."""
    copy = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
    return copy.copy_(x.contiguous(), non_blocking=True)


def _rms(x: Tensor) -> Tensor:
    return x.square().mean(-1).sqrt()
