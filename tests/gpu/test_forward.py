"""Steps on the GPU: logits against transformers and the oracle, graphs against eager steps, async against sync."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from growpage import LLM, SamplingParams
from growpage.budget.base import CapacityPolicy
from growpage.budget.fixed import Fixed
from growpage.budget.fullkv import FullKV
from growpage.budget.growpage import GrowPage
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.models.loader import load_model
from growpage.engine.request import Request, RequestOutput
from tests.oracle import Recorder, worst_difference
from tests.tiny_models import MODEL_TYPES, make_tiny

POLICIES: dict[str, Callable[[int], CapacityPolicy]] = {
    "fullkv": lambda b: FullKV(),
    "fixed": lambda b: Fixed(budget_tokens=4 * b, num_protected_tokens=3),
    "growpage": lambda b: GrowPage(initial_pages=3, num_protected_tokens=3),
}
# Largest difference of logits that are of the order of 1; in bf16, sqrt(layers) roundings of 2^-8 of the residual.
TOLERANCES = {"float32": 2e-3, "bfloat16": 0.15}


def _tiny(folder: Path, architecture: str, **overrides: object) -> Path:
    """Heads of 32 or 64, which the kernels take; weights small enough for logits of the order of 1."""
    shape: dict[str, object] = {"head_dim": 64, "hidden_size": 128, "intermediate_size": 192}
    if architecture == "Qwen2ForCausalLM":
        shape |= {"head_dim": None, "hidden_size": 128}
    return make_tiny(folder, architecture, std=0.08, **(shape | overrides))


def _requests(count: int, max_tokens: int) -> list[Request]:
    generator = torch.Generator().manual_seed(11)
    requests = []
    for index in range(count):
        length = int(torch.randint(1, 60, (1,), generator=generator))
        prompt = torch.randint(0, 250, (length,), generator=generator).tolist()
        sampling = SamplingParams(
            temperature=0.8 * (index % 3 > 0), max_tokens=max_tokens + index, ignore_eos=True,
            seed=index,
        )  # fmt: skip
        requests.append(
            Request(request_id=f"r{index}", prompt_token_ids=tuple(prompt), sampling=sampling)
        )
    return requests


def _engine(path: Path, policy: CapacityPolicy, dtype: str = "float32", **settings) -> Engine:
    model = load_model(str(path), dtype=dtype, device="cuda")
    defaults = {
        "page_size": 16, "num_pages": 300, "max_num_seqs": 12, "max_num_batched_tokens": 64,
        "max_model_len": 1024, "device": "cuda",
    }  # fmt: skip
    return Engine(model, EngineConfig(**(defaults | settings)), policy)


def _finish(engine: Engine, requests: list[Request]) -> dict[str, RequestOutput]:
    for request in requests:
        engine.add_request(request)
    outputs = {}
    for _ in range(5000):
        if not engine.has_unfinished_requests():
            return outputs
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    raise AssertionError("not finished")


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("architecture", MODEL_TYPES)
def test_logits_equal_transformers(tmp_path: Path, architecture: str, dtype: str) -> None:
    transformers = pytest.importorskip("transformers")
    path = _tiny(tmp_path, architecture)
    engine = _engine(path, FullKV(), dtype)
    assert engine.describe()["attention"] == "triton"
    recorder = Recorder(engine)
    outputs = recorder.run(_requests(5, max_tokens=40))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).cuda()  # the same bar for both dtypes: what rounding to bf16 does is part of the tolerance
    for name, output in outputs.items():
        tokens = torch.tensor([[*output.prompt_token_ids, *output.token_ids]], device="cuda")
        with torch.inference_mode():
            expected = model(tokens).logits[0]
        for index, logits in recorder.traces[name][-1].logits.items():
            row = len(output.prompt_token_ids) + index - 1
            assert float((logits - expected[row]).abs().max()) <= TOLERANCES[dtype]


@pytest.mark.parametrize("page_size", [4, 16, 64])
@pytest.mark.parametrize("name", POLICIES)
def test_paged_logits_equal_the_masked_dense_model(
    tmp_path: Path, name: str, page_size: int
) -> None:
    path = _tiny(tmp_path, "Qwen3ForCausalLM")
    engine = _engine(path, POLICIES[name](page_size), page_size=page_size, num_pages=60)
    recorder = Recorder(engine)
    outputs = recorder.run(_requests(4, max_tokens=9 * page_size))
    assert engine.runner.num_graph_steps > 0
    on_host = load_model(str(path), dtype="float32")
    for traces in recorder.traces.values():
        for trace in traces:
            trace.logits = {index: row.cpu() for index, row in trace.logits.items()}
            for record in trace.compactions:
                object.__setattr__(record, "kept", record.kept.cpu().long())
    for output in outputs.values():
        assert worst_difference(on_host.decoder, recorder, output) <= TOLERANCES["float32"]
    if name != "fullkv":
        assert engine.stats().counters.executed_compress > 0


@pytest.mark.parametrize("name", POLICIES)
def test_graphs_equal_eager_steps(tmp_path: Path, name: str) -> None:
    """Same launches on the same rows up to padding; a product may round otherwise for another number of rows."""
    path = _tiny(tmp_path, "Qwen3ForCausalLM")
    requests = _requests(9, max_tokens=90)
    results = []
    for is_eager in (True, False):
        engine = _engine(path, POLICIES[name](16), enforce_eager=is_eager)
        assert engine.describe()["cuda_graphs"] is not is_eager
        results.append(_finish(engine, requests))
        assert (engine.runner.num_graph_steps > 0) is not is_eager
    for request in requests:
        eager, graphs = (r[request.request_id] for r in results)
        assert eager.token_ids == graphs.token_ids
        assert eager.metrics.counters == graphs.metrics.counters


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("name", POLICIES)
def test_asynchronous_steps_equal_synchronous_ones(tmp_path: Path, name: str, mode: str) -> None:
    path = _tiny(tmp_path, "LlamaForCausalLM")
    requests = _requests(9, max_tokens=120)
    results = []
    for is_async in (False, True):
        settings = {"num_pages": 40, "preempt_mode": mode, "admission": "prompt"}
        engine = _engine(path, POLICIES[name](16), async_scheduling=is_async, **settings)
        results.append(_finish(engine, requests))
        if name == "fullkv":
            counters = engine.stats().counters
            assert counters.preempt_swap + counters.preempt_recompute > 0
    for request in requests:
        waiting, ahead = (r[request.request_id] for r in results)
        assert waiting.token_ids == ahead.token_ids
        assert waiting.metrics.counters == ahead.metrics.counters


def test_filtered_rows_get_the_tokens_of_the_torch_path(tmp_path: Path) -> None:
    path = _tiny(tmp_path, "Qwen3ForCausalLM")
    params = [
        SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True),
        SamplingParams(temperature=0.9, top_k=7, max_tokens=30, ignore_eos=True, seed=1),
        SamplingParams(temperature=0.9, top_p=0.8, max_tokens=30, ignore_eos=True, seed=2),
        SamplingParams(temperature=0.9, max_tokens=30, ignore_eos=True, seed=3),
    ]
    results = []
    for backend in ("triton", "torch"):
        llm = LLM(
            str(path), device="cuda", dtype="float32", page_size=16, num_pages=100, max_num_seqs=4,
            attention_backend=backend,
        )  # fmt: skip
        prompts = [[1, 2, 3, index] for index in range(4)]
        results.append([output.token_ids for output in llm.generate(prompts, params)])
    assert results[0] == results[1]
