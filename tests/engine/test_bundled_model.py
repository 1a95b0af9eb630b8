"""The model that the project brings: found by name, checked against its card, honest about what it can read."""

import shutil
from pathlib import Path

import pytest

from growpage.bench.sequences.benchmark import FROZEN_SEED, sequences_problem
from growpage.bench.sequences.generator import Difficulty
from growpage.engine.llm import LLM
from growpage.engine.models.loader import load_model
from growpage.engine.request import SamplingParams
from growpage.errors import UsageError
from growpage.places import MODELS_FOLDER

SOURCE = "bundled:sequences_reasoner"


def test_bundled_model_solves_a_problem_of_its_benchmark() -> None:
    problem = sequences_problem(FROZEN_SEED, 0, Difficulty(max_steps=20))
    llm = LLM(SOURCE)
    prompt = llm.tokenizer.render([{"role": "user", "content": problem.question}])
    (output,) = llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=600))
    assert output.text.split()[-2:] == ["answer", problem.answer]


def test_corrupt_weights_are_refused_by_the_hash_of_the_card(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODELS_FOLDER / "sequences_reasoner", folder)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-100] ^= 1
    weights.write_bytes(content)
    with pytest.raises(
        UsageError, match=r"model\.safetensors: sha256 .* is not the .* of its card"
    ):
        load_model(folder)


def test_unknown_bundled_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="Did you mean bundled:sequences_reasoner"):
        load_model("bundled:sequence_reasoner")


def test_words_outside_the_vocabulary_are_found() -> None:
    tokenizer = load_model(SOURCE).tokenizer
    assert tokenizer is not None
    assert tokenizer.unknown_words("start 15 \n 1. walk (20) add 7") == []
    assert tokenizer.unknown_words("start 15 Liam walk apples") == ["Liam", "apples"]
