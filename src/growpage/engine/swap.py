"""Host memory for the pages of preempted requests; they come back bit for bit.

On a GPU it is pinned, and nobody waits: pages are first copied aside on the device, so that the next step may write
them, and travel to the host on a stream of their own.

Shape legend: L layers, b tokens a page, H KV heads, d head dim.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from growpage.engine.kernels.page_list import page_list
from growpage.engine.kv_cache import KVCache
from growpage.engine.query_state import QuerySummaries, SlotState
from growpage.engine.query_windows import QueryWindows

_BLOCK_BYTES = 1 << 28  # host memory is taken in pieces of this size
_GROUP_BYTES = 1 << 26  # pages copied aside at once


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parked:
    """Pages of one request in host memory, and the state of its query slot."""

    pages: list[Tensor]  # each [L, 2, b, H, d]
    slot: SlotState | None
    window: Tensor | None  # [L, w, Hq, d], of its newest queries
    arrived: torch.cuda.Event | None


class SwapSpace:
    """Pages of requests by their id. The scheduler keeps count of the room."""

    def __init__(
        self,
        cache: KVCache,
        summaries: QuerySummaries | None,
        num_reserved_pages: int = 0,
        windows: QueryWindows | None = None,
    ) -> None:
        """num_reserved_pages: host pages to take now, since pinning memory is slow; others come when needed."""
        self._summaries = summaries
        self._windows = windows
        self._paged = cache.data.permute(2, 0, 1, 3, 4, 5)  # [P, L, 2, b, H, d]
        self._device = cache.data.device
        self._is_cuda = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if self._is_cuda else None  # type: ignore[no-untyped-call]
        self._page_shape = self._paged.shape[1:]
        self._page_bytes = self._page_shape.numel() * cache.data.itemsize
        self._free: list[Tensor] = []
        self._parked: dict[str, _Parked] = {}
        while len(self._free) < num_reserved_pages:
            self._free += self._new_block()

    def put(self, request_id: str, pages: Sequence[int], query_slot: int | None) -> None:
        """Copy pages and slot out; they may be overwritten by whatever is launched next."""
        slot = window = None
        if self._summaries is not None and query_slot is not None:
            slot = self._summaries.export(query_slot)
        if self._windows is not None and query_slot is not None:
            window = self._windows.export(query_slot)
        on_host = [self._take_page() for _ in pages]
        for start, group in self._groups(pages):
            aside = self._paged.index_select(0, page_list(group, self._device))
            self._send(aside, on_host[start : start + len(group)])
        arrived = None
        if self._stream is not None:
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        self._parked[request_id] = _Parked(pages=on_host, slot=slot, window=window, arrived=arrived)

    def get(self, request_id: str, pages: Sequence[int], query_slot: int) -> None:
        """Copy a request's pages and slot back, to new places."""
        parked = self._parked.pop(request_id)
        if parked.arrived is not None:
            parked.arrived.wait()
        for start, group in self._groups(pages):
            shape = (len(group), *self._page_shape)
            aside = torch.empty(shape, dtype=self._paged.dtype, device=self._device)
            for row, page in zip(aside, parked.pages[start : start + len(group)], strict=True):
                row.copy_(page, non_blocking=True)
            self._paged.index_copy_(0, page_list(group, self._device).long(), aside)
        self._free += parked.pages
        if self._summaries is not None and parked.slot is not None:
            self._summaries.restore(query_slot, parked.slot)
        if self._windows is not None and parked.window is not None:
            self._windows.restore(query_slot, parked.window)

    def drop(self, request_id: str) -> None:
        """Forget a request that will not come back."""
        parked = self._parked.pop(request_id, None)
        if parked is not None:
            self._free += parked.pages

    def num_bytes(self) -> int:
        """Host memory taken so far."""
        num_pages = len(self._free) + sum(len(parked.pages) for parked in self._parked.values())
        return num_pages * self._page_bytes

    def _send(self, aside: Tensor, on_host: list[Tensor]) -> None:
        """Copy pages to the host: behind what runs now, and behind copies from the same host pages."""
        if self._stream is None:
            for row, page in zip(aside, on_host, strict=True):
                page.copy_(row)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for row, page in zip(aside, on_host, strict=True):
                page.copy_(row, non_blocking=True)
        aside.record_stream(self._stream)

    def _groups(self, pages: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Where each group of pages starts, and its pages."""
        size = max(1, _GROUP_BYTES // self._page_bytes)
        for start in range(0, len(pages), size):
            yield start, pages[start : start + size]

    def _take_page(self) -> Tensor:
        if not self._free:
            self._free += self._new_block()
        return self._free.pop()

    def _new_block(self) -> list[Tensor]:
        count = max(1, _BLOCK_BYTES // self._page_bytes) if self._is_cuda else 1
        shape = (count, *self._page_shape)
        block = torch.empty(shape, dtype=self._paged.dtype, pin_memory=self._is_cuda)
        return list(block)
