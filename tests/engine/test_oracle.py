"""The paged engine against the masked dense model, for every policy."""

from pathlib import Path

import pytest
import torch

from growpage.budget.base import CapacityPolicy, RetentionCandidates
from growpage.budget.coverage import Coverage
from growpage.budget.fixed import Fixed
from growpage.budget.fullkv import FullKV
from growpage.budget.gkv import GKV
from growpage.budget.growpage import GrowPage
from growpage.budget.inverse import Inverse
from growpage.budget.morphkv import MorphKV
from growpage.budget.random import Random
from growpage.budget.rkv import RKV
from growpage.budget.scorer_settings import ScorerSettings
from growpage.budget.shrink import Shrink
from growpage.budget.zipage import Zipage
from growpage.engine.config import EngineConfig, PreemptMode
from growpage.engine.engine import Engine
from growpage.engine.events import EventKind
from growpage.engine.models.loader import LoadedModel, load_model
from growpage.engine.request import Request, SamplingParams
from tests.oracle import Recorder, worst_difference
from tests.tiny_models import make_tiny

TOLERANCE = 1e-4

TINY = ScorerSettings(window=3)
SMALL = {"num_protected_tokens": 1, "scorer_settings": TINY}

# One row a policy: joined by every new one.
POLICIES = {
    "policy-rkv": lambda b: RKV(budget_tokens=2 * b, buffer_tokens=2 * b, scorer_settings=TINY),
    "policy-gkv": lambda b: GKV(budget_tokens=3 * b, scorer_settings=TINY),
    "policy-morphkv": lambda b: MorphKV(budget_tokens=2 * b, scorer_settings=TINY),
    "policy-zipage": lambda b: Zipage(budget_tokens=3 * b, scorer_settings=TINY),
    "fullkv": lambda b: FullKV(),
    "fixed": lambda b: Fixed(budget_tokens=4 * b, num_protected_tokens=3),
    "growpage": lambda b: GrowPage(initial_pages=3, num_protected_tokens=3),
    "growpage-newest": lambda b: GrowPage(
        initial_pages=3,
        num_protected_tokens=3,
        retention_candidates=RetentionCandidates.exclude_newest,
    ),
    "growpage-one-page": lambda b: GrowPage(initial_pages=1, num_protected_tokens=2),
    "growpage-corrected": lambda b: GrowPage(
        initial_pages=2, num_protected_tokens=3, ema_bias_correction=True, beta_long=0.99
    ),
    "random": lambda b: Random(initial_pages=2, num_protected_tokens=3),
    "inverse": lambda b: Inverse(initial_pages=3, num_protected_tokens=3),
    "shrink": lambda b: Shrink(
        initial_pages=4, min_pages=2, num_protected_tokens=3, shrink_threshold=-0.0001
    ),
    "coverage": lambda b: Coverage(initial_pages=2, num_protected_tokens=3, epsilon=0.2),
    # One row a scorer.
    "streaming_llm": lambda b: Random(
        initial_pages=2, num_protected_tokens=3, scorer="streaming_llm"
    ),
    "snapkv": lambda b: Fixed(budget_tokens=4 * b, scorer="snapkv", **SMALL),
    "h2o": lambda b: Random(initial_pages=2, scorer="h2o", **SMALL),
    "rkv": lambda b: GrowPage(initial_pages=2, scorer="rkv", **SMALL),
    "gkv": lambda b: Fixed(budget_tokens=3 * b, scorer="gkv", **SMALL),
    "morphkv": lambda b: Shrink(initial_pages=4, min_pages=2, scorer="morphkv", **SMALL),
    "zipage": lambda b: Coverage(initial_pages=2, epsilon=0.2, scorer="zipage", **SMALL),
}
HEADS = {1: 2, 2: 4, 4: 8}  # GQA ratio → query heads over two KV heads


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[int, LoadedModel]:
    folder = tmp_path_factory.mktemp("models")
    return {ratio: _load(folder, heads) for ratio, heads in HEADS.items()}


def _load(folder: Path, num_heads: int) -> LoadedModel:
    path = make_tiny(
        folder, "Qwen3ForCausalLM", num_attention_heads=num_heads, num_key_value_heads=2
    )
    return load_model(str(path), dtype="float32")


def _engine(model: LoadedModel, policy: CapacityPolicy, page_size: int, **settings) -> Engine:
    defaults = {"num_pages": 200, "max_num_seqs": 4, "max_num_batched_tokens": 24}
    config = EngineConfig(page_size=page_size, **(defaults | settings))
    return Engine(model, config, policy)


def _requests(count: int, max_tokens: int, seed: int = 0) -> list[Request]:
    generator = torch.Generator().manual_seed(seed)
    requests = []
    for index in range(count):
        length = int(torch.randint(1, 30, (1,), generator=generator))
        prompt = torch.randint(0, 250, (length,), generator=generator).tolist()
        requests.append(
            Request(
                request_id=f"r{index}",
                prompt_token_ids=tuple(prompt),
                sampling=SamplingParams(
                    temperature=0.8, max_tokens=max_tokens, ignore_eos=True, seed=seed * 100 + index
                ),
            )
        )
    return requests


@pytest.mark.parametrize("ratio", HEADS)
@pytest.mark.parametrize("page_size", [4, 8, 16])
@pytest.mark.parametrize("name", POLICIES)
def test_paged_logits_equal_the_masked_dense_model(
    models: dict[int, LoadedModel], name: str, page_size: int, ratio: int
) -> None:
    model = models[ratio]
    recorder = Recorder(_engine(model, POLICIES[name](page_size), page_size))
    outputs = recorder.run(_requests(3, max_tokens=9 * page_size, seed=ratio))
    worst = max(worst_difference(model.decoder, recorder, out) for out in outputs.values())
    assert worst <= TOLERANCE
    if name != "fullkv":
        counters = recorder.engine.stats().counters
        assert counters.executed_compress + counters.executed_shrink > 0, "nothing was evicted"


@pytest.mark.parametrize("mode", PreemptMode)
@pytest.mark.parametrize("name", POLICIES)
def test_preempted_requests_come_back_with_the_right_logits(
    models: dict[int, LoadedModel], name: str, mode: PreemptMode
) -> None:
    model = models[2]
    engine = _engine(
        model, POLICIES[name](4), 4, num_pages=21, preempt_mode=mode, admission="prompt"
    )
    recorder = Recorder(engine)
    outputs = recorder.run(_requests(4, max_tokens=40, seed=7))
    worst = max(worst_difference(model.decoder, recorder, out) for out in outputs.values())
    assert worst <= TOLERANCE
    kinds = {event.kind for event in recorder.events}
    if name == "fullkv":
        expected = (
            EventKind.PREEMPT_SWAP if mode is PreemptMode.swap else EventKind.PREEMPT_RECOMPUTE
        )
        assert expected in kinds


@pytest.mark.parametrize("name", POLICIES)
def test_shared_prefix_pages_survive_a_compaction(
    models: dict[int, LoadedModel], name: str
) -> None:
    model = models[2]
    prompt = tuple(range(20, 34))
    sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    first = Request(
        request_id="first", prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=1)
    )
    others = [
        Request(request_id=f"o{i}", prompt_token_ids=(*prompt, i), sampling=sampling)
        for i in range(3)
    ]
    engine = _engine(model, POLICIES[name](4), 4)
    recorder = Recorder(engine)
    outputs = recorder.run([first])
    outputs |= recorder.run(others)
    assert all(outputs[o.request_id].metrics.num_cached_tokens == 12 for o in others)
    worst = max(worst_difference(model.decoder, recorder, out) for out in outputs.values())
    assert worst <= TOLERANCE
