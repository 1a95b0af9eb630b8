"""One step of the model over the paged cache in plain torch: the CPU path, and the oracle of `models/fused.py`.

Shape legend: T rows of a step (decodes first, then prefill chunks), B decodes, S sampled rows, Hq query heads, H KV
heads, d head dim, V vocabulary.
"""

import logging
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from growpage.engine.attention.reference import paged_decode, paged_prefill_batch, store_kv
from growpage.engine.inputs import Batch, Samples
from growpage.engine.kv_cache import KVCache
from growpage.engine.models.decoder import Decoder
from growpage.engine.query_state import QuerySummaries
from growpage.engine.query_windows import QueryWindows
from growpage.engine.sampler import draw, draw_filtered, draw_greedily, row_keys
from growpage.errors import UsageError

logger = logging.getLogger(__name__)

MIN_TRITON = (3, 6)
MIN_CAPABILITY = (8, 0)
HEAD_DIMS = (32, 64, 128, 256)  # of kernels/qkv.py


class Forward(Protocol):
    """A way to compute steps: from the same weights the same results, up to rounding."""

    attention: str  # its name in the run record
    is_capturable: bool  # in a CUDA graph, with rows of padding

    def logits(self, batch: Batch, last_tokens: Tensor, out: Tensor | None = None) -> Tensor:
        """Run the model over the rows of a step: store keys and values, note the queries of the decodes.

        last_tokens: [slots] int32, of which the batch may ask for some. Returns [S, V], in `out` where given.
        """

    def draw(self, logits: Tensor, samples: Samples) -> Tensor:
        """One token a sampled row, [S] int64; with filters one for each row that is not padding.

        NOT_FINITE where the logits are not.
        """

    def keep(self, tokens: Tensor, slot_ids: Tensor, last_tokens: Tensor) -> None:
        """Note tokens [S] as the last of their slots [S]; slot -1 is nobody's, and NOT_FINITE becomes 0."""


class TorchForward:
    """The decoder's own forward pass with the reference attention. It takes no rows of padding."""

    attention = "torch reference"
    is_capturable = False

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        summaries: QuerySummaries | None,
        windows: QueryWindows | None = None,
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._summaries = summaries
        self._windows = windows
        self._scale = decoder.config.softmax_scale

    def logits(self, batch: Batch, last_tokens: Tensor, out: Tensor | None = None) -> Tensor:
        assert out is None, "there is no graph to give a place for them"
        queries: list[Tensor] = []
        attend = partial(self._attend, batch, queries)
        slots = (-1 - batch.token_ids).clamp(min=0)
        token_ids = torch.where(batch.token_ids < 0, last_tokens[slots], batch.token_ids)
        hidden = self._decoder(token_ids, batch.positions, attend)
        if self._summaries is not None and batch.num_decodes:
            slot_ids = batch.slot_ids.long()
            self._summaries.reset(slot_ids[batch.is_fresh != 0])
            self._summaries.update(slot_ids, torch.stack(queries))
        return self._decoder.compute_logits(hidden[batch.samples.rows])

    def draw(self, logits: Tensor, samples: Samples) -> Tensor:
        if samples.is_greedy:
            return draw_greedily(logits)
        keys = row_keys(samples.words, samples.output_positions)
        if samples.filters is not None:
            return draw_filtered(logits, samples.temperature, keys, samples.filters)
        return draw(logits, samples.temperature, keys)

    def keep(self, tokens: Tensor, slot_ids: Tensor, last_tokens: Tensor) -> None:
        last_tokens[slot_ids.long()] = tokens.clamp(min=0).to(last_tokens.dtype)

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
        """Store this step's keys and values, then attend: the decodes, then the prefill chunks."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        store_kv(keys, values, k, v, batch.slots.long())
        count = batch.num_decodes
        if self._summaries is not None and count:
            queries.append(q_raw[:count])
        if self._windows is not None and count:
            rows = self._windows.rows(batch.slot_ids, batch.positions[:count])
            self._windows.store(layer, rows, q[:count])
        parts = []
        if count:
            tables, lens = batch.block_tables, batch.context_lens
            parts.append(paged_decode(q[:count], keys, values, tables, lens, self._scale))
        if batch.prefills is not None:
            p = batch.prefills
            parts.append(
                paged_prefill_batch(
                    q[count:], keys, values, p.block_tables, p.cu_query_lens, p.context_lens,
                    p.max_query_len, self._scale,
                )
            )  # fmt: skip
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def make_forward(
    backend: str,
    decoder: Decoder,
    cache: KVCache,
    summaries: QuerySummaries | None,
    windows: QueryWindows | None = None,
) -> Forward:
    """backend: auto, triton or torch. What cannot run is refused; `auto` then takes torch, and says so in the log."""
    device = decoder.embed.device
    if backend == "torch" or (backend == "auto" and device.type != "cuda"):
        return TorchForward(decoder, cache, summaries, windows)
    obstacle = _obstacle(decoder, device)
    if obstacle is None:
        from growpage.engine.models.fused import TritonForward

        return TritonForward(decoder, cache, summaries, windows)
    if backend == "triton":
        raise UsageError(
            f"engine.attention_backend=triton: {obstacle}. Set engine.attention_backend=torch."
        )
    logger.warning("the model runs in plain torch, slowly reason=%r", obstacle)
    return TorchForward(decoder, cache, summaries, windows)


def _obstacle(decoder: Decoder, device: torch.device) -> str | None:
    """Why the Triton kernels cannot run this model here."""
    if find_spec("triton") is None:
        return "triton is not installed (pip install 'growpage[gpu]')"
    triton = import_module("triton")
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < MIN_TRITON:
        return f"triton {triton.__version__} is older than {'.'.join(map(str, MIN_TRITON))}"
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < MIN_CAPABILITY:
            return f"compute capability {capability[0]}.{capability[1]} is below 8.0"
    elif not triton.knobs.runtime.interpret:
        return (
            f"device {device} runs Triton kernels in their interpreter alone (TRITON_INTERPRET=1)"
        )
    if decoder.config.head_dim not in HEAD_DIMS:
        return f"head_dim={decoder.config.head_dim} is not one of {HEAD_DIMS}"
    return None
