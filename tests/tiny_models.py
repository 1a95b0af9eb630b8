"""Tiny random checkpoints for tests: written tensor by tensor, so they do not share code with what loads them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
EOS_TOKEN_ID = 258  # <|im_end|>
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny(
    tmp_path: Path,
    architecture: str,
    *,
    num_shards: int = 1,
    seed: int = 0,
    std: float = 0.15,
    chat_template: str | None = CHAT_TEMPLATE,
    **overrides: Any,
) -> Path:
    """Write a checkpoint folder of about 20 thousand weights under `tmp_path` and return its path.

    `architecture` is a key of MODEL_TYPES; `overrides` replace entries of config.json (None removes one). Shards
    are written when `num_shards` > 1. The tokenizer knows the 256 bytes and SPECIAL_TOKENS (ids 256..259).
    """
    config = tiny_config(architecture, **overrides)
    folder = tmp_path / f"{MODEL_TYPES[architecture]}-{seed}-{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": [EOS_TOKEN_ID]})
    write_tokenizer(folder, chat_template=chat_template)
    write_weights(folder, tiny_weights(config, seed=seed, std=std), num_shards=num_shards)
    return folder


def tiny_config(architecture: str, **overrides: Any) -> dict[str, Any]:
    """config.json of a two-layer model with grouped queries (4 query heads, 2 KV heads of 16)."""
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": MODEL_TYPES[architecture],
        "vocab_size": 260,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": "float32",
    }
    if architecture == "Qwen2ForCausalLM":  # head_dim is hidden / heads, qkv always has biases
        config |= {"hidden_size": 64, "head_dim": None, "attention_bias": None}
    config |= overrides
    return {key: value for key, value in config.items() if value is not None}


def tiny_weights(config: dict[str, Any], *, seed: int = 0, std: float = 0.15) -> dict[str, Tensor]:
    """Random tensors under their Hugging Face names, in the config's `torch_dtype`; norm weights near 1."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, config.get("torch_dtype", "float32"))
    weights = {}
    for name, shape in tensor_shapes(config).items():
        mean = 1.0 if name.endswith("norm.weight") else 0.0
        weights[name] = (mean + std * torch.randn(shape, generator=generator)).to(dtype)
    return weights


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // num_heads
    architecture = config["architectures"][0]
    has_qkv_bias = architecture == "Qwen2ForCausalLM" or config.get("attention_bias", False)
    has_o_bias = architecture != "Qwen2ForCausalLM" and config.get("attention_bias", False)
    has_mlp_bias = config.get("mlp_bias", False)

    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden)
    }

    def linear(name: str, rows: int, columns: int, has_bias: bool) -> None:
        shapes[f"{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{name}.bias"] = (rows,)

    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        linear(f"{prefix}.self_attn.q_proj", num_heads * head_dim, hidden, has_qkv_bias)
        linear(f"{prefix}.self_attn.k_proj", num_kv_heads * head_dim, hidden, has_qkv_bias)
        linear(f"{prefix}.self_attn.v_proj", num_kv_heads * head_dim, hidden, has_qkv_bias)
        linear(f"{prefix}.self_attn.o_proj", hidden, num_heads * head_dim, has_o_bias)
        if architecture == "Qwen3ForCausalLM":
            shapes[f"{prefix}.self_attn.q_norm.weight"] = (head_dim,)
            shapes[f"{prefix}.self_attn.k_norm.weight"] = (head_dim,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        linear(f"{prefix}.mlp.gate_proj", inner, hidden, has_mlp_bias)
        linear(f"{prefix}.mlp.up_proj", inner, hidden, has_mlp_bias)
        linear(f"{prefix}.mlp.down_proj", hidden, inner, has_mlp_bias)
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def write_weights(folder: Path, weights: dict[str, Tensor], *, num_shards: int = 1) -> None:
    """`model.safetensors`, or shards dealt round with their index, as the hub has them."""
    if num_shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(weights)
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: weights[name] for name in names[shard::num_shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def write_tokenizer(folder: Path, *, chat_template: str | None = CHAT_TEMPLATE) -> None:
    """Byte-level tokenizer: one token a byte, plus SPECIAL_TOKENS; end of text is `<|im_end|>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
    }
    if chat_template is not None:
        settings["chat_template"] = chat_template
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2))
