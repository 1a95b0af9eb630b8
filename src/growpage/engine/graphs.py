"""CUDA graphs of decode steps: one launch by the host in place of some hundred.

A step of n decodes runs the graph of the next larger bucket; the rows between are padding, which writes nothing.
"""

import logging
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from growpage.engine import memory
from growpage.engine.forward import Forward
from growpage.engine.inputs import Batch, BatchMaker
from growpage.engine.kernels.step import unpack_tables
from growpage.engine.plan import Plan

logger = logging.getLogger(__name__)


def bucket_sizes(max_num_seqs: int) -> list[int]:
    """Rows of the graphs: 1, 2, 4, then each 8, from 256 on each 16, the last `max_num_seqs` itself."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, max_num_seqs, 16)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    tokens: Tensor  # [rows]


class DecodeGraphs:
    """`capture` once, then `run` any batch of decodes padded by `num_padding` rows."""

    def __init__(
        self,
        forward: Forward,
        batches: BatchMaker,
        last_tokens: Tensor,
        *,
        max_num_seqs: int,
        max_pages: int,
        vocab_size: int,
        page_size: int,
        dtype: torch.dtype,
    ) -> None:
        device = last_tokens.device
        self.sizes = bucket_sizes(max_num_seqs)
        self.capture_s = 0.0
        self._forward = forward
        self._batches = batches
        self._last_tokens = last_tokens
        self._page_size = page_size
        self._tables = torch.zeros((max_num_seqs, max_pages), dtype=torch.int32, device=device)
        self._logits = torch.empty((max_num_seqs, vocab_size), dtype=dtype, device=device)
        self._graphs: dict[int, _Captured] = {}
        self._pool: Any = None  # of the first graph, shared by all

    def num_padding(self, num_decodes: int) -> int:
        """Rows to add to so many decodes."""
        return next(size for size in self.sizes if size >= num_decodes) - num_decodes

    def num_bytes(self) -> int:
        """Of the tensors that all graphs share."""
        return self._tables.nbytes + self._logits.nbytes

    def estimated_bytes(self) -> int:
        """What all graphs will take, by the largest and the next: the others need what the next did."""
        first = memory.growth(self._last_tokens.device, lambda: self.capture(self.sizes[-1:]))
        if len(self.sizes) == 1:
            return self.num_bytes() + first
        other = memory.growth(self._last_tokens.device, lambda: self.capture(self.sizes[-2:-1]))
        return self.num_bytes() + first + (len(self.sizes) - 1) * other

    def capture(self, sizes: list[int] | None = None) -> None:
        """Capture these buckets, by default all; the largest first, so that the others fit into its memory."""
        start = time.perf_counter()
        for size in sorted(sizes or self.sizes, reverse=True):
            self._graphs[size] = self._capture(size)
        torch.cuda.synchronize()
        self.capture_s = time.perf_counter() - start
        logger.info("captured decode graphs=%d seconds=%.1f", len(self._graphs), self.capture_s)

    def run(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits [rows, V] and tokens [rows] of a batch of decodes; both hold until the next call."""
        captured = self._graphs[batch.num_decodes]
        captured.graph.replay()
        return self._logits[: batch.num_decodes], captured.tokens

    def _capture(self, size: int) -> _Captured:
        batch = self._batches.make(Plan(), num_padding=size)
        self._step(batch)  # compiles kernels and makes handles, which a capture may not
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            tokens = self._step(batch)
        self._pool = self._pool or graph.pool()
        return _Captured(graph=graph, tokens=tokens)

    def _step(self, batch: Batch) -> Tensor:
        tables = self._tables[: batch.num_decodes]
        unpack_tables(batch.block_tables, batch.width, batch.context_lens, tables, self._page_size)
        own = replace(batch, block_tables=tables)
        logits = self._forward.logits(own, self._last_tokens, self._logits[: batch.num_decodes])
        tokens = self._forward.draw(logits, batch.samples)
        self._forward.keep(tokens, batch.samples.slot_ids, self._last_tokens)
        return tokens
