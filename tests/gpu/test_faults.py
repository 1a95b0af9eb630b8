"""Faults of other engines that only captured graphs can have (tests/faults.csv)."""

from pathlib import Path

import pytest

from growpage.budget.fullkv import FullKV
from growpage.engine.request import FinishReason, Request, SamplingParams
from tests.gpu import test_forward as steps


def _request(name: str, num_prompt: int, max_tokens: int) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=(7,) * num_prompt, sampling=sampling)


def test_the_longest_prompt_ends_at_the_limit_with_graphs(tmp_path: Path) -> None:
    path = steps._tiny(tmp_path, "Qwen3ForCausalLM")
    requests = [_request("a", 127, 9), _request("b", 126, 9), _request("c", 120, 9)]
    results = []
    for is_eager in (True, False):
        engine = steps._engine(path, FullKV(), max_model_len=128, enforce_eager=is_eager)
        results.append(steps._finish(engine, requests))
    eager, graphs = results
    assert [len(graphs[name].token_ids) for name in "abc"] == [1, 2, 8]
    for name in "abc":
        assert graphs[name].token_ids == eager[name].token_ids
        assert graphs[name].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("count", [1, 3, 9, 10, 11, 12])
def test_every_batch_size_has_a_graph_or_runs_eagerly(tmp_path: Path, count: int) -> None:
    path = steps._tiny(tmp_path, "Qwen3ForCausalLM")
    requests = [_request(f"r{index}", 5 + index, 20) for index in range(count)]
    results = []
    for is_eager in (True, False):
        engine = steps._engine(path, FullKV(), max_num_seqs=12, enforce_eager=is_eager)
        results.append(steps._finish(engine, requests))
    assert engine.runner.num_graph_steps > 0
    eager, graphs = results
    assert {n: o.token_ids for n, o in eager.items()} == {n: o.token_ids for n, o in graphs.items()}
