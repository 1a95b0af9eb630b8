"""What a step reads on the device, written by the host into one buffer and copied at once.

Shape legend: T rows of a step (decodes first, then prefill chunks), B decodes, C chunks, S sampled rows (the decodes
first), M query slots, N pages of the longest table, b tokens a page.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from growpage.engine.plan import Plan, PrefillChunk
from growpage.engine.sampler import Filters, seed_words
from growpage.engine.sequence import UNKNOWN_TOKEN, Sequence

Ints = NDArray[np.int32]

_ALIGNMENT = 4  # fields start at 16 bytes: a kernel is compiled anew for pointers that do not
_NUM_BUFFERS = 2  # the host fills one while the copy of the other may still be waiting for its step


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefills:
    """The prefill chunks of a step."""

    block_tables: Tensor  # [C, N]
    cu_query_lens: Tensor  # [C + 1]
    context_lens: Tensor  # [C], stored tokens with the chunk
    max_query_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Whose next token is drawn, and how."""

    slot_ids: Tensor  # [S], query slots; -1 in rows of padding
    rows: Tensor  # [S], of the step
    output_positions: Tensor  # [S]
    words: Tensor  # [S, 2], of the seeds
    temperature: Tensor  # [S] fp32
    filters: Filters | None
    is_greedy: bool  # all temperatures are 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The tensors of one step, int32 unless said. Rows of padding follow the decodes."""

    token_ids: Tensor  # [T]; -1 - i: the last token of query slot i, which only the device may know
    positions: Tensor  # [T], logical
    slots: Tensor  # [T], physical: page * b + offset; -1: padding, nothing is stored
    num_decodes: int
    is_fresh: Tensor  # [B], 1 where the query slot holds a previous owner's summaries
    context_lens: Tensor  # [B], stored tokens with this step's; 0 in rows of padding
    block_tables: Tensor  # [B, N], dense
    width: Tensor  # [1], N
    prefills: Prefills | None
    samples: Samples

    @property
    def slot_ids(self) -> Tensor:
        """Query slots of the decode rows: [B]."""
        return self.samples.slot_ids[: self.num_decodes]


class SlotRows:
    """What the host knows of each query slot, as arrays; a row is rewritten when its owner or pages change."""

    def __init__(self, num_slots: int, max_pages: int, vocab_size: int) -> None:
        self.tables: Ints = np.zeros((num_slots, max_pages), np.int32)
        self.num_prompt_tokens: Ints = np.zeros(num_slots, np.int32)
        self.words: Ints = np.zeros((num_slots, 2), np.int32)
        self.temperature = np.zeros(num_slots, np.float32)
        self.top_k: Ints = np.full(num_slots, vocab_size, np.int32)
        self.top_p = np.ones(num_slots, np.float32)
        self.min_p = np.zeros(num_slots, np.float32)
        self.is_filtered = np.zeros(num_slots, np.bool_)
        self._vocab_size = vocab_size
        self._owners: list[Sequence | None] = [None] * num_slots
        self._pages: list[list[int]] = [[] for _ in range(num_slots)]  # the owners' own lists
        self._num_pages = [0] * num_slots

    def refresh(self, sequences: Iterable[Sequence]) -> None:
        """Catch up with what happened to these running requests."""
        pages, counts = self._pages, self._num_pages
        for sequence in sequences:
            slot, table = sequence.query_slot, sequence.block_table
            assert slot is not None
            # A list is replaced or grows at its end, so its identity and its length tell what is new.
            if table is not pages[slot]:
                self._own(slot, sequence)
                pages[slot] = table
                counts[slot] = 0
            if counts[slot] != len(table):
                self.tables[slot, counts[slot] : len(table)] = table[counts[slot] :]
                counts[slot] = len(table)

    def _own(self, slot: int, sequence: Sequence) -> None:
        if self._owners[slot] is sequence:
            return
        self._owners[slot] = sequence
        sampling, vocab_size = sequence.request.sampling, self._vocab_size
        is_drawn = sampling.temperature > 0
        self.num_prompt_tokens[slot] = sequence.num_prompt_tokens
        self.words[slot] = seed_words(sampling.seed)
        self.temperature[slot] = sampling.temperature
        self.top_k[slot] = min(sampling.top_k or vocab_size, vocab_size) if is_drawn else vocab_size
        self.top_p[slot] = sampling.top_p if is_drawn else 1.0
        self.min_p[slot] = sampling.min_p if is_drawn else 0.0
        self.is_filtered[slot] = is_drawn and (
            sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0
        )


class _Field:
    """The same numbers on the host, to write, and on the device, to read once the buffer was sent."""

    __slots__ = ("device", "host")

    def __init__(self, host: Ints, device: Tensor) -> None:
        self.host, self.device = host, device


class _Buffer:
    """A pinned buffer before the device buffer; `take` hands out its fields, one after the other."""

    def __init__(self, size: int, on_device: Tensor | None) -> None:
        is_pinned = on_device is not None
        self._on_host = torch.zeros(size, dtype=torch.int32, pin_memory=is_pinned)
        self._on_device = self._on_host if on_device is None else on_device
        self._array: Ints = self._on_host.numpy()
        self._copied = torch.cuda.Event() if is_pinned else None  # type: ignore[no-untyped-call]
        self._end = 0

    def open(self) -> None:
        """Start a step. Waits for the copy of the step that used this buffer before."""
        self._end = 0
        if self._copied is not None:
            self._copied.synchronize()

    def take(self, *shape: int) -> _Field:
        start, stop = self._end, self._end + prod(shape)
        assert stop <= len(self._array), (stop, len(self._array))
        self._end = -(-stop // _ALIGNMENT) * _ALIGNMENT
        return _Field(
            self._array[start:stop].reshape(shape), self._on_device[start:stop].view(shape)
        )

    def send(self) -> None:
        if self._copied is not None:
            end = self._end
            self._on_device[:end].copy_(self._on_host[:end], non_blocking=True)
            self._copied.record()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Fields of all rows of a step."""

    token_ids: _Field
    positions: _Field
    slots: _Field


class BatchMaker:
    """`make` a batch from a plan: arrays into a pinned buffer, then one copy that nobody waits for.

    The tensors of a batch are views of one device buffer and hold until the next call. In a batch of decodes alone
    the places of all but `filters` depend on its number of rows and on nothing else, so a CUDA graph may keep them;
    of `block_tables` it may keep where they start.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        max_pages: int,
        max_tokens: int,
        page_size: int,
        vocab_size: int,
        has_summaries: bool,
        device: torch.device,
    ) -> None:
        """max_pages: of the longest block table; max_tokens: rows of the largest step."""
        self._slots = SlotRows(num_slots, max_pages, vocab_size)
        self._page_size = page_size
        self._has_summaries = has_summaries
        size = 3 * max_tokens + 16 * num_slots + num_slots * max_pages + 32 * _ALIGNMENT
        on_device = None
        if device.type == "cuda":
            on_device = torch.zeros(size, dtype=torch.int32, device=device)
        self._buffers = [_Buffer(size, on_device) for _ in range(_NUM_BUFFERS)]

    def make(self, plan: Plan, num_padding: int = 0) -> Batch:
        """The batch of a plan; where there are no prefills, rows of padding may follow the decodes."""
        decodes, chunks = plan.decodes, plan.prefills
        assert not (chunks and num_padding), "chunks follow the decodes"
        self._slots.refresh(decodes)
        self._slots.refresh([chunk.sequence for chunk in chunks])
        self._buffers.reverse()
        buffer = self._buffers[0]
        buffer.open()
        slot_ids = np.array([s.query_slot for s in plan.sampled], np.int32)
        num_rows = len(decodes) + num_padding
        num_tokens = num_rows + sum(chunk.num_tokens for chunk in chunks)
        width = buffer.take(1)
        rows = _Rows(
            token_ids=buffer.take(num_tokens),
            positions=buffer.take(num_tokens),
            slots=buffer.take(num_tokens),
        )
        is_fresh, context_lens = buffer.take(num_rows), buffer.take(num_rows)
        samples, sampled_rows = self._samples(buffer, plan, slot_ids, num_padding)
        own = slot_ids[: len(decodes)]
        self._write_decodes(rows, is_fresh, context_lens, decodes, own)
        tables = self._tables(buffer, own, context_lens)
        width.host[0] = tables.host.shape[1]
        prefills = self._prefills(buffer, rows, chunks, num_rows, sampled_rows) if chunks else None
        filters = self._filters(buffer, slot_ids)
        buffer.send()
        return Batch(
            token_ids=rows.token_ids.device,
            positions=rows.positions.device,
            slots=rows.slots.device,
            num_decodes=num_rows,
            is_fresh=is_fresh.device,
            context_lens=context_lens.device,
            block_tables=tables.device,
            width=width.device,
            prefills=prefills,
            samples=replace(samples, filters=filters),
        )

    def _write_decodes(
        self,
        rows: _Rows,
        is_fresh: _Field,
        context_lens: _Field,
        decodes: list[Sequence],
        slot_ids: Ints,
    ) -> None:
        count, stop = len(decodes), len(context_lens.host)
        token_ids = np.array([s.token_ids[s.position] for s in decodes], np.int32)
        stored = np.array([s.num_resident_tokens for s in decodes], np.int32)
        is_known = token_ids != UNKNOWN_TOKEN
        rows.token_ids.host[:count] = np.where(is_known, token_ids, -1 - slot_ids)
        rows.positions.host[:count] = [s.position for s in decodes]
        rows.slots.host[:count] = self._physical(slot_ids, stored)
        context_lens.host[:count] = stored + 1
        is_fresh.host[:] = 0
        if self._has_summaries:
            is_fresh.host[:count] = [not s.has_query for s in decodes]
        for field, value in ((rows.token_ids, 0), (rows.positions, 0), (rows.slots, -1)):
            field.host[count:stop] = value
        context_lens.host[count:] = 0

    def _physical(self, slot_id: Ints | int, index: Ints) -> Ints:
        """Physical slots of the tokens stored at `index` of these query slots."""
        b = self._page_size
        physical: Ints = self._slots.tables[slot_id, index // b] * b + index % b
        return physical

    def _tables(self, buffer: _Buffer, slot_ids: Ints, context_lens: _Field) -> _Field:
        longest = int(context_lens.host.max(initial=1))
        width = -(-longest // self._page_size)
        tables = buffer.take(len(context_lens.host), width)
        tables.host[: len(slot_ids)] = self._slots.tables[slot_ids, :width]
        tables.host[len(slot_ids) :] = 0
        return tables

    def _samples(
        self, buffer: _Buffer, plan: Plan, slot_ids: Ints, num_padding: int
    ) -> tuple[Samples, Ints]:
        """Also the host's list of sampled rows, of which those of the chunks are still to be written."""
        slots, count = self._slots, len(slot_ids)
        size = count + num_padding
        ids, rows, positions = buffer.take(size), buffer.take(size), buffer.take(size)
        words, temperature = buffer.take(size, 2), buffer.take(size)
        ids.host[:count] = slot_ids
        ids.host[count:] = -1
        rows.host[:] = np.arange(size)
        num_tokens = np.array([len(s.token_ids) for s in plan.sampled], np.int32)
        positions.host[:count] = num_tokens - slots.num_prompt_tokens[slot_ids]
        words.host[:count] = slots.words[slot_ids]
        temperatures = temperature.host.view(np.float32)
        temperatures[:count] = slots.temperature[slot_ids]
        for array in (positions.host, words.host, temperatures):
            array[count:] = 0
        samples = Samples(
            slot_ids=ids.device,
            rows=rows.device,
            output_positions=positions.device,
            words=words.device,
            temperature=temperature.device.view(torch.float32),
            filters=None,
            is_greedy=not temperatures.any(),
        )
        return samples, rows.host

    def _prefills(
        self,
        buffer: _Buffer,
        rows: _Rows,
        chunks: list[PrefillChunk],
        start: int,
        sampled_rows: Ints,
    ) -> Prefills:
        """Write the rows of the chunks, from row `start` on, and what attention needs of them."""
        count, num_decodes = len(chunks), start
        cu_query_lens, context_lens = buffer.take(count + 1), buffer.take(count)
        next_sample = num_decodes
        for index, chunk in enumerate(chunks):
            sequence, first, stored = (
                chunk.sequence,
                chunk.sequence.position,
                chunk.sequence.num_resident_tokens,
            )
            stop = start + chunk.num_tokens
            token_ids = sequence.token_ids[first : first + chunk.num_tokens]
            assert sequence.query_slot is not None
            slots = self._physical(
                sequence.query_slot, np.arange(stored, stored + chunk.num_tokens, dtype=np.int32)
            )
            rows.token_ids.host[start:stop] = token_ids
            rows.positions.host[start:stop] = np.arange(first, first + chunk.num_tokens)
            rows.slots.host[start:stop] = slots
            cu_query_lens.host[index] = start - num_decodes
            context_lens.host[index] = stored + chunk.num_tokens
            start = stop
            if chunk.completes:
                sampled_rows[next_sample] = stop - 1
                next_sample += 1
        cu_query_lens.host[count] = start - num_decodes
        slot_ids = np.array([chunk.sequence.query_slot for chunk in chunks], np.int32)
        return Prefills(
            block_tables=self._tables(buffer, slot_ids, context_lens).device,
            cu_query_lens=cu_query_lens.device,
            context_lens=context_lens.device,
            max_query_len=max(chunk.num_tokens for chunk in chunks),
        )

    def _filters(self, buffer: _Buffer, slot_ids: Ints) -> Filters | None:
        """For the sampled rows without the padding; None where no row is filtered."""
        slots = self._slots
        if not slots.is_filtered[slot_ids].any():
            return None
        top_k, top_p, min_p = (buffer.take(len(slot_ids)) for _ in range(3))
        top_k.host[:] = slots.top_k[slot_ids]
        top_p.host.view(np.float32)[:] = slots.top_p[slot_ids]
        min_p.host.view(np.float32)[:] = slots.min_p[slot_ids]
        return Filters(
            top_k=top_k.device,
            top_p=top_p.device.view(torch.float32),
            min_p=min_p.device.view(torch.float32),
        )
