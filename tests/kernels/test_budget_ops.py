"""A capacity event by the kernels and by their twins, from the pages of one request to its compacted pages."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from growpage.budget.base import DemandMetric, GroupReduce
from growpage.budget.coverage import Coverage
from growpage.engine.budget_ops import TorchOps, TritonOps, budget_ops
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.kv_cache import KVCache
from growpage.engine.models.loader import load_model
from growpage.engine.request import Request, SamplingParams
from tests.oracle import Recorder, worst_difference
from tests.tiny_models import make_tiny

PAGE, NUM_TOKENS, NUM_RETAINED, NUM_PROTECTED = 16, 64, 48, 5
SOURCES = [5, 1, 7, 2]
SCALE = 0.25
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _cache(device: torch.device) -> KVCache:
    torch.manual_seed(0)
    cache = KVCache(
        num_layers=2,
        num_pages=9,
        page_size=PAGE,
        num_kv_heads=2,
        head_dim=32,
        dtype=torch.float32,
        device=device,
    )
    cache.data.normal_()
    return cache


def _logits(ops: TorchOps, cache: KVCache) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(2, 2, 6, 32, generator=generator).to(cache.data.device)
    return ops.logits(queries, cache, SOURCES, NUM_TOKENS, SCALE)


def _select(ops: TorchOps, scores: Tensor) -> Tensor:
    return ops.select(
        scores, num_tokens=NUM_TOKENS, num_retained=NUM_RETAINED, page_size=PAGE, k_loc=PAGE // 4
    )


@pytest.mark.parametrize("reduce", list(GroupReduce))
@pytest.mark.parametrize("metric", list(DemandMetric))
def test_kernels_and_twins_measure_the_same_demand(
    device: torch.device, reduce: GroupReduce, metric: DemandMetric
) -> None:
    measured = []
    for ops in (TorchOps(), TritonOps()):
        logits = _logits(ops, _cache(device))
        attention = ops.attention(logits[..., :-PAGE], reduce)
        measured.append(ops.demand(attention, metric, 0.9))
    assert measured[0].shape == (2,)
    torch.testing.assert_close(measured[0], measured[1])


@pytest.mark.parametrize("reduce", list(GroupReduce))
@pytest.mark.parametrize("targets", [SOURCES, [8, 1, 7, 2], [2, 1, 7]])
def test_kernels_and_twins_compact_to_the_same_pages(
    device: torch.device, reduce: GroupReduce, targets: list[int]
) -> None:
    caches, kept = [], []
    for ops in (TorchOps(), TritonOps()):
        cache = _cache(device)
        candidates = _logits(ops, cache)[..., :-NUM_PROTECTED]
        kept.append(_select(ops, ops.dual_timescale(candidates, reduce)))
        ops.move(cache, SOURCES, targets, kept[-1])
        caches.append(cache.data)
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(caches[0], caches[1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels in the interpreter only")
def test_an_engine_keeps_the_same_tokens_with_either(tmp_path: Path) -> None:
    model = load_model(str(make_tiny(tmp_path, "Qwen3ForCausalLM")), dtype="float32")
    config = EngineConfig(page_size=PAGE, num_pages=20, max_num_seqs=2)
    prompt = tuple(range(20, 40))
    first, *others = [
        Request(
            request_id=str(index),
            prompt_token_ids=(*prompt, index),
            sampling=SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True),
        )
        for index, length in enumerate((1, 60, 60))
    ]
    kept = []
    for ops in (TorchOps(), TritonOps()):
        engine = Engine(
            model, config, Coverage(initial_pages=2, num_protected_tokens=3, epsilon=0.2)
        )
        engine.compactor.ops = ops
        recorder = Recorder(engine)
        recorder.run([first])  # leaves a page that the others share
        outputs = recorder.run(others)
        assert all(out.metrics.num_cached_tokens == PAGE for out in outputs.values())
        worst = max(worst_difference(model.decoder, recorder, out) for out in outputs.values())
        assert worst <= 1e-4
        kept.append([c.kept for (trace,) in recorder.traces.values() for c in trace.compactions])
    assert len(kept[0]) == len(kept[1]) > 0
    assert all(torch.equal(a, b) for a, b in zip(*kept, strict=True))


def test_a_cpu_gets_the_twins() -> None:
    assert budget_ops(torch.device("cpu")).name == "torch"


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_gets_kernels_that_never_wait_for_it(device: torch.device) -> None:
    ops, cache = budget_ops(device), _cache(device)
    assert ops.name == "triton"
    _event(ops, cache)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        ratios = _event(ops, cache)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(ratios).all()


def _event(ops: TorchOps, cache: KVCache) -> Tensor:
    queries = torch.ones(2, 2, 6, 32, device=cache.data.device)
    logits = ops.logits(queries, cache, SOURCES, NUM_TOKENS, SCALE)
    attention = ops.attention(logits[..., :-PAGE], GroupReduce.mean)
    ratios = ops.demand(attention, DemandMetric.topp, 0.9)
    scores = ops.dual_timescale(logits[..., :-NUM_PROTECTED], GroupReduce.mean)
    ops.move(cache, SOURCES, SOURCES, _select(ops, scores))
    return ratios
