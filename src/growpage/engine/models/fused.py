"""The decoder's forward pass in as few launches as there are, from the decoder's own weights: the path on a GPU.

Between two matrix products stands one kernel, so nothing but what a product reads or writes goes through memory. The
twin is `engine/forward.py`, which runs `Decoder.forward`; weights are defined there and nowhere else.

Shape legend: T rows of a step (decodes first, then prefill chunks), B decodes, S sampled rows, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from growpage.engine.attention.triton_paged import paged_decode, paged_prefill_batch
from growpage.engine.inputs import Batch, Samples
from growpage.engine.kernels.activation import silu_and_mul
from growpage.engine.kernels.norm import add_rms_norm, rms_norm
from growpage.engine.kernels.qkv import (
    LayerSummaries,
    count_queries,
    rotary_table,
    rotate_and_store,
)
from growpage.engine.kernels.sampling import draw, row_keys
from growpage.engine.kernels.step import forget_queries, keep_tokens, resolve_tokens
from growpage.engine.kv_cache import KVCache
from growpage.engine.models.decoder import Decoder, Layer
from growpage.engine.query_state import QuerySummaries
from growpage.engine.query_windows import QueryWindows
from growpage.engine.sampler import draw_filtered


class TritonForward:
    """`engine.forward.Forward` with Triton kernels. Rows of padding write nothing. Safe in a CUDA graph.

    In a graph all rows must be decodes, and the sampled rows be all of them.
    """

    attention = "triton"
    is_capturable = True

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
        self._eps = decoder.config.rms_norm_eps
        self._scale = decoder.config.softmax_scale
        self._layers = [layer for layer in decoder.layers if isinstance(layer, Layer)]

    def logits(self, batch: Batch, last_tokens: Tensor, out: Tensor | None = None) -> Tensor:
        token_ids = resolve_tokens(batch.token_ids, last_tokens)
        hidden = self._hidden(token_ids, batch)
        if batch.prefills is not None:
            hidden = hidden.index_select(0, batch.samples.rows)
        return torch.mm(hidden, self._decoder.lm_head.weight.t(), out=out)

    def draw(self, logits: Tensor, samples: Samples) -> Tensor:
        keys = row_keys(samples.words, samples.output_positions)
        if samples.filters is not None:
            return draw_filtered(logits, samples.temperature, keys, samples.filters)
        return draw(logits, samples.temperature, keys)

    def keep(self, tokens: Tensor, slot_ids: Tensor, last_tokens: Tensor) -> None:
        keep_tokens(tokens, slot_ids, last_tokens)

    def _hidden(self, token_ids: Tensor, batch: Batch) -> Tensor:
        """Final-normed hidden states: token_ids [T] → [T, hidden]."""
        decoder, eps = self._decoder, self._eps
        rotary = rotary_table(batch.positions, decoder.rope.inv_freq, decoder.rope.factor)
        residual = F.embedding(token_ids, decoder.embed)
        x = rms_norm(residual, self._layers[0].attn_norm, eps)
        if self._summaries is not None:
            forget_queries(batch.slot_ids, batch.is_fresh, self._summaries.num_updates)
        next_norms = [layer.attn_norm for layer in self._layers[1:]] + [decoder.norm]
        for layer, next_norm in zip(self._layers, next_norms, strict=True):
            attended = self._attend(layer, layer.qkv(x), rotary, batch)
            x, residual = add_rms_norm(layer.o(attended), residual, layer.mlp_norm, eps)
            out = layer.down(silu_and_mul(layer.gate_up(x)))
            x, residual = add_rms_norm(out, residual, next_norm, eps)
        if self._summaries is not None:
            count_queries(batch.slot_ids, self._summaries.num_updates)
        return x

    def _attend(self, layer: Layer, qkv: Tensor, rotary: Tensor, batch: Batch) -> Tensor:
        """What attention makes of the projection [T, (Hq + 2H) d], keys and values stored: [T, Hq d]."""
        keys, values = self._cache.keys[layer.index], self._cache.values[layer.index]
        q = rotate_and_store(
            qkv, rotary, batch.slots, keys, values, layer.qk_norm, self._eps,
            self._layer_summaries(layer.index, batch),
        )  # fmt: skip
        count, parts = batch.num_decodes, []
        if self._windows is not None and count:
            rows = self._windows.rows(batch.slot_ids, batch.positions[:count])
            self._windows.store(layer.index, rows, q[:count])
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
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)

    def _layer_summaries(self, layer: int, batch: Batch) -> LayerSummaries | None:
        s = self._summaries
        if s is None or not batch.num_decodes:
            return None
        return LayerSummaries(
            state=s.state[layer],
            rms=s.rms[layer],
            num_updates=s.num_updates,
            slot_ids=batch.slot_ids,
            beta_short=s.beta_short,
            beta_long=s.beta_long,
            bias_correction=s.bias_correction,
        )
