"""A model without finite logits: the request that met them fails by name, the others go on."""

from pathlib import Path

import pytest
import torch

from growpage import LLM, SamplingParams
from growpage.engine.request import FinishReason
from growpage.engine.sampler import has_finite_logit
from tests.tiny_models import make_tiny

POISON = 200  # a token id that no good prompt holds
GOOD = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


def make_llm(tmp_path: Path, **settings: object) -> LLM:
    folder = make_tiny(tmp_path, "Qwen3ForCausalLM", tie_word_embeddings=False)
    values = {"page_size": 4, "num_pages": 60, "max_num_seqs": 4, "device": "cpu"} | settings
    return LLM(str(folder), policy="fullkv", dtype="float32", **values)


def poison(llm: LLM, value: float) -> None:
    with torch.no_grad():
        llm.engine._model.decoder.embed[POISON] = value


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_only_the_request_without_finite_logits_fails(
    tmp_path: Path, value: float, temperature: float, is_async: bool, top_p: float
) -> None:
    params = SamplingParams(
        temperature=temperature, top_p=top_p, max_tokens=12, ignore_eos=True, seed=3
    )
    llm = make_llm(tmp_path, async_scheduling=is_async)
    undisturbed = llm.generate([[1, 2, 3], *GOOD], params)[1:]
    poison(llm, value)
    bad, *good = llm.generate([[1, POISON, 3], *GOOD], params)
    llm.engine.check_integrity()
    assert (bad.finish_reason, bad.token_ids) == (FinishReason.ERROR, ())
    assert bad.error == "the logits of the model are not finite"
    assert [output.token_ids for output in good] == [output.token_ids for output in undisturbed]


def test_rows_are_judged_by_the_logit_of_their_token() -> None:
    logits = torch.tensor([[0.0, 1.0], [torch.nan, 1.0], [torch.inf, 0.0], [-torch.inf, 2.0]])
    found = has_finite_logit(logits, logits.argmax(-1))
    assert found.tolist() == [True, False, False, True]
    assert has_finite_logit(torch.full((2, 3), torch.nan), torch.tensor([-1, 7])).tolist() == [
        False,
        False,
    ]
