"""Online use: tokens as they come, requests that join and leave while others decode."""

from typing import Any

import pytest

from growpage.budget.fixed import Fixed
from growpage.engine.arrivals import ArrivalConfig, ArrivalKind, Arrivals
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.models.loader import LoadedModel, load_model
from growpage.engine.request import FinishReason, Request, RequestOutput, SamplingParams
from growpage.engine.streaming import NewToken, stream
from tests.tiny_models import make_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("models")
    return load_model(str(make_tiny(folder, "Qwen3ForCausalLM")), dtype="float32")


def _engine(model: LoadedModel, **settings: Any) -> Engine:
    policy = Fixed(budget_tokens=12, num_protected_tokens=2)
    config = EngineConfig(page_size=4, num_pages=60, max_num_seqs=4, device="cpu", **settings)
    return Engine(model, config, policy)


def _request(index: int, max_tokens: int = 12) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=index)
    return Request(request_id=f"r{index}", prompt_token_ids=(index, 1, 2), sampling=sampling)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_streamed_tokens_are_those_of_the_outputs(model: LoadedModel, is_ahead: bool) -> None:
    engine = _engine(model, async_scheduling=is_ahead)
    for index in range(6):
        engine.add_request(_request(index, max_tokens=5 + index))
    tokens: dict[str, list[NewToken]] = {}
    outputs: dict[str, RequestOutput] = {}
    for result in stream(engine):
        for token in result.tokens:
            tokens.setdefault(token.request_id, []).append(token)
        for output in result.finished:
            outputs[output.request_id] = output
            assert len(tokens[output.request_id]) == len(output.token_ids)
    for name, output in outputs.items():
        assert tuple(token.token_id for token in tokens[name]) == output.token_ids
        assert [token.index for token in tokens[name]] == list(range(len(output.token_ids)))
        times = [token.time_s for token in tokens[name]]
        assert times == sorted(times)
        assert times[0] == output.metrics.first_token_time
    assert len(outputs) == 6


def test_requests_join_and_leave_between_steps(model: LoadedModel) -> None:
    engine = _engine(model)
    engine.add_request(_request(0, max_tokens=40))
    outputs: dict[str, RequestOutput] = {}
    for number, result in enumerate(stream(engine)):
        if number == 5:
            engine.add_request(_request(1))
            engine.add_request(_request(2))
        if number == 8:
            engine.abort("r1")
        outputs |= {output.request_id: output for output in result.finished}
    assert outputs["r1"].finish_reason is FinishReason.ABORT
    assert len(outputs["r2"].token_ids) == 12
    assert len(outputs["r0"].token_ids) == 40
    joined, first = outputs["r2"].metrics, outputs["r0"].metrics
    assert joined.first_token_time is not None
    assert first.first_token_time is not None
    assert joined.first_token_time > joined.arrival_time > first.first_token_time


def test_a_stream_that_is_left_early_leaves_the_engine_usable(model: LoadedModel) -> None:
    engine = _engine(model)
    engine.add_request(_request(0))
    for result in stream(engine):
        if result.tokens:
            break
    (output,) = [output for result in stream(engine) for output in result.finished]
    assert len(output.token_ids) == 12


@pytest.mark.parametrize("kind", ArrivalKind)
def test_every_kind_of_arrival_is_served(model: LoadedModel, kind: ArrivalKind) -> None:
    """On a clock of steps, so that the test does not wait."""
    engine, count = _engine(model), 12
    config = ArrivalConfig(kind=kind, rate=0.2, burst_size=3, num_users=2, long_share=0.3)
    arrivals = Arrivals(config, [3] * count, seed=2)
    outputs: dict[str, RequestOutput] = {}
    step = 0
    while arrivals.num_left or engine.has_unfinished_requests():
        for index in arrivals.due(float(step)):
            engine.add_request(_request(index, max_tokens=6))
        for output in engine.step():
            outputs[output.request_id] = output
            arrivals.finished(int(output.request_id[1:]), float(step))
        engine.check_integrity()
        step += 1
        assert step < 2000
    assert len(outputs) == count
