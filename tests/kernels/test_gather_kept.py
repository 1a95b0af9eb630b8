"""Compaction of pages: every byte where the torch twin puts it, and no other byte touched."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from growpage.engine.kernels import gather_kept
from growpage.engine.kernels.gather_kept import move_kept

PAGE = 16
SOURCES = [5, 1, 7, 2]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks a row, as long requests have them."""
    if not torch.cuda.is_available():
        monkeypatch.setitem(gather_kept.MOVE, "CHUNK", 16)


def _cache(device: torch.device, dtype: torch.dtype, *, head_dim: int = 32) -> Tensor:
    """All bit patterns, NaN among them: they must move as they are."""
    data = torch.empty(2, 2, 9, PAGE, 2, head_dim, dtype=dtype, device=device)
    words = data.view(torch.int32)
    words.copy_(torch.randint(-(2**31), 2**31 - 1, words.shape, device=device))
    return data


def _kept(num_tokens: int, num_kept: int, device: torch.device, *shape: int) -> Tensor:
    """Increasing slots, different in every row: [*shape, num_kept]."""
    noise = torch.rand(*shape, num_tokens, device=device)
    return noise.argsort(-1)[..., :num_kept].sort(-1).values


def _expected(data: Tensor, sources: list[int], targets: list[int], kept: Tensor) -> Tensor:
    """The twin: gather all pages, pick, scatter token by token; as integers, since torch makes one NaN of many."""
    data = data.view(torch.int32)
    device, head_dim = data.device, data.shape[-1]
    tokens = data.index_select(2, torch.tensor(sources, device=device)).flatten(2, 3)
    index = kept.long().transpose(1, 2)[:, None, :, :, None].expand(-1, 2, -1, -1, head_dim)
    picked = tokens.gather(2, index)
    token = torch.arange(kept.shape[-1], device=device)
    page = torch.tensor(targets, device=device)[token // data.shape[3]]
    out = data.clone()
    out[:, :, page, token % data.shape[3]] = picked
    return out


def _assert_moved(data: Tensor, sources: list[int], targets: list[int], kept: Tensor) -> None:
    expected = _expected(data, sources, targets, kept)
    move_kept(data, sources, targets, kept)
    assert torch.equal(data.view(torch.int32), expected)


@pytest.mark.parametrize(
    "targets",
    [
        [5, 1, 7],  # in place
        [5, 1, 7, 2],  # in place, the last page stays as it is
        [5, 8, 7],  # one page was shared
        [3, 4, 0],  # all were
        [1, 7, 2],  # own pages move forward past a shared one
        [7, 2, 8],
        [2, 1, 5],
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_tokens_move_to_the_front(
    device: torch.device, targets: list[int], dtype: torch.dtype
) -> None:
    kept = _kept(4 * PAGE, 3 * PAGE, device, 2, 2)
    _assert_moved(_cache(device, dtype), SOURCES, targets, kept)


@pytest.mark.parametrize("num_kept", [1, PAGE - 1, PAGE + 1, 4 * PAGE])
def test_any_number_of_kept_tokens(device: torch.device, num_kept: int) -> None:
    kept = _kept(4 * PAGE, num_kept, device, 2, 2).to(torch.int32)
    _assert_moved(_cache(device, torch.float16), SOURCES, SOURCES, kept)


def test_a_prompt_beyond_the_budget_gives_pages_back(device: torch.device) -> None:
    kept = _kept(4 * PAGE, PAGE, device, 2, 2)
    _assert_moved(_cache(device, torch.float32), SOURCES, [5, 1], kept)


@pytest.mark.parametrize("scratch_bytes", [1, 1 << 30])
def test_scratch_for_one_layer_or_for_all(
    device: torch.device, scratch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather_kept, "SCRATCH_BYTES", scratch_bytes)
    kept = _kept(4 * PAGE, 2 * PAGE + 3, device, 2, 2)
    _assert_moved(_cache(device, torch.bfloat16), SOURCES, [2, 7, 1], kept)


def test_a_head_in_several_parts(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_kept, "MAX_WORDS", 16)
    kept = _kept(4 * PAGE, 3 * PAGE, device, 2, 2)
    _assert_moved(_cache(device, torch.float32, head_dim=64), SOURCES, SOURCES, kept)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("targets", ["in place", "one fresh page", "forward", "fresh pages"])
def test_in_place_moves_of_long_requests_never_race(
    device: torch.device, head_dim: int, targets: str
) -> None:
    data = torch.randn(8, 2, 40, 256, 8, head_dim, device=device).to(torch.bfloat16)
    for _ in range(5):
        order = torch.randperm(40).tolist()
        sources, spare = order[:16], order[16:]
        chosen = {
            "in place": sources[:15],
            "one fresh page": [spare[0], *sources[1:15]],
            "forward": [*sources[2:], spare[0]],
            "fresh pages": spare[:15],
        }[targets]
        _assert_moved(data, sources, chosen, _kept(4096, 3840, device, 8, 8))
