"""What this machine has, found out without importing torch (the parent process must not)."""

import os
import runpy
from importlib.util import find_spec
from pathlib import Path

from growpage.errors import unknown
from growpage.places import MODELS_FOLDER, expand

BUNDLED = "bundled:"  # the prefix of a model that comes with the project
_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")


def has_cuda_device() -> bool:
    """Whether a child process can use a CUDA device: a driver, a visible card, a torch built for it.

    `CUDA_VISIBLE_DEVICES` that is empty or starts with -1 hides every card.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    is_hidden = visible is not None and visible.strip() in ("", "-1")
    has_driver = any(Path(file).exists() for file in _DRIVER_FILES)
    return has_driver and not is_hidden and _torch_cuda_version() is not None


def is_local_path(path: str) -> bool:
    """Whether a model path means a place on this disk; otherwise it is a package file or a hub id."""
    return exists(path) or path.startswith(("/", "./", "../", "~"))


def exists(path: str) -> bool:
    try:
        return expand(path, f"model.path={path}").exists()
    except OSError:  # a name that is too long for a file system
        return False


def bundled_model(source: str) -> Path:
    """The folder behind "bundled:NAME". Raises `UsageError` when the project has no such model."""
    name = source.removeprefix(BUNDLED)
    known = sorted(path.parent.name for path in MODELS_FOLDER.glob("*/config.json"))
    if name not in known:
        raise unknown("model.path", source, [BUNDLED + item for item in known])
    return MODELS_FOLDER / name


def package_file(source: str) -> Path | None:
    """The file behind "gguf:package/file", or None when the package or the file is not installed."""
    package, _, file = source.removeprefix("gguf:").partition("/")
    spec = find_spec(package) if package.isidentifier() and package != "__main__" else None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / file).is_file():
            return Path(folder) / file
    return None


def has_hub_snapshot(repo_id: str) -> bool:
    """Whether the Hugging Face cache of this machine holds a snapshot of the repository."""
    snapshots = _hub_cache() / ("models--" + repo_id.replace("/", "--")) / "snapshots"
    return snapshots.is_dir() and any(snapshots.iterdir())


def is_hub_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _hub_cache() -> Path:
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(home).expanduser() / "hub"


def _torch_cuda_version() -> str | None:
    """The CUDA version that torch was built for, read from its version file."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = runpy.run_path(str(Path(spec.origin).with_name("version.py")))["cuda"]
    return None if version is None else str(version)
