"""Far more requests than pages, clients that leave, requests that can never run: everybody gets an answer."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from growpage.budget.base import CapacityPolicy
from growpage.budget.fixed import Fixed
from growpage.budget.fullkv import FullKV
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.models.loader import LoadedModel, load_model
from growpage.engine.request import FinishReason, Request, RequestOutput, SamplingParams
from growpage.errors import UsageError
from tests.tiny_models import make_tiny

PAGE = 4
NUM_REQUESTS = 2000
POLICIES: dict[str, CapacityPolicy] = {
    "fullkv": FullKV(),
    "fixed": Fixed(budget_tokens=3 * PAGE, num_protected_tokens=2),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = make_tiny(tmp_path_factory.mktemp("models"), "LlamaForCausalLM", num_hidden_layers=1)
    return load_model(str(path), dtype="float32")


def _engine(model: LoadedModel, policy: CapacityPolicy, **settings: Any) -> Engine:
    """Pages for about 20 requests."""
    defaults: dict[str, Any] = {
        "page_size": PAGE,
        "num_pages": 60,
        "max_num_seqs": 32,
        "max_model_len": 512,
        "admission": "prompt",
        "device": "cpu",
        "swap_space_gib": 0.0001,
    }
    return Engine(model, EngineConfig(**(defaults | settings)), policy)


def _request(index: int, rng: Random) -> Request:
    prompt = tuple(rng.randrange(250) for _ in range(rng.randint(1, 10)))
    sampling = SamplingParams(max_tokens=rng.randint(1, 9), ignore_eos=True, seed=index)
    return Request(request_id=f"r{index}", prompt_token_ids=prompt, sampling=sampling)


@pytest.mark.parametrize("name", POLICIES)
def test_two_thousand_requests_on_a_pool_for_twenty_all_finish(
    model: LoadedModel, name: str
) -> None:
    engine, rng = _engine(model, POLICIES[name], async_scheduling=name == "fixed"), Random(4)
    requests = [_request(index, rng) for index in range(NUM_REQUESTS)]
    outputs: dict[str, RequestOutput] = {}
    for request in requests:
        engine.add_request(request)
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert output.request_id not in outputs
            outputs[output.request_id] = output
        engine.check_integrity()
    assert len(outputs) == NUM_REQUESTS
    for request in requests:
        output = outputs[request.request_id]
        assert output.finish_reason is FinishReason.LENGTH
        assert len(output.token_ids) == request.sampling.max_tokens
    assert engine.stats().num_used_pages == 0
    counters = engine.stats().counters
    assert counters.preempt_swap + counters.preempt_recompute > 0


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_clients_that_leave_at_random_cost_the_others_nothing(
    model: LoadedModel, name: str, is_async: bool
) -> None:
    rng = Random(7)
    requests = [_request(index, rng) for index in range(300)]
    settings: dict[str, Any] = {"async_scheduling": is_async, "swap_space_gib": 1.0}
    engine = _engine(model, POLICIES[name], **settings)
    outputs: dict[str, RequestOutput] = {}
    aborted = set()
    waiting = list(reversed(requests))
    while waiting or engine.has_unfinished_requests():
        for _ in range(min(len(waiting), rng.randint(0, 6))):
            engine.add_request(waiting.pop())
        if rng.random() < 0.5:
            name_left = f"r{rng.randrange(300 - len(waiting))}" if len(waiting) < 300 else "nobody"
            engine.abort(name_left)
            aborted.add(name_left)
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    assert len(outputs) == 300
    reasons = Counter(output.finish_reason for output in outputs.values())
    assert set(reasons) == {FinishReason.LENGTH, FinishReason.ABORT}
    left = {n for n, o in outputs.items() if o.finish_reason is FinishReason.ABORT}
    assert left <= aborted
    assert engine.stats().num_used_pages == 0
    assert not engine.runner._swap._parked
    for request in requests:
        if request.request_id not in left:
            assert len(outputs[request.request_id].token_ids) == request.sampling.max_tokens


def test_what_can_never_fit_is_refused_and_the_others_run(model: LoadedModel) -> None:
    engine = _engine(model, FullKV())
    engine.add_request(_request(0, Random(1)))
    with pytest.raises(UsageError, match=r"needs 75 KV pages .* the pool has 60"):
        engine.add_request(
            Request(
                request_id="large",
                prompt_token_ids=tuple(range(100)),
                sampling=SamplingParams(max_tokens=200),
            )
        )
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert [output.request_id for output in outputs] == ["r0"]
