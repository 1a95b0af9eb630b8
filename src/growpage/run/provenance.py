"""Where the numbers of a run come from: commit, command, versions, hardware. No torch, no secrets."""

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from growpage.places import CHECKOUT

_PACKAGES = (
    "growpage", "torch", "triton", "transformers", "tokenizers", "safetensors", "gguf", "datasets",
    "numpy", "scipy", "pandas", "pyarrow", "hydra-core", "omegaconf", "math-verify", "sympy",
    "vllm",
)  # fmt: skip
_ENV_PREFIXES = (
    "CUDA_", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH_", "TRITON_",
    "VLLM_", "GROWPAGE_", "HF_", "TRANSFORMERS_", "SLURM_JOB_", "SLURM_PROCID", "PYTHONHASHSEED",
)  # fmt: skip
_SECRET = re.compile(
    r"token|secret|passw|passphrase|credential|auth|api[_-]?key|private|cookie", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"\b(hf_|sk-|ghp_|github_pat_|glpat-|wandb_v1_)\w{8,}")
_URL_LOGIN = re.compile(r"(://)[^/@\s]+@")
_MASK = "***"
_GIT_TIMEOUT_S = 20
_ARCHIVED = "archived_commit.txt"


def session_record(overrides: Sequence[str]) -> dict[str, Any]:
    """What one start of a run is made of; a run that was continued has several."""
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": [mask_argument(item) for item in sys.argv],
        "overrides": [mask_argument(item) for item in overrides],
        "git": git_facts(CHECKOUT) if CHECKOUT else None,
        "python": platform.python_version(),
        "packages": package_versions(),
        "hardware": hardware_facts(),
        "environment": safe_environment(os.environ),
    }


def git_facts(folder: Path) -> dict[str, Any] | None:
    """Commit, dirty flag and hash of the differences of the checkout `folder`.

    A copy made by `git archive` knows its commit, not whether it was changed since. None for another copy, also inside
    the checkout of something else, and without git.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()).resolve() != folder.resolve():
        return _archived(folder / _ARCHIVED)
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain")
    if commit is None or status is None:
        return None
    facts: dict[str, Any] = {"commit": commit.strip(), "is_dirty": bool(status.strip())}
    if facts["is_dirty"]:
        diff = _git(folder, "diff", "HEAD", "--binary", "--no-ext-diff") or ""
        facts["diff_sha256"] = sha256((status + diff).encode(errors="replace")).hexdigest()
    return facts


def _archived(file: Path) -> dict[str, Any] | None:
    """The commit that `git archive` has written into the file; None where it has not."""
    text = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    is_commit = len(text) == 40 and set(text) <= set("0123456789abcdef")
    return {"commit": text, "is_dirty": False} if is_commit else None


def package_versions() -> dict[str, str]:
    """Versions of the packages that can change a result; what is not installed is left out."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware_facts() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "num_cores": _num_cores(),
        "memory_gib": _memory_gib(),
        "gpus": _gpus(),
    }


def safe_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that can change a result, without anything that looks like a secret."""
    return {
        name: mask_text(value)
        for name, value in sorted(environment.items())
        if name.startswith(_ENV_PREFIXES) and not _is_secret_name(name)
    }


def mask_argument(argument: str) -> str:
    """A command-line argument with secret values hidden: `tracker.api_key=***`."""
    key, equals, _ = argument.partition("=")
    if equals and _is_secret_name(key):
        return f"{key}={_MASK}"
    return mask_text(argument)


def mask_text(text: str) -> str:
    return _SECRET_VALUE.sub(_MASK, _URL_LOGIN.sub(rf"\1{_MASK}@", text))


def is_dirty(provenance: Mapping[str, Any]) -> bool:
    """Whether any session of the run ran from a changed tree."""
    return any((item.get("git") or {}).get("is_dirty") for item in provenance.get("sessions", ()))


def commits(provenance: Mapping[str, Any]) -> list[str]:
    """The commits of all sessions, in order, each once."""
    found = [(item.get("git") or {}).get("commit") for item in provenance.get("sessions", ())]
    return list(dict.fromkeys(item for item in found if item))


def _is_secret_name(name: str) -> bool:
    # HF_TOKEN holds a secret, sampling.max_tokens and TOKENIZERS_PARALLELISM do not.
    words = re.sub(r"tokens|tokenizers?", "", name, flags=re.I)
    return bool(_SECRET.search(words)) or words.upper().endswith("KEY")


def _git(folder: Path, *arguments: str) -> str | None:
    if shutil.which("git") is None:
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _num_cores() -> int:
    """Cores this process may use, not those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _gpus() -> list[dict[str, str]]:
    """Name, memory and driver of each card, as nvidia-smi reports them; empty without a driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]
    names = ("name", "memory", "driver")
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]
