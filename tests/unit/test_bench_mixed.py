"""The mixed workload: which problems, how often each, with or without thinking, and its accuracies."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from growpage.bench.base import Problem
from growpage.bench.registry import make_benchmark
from growpage.config import BenchConfig
from growpage.errors import UsageError
from growpage.metrics.accuracy import mixture, paired_mixture
from growpage.run.generation import make_prompts
from growpage.run.resume import plan

SHARED = os.environ.get("GROWPAGE_TEST_DATA")


def bench(**changes: Any) -> BenchConfig:
    values = {"name": "mixed", "family": "mixed", "num_samples": 32, "max_tokens": 32768}
    return BenchConfig(**(values | {"gsm8k_samples": 1, "gsm8k_thinking": False} | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("amc23", "aime24", "gsm8k"):
        rows = [{"question": f"{name} {index}?", "answer": str(index)} for index in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_each_part_has_its_number_of_samples(folder: Path) -> None:
    problems = make_benchmark(bench(path=str(folder))).load().problems
    items = plan(problems, num_samples=32, base_seed=0, config_hash="x")
    counts = {kind: sum(item.problem.kind == kind for item in items) for kind in ("amc23", "gsm8k")}
    assert counts == {"amc23": 96, "gsm8k": 3}
    assert len({item.request_id for item in items}) == len(items) == 3 * 32 + 3 * 32 + 3


def test_order_mixes_the_parts_and_follows_the_seed(folder: Path) -> None:
    orders = [
        [
            problem.id
            for problem in make_benchmark(bench(path=str(folder), seed=seed)).load().problems
        ]
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])
    assert [name.partition("/")[0] for name in orders[0]] != sorted(
        name.partition("/")[0] for name in orders[0]
    )


@pytest.mark.skipif(SHARED is None, reason="GROWPAGE_TEST_DATA is not set")
def test_the_paper_asks_3559_requests() -> None:
    problems = make_benchmark(bench(path=SHARED)).load().problems
    assert len(problems) == 1389
    assert len(plan(problems, num_samples=32, base_seed=0, config_hash="x")) == 3559


def test_missing_part_and_settings_without_effect_are_refused(folder: Path) -> None:
    (folder / "aime24.jsonl").unlink()
    with pytest.raises(UsageError, match=r"no aime24\.jsonl in this folder"):
        make_benchmark(bench(path=str(folder))).load()
    with pytest.raises(UsageError, match=r"bench\.hub_id=x: no effect"):
        make_benchmark(bench(hub_id="x"))


class Tokenizer:
    """Renders as the templates of the two model families, and as one that knows no thinking."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def render(self, messages: list[dict[str, str]], *, enable_thinking: bool | None = None) -> str:
        text = f"<user>{messages[-1]['content']}<assistant>"
        if self.kind == "qwen3":
            return text + ("<think>\n\n</think>\n\n" if enable_thinking is False else "")
        return text + ("<think>\n" if self.kind == "r1" else "")

    def encode(self, text: str) -> list[int]:
        return [0] if text == "</think>" and self.kind != "plain" else [1] * len(text)

    def unknown_words(self, _text: str) -> list[str]:
        return []

    def decode(self, _ids: Any) -> str:
        return ""


@pytest.mark.parametrize("kind", ["qwen3", "r1", "old r1"])
def test_gsm8k_is_asked_with_a_closed_think_block(kind: str, folder: Path) -> None:
    texts: list[str] = []
    tokenizer = Tokenizer(kind)
    tokenizer.encode = lambda text: texts.append(text) or [0]  # type: ignore[method-assign,func-returns-value]
    benchmark = make_benchmark(bench(path=str(folder)))
    items = plan(benchmark.load().problems, num_samples=1, base_seed=0, config_hash="x")
    make_prompts(benchmark, tokenizer, items, enable_thinking=None)
    asked = [text for text in texts if text.startswith("<user>gsm8k")]
    others = [text for text in texts if text.startswith("<user>a")]
    assert all(text.endswith("<assistant><think>\n\n</think>\n\n") for text in asked)
    assert not any("</think>" in text for text in others)
    assert (len(asked), len(others)) == (3, 6)


def test_a_model_without_thinking_gets_no_think_block() -> None:
    problem = Problem(id="p", question="q", answer="1", kind="gsm8k", is_thinking=False)
    items = plan([problem], num_samples=1, base_seed=0, config_hash="x")
    prompts = make_prompts(make_benchmark(bench()), Tokenizer("plain"), items, enable_thinking=None)
    length = len("<user>q\nPlease reason step by step, and put your final answer within \\boxed{}.")
    assert len(prompts["p"].token_ids) == length + len("<assistant>")


def test_accuracy_weighs_requests_and_benchmarks() -> None:
    parts = {
        "amc23": {"a": [True] * 32, "b": [False] * 32},
        "gsm8k": {str(index): [index > 0] for index in range(4)},
    }
    found = mixture(parts)
    assert found.value == pytest.approx((32 + 3) / 68)
    assert found.benchmark_average == pytest.approx((0.5 + 0.75) / 2)
    assert (found.num_questions, found.num_requests) == (6, 68)
    errors = [found.parts[name].standard_error for name in ("amc23", "gsm8k")]
    assert errors[0] is not None
    assert errors[1] is not None
    expected = ((64 / 68 * errors[0]) ** 2 + (4 / 68 * errors[1]) ** 2) ** 0.5
    assert found.standard_error == pytest.approx(expected)


def test_difference_is_paired_within_each_part() -> None:
    before = {
        "amc23": {"a": [True, False], "b": [False, False]},
        "gsm8k": {"c": [True], "d": [False]},
    }
    after = {"amc23": {"a": [True, True], "b": [False, False]}, "gsm8k": {"c": [True], "d": [True]}}
    gap = paired_mixture(before, after)
    assert gap.value == pytest.approx(2 / 6)
    assert gap.standard_error == pytest.approx(((4 / 6 * 0.25) ** 2 + (2 / 6 * 0.5) ** 2) ** 0.5)
    assert paired_mixture(before, before).low is None
    with pytest.raises(ValueError, match="1 of 2 benchmarks"):
        paired_mixture(before, {"amc23": after["amc23"]})
