"""Checkpoints into decoders: safetensors folders, hub ids, SmolLM2's GGUF, or random weights.

Headers are checked against the config before a byte of weights is read, so a checkpoint that does
not fit fails at once and by name; then the tensors stream into the fused parameters.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from growpage import host
from growpage.engine.models.card import check_weights, file_sha256
from growpage.engine.models.decoder import Decoder, DecoderConfig
from growpage.engine.models.gguf import GgufFile, locate
from growpage.engine.models.tokenizer import Tokenizer, read_json, reading
from growpage.errors import UsageError, unknown

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LOAD_FORMATS = ("auto", "dummy")
INDEX = "model.safetensors.index.json"
MAX_HASHED_BYTES = 256 * 2**20

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_STORED_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_SMALL_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja", "tokenizer.model", "vocab.json", "merges.txt", INDEX,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A decoder ready to run. `files`: name -> "sha256:...", or size and mtime above 256 MiB."""

    decoder: Decoder
    tokenizer: Tokenizer | None
    files: dict[str, str]
    name: str
    dtype: str


def load_model(
    path: str | Path | Mapping[str, Any],
    *,
    dtype: str = "auto",
    device: str = "cpu",
    load_format: str = "auto",
    revision: str | None = None,
    seed: int = 0,
) -> LoadedModel:
    """Load a checkpoint folder, `bundled:NAME`, a .gguf file, `gguf:PACKAGE/FILE` or a hub id.

    dtype "auto": float32 on a CPU, else that of the checkpoint. load_format "dummy": random weights
    from `seed` in the shape of the config.json, or of a dict given as `path`. On an x86 CPU the
    weights are also packed (`Decoder.pack`). Raises UsageError, in one line, for what cannot be
    loaded.
    """
    if load_format not in LOAD_FORMATS:
        raise unknown("model.load_format", load_format, LOAD_FORMATS)
    check_device(device)
    with torch.inference_mode(False), torch.no_grad():  # parameters must stay usable by autograd
        source = _open(path, revision, has_weights=load_format != "dummy")
        dtype_name = resolve_dtype(dtype, device, source.config)
        decoder = _filled(source, DTYPES[dtype_name], device, seed)
        decoder.pack()
    num_weights = sum(p.numel() for p in decoder.parameters())
    logger.info("loaded model=%s weights=%d dtype=%s", source.name, num_weights, dtype_name)
    return LoadedModel(
        decoder=decoder.eval(),
        tokenizer=source.tokenizer,
        files=source.files,
        name=source.name,
        dtype=dtype_name,
    )


class Weights(Protocol):
    """Where tensors come from, under Hugging Face names."""

    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    def tensors(self) -> Iterator[tuple[str, Tensor]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A checkpoint that was found. `weights` None: to be made up."""

    name: str
    config: Mapping[str, Any]
    weights: Weights | None
    tokenizer: Tokenizer | None
    files: dict[str, str]


def _open(
    path: str | Path | Mapping[str, Any], revision: str | None, *, has_weights: bool
) -> _Source:
    if isinstance(path, Mapping):
        if has_weights:
            raise UsageError("model.path: a dict has no weights. Set model.load_format=dummy.")
        return _Source(name="dummy", config=path, weights=None, tokenizer=None, files={})
    text = str(path)
    if text.startswith("gguf:") or text.endswith(".gguf"):
        return _open_gguf(locate(text), has_weights)
    folder, name = checkpoint_folder(text, revision, has_weights=has_weights)
    return _open_folder(folder, name, has_weights)


def _open_gguf(path: Path, has_weights: bool) -> _Source:
    file = GgufFile(path)
    return _Source(
        name=path.stem,
        config=file.config(),
        weights=file if has_weights else None,
        tokenizer=file.tokenizer(),
        files=fingerprints([path]),
    )


def _open_folder(folder: Path, name: str, has_weights: bool) -> _Source:
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder}: has no config.json. Give the folder of a Hugging Face model.")
    config = read_json(folder / "config.json")
    with reading(folder / "config.json"):
        DecoderConfig.from_hf(config)  # before looking for weights: the clearer error comes first
    weights = SafetensorsFolder(folder) if has_weights else None
    if has_weights:
        check_weights(folder)
    files = [file for name in _SMALL_FILES if (file := folder / name).is_file()]
    return _Source(
        name=name,
        config=config,
        weights=weights,
        tokenizer=Tokenizer.from_folder(folder),
        files=fingerprints([*files, *(weights.files if weights else ())]),
    )


def _filled(source: _Source, dtype: torch.dtype, device: str, seed: int) -> Decoder:
    config = DecoderConfig.from_hf(source.config)
    on_paper = Decoder(config, dtype=dtype, device="meta")
    if source.weights is not None:
        _check_fit(on_paper.hf_tensors(), source.weights.shapes(), config)
    _check_room(sum(p.nbytes for p in on_paper.parameters()), torch.device(device))
    decoder = Decoder(config, dtype=dtype, device=device)
    if source.weights is None:
        decoder.init_weights(seed)
        return decoder
    targets = decoder.hf_tensors()
    for name, tensor in source.weights.tensors():
        if name in targets:
            targets[name].copy_(tensor)
    return decoder


class SafetensorsFolder:
    """The `model.safetensors` of a folder, or the shards of its index. All shards must be there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = read_json(folder / INDEX)
        if index:
            with reading(folder / INDEX):
                self._owner: dict[str, str] = index.get("weight_map", {})
                self.files = [folder / name for name in sorted(set(self._owner.values()))]
        else:
            self._owner = {}
            self.files = [folder / "model.safetensors"]
        for file in self.files:
            if not file.is_file():
                raise UsageError(
                    f"{file}: missing. Download it again, or use load_format=dummy for random weights."
                )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape, from the headers. Raises UsageError for a dtype that is no float."""
        shapes: dict[str, tuple[int, ...]] = {}
        for file in self.files:
            with _opened(file) as reader:
                for name in reader.keys():  # noqa: SIM118 (the reader is no mapping)
                    part = reader.get_slice(name)
                    _check_dtype(file, name, part.get_dtype())
                    shapes[name] = tuple(part.get_shape())
        for name, owner in self._owner.items():
            if name not in shapes:
                raise UsageError(
                    f"{self.folder / owner}: tensor {name} is missing, though {INDEX} lists it. "
                    "Download the shard again."
                )
        return shapes

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor, a shard at a time and a tensor at a time."""
        for file in self.files:
            with _opened(file) as reader:
                for name in reader.keys():  # noqa: SIM118
                    yield name, reader.get_tensor(name)


def resolve_dtype(dtype: str, device: str, hf_config: Mapping[str, Any]) -> str:
    """Name of the dtype to compute in; "auto" is float32 on a CPU, else the checkpoint's."""
    if dtype == "auto":
        if torch.device(device).type == "cpu":
            return "float32"
        stored = hf_config.get("dtype") or hf_config.get("torch_dtype") or "bfloat16"
        dtype = str(stored).removeprefix("torch.")
    if dtype not in DTYPES:
        raise unknown("engine.dtype", dtype, ["auto", *DTYPES])
    return dtype


def check_device(device: str) -> None:
    """Raise UsageError unless torch has this device."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise unknown("engine.device", device, ["cpu", "cuda"]) from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"engine.device={device}: torch finds no GPU. Set engine.device=cpu.")


def fingerprints(files: Iterable[Path]) -> dict[str, str]:
    """File name -> sha256 of the content; size and mtime above 256 MiB, where a hash takes long."""
    return {file.name: _fingerprint(file) for file in files}


def _fingerprint(file: Path) -> str:
    facts = file.stat()
    if facts.st_size > MAX_HASHED_BYTES:
        return f"size:{facts.st_size},mtime_ns:{facts.st_mtime_ns}"
    return f"sha256:{file_sha256(file)}"


def _check_fit(
    expected: Mapping[str, Tensor], found: Mapping[str, tuple[int, ...]], config: DecoderConfig
) -> None:
    """Raise UsageError, naming a tensor, unless the checkpoint has just what the config asks for."""
    for name, tensor in expected.items():
        if name not in found:
            hint = " Set tie_word_embeddings=true if the head is tied." if "lm_head" in name else ""
            raise UsageError(
                f"tensor {name}: missing from the checkpoint of this {config.architecture}. "
                f"Download the weights again, or mend config.json.{hint}"
            )
        if found[name] != tuple(tensor.shape):
            raise UsageError(
                f"tensor {name}: shape {list(found[name])} in the checkpoint, "
                f"{list(tensor.shape)} by config.json. Use the config.json of these weights."
            )
    for name in found:
        if name not in expected and not _is_redundant(name, config):
            raise UsageError(
                f"tensor {name}: not part of {config.architecture} with this config.json. "
                "Use the config.json of these weights."
            )


def _check_room(num_bytes: int, device: torch.device) -> None:
    """Raise UsageError unless the GPU has so much free memory."""
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    if num_bytes > free:
        raise UsageError(
            f"the weights take {num_bytes / 2**30:.1f} GiB and {free / 2**30:.1f} of "
            f"{total / 2**30:.1f} GiB are free on {device}. End other processes on it, or choose a smaller "
            "model or engine.dtype=bfloat16."
        )


def _is_redundant(name: str, config: DecoderConfig) -> bool:
    """True for what some checkpoints store besides: a tied head, the rotary frequencies."""
    return name.endswith("rotary_emb.inv_freq") or (
        config.tie_word_embeddings and name == "lm_head.weight"
    )


def _check_dtype(file: Path, name: str, stored: str) -> None:
    if stored not in _STORED_DTYPES:
        known = ", ".join(_STORED_DTYPES.values())
        raise UsageError(
            f"{file}: tensor {name} has dtype {stored}; must be {known}. Use an unquantised checkpoint."
        )


def _opened(file: Path) -> Any:
    try:
        return safe_open(str(file), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise UsageError(
            f"{file}: not a readable safetensors file ({error}). Download it again."
        ) from error


def checkpoint_folder(source: str, revision: str | None, *, has_weights: bool) -> tuple[Path, str]:
    """The folder behind a path, `bundled:NAME` or a hub id, and the model's name.

    What the hub's cache lacks is downloaded, the weights only with `has_weights`. Raises UsageError.
    """
    if source.startswith(host.BUNDLED):
        folder = host.bundled_model(source)
        return folder, folder.name
    local = Path(source).expanduser()
    if local.is_dir():
        return local, local.resolve().name
    if local.exists() or not _HUB_ID.fullmatch(source):
        raise UsageError(
            f"model.path={source}: no such folder. Give a model folder, a .gguf file or a hub id."
        )
    return _snapshot(source, revision, has_weights), source


def _snapshot(hub_id: str, revision: str | None, has_weights: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    patterns = ["*.json", "*.jinja", "tokenizer.model", "merges.txt"]
    if has_weights:
        patterns.append("model*.safetensors")
    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise UsageError(
            f"model.path={hub_id}: no folder of that name, and the hub gave nothing "
            f"({type(error).__name__}: {reason}). Set model.path to a local folder, or run "
            f"`hf download {hub_id}` with network access first."
        ) from error
