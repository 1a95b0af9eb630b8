"""The engine's kernels against the bytes they cannot avoid; prefill attention against torch's flash kernel.

Shapes are those of Qwen3-8B in bf16. A kernel that fails is told in its result, and the next one runs.
With `is_tiny` everything is small and float32, for the Triton interpreter: that shows only that it runs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from growpage.speed.device import copy_bandwidth, median_ms, median_wall_ms
from growpage.speed.presets import KERNELS

ROTATED_BYTES = 600 << 20  # of data over which a kernel is rotated: several times the L2 cache
REPEATS_OF_EVENT = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """L layers, Hq query heads, H KV heads, d head dim; as in Qwen3-8B."""

    layers: int = 36
    query_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 4096
    intermediate: int = 12288
    vocab: int = 151936
    page: int = 256
    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"
    is_tiny: bool = False

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)


TINY = Shape(
    layers=2, query_heads=4, kv_heads=2, head_dim=32, hidden=64, intermediate=128, vocab=500, page=16,
    dtype=torch.float32, device="cpu", is_tiny=True,
)  # fmt: skip

Result = dict[str, Any]


def measure_kernels(*, is_tiny: bool, only: Sequence[str] = ()) -> Iterator[Result]:
    """Results as they come. only: names of KERNELS; none: all."""
    shape = TINY if is_tiny else Shape()
    torch.manual_seed(0)
    copy = copy_bandwidth(is_tiny=is_tiny)
    yield {
        "name": "copy",
        "shape": "between two buffers, the faster of a memcpy and a kernel",
        "bytes_per_s": copy,
    }
    with torch.inference_mode():
        for name, bench in BENCHES.items():
            if only and name not in only:
                continue
            try:
                for result in bench(shape):
                    yield _with_floor({"name": name, **result}, copy)
            except Exception as error:  # one kernel of many: the others are still wanted
                lines = str(error).strip().splitlines() or [""]
                yield {"name": name, "error": f"{type(error).__name__}: {lines[0][:200]}"}
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def _with_floor(result: Result, copy: float) -> Result:
    """Add the byte floor and the share of the copy bandwidth that was reached."""
    num_bytes = result.get("bytes")
    if num_bytes:
        floor = 1e3 * num_bytes / copy
        result |= {"floor_ms": floor, "share_of_copy": floor / result["ms"]}
    return result


# -- attention ---------------------------------------------------------------------------------


def _pages(shape: Shape, lens: Sequence[int], page: int) -> tuple[Tensor, Tensor, Tensor]:
    """A cache of several layers with its pages in random order, block tables and lengths."""
    counts = [-(-n // page) for n in lens]
    total = sum(counts) + 1
    size = (2, total, page, shape.kv_heads, shape.head_dim)
    layer_bytes = torch.Size(size).numel() * shape.dtype.itemsize
    num_layers = 1 if shape.is_tiny else max(1, min(32, -(-ROTATED_BYTES // layer_bytes)))
    data = torch.empty((num_layers, *size), dtype=shape.dtype, device=shape.device).normal_()
    order = torch.randperm(total).tolist()
    table = torch.zeros(len(lens), max(counts), dtype=torch.int32)
    for row, count in enumerate(counts):
        table[row, :count] = torch.tensor([order.pop() for _ in range(count)])
    lengths = torch.tensor(lens, dtype=torch.int32, device=shape.device)
    return data, table.to(shape.device), lengths


def _decode(shape: Shape) -> Iterator[Result]:
    from growpage.engine.attention.triton_paged import paged_decode

    cases = [(128, 4096, 256), (128, 4096, 64), (128, 4096, 16), (64, 400, 256), (384, 1000, 256)]
    cases += [(1, 8192, 256), (8, 4096, 256)]
    for num_rows, length, page in [(2, 40, 16)] if shape.is_tiny else cases:
        data, table, lengths = _pages(shape, [length] * num_rows, page)
        q = torch.randn(
            num_rows, shape.query_heads, shape.head_dim, device=shape.device, dtype=shape.dtype
        )
        calls = [
            partial(paged_decode, q, layer[0], layer[1], table, lengths, shape.scale)
            for layer in data
        ]
        num_bytes = 2 * num_rows * length * shape.kv_heads * shape.head_dim * shape.dtype.itemsize
        yield {
            "shape": f"{num_rows} sequences x {length} tokens, page {page}",
            "ms": median_ms(_several(calls, shape)),
            "bytes": num_bytes,
        }
        del data, calls


def _prefill(shape: Shape) -> Iterator[Result]:
    from growpage.engine.attention.triton_paged import paged_prefill_batch

    cases = [(8, 1024, 1024), (1, 8192, 8192), (1, 512, 8704), (16, 64, 1064)]
    for num_rows, chunk, length in [(2, 8, 20)] if shape.is_tiny else cases:
        data, table, lengths = _pages(shape, [length] * num_rows, shape.page)
        q = torch.randn(
            num_rows * chunk, shape.query_heads, shape.head_dim,
            device=shape.device, dtype=shape.dtype,
        )  # fmt: skip
        starts = torch.arange(0, num_rows * chunk + 1, chunk, device=shape.device).to(torch.int32)
        call = partial(
            paged_prefill_batch, q, data[0, 0], data[0, 1], table, starts, lengths, chunk,
            shape.scale,
        )  # fmt: skip
        keys = chunk * (length - chunk) + chunk * (chunk + 1) // 2
        flops = 4 * shape.query_heads * shape.head_dim * num_rows * keys
        ms = median_ms([call] * (1 if shape.is_tiny else 4))
        flash = _flash_ms(shape, num_rows, chunk, length)
        yield {
            "shape": f"{num_rows} x {chunk} new tokens over {length}, page {shape.page}",
            "ms": ms,
            "flops_per_s": flops / (ms / 1e3),
            "reference": "torch SDPA flash, dense, heads repeated",
            "reference_ms": flash,
            "share_of_reference": None if flash is None else flash / ms,
        }


def _flash_ms(shape: Shape, num_rows: int, chunk: int, length: int) -> float | None:
    """None where torch has no flash kernel for it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.functional import scaled_dot_product_attention as attend

    if shape.is_tiny:
        return None
    size = (num_rows, shape.query_heads, length, shape.head_dim)
    k, v = torch.randn(2, *size, device=shape.device, dtype=shape.dtype)
    q = torch.randn_like(k)[:, :, :chunk].contiguous()
    if chunk == length:
        call = partial(attend, q, k, v, is_causal=True, scale=shape.scale)
    else:
        bias = causal_lower_right(chunk, length)
        call = partial(attend, q, k, v, attn_mask=bias, scale=shape.scale)
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return median_ms([call] * 4)
    except RuntimeError:
        return None


def _store(shape: Shape) -> Iterator[Result]:
    from growpage.engine.attention.triton_paged import store_kv

    num_pages = 4 if shape.is_tiny else 4096
    size = (2, num_pages, shape.page, shape.kv_heads, shape.head_dim)
    data = torch.zeros(size, dtype=shape.dtype, device=shape.device)
    for num_tokens in (4,) if shape.is_tiny else (384, 8192):
        sets = 1 if shape.is_tiny else 16
        new = torch.randn(
            sets, 2, num_tokens, shape.kv_heads, shape.head_dim,
            device=shape.device, dtype=shape.dtype,
        )  # fmt: skip
        calls = []
        for k, v in new:
            slots = torch.randperm(num_pages * shape.page, device=shape.device)[:num_tokens]
            calls.append(partial(store_kv, data[0], data[1], k, v, slots))
        row_bytes = shape.kv_heads * shape.head_dim * shape.dtype.itemsize
        yield {
            "shape": f"{num_tokens} tokens, page {shape.page}",
            "ms": median_ms(calls),
            "bytes": 4 * num_tokens * row_bytes,
        }


# -- the rest of a decode step ------------------------------------------------------------------


def _qkv(shape: Shape) -> Iterator[Result]:
    """Norm, RoPE, cache write and the query summaries: all layers of a step; then what the summaries add."""
    from growpage.engine.kernels.qkv import LayerSummaries, rotary_table, rotate_and_store

    layers, heads, d = shape.layers, shape.query_heads, shape.head_dim
    num_slots, num_pages = (8, 2) if shape.is_tiny else (512, 400)
    device = shape.device
    state = torch.randn(layers, num_slots, 2, heads, d, device=device)
    rms = torch.rand(layers, num_slots, heads, device=device)
    cache = torch.zeros(
        layers, 2, num_pages, shape.page, shape.kv_heads, d, dtype=shape.dtype, device=device
    )
    norms = torch.rand(layers, 2, d, device=device).to(shape.dtype)
    updates = torch.ones(num_slots, dtype=torch.int64, device=device)
    frequencies = 1e6 ** (-torch.arange(0, d, 2, device=device).float() / d)
    width = (heads + 2 * shape.kv_heads) * d
    for batch in (2,) if shape.is_tiny else (1, 64, 256, 384):
        x = torch.randn(layers, batch, width, device=device).to(shape.dtype)
        table = rotary_table(torch.randint(0, 32768, (batch,), device=device), frequencies)
        slots = torch.randperm(num_pages * shape.page, device=device)[:batch].clone()
        ids = torch.randperm(num_slots, device=device)[:batch].clone()

        def step(
            has_summaries: bool, x: Tensor = x, table: Tensor = table,
            slots: Tensor = slots, ids: Tensor = ids,
        ) -> None:  # fmt: skip
            for layer in range(layers):
                summaries = LayerSummaries(
                    state=state[layer], rms=rms[layer], num_updates=updates, slot_ids=ids,
                    beta_short=0.9, beta_long=0.999, bias_correction=False,
                )  # fmt: skip
                rotate_and_store(
                    x[layer], table, slots, cache[layer, 0], cache[layer, 1], norms[layer], 1e-6,
                    summaries if has_summaries else None,
                )  # fmt: skip

        plain, full = (median_ms([partial(step, has)]) for has in (False, True))
        row_bytes = 2 * width * shape.dtype.itemsize * batch * layers
        summary_bytes = 2 * 2 * heads * d * 4 * batch * layers
        words = f"batch {batch}, {layers} layers"
        yield {"shape": f"{words}, without summaries", "ms": plain, "bytes": row_bytes}
        yield {
            "shape": f"{words}, with summaries",
            "ms": full,
            "bytes": row_bytes + summary_bytes,
        }
        yield {
            "shape": f"{words}, what the summaries add",
            "ms": max(full - plain, 1e-9),
            "bytes": summary_bytes,
        }


def _norm(shape: Shape) -> Iterator[Result]:
    from growpage.engine.kernels.norm import add_rms_norm

    weight = torch.rand(shape.hidden, device=shape.device).to(shape.dtype)
    for batch in (2,) if shape.is_tiny else (1, 256):
        num = 2 * shape.layers
        x, residual = torch.randn(2, num, batch, shape.hidden, device=shape.device).to(shape.dtype)
        calls = [partial(add_rms_norm, x[i], residual[i], weight, 1e-6) for i in range(num)]
        yield {
            "shape": f"batch {batch}, {num} calls",
            "ms": num * median_ms(calls),
            "bytes": num * batch * shape.hidden * shape.dtype.itemsize * 4,
        }


def _activation(shape: Shape) -> Iterator[Result]:
    from growpage.engine.kernels.activation import silu_and_mul

    for batch in (2,) if shape.is_tiny else (1, 256):
        x = torch.randn(12, batch, 2 * shape.intermediate, device=shape.device).to(shape.dtype)
        calls = [partial(silu_and_mul, x[i % len(x)]) for i in range(shape.layers)]
        yield {
            "shape": f"batch {batch}, {shape.layers} layers",
            "ms": shape.layers * median_ms(calls),
            "bytes": shape.layers * batch * shape.intermediate * shape.dtype.itemsize * 3,
        }


def _sampling(shape: Shape) -> Iterator[Result]:
    from growpage.engine.kernels.sampling import draw

    for batch in (2,) if shape.is_tiny else (1, 256, 384):
        row_bytes = shape.vocab * shape.dtype.itemsize
        copies = 2 if shape.is_tiny else max(2, min(36, 300_000_000 // (batch * row_bytes) + 1))
        logits = torch.empty(
            copies, batch, shape.vocab, dtype=shape.dtype, device=shape.device
        ).normal_(0, 3)
        keys = torch.randint(-(2**31), 2**31, (batch, 2)).to(torch.int32).to(shape.device)
        temperature = torch.ones(batch, device=shape.device)
        calls = [partial(draw, rows, temperature, keys) for rows in logits]
        yield {
            "shape": f"batch {batch}, vocabulary {shape.vocab}",
            "ms": median_ms(calls),
            "bytes": batch * row_bytes,
        }


# -- a capacity event ---------------------------------------------------------------------------


def _event(shape: Shape) -> Iterator[Result]:
    """One request with 16 full pages: demand and score from one read of the keys, selection, compaction in place."""
    from growpage.budget.base import DemandMetric, GroupReduce
    from growpage.engine.kernels.gather_kept import move_kept
    from growpage.engine.kernels.page_list import page_list
    from growpage.engine.kernels.selection import select_tokens
    from growpage.engine.kernels.summary_scores import (
        attention_logits,
        dual_timescale,
        group_attention,
    )
    from growpage.engine.kernels.working_set import demand_ratios

    num_sets, pages_of_one = (1, 3) if shape.is_tiny else (5, 16)
    layers, heads, d, page = shape.layers, shape.kv_heads, shape.head_dim, shape.page
    n, kept, protected = pages_of_one * page, (pages_of_one - 1) * page, 16 if page > 16 else 4
    size = (layers, 2, num_sets * pages_of_one, page, heads, d)
    data = torch.empty(size, dtype=shape.dtype, device=shape.device).normal_()
    order = torch.randperm(num_sets * pages_of_one).tolist()
    pages = [order[i * pages_of_one : (i + 1) * pages_of_one] for i in range(num_sets)]
    lists = [page_list(item, data.device) for item in pages]
    queries = 2.0 * torch.randn(num_sets, 2, layers, shape.query_heads, d, device=shape.device)

    def logits_of(i: int) -> Tensor:
        return attention_logits(queries[i], data, lists[i], n, shape.scale)

    def demand_of(i: int, logits: Tensor) -> object:
        attention = group_attention(logits[..., : n - page], GroupReduce.mean)
        return demand_ratios(attention, DemandMetric.topp, 0.99)

    def scores_of(logits: Tensor) -> Tensor:
        return dual_timescale(logits[..., : n - protected], GroupReduce.mean)

    def selection_of(scores: Tensor) -> Tensor:
        return select_tokens(
            scores, num_tokens=n, num_retained=kept, page_size=page, k_loc=page // 4
        )

    def whole(repeat: int) -> None:
        i = repeat % num_sets
        logits = logits_of(i)
        result = demand_of(i, logits)
        if isinstance(result, Tensor):
            result.tolist()  # the decision waits for it
        move_kept(data, pages[i], pages[i], selection_of(scores_of(logits)))

    logits = [logits_of(i) for i in range(num_sets)]
    scores = [scores_of(item) for item in logits]
    chosen = [selection_of(item) for item in scores]
    stages: dict[str, tuple[Callable[[int], object], int]] = {
        "logits of both summaries": (
            logits_of,
            layers * n * heads * d * shape.dtype.itemsize + logits[0].nbytes,
        ),
        "demand": (lambda i: demand_of(i, logits[i]), logits[0].nbytes),
        "score": (lambda i: scores_of(logits[i]), logits[0].nbytes + scores[0].nbytes),
        "selection": (lambda i: selection_of(scores[i]), scores[0].nbytes + chosen[0].nbytes),
        "copy of the kept tokens": (
            lambda i: move_kept(data, pages[i], pages[i], chosen[i]),
            2 * 2 * layers * kept * heads * d * shape.dtype.itemsize,
        ),
    }
    words = f"{pages_of_one} pages of {page}, {layers} layers, {heads} KV heads"
    repeats = 1 if shape.is_tiny else REPEATS_OF_EVENT
    for stage, (call, num_bytes) in stages.items():
        yield {
            "shape": f"{stage}; {words}; host clock",
            "ms": median_wall_ms(lambda repeat, call=call: call(repeat % num_sets), repeats),  # type: ignore[misc]
            "bytes": num_bytes,
        }
    num_bytes = sum(item for _, item in stages.values())
    yield {
        "shape": f"whole event; {words}; host clock, median of {repeats}",
        "ms": median_wall_ms(whole, repeats),
        "bytes": num_bytes,
    }


def _several(calls: Sequence[Callable[[], object]], shape: Shape) -> Sequence[Callable[[], object]]:
    """At least eight calls in a graph, so that its own start does not count."""
    return calls if shape.is_tiny else list(calls) * -(-8 // len(calls))


BENCHES: dict[str, Callable[[Shape], Iterator[Result]]] = dict(
    zip(
        KERNELS,
        (_decode, _prefill, _store, _qkv, _norm, _activation, _sampling, _event),
        strict=True,
    )
)
