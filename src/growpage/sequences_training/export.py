"""The trained model as a Hugging Face folder: weights, tokenizer, configs."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor

from growpage.bench.sequences.vocabulary import (
    BOS,
    EOS,
    NEWLINE,
    PAD,
    SPECIAL,
    THINK,
    TOKEN_ID,
    UNK,
    WORDS,
)
from growpage.sequences_training.config import ModelShape
from growpage.sequences_training.model import Layer, Reasoner

WEIGHTS = "model.safetensors"

CHAT_TEMPLATE = (
    f"{{{{ '{BOS}' }}}}"
    "{% for message in messages %}{{ ' ' + message['content'] + ' \\n' }}{% endfor %}"
    f"{{% if add_generation_prompt %}}{{{{ ' {THINK} \\n' }}}}{{% endif %}}"
)


def save_model(model: Reasoner, folder: Path) -> None:
    """Write everything but the card. The weights are rounded to bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(model, folder)
    _write_json(folder / "config.json", hf_config(model.shape, len(WORDS)))
    generation = {
        "bos_token_id": TOKEN_ID[BOS],
        "eos_token_id": TOKEN_ID[EOS],
        "pad_token_id": TOKEN_ID[PAD],
        "do_sample": True,
        "temperature": 0.6,
    }
    _write_json(folder / "generation_config.json", generation)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(model.shape))


def save_weights(model: Reasoner, folder: Path) -> None:
    """Write the weights alone, by way of a temporary file, so that the last ones survive a crash."""
    temporary = folder / f"{WEIGHTS}.tmp"
    save_file(hf_state(model), str(temporary), metadata={"format": "pt"})
    temporary.replace(folder / WEIGHTS)


def hf_state(model: Reasoner) -> dict[str, Tensor]:
    """Tensors under the names of Qwen3ForCausalLM, bf16 on the CPU."""
    shape = model.shape
    sizes = [shape.num_heads * shape.head_dim] + 2 * [shape.num_kv_heads * shape.head_dim]
    state: dict[str, Tensor] = {
        "model.embed_tokens.weight": model.embedding,
        "model.norm.weight": model.norm,
    }
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        q, k, v = torch.split(layer.qkv, sizes)
        gate, up = layer.gate_up.chunk(2)
        parts = {
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.o,
            "self_attn.q_norm": layer.q_norm,
            "self_attn.k_norm": layer.k_norm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down,
            "input_layernorm": layer.input_norm,
            "post_attention_layernorm": layer.mlp_norm,
        }
        state |= {f"model.layers.{index}.{name}.weight": part for name, part in parts.items()}
    return {
        name: part.detach().to("cpu", torch.bfloat16).contiguous() for name, part in state.items()
    }


def load_model(folder: Path, shape: ModelShape, device: torch.device) -> Reasoner:
    """The exported weights in the trainable module, fp32; the numbers of the card are measured with it."""
    state = load_file(str(folder / WEIGHTS))
    model = Reasoner(shape, len(WORDS))
    with torch.no_grad():
        model.embedding.copy_(state["model.embed_tokens.weight"])
        model.norm.copy_(state["model.norm.weight"])
        for index, layer in enumerate(model.layers):
            assert isinstance(layer, Layer)
            _copy_layer(layer, state, f"model.layers.{index}.")
    return model.to(device)


def _copy_layer(layer: Layer, state: dict[str, Tensor], prefix: str) -> None:
    def joined(*names: str) -> Tensor:
        return torch.cat([state[f"{prefix}{name}.weight"] for name in names])

    layer.qkv.copy_(joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
    layer.gate_up.copy_(joined("mlp.gate_proj", "mlp.up_proj"))
    layer.o.copy_(joined("self_attn.o_proj"))
    layer.down.copy_(joined("mlp.down_proj"))
    layer.q_norm.copy_(joined("self_attn.q_norm"))
    layer.k_norm.copy_(joined("self_attn.k_norm"))
    layer.input_norm.copy_(joined("input_layernorm"))
    layer.mlp_norm.copy_(joined("post_attention_layernorm"))


def hf_config(shape: ModelShape, vocab_size: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": TOKEN_ID[BOS],
        "eos_token_id": TOKEN_ID[EOS],
        "pad_token_id": TOKEN_ID[PAD],
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "max_window_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": vocab_size,
    }


def make_tokenizer() -> Tokenizer:
    """Words between spaces; a newline is a word."""
    tokenizer = Tokenizer(models.WordLevel(vocab=dict(TOKEN_ID), unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(NEWLINE, behavior="isolated"),
            pre_tokenizers.Split(Regex(" +"), behavior="removed"),
        ]
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def tokenizer_config(shape: ModelShape) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.max_position_embeddings,
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "unk_token": UNK,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
