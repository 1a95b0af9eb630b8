"""Pieces of the training of the bundled model: data, noise, summaries, schedule, config, card."""

from pathlib import Path

import numpy as np
import pytest
import torch

from growpage.bench.sequences.benchmark import FROZEN_SEED, split_plan
from growpage.bench.sequences.generator import Difficulty
from growpage.bench.sequences.plan import question_text
from growpage.bench.sequences.vocabulary import NEWLINE, SPECIAL, WORDS, decode, encode
from growpage.errors import UsageError
from growpage.sequences_training import data
from growpage.sequences_training.card import verify_weights
from growpage.sequences_training.config import (
    DataConfig,
    NoiseConfig,
    SummaryConfig,
    TrainingConfig,
    load_config,
)
from growpage.sequences_training.data import Batches, build_corpus
from growpage.sequences_training.evaluate import top_mass_count
from growpage.sequences_training.export import make_tokenizer
from growpage.sequences_training.model import Heads, rotate, rotation
from growpage.sequences_training.noise import attention_bias, draw_expiry
from growpage.sequences_training.recipe import Clock, learning_rate
from growpage.sequences_training.summaries import (
    Documents,
    draw_boundary,
    ema_weights,
    summary_loss,
    summary_scores,
)

CONF = Path(__file__).resolve().parents[2] / "conf" / "training"
SMALL = DataConfig(
    num_problems=60, num_workers=0, max_items=6, max_steps=16, buckets=[128, 256, 512]
)


@pytest.fixture(scope="module")
def corpus():
    return build_corpus(SMALL, seed=0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def heads_of(batch, length, num_heads=4, kv_heads=2, size=8, seed=0):
    make = generator(seed)
    q_raw = torch.randn(batch, length, num_heads, size, generator=make)
    k = torch.randn(batch, length, kv_heads, size, generator=make)
    cos, sin = rotation(torch.arange(length), size, 1e4)
    return Heads(q_raw=q_raw, q=rotate(q_raw, cos, sin), k=rotate(k, cos, sin))


# --- data ---


def test_corpus_is_the_same_for_the_same_seed(corpus):
    again, other = build_corpus(SMALL, seed=0), build_corpus(SMALL, seed=1)
    assert np.array_equal(corpus.ids, again.ids)
    assert not np.array_equal(corpus.ids[:500], other.ids[:500])


def test_problems_of_a_test_split_are_left_out(monkeypatch):
    stream = [split_plan(FROZEN_SEED, index, SMALL.difficulty) for index in range(5)]
    monkeypatch.setattr(data, "make_plan", lambda _name, index, _knobs: stream[index % 5])
    dropped = data._make_chunk(
        "x", 5, SMALL.difficulty, data.held_out_questions(SMALL.difficulty), 0
    )
    assert dropped[4] == 5
    assert len(dropped[2]) == 0


def test_documents_start_with_their_prompt(corpus):
    start, end = corpus.offsets[3], corpus.offsets[4]
    text = decode(corpus.ids[start:end].tolist())
    prompt = decode(corpus.ids[start : start + corpus.prompt_lengths[3]].tolist())
    assert text.startswith("<bos> start")
    assert text.endswith("<eos>")
    assert prompt.endswith(f"<think> {NEWLINE}")


def test_an_epoch_visits_every_document(corpus):
    batches = Batches(corpus, SMALL.buckets, tokens_per_step=1024, seed=0)
    lengths = corpus.lengths
    epoch = [batch for index in range(3) for batch in batches._cut(index)]
    seen = {int(document) for batch in epoch for document in batch.documents}
    assert seen == set(range(len(lengths)))
    for batch in epoch:
        assert len(batch.documents) * batch.length == 1024
        assert lengths[batch.documents].max() <= batch.length


def test_buckets_too_short_for_a_problem_are_refused(corpus):
    with pytest.raises(UsageError, match="must reach the longest problem"):
        Batches(corpus, [128], tokens_per_step=1024, seed=0)


# --- eviction noise ---


def test_no_token_vanishes_before_its_last_read():
    last_read = torch.arange(40).expand(64, 40) + 5
    expiry = draw_expiry(last_read, NoiseConfig(), generator())
    assert (expiry >= last_read.clamp(max=40)).all()
    assert (expiry == last_read).any()


def test_share_zero_keeps_all_and_share_one_drops_all_but_bos():
    last_read = torch.arange(40).expand(8, 40)
    keep = draw_expiry(last_read, NoiseConfig(shares=[0.0], ages_tokens=[0]), generator())
    drop = draw_expiry(last_read, NoiseConfig(shares=[1.0], ages_tokens=[0]), generator())
    assert (keep == 40).all()
    assert (drop[:, 1:] == last_read[:, 1:]).all()
    assert (drop[:, 0] == 40).all()


def test_age_holds_a_token_longer():
    last_read = torch.arange(40).expand(8, 40)
    expiry = draw_expiry(last_read, NoiseConfig(shares=[1.0], ages_tokens=[7]), generator())
    assert (expiry[:, 1:] == last_read[:, 1:] + 7).all()


def test_bias_is_causal_and_hides_what_expired():
    bias = attention_bias(torch.tensor([[4, 1, 4, 4]]), torch.float32)[0, 0]
    hidden = bias == float("-inf")
    assert hidden.tolist() == [
        [False, True, True, True],
        [False, False, True, True],
        [False, True, False, True],
        [False, True, False, False],
    ]


# --- query summaries ---


def test_summary_weights_equal_the_bias_corrected_recursion():
    beta, prompt, boundary = 0.9, 5, 20
    weights = ema_weights(torch.tensor([prompt]), torch.tensor([boundary]), 32, [beta])[0, 0]
    queries = torch.randn(32, 8, generator=generator())
    mean, updates = torch.zeros(8), 0
    for position in range(prompt, boundary + 1):
        mean = beta * mean + (1 - beta) * queries[position]
        updates += 1
    torch.testing.assert_close(weights @ queries, mean / (1 - beta**updates))


def test_summary_of_one_query_scores_like_that_query():
    heads = heads_of(2, 24)
    boundary = torch.tensor([10, 15])
    weights = torch.zeros(2, 1, 24)
    weights[torch.arange(2), 0, boundary] = 1.0
    scores = summary_scores(heads, weights, boundary, 1e4)
    cos, sin = rotation(boundary + 1, 8, 1e4)
    query = rotate(heads.q_raw[torch.arange(2), boundary], cos, sin)
    keys = heads.k.repeat_interleave(2, dim=2)
    expected = torch.einsum("bhd,bthd->bht", query, keys) * 8**-0.5
    torch.testing.assert_close(scores[:, 0], expected)


def test_boundaries_leave_tokens_on_both_sides():
    documents = Documents(
        prompt_lengths=torch.full((500,), 20),
        lengths=torch.full((500,), 80),
        expiry=torch.full((500, 96), 96),
    )
    boundary = draw_boundary(documents, SummaryConfig(), generator())
    assert boundary.min() == 36
    assert boundary.max() == 62


@pytest.mark.parametrize("window", [[0, 224], [128, 0], [32, 32]])
def test_regulariser_reaches_queries_and_keys_and_spares_the_future(window):
    heads = heads_of(3, 96)
    heads.q_raw.requires_grad_()
    heads.k.requires_grad_()
    documents = Documents(
        prompt_lengths=torch.tensor([10, 12, 20]),
        lengths=torch.tensor([96, 90, 60]),
        expiry=torch.full((3, 96), 96),
    )
    config = SummaryConfig(window_long=window)
    loss = summary_loss([heads], documents, config, 1e4, generator())
    loss.backward()
    assert torch.isfinite(loss)
    assert heads.q_raw.grad.abs().sum() > 0
    assert heads.k.grad[:, -16:].abs().sum() == 0  # newer keys are no candidates
    assert heads.q_raw.grad[:, :10].abs().sum() == 0  # the prompt has no part in a summary


def test_regulariser_falls_when_followed():
    heads = heads_of(4, 96)
    q_raw, k = heads.q_raw.clone().requires_grad_(), heads.k.clone().requires_grad_()
    documents = Documents(
        prompt_lengths=torch.full((4,), 10),
        lengths=torch.full((4,), 96),
        expiry=torch.full((4, 96), 96),
    )
    optimizer = torch.optim.Adam([q_raw, k], lr=0.03)
    losses = []
    for _ in range(30):
        now = Heads(q_raw=q_raw, q=heads.q, k=k)
        loss = summary_loss([now], documents, SummaryConfig(), 1e4, generator(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_smallest_set_with_the_mass():
    shares = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]])
    assert top_mass_count(shares, 0.79).tolist() == [2, 4, 1]


# --- schedule ---


def test_progress_follows_the_steps_while_time_suffices():
    clock = Clock(200, lambda: 1000.0)
    assert [clock.progress(step) for step in (0, 50, 100, 200)] == [0.0, 0.25, 0.5, 1.0]


def test_progress_speeds_up_to_end_in_time():
    now = 0
    clock = Clock(10_000, lambda: 100.0 - 0.1 * now)
    seen = []
    while (progress := clock.progress(now)) < 1.0:
        seen.append(progress)
        now += 1
    assert 900 < now <= 1000  # a tenth of the steps fits into the time
    assert seen == sorted(seen)
    assert seen[-1] > 0.95


def test_slow_first_window_alone_does_not_speed_up():
    spent = [0.0]

    def left():
        return 100.0 - spent[0]

    clock, steps = Clock(400, left), 0
    while clock.progress(steps) < 1.0:
        spent[0] += 1.0 if steps < 40 else 0.05  # compilation, then 18 s of work
        steps += 1
    assert steps == 400


def test_learning_rate_warms_up_and_decays():
    config = TrainingConfig()
    rates = [learning_rate(config, progress) for progress in np.linspace(0, 0.999, 50)]
    assert rates[0] < 1e-4
    assert max(rates) <= config.optim.lr
    assert rates[-1] == pytest.approx(config.optim.lr * config.optim.final_lr_share, rel=0.05)


# --- config ---


def test_recipe_file_holds_the_defaults():
    assert load_config(CONF / "sequences_reasoner.yaml") == TrainingConfig()


def test_override_changes_one_value():
    config = load_config(CONF / "tiny.yaml", ["summaries.weight=0", "data.kinds=[walk]"])
    assert config.summaries.weight == 0
    assert config.data.difficulty == Difficulty(kinds=("walk",), max_items=6, max_steps=16)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("optim.lrr=1", r"optim\.key=lrr: unknown.*Did you mean lr\?"),
        ("optimizer.lr=1", "key=optimizer: unknown"),
        ("optim.lr", "must look like section.key=value"),
        ("optim.lr=fast", "optim.lr='fast': must be of type float"),
        ("optim.lr=-1", "optim.lr=-1: must be > 0"),
        ("data.buckets=[100]", "must be a multiple of 100"),
        ("summaries.window_long=[0, 0]", "summaries.window_long"),
        ("data=3", "data.: must be a section"),
    ],
)
def test_mistaken_override_is_named(override, complaint):
    with pytest.raises(UsageError, match=complaint):
        load_config(CONF / "sequences_reasoner.yaml", [override])


# --- tokenizer and card ---


def test_tokenizer_gives_the_generators_ids():
    text = question_text(split_plan(1, 4, Difficulty()))
    tokenizer = make_tokenizer()
    assert tokenizer.encode(text, add_special_tokens=False).ids == encode(text)
    assert tokenizer.encode("start 3\n1. walk", add_special_tokens=False).ids == encode(
        "start 3 \n 1. walk"
    )
    assert tokenizer.decode(encode(text)) == text
    assert [tokenizer.id_to_token(index) for index in range(len(WORDS))] == list(WORDS)


def test_think_tags_are_words_and_not_special():
    tokenizer = make_tokenizer()
    assert "<think>" not in SPECIAL
    assert tokenizer.decode(encode("<think> \n </think> <eos>")) == "<think> \n </think>"


def test_weights_are_checked_against_the_card(tmp_path):
    with pytest.raises(UsageError, match=r"model\.safetensors: no such file"):
        verify_weights(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(UsageError, match="names no sha256"):
        verify_weights(tmp_path)
    digest = "9f2b9d1d3e2f1b7f6d0c1c1d0e5b4a3f2e1d0c9b8a7f6e5d4c3b2a1908f7e6d5"
    (tmp_path / "README.md").write_text(f"`model.safetensors` sha256: `{digest}`\n")
    with pytest.raises(UsageError, match="is not the 9f2b9d1d3e2f"):
        verify_weights(tmp_path)
