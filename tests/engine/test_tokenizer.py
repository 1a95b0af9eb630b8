"""The tokenizer of a checkpoint folder."""

import json
from pathlib import Path

import pytest
import tokenizers
from transformers import AutoTokenizer

from growpage.engine.models.tokenizer import Tokenizer
from growpage.errors import UsageError
from tests.tiny_models import EOS_TOKEN_ID, make_tiny

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]


def tokenizer_of(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer is not None
    return tokenizer


def folder_with(tmp_path: Path, template: str | None) -> Path:
    return make_tiny(tmp_path, "LlamaForCausalLM", chat_template=template)


@pytest.mark.parametrize("text", ["", "Hi é 12", "a\n\n  b", "x<|im_end|>y", "数学"])
def test_ids_equal_those_of_transformers(tmp_path: Path, text: str) -> None:
    folder = make_tiny(tmp_path, "LlamaForCausalLM")
    theirs = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer_of(folder).encode(text)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert tokenizer_of(folder).decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_decode_leaves_out_special_tokens_and_unknown_ids(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(make_tiny(tmp_path, "LlamaForCausalLM"))
    ids = tokenizer.encode("ab<|im_end|>")
    assert ids[-1] == EOS_TOKEN_ID
    assert tokenizer.decode([*ids, 99_999]) == "ab"


def test_a_beginning_of_text_token_is_not_added(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path, "LlamaForCausalLM")
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 256)]
    )
    backend.save(str(folder / "tokenizer.json"))
    assert 256 not in tokenizer_of(folder).encode("abc")


def test_end_ids_are_those_of_generation_config_config_and_tokenizer(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path, "LlamaForCausalLM", eos_token_id=[256, 259])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 257}))
    assert tokenizer_of(folder).eos_token_ids == (257, 256, 259, EOS_TOKEN_ID)


def test_vocab_size_counts_added_tokens(tmp_path: Path) -> None:
    assert tokenizer_of(make_tiny(tmp_path, "LlamaForCausalLM")).vocab_size == 260


def test_chat_equals_that_of_transformers(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path, "LlamaForCausalLM")
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = tokenizer_of(folder)
    expected = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert ours.render(CHAT) == expected
    assert ours.encode_chat(CHAT) == ours.encode(expected)


def test_chat_without_a_template_is_the_contents(tmp_path: Path) -> None:
    ours = tokenizer_of(folder_with(tmp_path, None))
    assert ours.render(CHAT) == "Be brief.\n\n1 + 1?"


@pytest.mark.parametrize(("choice", "text"), [(None, "default"), (True, "on"), (False, "off")])
def test_thinking_reaches_the_template(tmp_path: Path, choice: bool | None, text: str) -> None:
    template = (
        "{% if enable_thinking is not defined %}default"
        "{% elif enable_thinking %}on{% else %}off{% endif %}"
    )
    ours = tokenizer_of(folder_with(tmp_path, template))
    assert ours.render(CHAT, enable_thinking=choice) == text


def test_template_knows_the_special_tokens(tmp_path: Path) -> None:
    ours = tokenizer_of(folder_with(tmp_path, "{{ eos_token }}{{ pad_token }}"))
    assert ours.render(CHAT) == "<|im_end|><|pad|>"


def test_template_file_wins_over_the_entry(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "entry")
    (folder / "chat_template.jinja").write_text("file")
    assert tokenizer_of(folder).render(CHAT) == "file"


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, None)
    path = folder / "tokenizer_config.json"
    several = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "plain"},
    ]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": several}))
    assert tokenizer_of(folder).render(CHAT) == "plain"


def test_refusal_of_the_template_is_the_users_error(tmp_path: Path) -> None:
    ours = tokenizer_of(folder_with(tmp_path, "{{ raise_exception('no system role') }}"))
    with pytest.raises(UsageError, match="no system role"):
        ours.render(CHAT)


@pytest.mark.parametrize(
    ("template", "words"),
    [("{% for m in %}", "Mend the template"), ("{{ messages + 3 }}", "or mend it")],
)
def test_template_that_is_broken_is_told_from_messages_that_it_refuses(
    tmp_path: Path, template: str, words: str
) -> None:
    folder = make_tiny(tmp_path, "LlamaForCausalLM", chat_template=template)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer is not None
    with pytest.raises(UsageError, match=words):
        tokenizer.render([{"role": "user", "content": "x"}])


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path, "LlamaForCausalLM")
    (folder / "tokenizer.json").unlink()
    assert Tokenizer.from_folder(folder) is None


def test_older_tokenizer_files_are_read_through_transformers(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path, "Qwen2ForCausalLM")
    backend = tokenizer_of(folder)
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = tokenizer_of(folder)
    assert ours.decode(ours.encode("Hi é 12")) == "Hi é 12"
    assert ours.encode("Hi") == backend.encode("Hi")
