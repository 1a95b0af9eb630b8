from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from growpage.engine.kernels.qkv import (
    LayerSummaries,
    count_queries,
    count_queries_reference,
    rotary_table,
    rotary_table_reference,
    rotate_and_store,
    rotate_and_store_reference,
)
from growpage.engine.models.rope import Rope, apply
from growpage.engine.query_state import QuerySummaries

EPS = 1e-6
# query heads, KV heads, head dim, page size: groups of 1, 3, 4, 5 and 7, one of them wider than a program
SHAPES = [(4, 4, 32, 16), (3, 1, 64, 16), (32, 8, 128, 32), (10, 2, 64, 16), (28, 4, 32, 16)]


class Layer:
    """Random inputs of one layer; caches and states are full of NaN wherever nothing was written."""

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        num_rows: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        num_pages: int = 5,
    ) -> None:
        hq, h, d, b = shape
        self.shape = shape
        self.qkv = torch.randn(num_rows, (hq + 2 * h) * d, device=device).to(dtype)
        positions = torch.randint(0, 131072, (num_rows,), device=device)
        self.rotary = rotary_table_reference(positions, Rope(d, 1e6, None, device).inv_freq)
        slots = torch.randperm(num_pages * b)[:num_rows]
        slots[::5] = -1
        self.slots = slots.to(device)
        self.data = torch.full((2, num_pages, b, h, d), torch.nan, dtype=dtype, device=device)
        self.norms = torch.rand(2, d, device=device).to(dtype) + 0.5

    def summaries(self, slot_ids: list[int], **settings: float) -> LayerSummaries:
        """Slots 0..5, of which the even ones are fresh and hold NaN."""
        hq, _, d, _ = self.shape
        device = self.qkv.device
        num_updates = torch.arange(6, device=device) % 2 * 7
        state = torch.randn(6, 2, hq, d, device=device)
        state[num_updates == 0] = torch.nan
        defaults = {"beta_short": 0.9, "beta_long": 0.999, "bias_correction": False}
        return LayerSummaries(
            state=state,
            rms=torch.full((6, hq), torch.nan, device=device),
            num_updates=num_updates,
            slot_ids=torch.tensor(slot_ids, dtype=torch.int64, device=device),
            **{**defaults, **settings},  # type: ignore[arg-type]
        )


def _both(
    layer: Layer, norms: Tensor | None, summaries: LayerSummaries | None, **close: float
) -> None:
    """Run kernel and twin on copies, compare everything that they return or write."""
    results = []
    for run in (rotate_and_store, rotate_and_store_reference):
        data = layer.data.clone()
        own = summaries
        if own is not None:
            own = replace(own, state=own.state.clone(), rms=own.rms.clone())
        q = run(layer.qkv, layer.rotary, layer.slots, data[0], data[1], norms, EPS, own)
        written = [q, data] if own is None else [q, data, own.state, own.rms]
        results.append(written)
    for kernel, twin in zip(*results, strict=True):
        torch.testing.assert_close(kernel, twin, equal_nan=True, **close)


@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_queries_keys_and_values_equal_those_of_the_twin(
    shape: tuple[int, int, int, int], has_norm: bool, device: torch.device
) -> None:
    layer = Layer(shape, 7, device)
    _both(layer, layer.norms if has_norm else None, None, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_summaries_equal_those_of_the_twin(
    shape: tuple[int, int, int, int], bias_correction: bool, device: torch.device
) -> None:
    layer = Layer(shape, 6, device)
    summaries = layer.summaries([3, -1, 0, 5], bias_correction=bias_correction)
    _both(layer, layer.norms, summaries, atol=1e-5, rtol=1e-5)


def test_rows_after_the_decodes_enter_no_summary(device: torch.device) -> None:
    layer = Layer(SHAPES[1], 9, device)
    summaries = layer.summaries([1])
    before = summaries.state.clone()
    rotate_and_store(
        layer.qkv, layer.rotary, layer.slots, layer.data[0], layer.data[1], None, EPS, summaries
    )
    assert not torch.equal(summaries.state[1], before[1])
    others = torch.tensor([0, 2, 3, 4, 5], device=device)
    torch.testing.assert_close(summaries.state[others], before[others], equal_nan=True)


def test_beta_of_zero_keeps_the_last_query(device: torch.device) -> None:
    layer = Layer(SHAPES[1], 2, device)
    summaries = layer.summaries([1, 2], beta_short=0.0)
    rotate_and_store(
        layer.qkv, layer.rotary, layer.slots, layer.data[0], layer.data[1], None, EPS, summaries
    )
    query = layer.qkv.view(2, 5, 64)[:, :3]
    torch.testing.assert_close(summaries.state[1:3, 0], query)


@pytest.mark.parametrize("bias_correction", [True, False])
def test_several_steps_equal_the_engine_s_summaries(
    bias_correction: bool, device: torch.device
) -> None:
    layer = Layer(SHAPES[0], 2, device)
    hq, _, d, _ = layer.shape
    engine = QuerySummaries(
        num_layers=1, num_slots=6, num_heads=hq, head_dim=d, beta_short=0.5, beta_long=0.9,
        bias_correction=bias_correction, device=device,
    )  # fmt: skip
    summaries = layer.summaries(
        [4, 1], beta_short=0.5, beta_long=0.9, bias_correction=bias_correction
    )
    summaries.num_updates.zero_()
    slot_ids = summaries.slot_ids
    for _ in range(4):
        qkv = torch.randn_like(layer.qkv)
        rotate_and_store(
            qkv, layer.rotary, layer.slots, layer.data[0], layer.data[1], None, EPS, summaries
        )
        count_queries(slot_ids, summaries.num_updates)
        engine.update(slot_ids, qkv.view(1, 2, -1, d)[:, :, :hq])
    torch.testing.assert_close(summaries.state[slot_ids], engine.state[0, slot_ids])
    torch.testing.assert_close(summaries.rms[slot_ids], engine.rms[0, slot_ids])
    assert torch.equal(summaries.num_updates, engine.num_updates)


def test_rotation_and_norm_equal_those_of_the_decoder(device: torch.device) -> None:
    layer = Layer(SHAPES[1], 4, device)
    positions = torch.tensor([0, 1, 4097, 131071], device=device)
    rope = Rope(64, 1e6, None, device)
    rotary = rotary_table(positions, rope.inv_freq, rope.factor)
    slots = torch.tensor([1, 17, 3, 79], device=device)
    keys, values = layer.data
    q = rotate_and_store(layer.qkv, rotary, slots, keys, values, layer.norms, EPS)
    heads = layer.qkv.view(4, 5, 64)
    normed = torch.nn.functional.rms_norm(heads[:, :4], (64,), None, EPS)
    normed = normed * layer.norms[[0, 0, 0, 1]]
    expected = apply(normed, *rope(positions))
    torch.testing.assert_close(q, expected[:, :3], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(keys.flatten(0, 1)[slots], expected[:, 3:], atol=1e-4, rtol=1e-4)
    assert torch.equal(values.flatten(0, 1)[slots], heads[:, 4:])


def test_int32_slots_and_slot_ids(device: torch.device) -> None:
    layer = Layer(SHAPES[0], 5, device)
    layer.slots = layer.slots.to(torch.int32)
    summaries = layer.summaries([3, 0])
    summaries = replace(summaries, slot_ids=summaries.slot_ids.to(torch.int32))
    _both(layer, None, summaries)


def test_a_strided_projection_is_read_in_place(device: torch.device) -> None:
    layer = Layer(SHAPES[0], 3, device)
    wide = torch.full((3, layer.qkv.shape[1] + 64), torch.nan, device=device)
    wide[:, : layer.qkv.shape[1]] = layer.qkv
    layer.qkv = wide[:, : layer.qkv.shape[1]]
    _both(layer, layer.norms, layer.summaries([1, 2, 5]), atol=1e-5, rtol=1e-5)


def test_bfloat16_is_rounded_once(device: torch.device) -> None:
    layer = Layer(SHAPES[1], 6, device, torch.bfloat16)
    _both(layer, layer.norms, None, atol=4e-2, rtol=1.6e-2)


def test_no_rows_write_nothing(device: torch.device) -> None:
    layer = Layer(SHAPES[0], 0, device)
    q = rotate_and_store(layer.qkv, layer.rotary, layer.slots, layer.data[0], layer.data[1])
    assert q.shape == (0, 4, 32)
    assert layer.data.isnan().all()


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_angles_are_those_of_rope_up_to_rounding(head_dim: int, device: torch.device) -> None:
    positions = torch.tensor([0, 1, 2, 1000, 65535, 131071], device=device)
    rope = Rope(head_dim, 1e6, None, device)
    table = rotary_table(positions, rope.inv_freq, 1.25)
    torch.testing.assert_close(
        table, rotary_table_reference(positions, rope.inv_freq, 1.25), atol=5e-7, rtol=0
    )
    cos, sin = rope(positions)
    half = head_dim // 2
    torch.testing.assert_close(table[:, 0], 1.25 * cos[:, 0, :half], atol=5e-7, rtol=0)
    torch.testing.assert_close(table[:, 1], 1.25 * sin[:, 0, half:], atol=5e-7, rtol=0)


def test_queries_are_counted_once_a_real_slot(device: torch.device) -> None:
    slot_ids = torch.tensor([2, -1, 0, -1, 299], device=device)
    num_updates = torch.arange(300, device=device)
    expected = num_updates.clone()
    count_queries_reference(slot_ids, expected)
    count_queries(slot_ids, num_updates)
    assert torch.equal(num_updates, expected)
    assert num_updates[[0, 1, 2, 299]].tolist() == [1, 1, 3, 300]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 257])
def test_shape_of_qwen3_8b(num_rows: int, dtype: torch.dtype) -> None:
    layer = Layer((32, 8, 128, 256), num_rows, torch.device("cuda"), dtype)
    close = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    slot_ids = [5, -1, 0, 1][:num_rows]
    _both(layer, layer.norms, layer.summaries(slot_ids), atol=2 * close, rtol=close)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cache_beyond_two_to_the_31_elements() -> None:
    layer = Layer((8, 8, 128, 256), 3, torch.device("cuda"), torch.bfloat16, num_pages=1)
    shape = (2, 9000, 256, 8, 128)
    layer.data = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
    slots = torch.tensor([0, 9000 * 256 - 1, 9000 * 256 - 257], device="cuda")
    rotate_and_store(layer.qkv, layer.rotary, slots, layer.data[0], layer.data[1])
    v = layer.qkv.view(3, -1, 128)[:, 16:]
    assert torch.equal(layer.data[1].flatten(0, 1)[slots], v)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replays_of_a_graph_equal_eager_calls() -> None:
    layer = Layer((32, 8, 128, 256), 8, torch.device("cuda"))
    args = (layer.qkv, layer.rotary, layer.slots, layer.data[0], layer.data[1], layer.norms, EPS)
    summaries = layer.summaries([1, 3, 5, -1, -1, -1, -1, -1])
    saved = summaries.state.clone()
    eager = rotate_and_store(*args, summaries)
    after_one = summaries.state.clone()
    count_queries(summaries.slot_ids, summaries.num_updates.clone())  # compiled before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q = rotate_and_store(*args, summaries)
        count_queries(summaries.slot_ids, summaries.num_updates)
    summaries.state.copy_(saved)
    graph.replay()
    assert torch.equal(q, eager)
    torch.testing.assert_close(summaries.state, after_one, atol=0, rtol=0, equal_nan=True)
    assert summaries.num_updates.tolist() == [0, 8, 0, 8, 0, 8]
