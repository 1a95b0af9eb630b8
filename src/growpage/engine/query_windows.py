"""The newest decode queries of each running request, after RoPE, for scorers that let a window of them vote.

Shape legend: L layers, M slots, B rows of a step, w window, m queries at hand (at most w), Hq query heads, d head dim.
"""

import torch
from torch import Tensor

from growpage.engine.query_state import on_host

Rows = tuple[Tensor, Tensor]  # slot and place of each row: [B], [B]


class QueryWindows:
    """A ring a slot: `data` [L, M + 1, w, Hq, d]; the query at logical position p lies at p mod w.

    So nothing is counted or reset here: a reader says how many of the newest queries are its own. Rows of padding
    (slot -1) write to the last slot, which is nobody's. Safe in a CUDA graph.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        window: int,
        num_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, num_slots + 1, window, num_heads, head_dim)
        self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.window = window

    def rows(self, slot_ids: Tensor, positions: Tensor) -> Rows:
        """Where the queries of a step's decodes go: slot_ids, positions [B]."""
        return slot_ids.long(), positions.long() % self.window

    def store(self, layer: int, rows: Rows, queries: Tensor) -> None:
        """queries: [B, Hq, d], after RoPE."""
        self.data[layer].index_put_(rows, queries)

    def newest(self, slot: int, position: int, count: int) -> Tensor:
        """The last `count` queries before `position`, but no more than w, the oldest first: [L, m, Hq, d]."""
        count = min(count, self.window)
        places = torch.arange(position - count, position, device=self.data.device) % self.window
        return self.data[:, slot].index_select(1, places)

    def export(self, slot: int) -> Tensor:
        """A copy on the host, ordered by the stream and not waited for: [L, w, Hq, d]."""
        return on_host(self.data[:, slot])

    def restore(self, slot: int, saved: Tensor) -> None:
        self.data[:, slot] = saved.to(self.data.device, non_blocking=True)

    def num_bytes(self) -> int:
        return self.data.nbytes
