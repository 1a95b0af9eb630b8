"""Carries a plan out on the device: moves pages, runs the model, samples.

Shape legend: T rows of a step (decodes first, then prefill chunks), B decodes, L layers, Hq query heads, d head dim.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from growpage.engine.attention.reference import paged_decode, paged_prefill, store_kv
from growpage.engine.compaction import Compactor
from growpage.engine.kv_cache import KVCache
from growpage.engine.models.decoder import Decoder
from growpage.engine.plan import Plan, PrefillChunk, SwapIn, SwapOut
from growpage.engine.query_state import QuerySummaries, SlotState
from growpage.engine.sampler import sample
from growpage.engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SwappedPages:
    """A preempted request in host memory, bit for bit."""

    tokens: Tensor  # [L, 2, n, H, d]
    slot: SlotState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRows:
    """Rows start..stop of the step belong to one sequence with these pages and stored tokens."""

    start: int
    stop: int
    block_table: Tensor  # [N]
    num_stored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The tensors of one forward pass."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T], logical
    slots: Tensor  # [T], physical: page * page_size + offset
    num_decodes: int
    block_tables: Tensor  # [B, N]
    context_lens: Tensor  # [B]
    prefills: tuple[PrefillRows, ...]


class ModelRunner:
    """`execute` a plan; `summaries` and `compactor` are absent when nothing is ever evicted."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        summaries: QuerySummaries | None,
        compactor: Compactor | None,
        device: torch.device,
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._summaries = summaries
        self._compactor = compactor
        self._device = device
        self._scale = decoder.config.softmax_scale
        self._swapped: dict[str, SwappedPages] = {}
        self.logits_listener: Callable[[str, Tensor], None] | None = None

    @torch.inference_mode()
    def execute(self, plan: Plan) -> dict[str, int]:
        """Run the plan in the order of its fields; return request id → new token."""
        for swap_out in plan.swap_outs:
            self._swap_out(swap_out)
        for compaction in plan.compactions:
            assert self._compactor is not None
            self._compactor.compact(compaction)
        for swap_in in plan.swap_ins:
            self._swap_in(swap_in)
        if not plan.decodes and not plan.prefills:
            return {}
        hidden = self._forward(self._batch(plan), plan.decodes)
        return self._sample(plan, hidden)

    def drop_swapped(self, request_id: str) -> None:
        """Free the host copy of a request that will not come back."""
        self._swapped.pop(request_id, None)

    # -- moving pages -------------------------------------------------------------------------

    def _swap_out(self, swap: SwapOut) -> None:
        num_tokens = len(swap.pages) * self._cache.page_size
        slot = None
        if self._summaries is not None and swap.query_slot is not None:
            slot = self._summaries.export(swap.query_slot)
        tokens = self._cache.gather(swap.pages, num_tokens).to("cpu")
        self._swapped[swap.sequence.request_id] = SwappedPages(tokens=tokens, slot=slot)

    def _swap_in(self, swap: SwapIn) -> None:
        saved = self._swapped.pop(swap.sequence.request_id)
        self._cache.scatter(swap.pages, saved.tokens.to(self._device))
        if self._summaries is not None and saved.slot is not None:
            self._summaries.restore(swap.query_slot, saved.slot)

    # -- the forward pass ---------------------------------------------------------------------

    def _batch(self, plan: Plan) -> Batch:
        b = self._cache.page_size
        token_ids, positions, slots = [], [], []
        for sequence in plan.decodes:
            token_ids.append(sequence.token_ids[sequence.position])
            positions.append(sequence.position)
            slots.append(_slot(sequence, sequence.num_resident_tokens, b))
        prefills = []
        for chunk in plan.prefills:
            sequence, first = chunk.sequence, chunk.sequence.position
            stored = sequence.num_resident_tokens
            prefills.append(
                PrefillRows(
                    start=len(token_ids),
                    stop=len(token_ids) + chunk.num_tokens,
                    block_table=self._ints(sequence.block_table),
                    num_stored=stored + chunk.num_tokens,
                )
            )
            token_ids += sequence.token_ids[first : first + chunk.num_tokens]
            positions += range(first, first + chunk.num_tokens)
            slots += (_slot(sequence, stored + i, b) for i in range(chunk.num_tokens))
        width = max((s.num_pages for s in plan.decodes), default=0)
        tables = [s.block_table + [0] * (width - s.num_pages) for s in plan.decodes]
        return Batch(
            token_ids=self._ints(token_ids),
            positions=self._ints(positions),
            slots=self._ints(slots),
            num_decodes=len(plan.decodes),
            block_tables=self._ints(tables),
            context_lens=self._ints([s.num_resident_tokens + 1 for s in plan.decodes]),
            prefills=tuple(prefills),
        )

    def _forward(self, batch: Batch, decodes: list[Sequence]) -> Tensor:
        """Hidden states [T, hidden]; the decode rows also enter their query summaries."""
        queries: list[Tensor] = []
        attend = partial(self._attend, batch, queries)
        hidden = self._decoder(batch.token_ids, batch.positions, attend)
        assert isinstance(hidden, Tensor)
        if self._summaries is not None and decodes:
            fresh = [s.query_slot for s in decodes if not s.has_query]
            if fresh:
                self._summaries.reset(self._ints(fresh))
            slots = self._ints([s.query_slot for s in decodes])
            self._summaries.update(slots, torch.stack(queries))
        return hidden

    def _attend(
        self,
        batch: Batch,
        queries: list[Tensor],
        layer: int,
        q_raw: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> Tensor:
        """Store this step's keys and values, then attend: decodes as one batch, prefill chunks one by one."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        store_kv(keys, values, k, v, batch.slots)
        num_decodes = batch.num_decodes
        if self._summaries is not None and num_decodes:
            queries.append(q_raw[:num_decodes])
        parts = []
        if num_decodes:
            tables, lens = batch.block_tables, batch.context_lens
            parts.append(paged_decode(q[:num_decodes], keys, values, tables, lens, self._scale))
        for rows in batch.prefills:
            chunk = q[rows.start : rows.stop]
            parts.append(
                paged_prefill(chunk, keys, values, rows.block_table, rows.num_stored, self._scale)
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _sample(self, plan: Plan, hidden: Tensor) -> dict[str, int]:
        """Tokens of the decode rows and of the last row of each prompt that is now complete."""
        rows = list(range(len(plan.decodes)))
        sequences = list(plan.decodes)
        end = len(plan.decodes)
        for chunk in plan.prefills:
            end += chunk.num_tokens
            if _completes(chunk):
                rows.append(end - 1)
                sequences.append(chunk.sequence)
        if not sequences:
            return {}
        logits = self._decoder.compute_logits(hidden[self._ints(rows)])
        tokens = sample(
            logits,
            [s.request.sampling for s in sequences],
            [s.num_output_tokens for s in sequences],
        )
        names = [s.request_id for s in sequences]
        if self.logits_listener is not None:
            for name, row in zip(names, logits, strict=True):
                self.logits_listener(name, row)
        return dict(zip(names, tokens.tolist(), strict=True))

    def _ints(self, values: object) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _completes(chunk: PrefillChunk) -> bool:
    return chunk.sequence.position + chunk.num_tokens == chunk.sequence.prefill_target


def _slot(sequence: Sequence, index: int, page_size: int) -> int:
    """Physical slot of the sequence's stored token number `index`."""
    return sequence.block_table[index // page_size] * page_size + index % page_size
