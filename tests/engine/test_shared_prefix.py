"""Pages of a common prompt under requests that compact: bytes untouched, hits counted, tokens as without a cache."""

from pathlib import Path
from typing import Any

import pytest
import torch

from growpage.budget.base import Action, Boundary, CapacityPolicy, EvictingPolicy
from growpage.budget.fixed import Fixed
from growpage.budget.fullkv import FullKV
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.models.loader import LoadedModel, load_model
from growpage.engine.plan import Compaction
from growpage.engine.request import Request, RequestOutput, SamplingParams
from tests.tiny_models import make_tiny

PAGE = 4
PREFIX = tuple(range(20, 20 + 3 * PAGE))


class EverySecond(EvictingPolicy):
    """Half of the requests compress at each boundary, the others grow."""

    NAME = "every-second"

    def decide(self, boundary: Boundary) -> Action:
        return Action.COMPRESS if boundary.request_seed % 2 else Action.GROW


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder: Path = tmp_path_factory.mktemp("models")
    path = make_tiny(folder, "Qwen3ForCausalLM", max_position_embeddings=2048)
    return load_model(str(path), dtype="float32")


def _engine(model: LoadedModel, policy: CapacityPolicy, **settings: Any) -> Engine:
    defaults = {"page_size": PAGE, "num_pages": 200, "max_num_seqs": 8, "device": "cpu"}
    return Engine(model, EngineConfig(**(defaults | settings)), policy)


def _request(index: int, prompt: tuple[int, ...], max_tokens: int) -> Request:
    sampling = SamplingParams(temperature=0.7, max_tokens=max_tokens, ignore_eos=True, seed=index)
    return Request(request_id=f"r{index}", prompt_token_ids=prompt, sampling=sampling)


def _finish(engine: Engine) -> dict[str, RequestOutput]:
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    return outputs


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("num_pages", [200, 40, 22])
def test_eight_requests_keep_a_shared_prefix_byte_for_byte_while_half_compact(
    model: LoadedModel, num_pages: int, is_async: bool
) -> None:
    policy = EverySecond(initial_pages=5, num_protected_tokens=2)
    engine = _engine(model, policy, num_pages=num_pages, async_scheduling=is_async)
    engine.add_request(_request(99, (*PREFIX, 1), 1))
    _finish(engine)
    requests = [_request(i, (*PREFIX, 100 + i), 30) for i in range(8)]
    shared = engine.scheduler.pool.find(
        engine.scheduler._prefix_hashes(_sequence(engine, requests))
    )
    assert len(shared) == 3
    before = engine.cache.data[:, :, shared].clone()
    compact, num_written = engine.compactor.compact, 0

    def watched(compaction: Compaction) -> None:
        nonlocal num_written
        pool = engine.scheduler.pool
        for page in compaction.target_pages:
            assert pool._hash_of[page] is None, "a page about to be written can be found"
        num_written += len(compaction.target_pages)
        compact(compaction)

    engine.compactor.compact = watched  # type: ignore[method-assign]
    outputs: dict[str, RequestOutput] = {}
    num_steps_shared = 0
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
        owners = [s for s in engine.scheduler.running if s.block_table[:3] == shared]
        if any(s.is_dense for s in owners):
            num_steps_shared += 1
            assert torch.equal(engine.cache.data[:, :, shared], before)
    assert len(outputs) == 8
    assert num_written > 0
    assert num_steps_shared > 10
    assert engine.scheduler.pool.num_used == 0
    if num_pages == 200:  # less room makes fallbacks, which change what is kept
        assert all(o.metrics.num_cached_tokens == 3 * PAGE for o in outputs.values())
        for index, request in enumerate(requests):
            alone = _engine(model, policy, enable_prefix_caching=False)
            alone.add_request(request)
            assert _finish(alone)[f"r{index}"].token_ids == outputs[f"r{index}"].token_ids


def _sequence(engine: Engine, requests: list[Request]) -> Any:
    for request in requests:
        engine.add_request(request)
    return engine.scheduler.waiting[0]


@pytest.mark.parametrize("budget", [None, 1056], ids=["fullkv", "fixed"])
def test_sixty_four_requests_over_a_thousand_tokens_hit_nine_of_ten_and_change_nothing(
    model: LoadedModel, budget: int | None
) -> None:
    prefix = tuple(
        torch.randint(0, 250, (1024,), generator=torch.Generator().manual_seed(2)).tolist()
    )
    requests = [
        _request(i, (*prefix, i, i + 1, i + 2), 8 if budget is None else 40) for i in range(64)
    ]
    requests = requests if budget is None else requests[:8]
    results = []
    for is_caching in (True, False):
        engine = _engine(
            model,
            FullKV() if budget is None else Fixed(budget_tokens=budget, num_protected_tokens=3),
            page_size=32,
            num_pages=400,
            max_num_seqs=8,
            max_num_batched_tokens=1024,
            enable_prefix_caching=is_caching,
        )
        for request in requests:
            engine.add_request(request)
        results.append(_finish(engine))
    cached, plain = results
    assert {n: o.token_ids for n, o in cached.items()} == {n: o.token_ids for n, o in plain.items()}
    num_hit = sum(output.metrics.num_cached_tokens for output in cached.values())
    rate = num_hit / sum(len(request.prompt_token_ids) for request in requests)
    assert rate >= (0.9 if budget is None else 0.85)
    assert all(output.metrics.num_cached_tokens == 0 for output in plain.values())
    print(f"prefix hit rate {rate:.3f}")
