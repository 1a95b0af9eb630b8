import torch

from growpage.engine.request import SamplingParams
from growpage.engine.sampler import draw, gumbel_noise, row_keys, sample, seed_words


def _draw(logits: torch.Tensor, count: int, **settings: float) -> torch.Tensor:
    params = [SamplingParams(seed=seed, **settings) for seed in range(count)]  # type: ignore[arg-type]
    return sample(logits.expand(count, -1), params, [3] * count)


def test_temperature_zero_is_argmax_even_beside_sampled_rows() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0], [9.0, 0.0, 0.0]])
    greedy = SamplingParams(temperature=0.0)
    tokens = sample(logits, [greedy, SamplingParams(temperature=1.0, seed=1)], [0, 0])
    assert tokens[0] == 1


def test_sample_does_not_depend_on_its_batch() -> None:
    logits = torch.randn(8, 500, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(temperature=0.7, seed=row) for row in range(8)]
    positions = list(range(8))
    together = sample(logits, params, positions)
    alone = [sample(logits[i : i + 1], [params[i]], [positions[i]])[0] for i in range(8)]
    assert together.tolist() == [int(token) for token in alone]


def test_frequencies_follow_the_softmax() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    tokens = _draw(logits, 20_000, temperature=1.0)
    share = torch.bincount(tokens, minlength=4) / 20_000
    assert (share - logits[0].softmax(-1)).abs().max() < 0.012


def test_noise_has_the_moments_of_a_gumbel_variable() -> None:
    keys = torch.randint(-(2**31), 2**31 - 1, (200, 2), dtype=torch.int64).to(torch.int32)
    noise = gumbel_noise(keys, 1000)
    assert torch.isfinite(noise).all()
    assert abs(float(noise.mean()) - 0.57722) < 0.01
    assert abs(float(noise.var()) - 1.64493) < 0.03
    neighbours = torch.corrcoef(torch.stack([noise[:, :-1].flatten(), noise[:, 1:].flatten()]))
    assert abs(float(neighbours[0, 1])) < 0.01


def test_noise_is_the_same_number_for_ever() -> None:
    noise = gumbel_noise(torch.tensor([[1, 2]], dtype=torch.int32), 3)
    again = gumbel_noise(torch.tensor([[5, 6], [1, 2]], dtype=torch.int32), 3)
    assert torch.equal(noise[0], again[1])


def test_row_keys_are_the_same_integers_for_ever() -> None:
    assert seed_words(0) == (-1652741244, 1977601347)
    words = torch.tensor([[1, 2], [1, 2], [-(2**31), 2**31 - 1]], dtype=torch.int32)
    keys = row_keys(words, torch.tensor([0, 1, 2**31 - 1], dtype=torch.int32))
    assert keys.tolist() == [
        [1753845952, -889199728],
        [-1527281300, -401698026],
        [2127853905, -1568743818],
    ]


def test_no_position_of_a_request_repeats_a_key() -> None:
    positions = torch.arange(100_000, dtype=torch.int32)
    keys = row_keys(torch.tensor([seed_words(7)], dtype=torch.int32), positions)
    assert len(keys[:, 0].unique()) == len(positions)


def test_each_bit_of_a_key_is_set_in_half_of_the_positions() -> None:
    positions = torch.arange(20_000, dtype=torch.int32)
    for seed in (0, 1):
        keys = row_keys(torch.tensor([seed_words(seed)], dtype=torch.int32), positions)
        bits = (keys[:, :, None] >> torch.arange(32, dtype=torch.int32)) & 1
        assert (bits.float().mean(0) - 0.5).abs().max() < 0.02


def test_noise_of_neighbouring_positions_and_seeds_is_uncorrelated() -> None:
    words = torch.tensor([seed_words(seed) for seed in (3, 4)], dtype=torch.int32)
    positions = torch.arange(200, dtype=torch.int32)
    noise = torch.stack([gumbel_noise(row_keys(w[None], positions), 500) for w in words])
    same_seed = torch.stack([noise[0, 1:].flatten(), noise[0, :-1].flatten()])
    same_position = noise.flatten(1)
    for pair in (same_seed, same_position):
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.015


def test_greedy_and_drawn_rows_of_a_batch_are_told_apart_on_the_device() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0], [0.0, 50.0, 0.0]])
    keys = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    assert draw(logits, torch.tensor([0.0, 1.0]), keys).tolist() == [1, 1]


def test_top_k_keeps_the_k_best() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0]])
    tokens = _draw(logits, 2000, temperature=1.0, top_k=2)
    assert set(tokens.tolist()) == {1, 2}


def test_top_p_keeps_the_token_that_crosses_the_mass() -> None:
    logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
    tokens = _draw(logits, 2000, temperature=1.0, top_p=0.7)
    assert set(tokens.tolist()) == {0, 1}


def test_min_p_is_relative_to_the_best() -> None:
    logits = torch.tensor([[0.6, 0.31, 0.09]]).log()
    tokens = _draw(logits, 2000, temperature=1.0, min_p=0.5)
    assert set(tokens.tolist()) == {0, 1}


def test_filters_of_one_row_leave_the_others_alone() -> None:
    logits = torch.zeros(2, 50)
    narrow = SamplingParams(temperature=1.0, top_k=1, seed=5)
    wide = SamplingParams(temperature=1.0, seed=5)
    assert sample(logits, [narrow, wide], [0, 0])[1] == sample(logits[1:], [wide], [0])[0]
