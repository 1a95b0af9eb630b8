"""The decoder against `transformers` on tiny random checkpoints, in float32."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from growpage.engine.models.decoder import Attend, Decoder, DecoderConfig, can_pack
from growpage.engine.models.loader import load_model
from growpage.errors import UsageError
from tests.tiny_models import MODEL_TYPES, make_tiny, tiny_config

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LINEAR = {"type": "linear", "factor": 2.0}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama, tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama, sharded": ("LlamaForCausalLM", {"num_shards": 3}),
    "llama, tied and sharded": ("LlamaForCausalLM", {"num_shards": 2, "tie_word_embeddings": True}),
    "llama, llama3 rope": ("LlamaForCausalLM", {"rope_scaling": LLAMA3, "rope_theta": 5e5}),
    "llama, rope_parameters": (
        "LlamaForCausalLM",
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}, "rope_theta": None},
    ),
    "llama, linear rope": ("LlamaForCausalLM", {"rope_scaling": LINEAR}),
    "llama, biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama, one KV head": ("LlamaForCausalLM", {"num_key_value_heads": 1}),
    "qwen2, biases": ("Qwen2ForCausalLM", {}),
    "qwen2, tied and sharded": ("Qwen2ForCausalLM", {"tie_word_embeddings": True, "num_shards": 2}),
    "qwen3, q/k norm": ("Qwen3ForCausalLM", {}),
    "qwen3, wide heads": ("Qwen3ForCausalLM", {"head_dim": 32, "num_key_value_heads": 4}),
    "qwen3, yarn": ("Qwen3ForCausalLM", {"rope_scaling": YARN, "rope_theta": 1e6}),
    "qwen3, biases": ("Qwen3ForCausalLM", {"attention_bias": True}),
}


class Pair(NamedTuple):
    ours: Decoder
    theirs: Any


@pytest.fixture(params=list(CASES))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    architecture, overrides = CASES[request.param]
    return make_pair(tmp_path, architecture, **overrides)


def make_pair(tmp_path: Path, architecture: str, **overrides: Any) -> Pair:
    folder = make_tiny(tmp_path, architecture, **overrides)
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return Pair(load_model(str(folder)).decoder, theirs.eval())


def causal(config: DecoderConfig) -> Attend:
    """Dense causal attention over the tokens of the call, taken as one request."""
    group = config.num_heads // config.num_kv_heads

    def attend(layer: int, q_raw: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (x.repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
        scores = q.transpose(0, 1) @ keys.transpose(1, 2) * config.softmax_scale
        mask = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        return (weights @ values).transpose(0, 1)

    return attend


def logits_of(decoder: Decoder, ids: Tensor) -> Tensor:
    hidden = decoder(ids, torch.arange(len(ids)), causal(decoder.config))
    return decoder.compute_logits(hidden)


def random_ids(count: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 260, (count,), generator=torch.Generator().manual_seed(seed))


def test_logits_equal_those_of_transformers(pair: Pair) -> None:
    ids = random_ids(80)
    with torch.inference_mode():
        ours, theirs = logits_of(pair.ours, ids), pair.theirs(ids[None]).logits[0]
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert theirs.std() > 0.1  # else anything would be close


def test_greedy_tokens_equal_those_of_transformers(pair: Pair) -> None:
    ids = random_ids(12)
    expected = pair.theirs.generate(
        ids[None],
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=16,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0]
    with torch.inference_mode():
        while len(ids) < len(expected):
            ids = torch.cat((ids, logits_of(pair.ours, ids)[-1:].argmax(-1)))
    assert ids.tolist() == expected.tolist()


def test_frequencies_equal_those_of_transformers_bit_by_bit(pair: Pair) -> None:
    assert torch.equal(pair.ours.rope.inv_freq, pair.theirs.model.rotary_emb.inv_freq)


def test_rotate_equals_the_rotation_of_transformers(pair: Pair) -> None:
    config = pair.ours.config
    positions = torch.tensor([0, 1, 63, 64, 1000, 3999])
    x = torch.randn(len(positions), config.num_heads, config.head_dim)
    cos, sin = pair.theirs.model.rotary_emb(x, positions[None])
    expected, _ = apply_rotary_pos_emb(x[None], x[None], cos, sin, unsqueeze_dim=2)
    torch.testing.assert_close(pair.ours.rotate(x, positions), expected[0], atol=1e-6, rtol=0)


def test_rotate_takes_leading_dimensions() -> None:
    decoder = dummy("LlamaForCausalLM")
    x, positions = torch.randn(3, 2, 5, 4, 16), torch.arange(5)
    one = decoder.rotate(x[1, 0], positions)
    torch.testing.assert_close(decoder.rotate(x, positions)[1, 0], one, atol=0, rtol=0)


def test_attend_gets_the_query_before_and_after_rotation(pair: Pair) -> None:
    ids, positions = random_ids(9), torch.arange(20, 29)
    seen = []

    def attend(layer: int, q_raw: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.append((layer, q_raw.clone(), q.clone()))
        return torch.zeros_like(q)

    with torch.inference_mode():
        pair.ours(ids, positions, attend)
    assert [layer for layer, _, _ in seen] == [0, 1]
    for _, q_raw, q in seen:
        torch.testing.assert_close(pair.ours.rotate(q_raw, positions), q, atol=1e-6, rtol=0)


def test_raw_query_is_that_of_transformers_after_the_q_norm(pair: Pair) -> None:
    attention = pair.theirs.model.layers[0].self_attn
    theirs: list[Tensor] = []
    source = attention.q_norm if pair.ours.config.qk_norm else attention.q_proj
    source.register_forward_hook(lambda module, args, output: theirs.append(output[0]))
    ours: list[Tensor] = []

    def attend(layer: int, q_raw: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ours.append(q_raw.clone())
        return torch.zeros_like(q)

    ids = random_ids(9)
    with torch.inference_mode():
        pair.ours(ids, torch.arange(9), attend)
        pair.theirs(ids[None])
    expected = theirs[0].reshape(ours[0].shape)
    torch.testing.assert_close(ours[0], expected, atol=1e-5, rtol=0)


def test_gradients_equal_those_of_transformers(pair: Pair) -> None:
    ids = random_ids(24)
    F.cross_entropy(logits_of(pair.ours, ids)[:-1], ids[1:]).backward()
    F.cross_entropy(pair.theirs(ids[None]).logits[0, :-1], ids[1:]).backward()
    theirs = dict(pair.theirs.named_parameters())
    for name, parameter in pair.ours.named_parameters():
        assert parameter.grad is not None, name
        parameter.data = parameter.grad  # hf_tensors then shows gradients under their names
    for name, gradient in pair.ours.hf_tensors().items():
        torch.testing.assert_close(gradient, theirs[name].grad, atol=1e-4, rtol=1e-3, msg=name)


def test_a_saved_decoder_loads_as_the_same_model(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path, "Qwen3ForCausalLM")
    decoder = load_model(str(folder)).decoder
    decoder.init_weights(seed=7, std=0.2)
    tensors = {name: tensor.contiguous() for name, tensor in decoder.hf_tensors().items()}
    save_file(tensors, folder / "model.safetensors")
    again = load_model(str(folder)).decoder
    for name, tensor in again.hf_tensors().items():
        assert torch.equal(tensor, tensors[name]), name


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_auto_dtype_on_a_cpu_is_float32(tmp_path: Path, stored: str) -> None:
    folder = make_tiny(tmp_path, "LlamaForCausalLM", torch_dtype=stored)
    loaded = load_model(str(folder))
    assert loaded.dtype == "float32"
    assert {p.dtype for p in loaded.decoder.parameters()} == {torch.float32}


def test_bfloat16_keeps_its_dtype_and_stays_near_float32(tmp_path: Path) -> None:
    folder = str(make_tiny(tmp_path, "Qwen3ForCausalLM"))
    low, full = load_model(folder, dtype="bfloat16").decoder, load_model(folder).decoder
    ids = random_ids(40)
    with torch.inference_mode():
        hidden = low(ids, torch.arange(40), causal(low.config))
        rough, exact = logits_of(low, ids), logits_of(full, ids)
    assert hidden.dtype == torch.bfloat16
    assert rough.dtype == torch.float32
    assert F.cosine_similarity(rough, exact).min() > 0.99


def test_frequencies_stay_float32_when_the_module_changes_dtype() -> None:
    decoder = dummy("LlamaForCausalLM")
    before = decoder.rope.inv_freq.clone()
    decoder.to(torch.bfloat16)
    assert torch.equal(decoder.rope.inv_freq, before)


def test_packed_weights_give_the_plain_result_and_never_a_stale_one(tmp_path: Path) -> None:
    decoder = load_model(str(make_tiny(tmp_path, "LlamaForCausalLM"))).decoder
    if not can_pack(decoder.embed):
        pytest.skip("no oneDNN packing on this CPU")
    plain = Decoder(decoder.config)
    plain.load_state_dict(decoder.state_dict())
    ids = random_ids(20)
    with torch.inference_mode():
        torch.testing.assert_close(
            logits_of(decoder, ids), logits_of(plain, ids), atol=1e-5, rtol=0
        )
    for model in (decoder, plain):
        with torch.no_grad():
            model.lm_head.weight.mul_(3)
    with torch.inference_mode():
        torch.testing.assert_close(
            logits_of(decoder, ids), logits_of(plain, ids), atol=1e-4, rtol=0
        )


def test_parameters_loaded_in_inference_mode_still_train(tmp_path: Path) -> None:
    folder = str(make_tiny(tmp_path, "LlamaForCausalLM"))
    with torch.inference_mode():
        decoder = load_model(folder).decoder
    logits_of(decoder, random_ids(5)).sum().backward()
    assert all(p.grad is not None for p in decoder.parameters())


def dummy(architecture: str, seed: int = 0, **overrides: Any) -> Decoder:
    config = tiny_config(architecture, **overrides)
    return load_model(config, load_format="dummy", seed=seed).decoder


@pytest.mark.parametrize("architecture", list(MODEL_TYPES))
def test_dummy_weights_depend_on_the_seed_alone(architecture: str) -> None:
    first, same, other = dummy(architecture, 3), dummy(architecture, 3), dummy(architecture, 4)
    for name, tensor in first.hf_tensors().items():
        assert torch.equal(tensor, same.hf_tensors()[name]), name
    assert not torch.equal(first.embed, other.embed)
    assert first.embed.std().item() == pytest.approx(0.02, rel=0.1)
    assert torch.equal(first.norm, torch.ones_like(first.norm))


def test_dummy_weights_need_only_the_config_of_a_folder(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path, "LlamaForCausalLM")
    (folder / "model.safetensors").unlink()
    loaded = load_model(str(folder), load_format="dummy")
    assert loaded.decoder.config.num_layers == 2
    assert loaded.tokenizer is not None


def test_files_carry_their_hash_or_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tiny(tmp_path, "LlamaForCausalLM")
    files = load_model(str(folder)).files
    assert set(files) >= {"config.json", "tokenizer.json", "model.safetensors"}
    assert all(value.startswith("sha256:") for value in files.values())
    monkeypatch.setattr("growpage.engine.models.loader.MAX_HASHED_BYTES", 20_000)
    assert load_model(str(folder)).files["model.safetensors"].startswith("size:")


def test_name_is_that_of_the_folder(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path, "LlamaForCausalLM")
    assert load_model(f"{folder}/").name == folder.name


@pytest.mark.parametrize(
    ("rope_scaling", "tokens"),
    [(None, 4096), (LLAMA3, 4096), (YARN, 4096), ({**YARN, "factor": 8.0}, 8192), (LINEAR, 8192)],
)
def test_context_counts_rope_scaling(rope_scaling: dict[str, Any] | None, tokens: int) -> None:
    config = tiny_config("LlamaForCausalLM", rope_scaling=rope_scaling)
    assert DecoderConfig.from_hf(config).max_position_embeddings == tokens


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "Did you mean Qwen3ForCausalLM"),
        ({"architectures": None}, "(none)"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"use_sliding_window": True, "sliding_window": 128}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor=None"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters"),
        ({"num_key_value_heads": 3}, "num_kv_heads=3"),
        ({"head_dim": 15}, "head_dim=15"),
        ({"vocab_size": None}, "no vocab_size"),
    ],
)
def test_a_config_that_would_be_computed_wrongly_is_refused(
    overrides: dict[str, Any], words: str
) -> None:
    config = tiny_config("Qwen3ForCausalLM", **overrides)
    with pytest.raises(UsageError) as error:
        DecoderConfig.from_hf(config)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_sliding_window_that_is_switched_off_is_no_obstacle(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path, "Qwen2ForCausalLM", use_sliding_window=False, sliding_window=8)
    config = json.loads((folder / "config.json").read_text())
    assert DecoderConfig.from_hf(config).architecture == "Qwen2ForCausalLM"
