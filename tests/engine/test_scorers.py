"""What scorers with a window get to see in a running engine: the queries of a dense model, and their memory."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from growpage.budget.fixed import Fixed
from growpage.budget.scorer_settings import ScorerSettings
from growpage.budget.scorers.base import Scored, ScoringInput
from growpage.budget.zipage import Zipage
from growpage.engine.config import EngineConfig, PreemptMode
from growpage.engine.engine import Engine
from growpage.engine.models.loader import LoadedModel, load_model
from growpage.engine.request import Request, SamplingParams
from tests.oracle import Recorder
from tests.tiny_models import make_tiny

PAGE, WINDOW = 4, 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return _load(tmp_path_factory.mktemp("model"))


def _load(folder: Path) -> LoadedModel:
    path = make_tiny(folder, "Qwen3ForCausalLM", num_attention_heads=4, num_key_value_heads=2)
    return load_model(str(path), dtype="float32")


def _engine(model: LoadedModel, scorer: str, *, num_budget_pages: int = 4, **settings) -> Engine:
    policy = Fixed(
        budget_tokens=num_budget_pages * PAGE,
        num_protected_tokens=1,
        scorer=scorer,
        scorer_settings=ScorerSettings(window=WINDOW),
    )
    defaults = {"page_size": PAGE, "num_pages": 100, "max_num_seqs": 3}
    return Engine(model, EngineConfig(**(defaults | settings)), policy)


def _requests(*prompt_lengths: int, max_tokens: int = 30) -> list[Request]:
    return [
        Request(
            request_id=f"r{i}",
            prompt_token_ids=tuple(range(i + 3, i + 3 + length)),
            sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
        )
        for i, length in enumerate(prompt_lengths)
    ]


# The newest has compacted its pages some times when the others, still growing, need them.
PRESSED = (3, 4, 23)
PRESSED_POOL = {"num_pages": 12, "num_budget_pages": 6, "admission": "prompt"}


class Watched:
    """A scorer that notes what it is given, by the number of stored tokens and the queries' number."""

    def __init__(self, engine: Engine) -> None:
        self.seen: list[ScoringInput] = []
        self._scorer = engine.compactor._scorer
        engine.compactor._scorer = self

    def __call__(self, inputs: ScoringInput) -> Scored:
        self.seen.append(inputs)
        return self._scorer(inputs)


def _dense_queries(model: LoadedModel, token_ids: list[int]) -> Tensor:
    """After RoPE, [T, L, Hq, d]."""
    queries: list[Tensor] = []

    def attend(layer: int, q_raw: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries.append(q)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
        mask = torch.ones(scores.shape[1:], dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        return torch.einsum("hij,jhd->ihd", weights, v)

    with torch.inference_mode():
        model.decoder(torch.tensor(token_ids), torch.arange(len(token_ids)), attend)
    return torch.stack(queries, 1)


def test_the_first_window_of_each_request_holds_the_queries_of_the_dense_model(
    model: LoadedModel,
) -> None:
    """Two prompts leave fewer decode steps before the first boundary than the window has."""
    engine = _engine(model, "snapkv")
    watched = Watched(engine)
    requests = _requests(6, 10, 14, 15, max_tokens=12)
    outputs = Recorder(engine).run(requests)
    for request in requests:
        tokens = [*request.prompt_token_ids, *outputs[request.request_id].token_ids]
        num_prompt = len(request.prompt_token_ids)
        dense = _dense_queries(model, tokens).transpose(0, 1)  # [L, T, Hq, d]
        stop = 4 * PAGE
        expected = dense[:, max(num_prompt, stop - WINDOW) : stop]
        assert any(
            seen.window_queries is not None
            and seen.window_queries.shape == expected.shape
            and torch.allclose(seen.window_queries, expected, atol=1e-4)
            for seen in watched.seen
        ), request.request_id


@pytest.mark.parametrize("scorer", ["rkv", "gkv", "zipage", "h2o"])
def test_swapped_requests_keep_their_window_and_their_memory(
    model: LoadedModel, scorer: str
) -> None:
    """A pool too small for all swaps requests out; what they say does not change."""
    roomy = _engine(model, scorer, **(PRESSED_POOL | {"num_pages": 100}))
    tight = _engine(model, scorer, **PRESSED_POOL)
    expected = Recorder(roomy).run(_requests(*PRESSED))
    recorder = Recorder(tight)
    outputs = recorder.run(_requests(*PRESSED))
    kinds = [event.kind.value for event in recorder.events if event.request_id == "r2"]
    assert "compress" in kinds[: kinds.index("preempt_swap")]
    for name, output in expected.items():
        assert outputs[name].token_ids == output.token_ids
    assert not tight.compactor._memories, "memory of requests that ended"


@pytest.mark.parametrize("is_spared", [True, False])
def test_who_was_compacted_is_preempted_unless_the_policy_spares_it(
    model: LoadedModel, is_spared: bool
) -> None:
    """The newest request has compacted when the others need pages: it goes, or one of them does."""
    policy = Zipage(
        budget_tokens=5 * PAGE,
        scorer_settings=ScorerSettings(window=WINDOW),
        preempt_compressed=not is_spared,
    )
    config = EngineConfig(page_size=PAGE, num_pages=12, max_num_seqs=3, admission="prompt")
    recorder = Recorder(Engine(model, config, policy))
    outputs = recorder.run(_requests(*PRESSED))
    assert all(len(output.token_ids) == 30 for output in outputs.values())
    victims = {e.request_id for e in recorder.events if e.kind.value == "preempt_swap"}
    assert victims
    assert ("r2" in victims) != is_spared


@pytest.mark.parametrize("scorer", ["gkv", "zipage"])
def test_memory_is_that_of_the_kept_tokens_and_begins_anew_after_a_recompute(
    model: LoadedModel, scorer: str
) -> None:
    engine = _engine(model, scorer, preempt_mode=PreemptMode.recompute, **PRESSED_POOL)
    watched = Watched(engine)
    Recorder(engine).run(_requests(*PRESSED))
    firsts = [seen for seen in watched.seen if seen.memory is None]
    assert len(firsts) > len(PRESSED), "nothing was computed again after a compaction"
    later = [seen for seen in watched.seen if seen.memory is not None]
    assert later
    for seen in later:
        assert seen.memory is not None
        assert (seen.memory[..., -PAGE:] == 0).all(), "tokens that came since have no memory"
        assert (seen.memory[..., : -PAGE - WINDOW] > 0).any()


def test_windows_are_made_where_the_scorer_needs_them_and_counted(model: LoadedModel) -> None:
    assert _engine(model, "rkv").windows is not None
    with_windows = _engine(model, "rkv").describe()["ledger_bytes"]["query_state"]
    engine = Engine(
        model,
        EngineConfig(page_size=PAGE, num_pages=100, max_num_seqs=3),
        Fixed(budget_tokens=16, num_protected_tokens=1),
    )
    assert engine.windows is None
    shape = model.decoder.config
    size = shape.num_layers * 4 * WINDOW * shape.num_heads * shape.head_dim * 4
    assert with_windows - engine.describe()["ledger_bytes"]["query_state"] == size


@pytest.mark.parametrize("settings", [{"async_compaction": True}, {"async_scheduling": True}])
@pytest.mark.parametrize("scorer", ["rkv", "gkv", "zipage"])
def test_what_runs_beside_or_ahead_changes_no_token(
    model: LoadedModel, scorer: str, settings: dict[str, bool]
) -> None:
    expected = Recorder(_engine(model, scorer)).run(_requests(*PRESSED))
    engine = _engine(model, scorer, **settings)
    for request in _requests(*PRESSED):
        engine.add_request(request)
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    assert engine.stats().counters.executed_compress > 0
    for name, output in expected.items():
        assert outputs[name].token_ids == output.token_ids
