"""The beginning and the end of a step: kernels and twins give the same integers."""

import pytest
import torch

pytest.importorskip("triton")

from growpage.engine.kernels.step import (
    forget_queries,
    forget_queries_reference,
    keep_tokens,
    keep_tokens_reference,
    resolve_tokens,
    resolve_tokens_reference,
    unpack_tables,
    unpack_tables_reference,
)


def _ints(values: object, device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def test_a_negative_token_is_looked_up_in_its_slot(device: torch.device) -> None:
    last = torch.arange(100, 400, dtype=torch.int32, device=device)
    given = torch.randint(-300, 300, (257,), dtype=torch.int32, device=device)
    given[:3] = _ints([-1, -300, 0], device)
    resolved = resolve_tokens(given, last)
    assert resolved[:3].tolist() == [100, 399, 0]
    assert torch.equal(resolved, resolve_tokens_reference(given, last))


def test_tokens_are_kept_in_their_slots_and_padding_in_none(device: torch.device) -> None:
    slots = torch.randperm(300, device=device)[:200].to(torch.int32)
    slots[::7] = -1
    tokens = torch.randint(0, 1 << 17, (200,), device=device)
    kept, twin = (torch.full((300,), -5, dtype=torch.int32, device=device) for _ in range(2))
    keep_tokens(tokens, slots, kept)
    keep_tokens_reference(tokens, slots, twin)
    assert torch.equal(kept, twin)


def test_only_fresh_slots_forget_their_queries(device: torch.device) -> None:
    slots, is_fresh = _ints([4, 0, -1, 2], device), _ints([1, 0, 1, 1], device)
    counts, twin = (torch.arange(10, 15, device=device) for _ in range(2))
    forget_queries(slots, is_fresh, counts)
    forget_queries_reference(slots, is_fresh, twin)
    assert counts.tolist() == twin.tolist() == [10, 11, 0, 13, 0]


@pytest.mark.parametrize("width", [1, 3, 200])
def test_tables_are_unpacked_as_far_as_their_contexts_go(device: torch.device, width: int) -> None:
    page = 8
    packed = torch.randint(0, 1 << 20, (5, width), dtype=torch.int32, device=device)
    context = _ints([0, 1, width * page, (width - 1) * page + 1, max(1, width // 2 * page)], device)
    out, twin = (torch.full((5, 210), -7, dtype=torch.int32, device=device) for _ in range(2))
    unpack_tables(packed[:, :1], _ints([width], device), context, out, page)
    unpack_tables_reference(packed, _ints([width], device), context, twin, page)
    assert torch.equal(out, twin)
