"""Compactions on a stream of their own: what they keep and what follows equals compactions in the order of the step."""

from pathlib import Path
from typing import Any

import pytest
import torch

from growpage.engine.compaction import CompactionRecord
from growpage.engine.engine import Engine
from growpage.engine.plan import Compaction
from tests.gpu import test_forward as steps

POLICIES = [name for name in steps.POLICIES if name != "fullkv"]


def _engine(path: Path, name: str, **settings: Any) -> Engine:
    return steps._engine(path, steps.POLICIES[name](16), async_compaction=True, **settings)


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_kept_sets_and_tokens_are_those_of_compactions_before_the_step(
    tmp_path: Path, name: str, is_ahead: bool
) -> None:
    """In float32, where the number of rows beside a request rounds its logits too little to change a token."""
    path = steps._tiny(tmp_path, "Qwen3ForCausalLM")
    requests = steps._requests(9, max_tokens=120)
    results, kept = [], []
    for is_beside in (False, True):
        engine = _engine(path, name, async_scheduling=is_ahead, num_pages=300)
        if not is_beside:
            engine = steps._engine(path, steps.POLICIES[name](16), async_scheduling=is_ahead)
        records: dict[str, list[torch.Tensor]] = {}

        def listen(record: CompactionRecord, records: Any = records) -> None:
            records.setdefault(record.request_id, []).append(record.kept.clone())

        engine.compactor.listener = listen
        results.append(steps._finish(engine, requests))
        torch.cuda.synchronize()
        kept.append(records)
    for request in requests:
        before, beside = (result[request.request_id] for result in results)
        assert before.token_ids == beside.token_ids
        assert before.metrics.counters == beside.metrics.counters
        pairs = zip(*(records.get(request.request_id, []) for records in kept), strict=True)
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in pairs)


@pytest.mark.parametrize("name", POLICIES)
def test_logits_under_pressure_equal_the_masked_dense_model(tmp_path: Path, name: str) -> None:
    path = steps._tiny(tmp_path, "Qwen3ForCausalLM")
    engine = _engine(path, name, num_pages=40, admission="prompt", async_scheduling=True)
    recorder = steps.Recorder(engine)
    outputs = recorder.run(steps._requests(6, max_tokens=140))
    torch.cuda.synchronize()
    on_host = steps.load_model(str(path), dtype="float32")
    for traces in recorder.traces.values():
        for trace in traces:
            trace.logits = {index: row.cpu() for index, row in trace.logits.items()}
            for record in trace.compactions:
                object.__setattr__(record, "kept", record.kept.cpu().long())
    for output in outputs.values():
        worst = steps.worst_difference(on_host.decoder, recorder, output)
        assert worst <= steps.TOLERANCES["float32"]


def test_a_compaction_is_launched_on_another_stream(tmp_path: Path) -> None:
    engine = _engine(steps._tiny(tmp_path, "Qwen3ForCausalLM"), "fixed")
    main, compact = torch.cuda.current_stream(), engine.compactor.compact
    streams = []

    def watched(compaction: Compaction) -> None:
        streams.append(torch.cuda.current_stream())
        compact(compaction)

    engine.compactor.compact = watched  # type: ignore[method-assign]
    steps._finish(engine, steps._requests(4, max_tokens=120))
    assert streams
    assert main not in streams


def test_a_fault_on_the_stream_stops_the_engine_in_the_step(tmp_path: Path) -> None:
    engine = _engine(steps._tiny(tmp_path, "Qwen3ForCausalLM"), "fixed", async_scheduling=True)

    def broken(compaction: Compaction) -> None:
        raise ZeroDivisionError("injected")

    engine.compactor.compact = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError, match="injected"):
        steps._finish(engine, steps._requests(4, max_tokens=120))
    engine.check_integrity()
    assert engine.scheduler.pool.num_available == engine.num_pages
