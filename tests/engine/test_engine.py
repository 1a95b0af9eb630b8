"""What must not change a result: the batch, the prefix cache, preemption, a budget that nobody reaches."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from growpage import LLM, SamplingParams
from growpage.budget.base import CapacityPolicy
from growpage.budget.fixed import Fixed
from growpage.budget.growpage import GrowPage
from growpage.engine.request import FinishReason, Request
from growpage.errors import UsageError
from tests.tiny_models import EOS_TOKEN_ID, make_tiny

Make = Callable[..., LLM]


@pytest.fixture(scope="module")
def make_llm(tmp_path_factory: pytest.TempPathFactory) -> Make:
    path = make_tiny(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM")

    def make(policy: str | CapacityPolicy = "fullkv", **settings: object) -> LLM:
        defaults = {"page_size": 4, "num_pages": 300, "max_num_seqs": 8, "device": "cpu"}
        return LLM(str(path), policy=policy, dtype="float32", **(defaults | settings))

    return make


def _prompts(count: int, length: int = 11) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    prompts: list[list[int]] = torch.randint(0, 250, (count, length), generator=generator).tolist()
    return prompts


def _tokens(
    llm: LLM, prompts: Sequence[Sequence[int]], **settings: object
) -> list[tuple[int, ...]]:
    values = {"temperature": 0.7, "max_tokens": 40, "ignore_eos": True, "seed": 5} | settings
    outputs = llm.generate(prompts, SamplingParams(**values))  # type: ignore[arg-type]
    llm.engine.check_integrity()
    return [output.token_ids for output in outputs]


def _growpage() -> GrowPage:
    return GrowPage(initial_pages=3, num_protected_tokens=3)


@pytest.mark.parametrize("policy", ["fullkv", "growpage"])
def test_a_batch_equals_its_requests_one_by_one(make_llm: Make, policy: str) -> None:
    prompts = _prompts(6)
    make_policy = _growpage if policy == "growpage" else lambda: "fullkv"
    together = _tokens(make_llm(make_policy()), prompts)
    llm = make_llm(make_policy())
    alone = [
        llm.generate(
            [prompt], SamplingParams(temperature=0.7, max_tokens=40, ignore_eos=True, seed=5 + i)
        )[0].token_ids
        for i, prompt in enumerate(prompts)
    ]
    assert together == alone


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preemption_does_not_change_the_tokens_of_full_kv(make_llm: Make, mode: str) -> None:
    prompts = _prompts(5)
    roomy = _tokens(make_llm(), prompts)
    tight_llm = make_llm(num_pages=20, preempt_mode=mode)
    assert _tokens(tight_llm, prompts) == roomy
    counters = tight_llm.engine.stats().counters
    assert counters.preempt_swap + counters.preempt_recompute > 0


def test_swap_does_not_change_the_tokens_of_a_budget(make_llm: Make) -> None:
    prompts = _prompts(5)
    roomy = _tokens(make_llm(Fixed(budget_tokens=24, num_protected_tokens=3)), prompts)
    tight = make_llm(
        Fixed(budget_tokens=24, num_protected_tokens=3), num_pages=14, admission="prompt"
    )
    assert _tokens(tight, prompts) == roomy
    assert tight.engine.stats().counters.preempt_swap > 0


def test_a_budget_that_nobody_reaches_equals_full_kv(make_llm: Make) -> None:
    prompts = _prompts(4)
    assert _tokens(make_llm(Fixed(budget_tokens=400)), prompts) == _tokens(make_llm(), prompts)


@pytest.mark.parametrize("policy", ["fullkv", "growpage"])
def test_the_prefix_cache_does_not_change_tokens(make_llm: Make, policy: str) -> None:
    shared = _prompts(1, length=13)[0]
    prompts = [[*shared, 1], [*shared, 2], [*shared, 3]]
    results = []
    for enable in (True, False):
        value = _growpage() if policy == "growpage" else policy
        llm = make_llm(value, enable_prefix_caching=enable)
        first = _tokens(llm, [shared], max_tokens=1)
        results.append(first + _tokens(llm, prompts))
    assert results[0] == results[1]


def test_two_equal_prompts_submitted_together_both_finish_alike(make_llm: Make) -> None:
    prompt = _prompts(1, length=13)[0]
    first, second = _tokens(make_llm(), [prompt, prompt], temperature=0.0)
    assert first == second


def test_temperature_zero_is_repeatable(make_llm: Make) -> None:
    prompts = _prompts(3)
    first = _tokens(make_llm(), prompts, temperature=0.0, seed=1)
    assert first == _tokens(make_llm(), prompts, temperature=0.0, seed=9)


@pytest.mark.parametrize("length", [3, 4, 5, 8])
def test_pages_are_what_the_length_needs_at_every_step(make_llm: Make, length: int) -> None:
    llm = make_llm()
    engine = llm.engine

    engine.add_request(
        Request(
            request_id="a",
            prompt_token_ids=tuple(range(length)),
            sampling=SamplingParams(max_tokens=9, ignore_eos=True),
        )
    )
    while engine.has_unfinished_requests():
        engine.step()
        for sequence in engine.scheduler.running:
            assert sequence.num_pages == -(-sequence.num_resident_tokens // 4)


def test_eos_as_the_first_token_ends_the_request_and_frees_everything(make_llm: Make) -> None:
    llm = make_llm()
    prompt = _prompts(1)[0]
    (token,) = _tokens(llm, [prompt], temperature=0.0, max_tokens=1)[0]
    params = SamplingParams(temperature=0.0, max_tokens=9, stop_token_ids=(token,))
    (output,) = llm.generate([prompt], params)
    assert output.finish_reason is FinishReason.STOP
    assert output.token_ids == (token,)
    assert llm.engine.stats().num_used_pages == 0


def test_eos_ids_come_from_the_generation_config(make_llm: Make) -> None:
    assert EOS_TOKEN_ID in make_llm().engine.scheduler.config.eos_token_ids


def test_one_bad_prompt_refuses_the_call_and_leaves_the_engine_usable(make_llm: Make) -> None:
    llm = make_llm()
    with pytest.raises(UsageError, match="empty"):
        llm.generate([[1, 2], []], SamplingParams(max_tokens=2))
    assert not llm.engine.has_unfinished_requests()
    assert len(_tokens(llm, [[1, 2]], max_tokens=3)[0]) == 3


def test_a_token_outside_the_vocabulary_is_refused(make_llm: Make) -> None:
    with pytest.raises(UsageError, match="vocabulary"):
        make_llm().generate([[1, 99999]], SamplingParams(max_tokens=2))


def test_a_misspelt_engine_setting_names_the_closest(make_llm: Make, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="max_num_seqs"):
        LLM(str(tmp_path), max_num_seq=3)


def test_a_state_does_not_leak_into_the_next_request(make_llm: Make) -> None:
    prompts = _prompts(2)
    llm = make_llm(_growpage())
    _tokens(llm, prompts[:1], max_tokens=60, temperature=0.0)
    used = _tokens(llm, prompts[1:], max_tokens=60, temperature=0.0)
    assert used == _tokens(make_llm(_growpage()), prompts[1:], max_tokens=60, temperature=0.0)
