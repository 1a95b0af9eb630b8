"""Paged attention kernels against their plain-torch twins, through the interpreter where no GPU is."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from growpage.engine.attention import reference, triton_paged

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@dataclass(slots=True, kw_only=True)
class Case:
    """A cache whose every slot outside the given contexts is NaN, so that reading one shows."""

    keys: Tensor  # [P, b, H, d]
    values: Tensor
    block_tables: Tensor  # [B, N]
    context_lens: Tensor  # [B]

    @property
    def clean(self) -> tuple[Tensor, Tensor]:
        """The cache for the twins, which multiply masked slots by zero; float32."""
        return self.keys.float().nan_to_num(), self.values.float().nan_to_num()


def make_case(
    device: torch.device,
    context_lens: list[int],
    *,
    page_size: int = 16,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    index_dtype: torch.dtype = torch.int64,
    spare_columns: int = 1,
) -> Case:
    num_pages = [-(-n // page_size) for n in context_lens]
    pages = torch.randperm(sum(num_pages) + 3).tolist()
    width = max(num_pages) + spare_columns
    shape = (1, 2, len(pages), page_size, num_kv_heads, head_dim)
    data = torch.full(shape, float("nan"), dtype=dtype, device=device)
    tables = torch.zeros(len(context_lens), width, dtype=index_dtype)
    for row, (length, count) in enumerate(zip(context_lens, num_pages, strict=True)):
        own = [pages.pop() for _ in range(count)]
        tables[row, :count] = torch.tensor(own, dtype=index_dtype)
        for i, page in enumerate(own):
            stored = min(page_size, length - i * page_size)
            fresh = torch.randn(2, stored, num_kv_heads, head_dim, device=device)
            data[0, :, page, :stored] = fresh.to(dtype)
    return Case(
        keys=data[0, 0],
        values=data[0, 1],
        block_tables=tables.to(device),
        context_lens=torch.tensor(context_lens, dtype=index_dtype, device=device),
    )


def relative_error(out: Tensor, expected: Tensor) -> float:
    return float((out.float() - expected).norm() / expected.norm())


TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


# -- decode -----------------------------------------------------------------------------------


def check_decode(case: Case, num_heads: int) -> None:
    num_seqs, head_dim, dtype = len(case.context_lens), case.keys.shape[-1], case.keys.dtype
    q = torch.randn(num_seqs, num_heads, head_dim, device=case.keys.device).to(dtype)
    scale = head_dim**-0.5
    out = triton_paged.paged_decode(
        q, case.keys, case.values, case.block_tables, case.context_lens, scale
    )
    keys, values = case.clean
    tables, lens = case.block_tables.long(), case.context_lens
    expected = reference.paged_decode(q.float(), keys, values, tables, lens.clamp(min=1), scale)
    expected[lens == 0] = 0
    assert out.shape == q.shape
    assert out.dtype == dtype
    assert torch.equal(out[lens == 0], torch.zeros_like(out[lens == 0]))
    assert relative_error(out, expected) < TOLERANCES[dtype]


@pytest.fixture
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many splits as a long context gets, at lengths that a test can afford."""
    monkeypatch.setattr(triton_paged, "MIN_SPLIT_TOKENS", 32)


@pytest.mark.parametrize("num_splits", [1, 2, 5])
def test_decode_is_the_same_in_any_number_of_splits(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, small_splits: None, num_splits: int
) -> None:
    monkeypatch.setattr(triton_paged, "_num_splits", lambda *_: num_splits)
    case = make_case(device, [1, 0, 16, 17, 160, 97])
    check_decode(case, num_heads=8)


@pytest.mark.parametrize("page_size", [16, 32, 64, 256])
def test_decode_reads_pages_of_any_size(
    device: torch.device, small_splits: None, page_size: int
) -> None:
    check_decode(make_case(device, [page_size, page_size + 1, 1], page_size=page_size), num_heads=4)


@pytest.mark.parametrize("group", [1, 5, 7, 8])
def test_decode_pads_groups_of_any_size(
    device: torch.device, small_splits: None, group: int
) -> None:
    check_decode(make_case(device, [40, 3]), num_heads=2 * group)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_decode_in_half_precision(
    device: torch.device, small_splits: None, head_dim: int, dtype: torch.dtype
) -> None:
    check_decode(make_case(device, [33, 70], head_dim=head_dim, dtype=dtype), num_heads=8)


def test_decode_takes_int32_indices_and_a_strided_query(device: torch.device) -> None:
    case = make_case(device, [20, 50], index_dtype=torch.int32)
    fused = torch.randn(2, 6, 32, device=device)
    arguments = (case.keys, case.values, case.block_tables, case.context_lens, 0.2)
    out = triton_paged.paged_decode(fused[:, :4], *arguments)
    assert torch.equal(out, triton_paged.paged_decode(fused[:, :4].contiguous(), *arguments))


def test_a_batch_of_padding_rows_decodes_to_zeros(device: torch.device, small_splits: None) -> None:
    case = make_case(device, [64, 64])
    case.context_lens.zero_()
    q = torch.randn(2, 4, 32, device=device)
    out = triton_paged.paged_decode(
        q, case.keys, case.values, case.block_tables, case.context_lens, 0.2
    )
    assert torch.equal(out, torch.zeros_like(out))


def test_splits_follow_from_shapes_and_stop_at_small_shares() -> None:
    assert triton_paged._num_splits(1024, 1 << 20, num_sms=132) == 1
    assert triton_paged._num_splits(8, 8192, num_sms=132) == 32
    assert triton_paged._num_splits(8, 100, num_sms=132) == 1
    assert triton_paged._num_splits(1, 1 << 20, num_sms=132) == 1056


# -- prefill ----------------------------------------------------------------------------------


def check_prefill(case: Case, query_lens: list[int], num_heads: int, slack: int = 0) -> None:
    head_dim, dtype, device = case.keys.shape[-1], case.keys.dtype, case.keys.device
    q = torch.randn(sum(query_lens), num_heads, head_dim, device=device).to(dtype)
    cu = torch.tensor([0, *query_lens], device=device).cumsum(0).to(torch.int32)
    longest, scale = max(query_lens) + slack, head_dim**-0.5
    out = triton_paged.paged_prefill_batch(
        q, case.keys, case.values, case.block_tables, cu, case.context_lens, longest, scale
    )
    keys, values = case.clean
    expected = reference.paged_prefill_batch(
        q.float(), keys, values, case.block_tables.long(), cu, case.context_lens, longest, scale
    )
    assert out.shape == q.shape
    assert out.dtype == dtype
    assert relative_error(out, expected) < TOLERANCES[dtype]


@pytest.mark.parametrize("page_size", [16, 64])
def test_prefill_of_whole_prompts_and_of_chunks_over_cached_tokens(
    device: torch.device, page_size: int
) -> None:
    query_lens = [1, 40, page_size, 5]
    context_lens = [1, 40, page_size + 1, 90]
    check_prefill(make_case(device, context_lens, page_size=page_size), query_lens, num_heads=4)


@pytest.mark.parametrize("group", [1, 5, 7])
def test_prefill_rows_of_odd_groups_cross_blocks(device: torch.device, group: int) -> None:
    check_prefill(make_case(device, [70, 33]), [50, 33], num_heads=2 * group)


def test_an_empty_chunk_and_a_loose_bound_change_nothing(device: torch.device) -> None:
    case = make_case(device, [30, 25, 0, 50], index_dtype=torch.int32)
    check_prefill(case, [7, 0, 0, 20], num_heads=4, slack=100)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_prefill_in_half_precision(device: torch.device, head_dim: int, dtype: torch.dtype) -> None:
    case = make_case(device, [90, 60], head_dim=head_dim, dtype=dtype)
    check_prefill(case, [90, 10], num_heads=4)


def test_a_chunk_of_one_token_is_a_decode(device: torch.device) -> None:
    case = make_case(device, [75, 12])
    q = torch.randn(2, 4, 32, device=device)
    cu = torch.arange(3, dtype=torch.int32, device=device)
    arguments = (q, case.keys, case.values, case.block_tables)
    prefill = triton_paged.paged_prefill_batch(*arguments, cu, case.context_lens, 1, 0.2)
    decode = triton_paged.paged_decode(*arguments, case.context_lens, 0.2)
    assert relative_error(prefill, decode) < 1e-5


# -- store ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(2, 32), (3, 64)])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_store_writes_its_slots_and_nothing_else(
    device: torch.device, index_dtype: torch.dtype, num_kv_heads: int, head_dim: int
) -> None:
    case = make_case(
        device, [48], num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=torch.float16
    )
    fused = torch.randn(5, 3, num_kv_heads, head_dim, device=device)
    k, v = fused[:, 0], fused[:, 1]
    slots = torch.tensor([17, 0, 63, 40, 2], dtype=index_dtype, device=device)
    keys, values = case.keys.clone(), case.values.clone()
    reference.store_kv(keys, values, k, v, slots.long())
    triton_paged.store_kv(case.keys, case.values, k, v, slots)
    torch.testing.assert_close(case.keys, keys, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(case.values, values, rtol=0, atol=0, equal_nan=True)


def test_store_skips_padding_rows(device: torch.device) -> None:
    case = make_case(device, [48])
    before = case.keys.clone(), case.values.clone()
    k, v = torch.randn(2, 3, 2, 32, device=device)
    slots = torch.tensor([-1, 21, -1], device=device)
    triton_paged.store_kv(case.keys, case.values, k, v, slots)
    for cache, old, new in ((case.keys, before[0], k), (case.values, before[1], v)):
        assert torch.equal(cache[1, 5], new[1])
        cache[1, 5] = old[1, 5]
        torch.testing.assert_close(cache, old, rtol=0, atol=0, equal_nan=True)


# -- on the device only -----------------------------------------------------------------------


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("page_size", [16, 64, 256])
@pytest.mark.parametrize("group", [1, 4, 5, 7, 8])
def test_decode_of_long_contexts(
    device: torch.device, group: int, page_size: int, dtype: torch.dtype
) -> None:
    lens = [1, 0, page_size, page_size + 1, 4095, 2000, 8192, 700]
    case = make_case(device, lens, page_size=page_size, head_dim=128, num_kv_heads=4, dtype=dtype)
    check_decode(case, num_heads=4 * group)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("page_size", [16, 64, 256])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_prefill_of_long_chunks(
    device: torch.device, head_dim: int, page_size: int, dtype: torch.dtype
) -> None:
    case = make_case(device, [1500, 513, 2048], page_size=page_size, head_dim=head_dim, dtype=dtype)
    check_prefill(case, [1500, 512, 300], num_heads=8)


@pytest.mark.gpu
@needs_gpu
def test_a_captured_decode_follows_new_lengths(device: torch.device) -> None:
    case = make_case(device, [3000, 100, 1], page_size=64, head_dim=128, dtype=torch.bfloat16)
    q = torch.randn(3, 8, 128, device=device, dtype=torch.bfloat16)
    arguments = (q, case.keys, case.values, case.block_tables, case.context_lens, 0.1)
    triton_paged.paged_decode(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = triton_paged.paged_decode(*arguments)
    for lens in ([3000, 100, 1], [64, 1, 0], [2999, 0, 1]):
        case.context_lens.copy_(torch.tensor(lens))
        captured.fill_(float("nan"))
        graph.replay()
        assert torch.equal(captured, triton_paged.paged_decode(*arguments))


@pytest.mark.gpu
@needs_gpu
def test_offsets_past_two_to_the_31_elements(device: torch.device) -> None:
    num_pages, page_size = 8200, 256
    shape = (num_pages, page_size, 8, 128)
    keys = torch.zeros(shape, dtype=torch.bfloat16, device=device)
    values = torch.zeros_like(keys)
    k, v = torch.randn(2, 3, 8, 128, device=device, dtype=torch.bfloat16)
    last = (num_pages - 1) * page_size
    triton_paged.store_kv(keys, values, k, v, torch.arange(last, last + 3, device=device))
    assert torch.equal(values[-1, :3], v)
    q = torch.randn(1, 8, 128, device=device, dtype=torch.bfloat16)
    table = torch.tensor([[num_pages - 1]], device=device)
    lens = torch.tensor([3], device=device)
    out = triton_paged.paged_decode(q, keys, values, table, lens, 0.1)
    expected = reference.paged_decode(
        q.float(), keys[-1:].float(), values[-1:].float(), torch.zeros_like(table), lens, 0.1
    )
    assert relative_error(out, expected) < 1e-2
