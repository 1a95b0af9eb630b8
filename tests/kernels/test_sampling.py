import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from growpage.engine import sampler
from growpage.engine.kernels import sampling
from growpage.engine.plan import NOT_FINITE
from growpage.engine.sampler import Filters

INT32 = (-(2**31), 2**31)


@triton.jit
def _noise_kernel(bits_ptr, noise_ptr, HAS_FAST_LOG: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    noise = sampling._gumbel(tl.load(bits_ptr + place), HAS_FAST_LOG)
    tl.store(noise_ptr + place, noise)


def _keys(num_rows: int, device: torch.device) -> torch.Tensor:
    return torch.randint(*INT32, (num_rows, 2), dtype=torch.int64).to(torch.int32).to(device)


def _temperatures(num_rows: int, device: torch.device) -> torch.Tensor:
    """Rows 0, 3, 6, ... are greedy."""
    temperature = torch.rand(num_rows, device=device) + 0.3
    temperature[::3] = 0.0
    return temperature


def test_row_keys_are_the_same_integers(device: torch.device) -> None:
    words = _keys(300, device)
    positions = torch.randint(0, 2**31, (300,), dtype=torch.int64).to(torch.int32).to(device)
    positions[:2] = torch.tensor([0, 2**31 - 1])
    words[:2] = torch.tensor([[-(2**31), 2**31 - 1], [0, -1]])
    assert torch.equal(sampling.row_keys(words, positions), sampler.row_keys(words, positions))


def test_row_keys_take_int64_positions(device: torch.device) -> None:
    words, positions = _keys(5, device), torch.arange(5, device=device)
    expected = sampler.row_keys(words, positions.to(torch.int32))
    assert torch.equal(sampling.row_keys(words, positions), expected)


@pytest.fixture(params=[1, 8, 10_000])
def num_programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """One split of many blocks, some splits of some blocks, or a split for each block."""
    monkeypatch.setattr(sampling, "NUM_PROGRAMS", request.param)
    return int(request.param)


@pytest.mark.parametrize(
    ("num_rows", "vocab_size"),
    [(1, 5), (1, 9000), (3, 2048), (7, 2049), (2, 4095)],
)
@pytest.mark.usefixtures("num_programs")
def test_tokens_equal_those_of_the_twin(
    num_rows: int, vocab_size: int, device: torch.device
) -> None:
    logits = 3 * torch.randn(num_rows, vocab_size, device=device)
    keys, temperature = _keys(num_rows, device), _temperatures(num_rows, device)
    tokens = sampling.draw(logits, temperature, keys)
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens, sampler.draw(logits, temperature, keys))


def test_flat_rows_show_that_the_noise_is_the_same(device: torch.device) -> None:
    logits = torch.zeros(40, 700, device=device)
    keys, temperature = _keys(40, device), torch.ones(40, device=device)
    tokens = sampling.draw(logits, temperature, keys)
    noise = sampler.gumbel_noise(keys, 700)
    lost = noise.max(-1).values - noise.gather(1, tokens[:, None])[:, 0]
    assert lost.max() < 5e-6  # near-ties alone may fall to another token
    assert (lost == 0).float().mean() > 0.9


def test_noise_of_any_bits_is_right_to_a_few_units(device: torch.device) -> None:
    ends = 512 * torch.arange(2048)
    random = torch.randint(*INT32, (65536 - 2 * 2048,))
    bits = torch.cat((ends, -1 - ends, random)).to(torch.int32)  # least, greatest, any
    noise = torch.full((65536,), torch.nan, device=device)
    _noise_kernel[(64,)](bits.to(device), noise, HAS_FAST_LOG=noise.is_cuda, BLOCK=1024)
    uniform = (((bits >> 9) & 0x7FFFFF).double() + 0.5) * 2.0**-23
    assert (noise.cpu() - -(-uniform.log()).log()).abs().max() < 3e-6


def test_bf16_logits_of_a_strided_view(device: torch.device) -> None:
    wide = torch.randn(4, 6000, device=device).to(torch.bfloat16)
    logits = wide[:, :5000]
    wide[:, 5000:] = 1e4
    temperature = torch.tensor([0.0, 1.0, 0.5, 0.0], device=device)
    keys = _keys(4, device)
    assert torch.equal(
        sampling.draw(logits, temperature, keys), sampler.draw(logits, temperature, keys)
    )


@pytest.mark.usefixtures("num_programs")
def test_lower_token_wins_a_tie(device: torch.device) -> None:
    logits = torch.zeros(4, 9000, device=device)
    logits[0, [17, 4000, 8999]] = 1.0
    logits[1, [2047, 2048]] = 1.0
    logits[2, [8999, 8192, 6144]] = 1.0  # two of them in one lane
    keys = _keys(4, device)
    assert sampling.draw(logits, torch.zeros(4, device=device), keys).tolist() == [
        17,
        2047,
        6144,
        0,
    ]


def test_rows_in_which_no_number_wins_give_no_token(device: torch.device) -> None:
    logits = torch.randn(6, 3000, device=device)
    logits[0] = torch.nan
    logits[1] = -torch.inf
    logits[2, 2900] = logits[3, 7] = torch.nan
    logits[4, 2900] = torch.inf
    logits[5, :2999] = -torch.inf
    temperature = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0, 1.0], device=device)
    for draw in (sampling.draw, sampler.draw):
        assert draw(logits, temperature, _keys(6, device)).tolist() == [NOT_FINITE] * 5 + [2999]


def test_filtered_rows_are_drawn_by_the_twin(device: torch.device) -> None:
    logits = torch.randn(3, 100, device=device)
    keys, temperature = _keys(3, device), torch.ones(3, device=device)
    filters = Filters(
        top_k=torch.tensor([1, 100, 100], device=device),
        top_p=torch.ones(3, device=device),
        min_p=torch.zeros(3, device=device),
    )
    tokens = sampling.draw(logits, temperature, keys, filters)
    assert tokens[0] == logits[0].argmax()
    assert torch.equal(tokens[1:], sampler.draw(logits, temperature, keys)[1:])


def test_no_rows_give_no_tokens(device: torch.device) -> None:
    none = torch.empty(0, device=device)
    assert sampling.draw(torch.empty(0, 10, device=device), none, _keys(0, device)).shape == (0,)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("num_programs")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "vocab_size"), [(1, 151936), (257, 151936), (512, 128256)])
def test_large_vocabularies(num_rows: int, vocab_size: int, dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    logits = (3 * torch.randn(num_rows, vocab_size, device=device)).to(dtype)
    keys, temperature = _keys(num_rows, device), _temperatures(num_rows, device)
    tokens = sampling.draw(logits, temperature, keys)
    expected = sampler.draw(logits, temperature, keys)
    assert (tokens == expected).float().mean() > 0.99  # near-ties alone may differ
    assert torch.equal(tokens[::3], logits[::3].float().argmax(-1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_row_keys_are_the_same_on_cpu_and_gpu() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    words, positions = _keys(500, cpu), torch.arange(500, dtype=torch.int32)
    expected = sampler.row_keys(words, positions)
    assert torch.equal(sampling.row_keys(words.to(gpu), positions.to(gpu)).cpu(), expected)
    assert torch.equal(sampler.row_keys(words.to(gpu), positions.to(gpu)).cpu(), expected)
