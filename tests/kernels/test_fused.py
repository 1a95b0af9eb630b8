"""The fused forward pass against the decoder's own, through whole engines: same logits, same tokens."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from growpage.budget.base import CapacityPolicy
from growpage.budget.fullkv import FullKV
from growpage.budget.growpage import GrowPage
from growpage.budget.scorer_settings import ScorerSettings
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.inputs import Batch
from growpage.engine.models.loader import load_model
from growpage.engine.request import Request, SamplingParams
from tests.oracle import Recorder
from tests.tiny_models import MODEL_TYPES, make_tiny

TOLERANCE = 2e-4
POLICIES = {
    "fullkv": FullKV,
    "growpage": lambda: GrowPage(initial_pages=2, num_protected_tokens=2),
    "gkv": lambda: GrowPage(
        initial_pages=2,
        num_protected_tokens=2,
        scorer="gkv",
        scorer_settings=ScorerSettings(window=2),
    ),
}


def _run(
    model: Path,
    backend: str,
    policy: CapacityPolicy,
    device: torch.device,
    sampling: dict,
    **settings: object,
) -> tuple[Recorder, dict]:
    loaded = load_model(str(model), dtype="float32", device=str(device))
    config = EngineConfig(
        page_size=4, num_pages=60, max_num_seqs=3, max_num_batched_tokens=8,
        attention_backend=backend, max_model_len=64, **settings,
    )  # fmt: skip
    recorder = Recorder(Engine(loaded, config, policy))
    requests = [
        Request(
            request_id=f"r{i}",
            prompt_token_ids=tuple(range(i + 3, 2 * i + 9)),
            sampling=SamplingParams(
                temperature=0.8 * (i > 0), max_tokens=9 + i, ignore_eos=True, seed=i, **sampling
            ),
        )
        for i in range(3)
    ]
    return recorder, recorder.run(requests)


@pytest.mark.parametrize(
    ("architecture", "policy", "sampling"),
    [
        *((architecture, "fullkv", {}) for architecture in MODEL_TYPES),
        ("Qwen3ForCausalLM", "growpage", {"top_k": 20, "top_p": 0.9}),
        ("Qwen3ForCausalLM", "gkv", {}),
    ],
)
def test_fused_steps_equal_the_decoder(
    tmp_path: Path, device: torch.device, architecture: str, policy: str, sampling: dict
) -> None:
    shape = {"head_dim": 32, "hidden_size": 48}
    if architecture == "Qwen2ForCausalLM":
        shape = {"head_dim": None, "hidden_size": 128}
    path = make_tiny(tmp_path, architecture, **shape)
    fused, outputs = _run(path, "triton", POLICIES[policy](), device, sampling)
    plain, expected = _run(path, "torch", POLICIES[policy](), device, sampling)
    assert fused.engine.describe()["attention"] == "triton"
    for name, output in expected.items():
        assert outputs[name].token_ids == output.token_ids
        for index, logits in plain.traces[name][-1].logits.items():
            difference = (fused.traces[name][-1].logits[index] - logits).abs().max()
            assert float(difference) <= TOLERANCE
    if policy != "fullkv":
        assert fused.engine.stats().counters.executed_compress > 0


@pytest.mark.parametrize("name", ["growpage", "gkv"])
def test_padding_changes_nothing(
    tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The steps of the graphs, run without capturing them: rows of padding, tables at their fixed place."""
    import growpage.engine.graphs as graphs_module

    class Uncaptured(graphs_module.DecodeGraphs):
        def run(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            return self._logits[: batch.num_decodes], self._step(batch)

    def make_graphs(engine: Engine) -> graphs_module.DecodeGraphs:
        graphs = Uncaptured(
            engine._forward, engine._batches, engine._last_tokens, max_num_seqs=3, max_pages=17,
            vocab_size=260, page_size=4, dtype=torch.float32,
        )  # fmt: skip
        graphs.sizes = [8]
        graphs._tables = graphs._tables.new_full((8, 17), 59)
        graphs._logits = graphs._logits.new_full((8, 260), torch.nan)
        return graphs

    path = make_tiny(tmp_path, "Qwen3ForCausalLM", head_dim=32, hidden_size=48)
    policy = POLICIES[name]
    plain, expected = _run(path, "triton", policy(), device, {}, enforce_eager=True)
    monkeypatch.setattr(Engine, "_capture_graphs", make_graphs)
    padded, outputs = _run(path, "triton", policy(), device, {})
    assert padded.engine.runner.num_graph_steps > 0
    for request_id, output in expected.items():
        assert outputs[request_id].token_ids == output.token_ids
        for index, logits in plain.traces[request_id][-1].logits.items():
            torch.testing.assert_close(padded.traces[request_id][-1].logits[index], logits)
