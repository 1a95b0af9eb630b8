"""Which run a configuration is: what its hash covers, the hash, and the run directory's name and place."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from growpage.bench.mixed import local_files
from growpage.config import Config, is_generated, resolve, to_dict
from growpage.errors import UsageError

OUTSIDE_HASH = frozenset(
    {
        # labels and hints; what they stand for is inside
        "model.name", "model.needs_gpu", "model.params_b", "model.install",
        # filled into policy, engine and sampling by `resolve`
        "model.kv_defaults", "model.card", "bench.max_tokens", "bench.budget_tokens",
        # a label and a place; the content of a local file is inside (bench.sha256)
        "bench.name", "bench.path",
        # graded again from stored samples when it changes (`grader_hash`)
        "grader",
        "paths", "stage", "fresh", "trace", "dry_run",
    }
)  # fmt: skip


def config_hash(config: Config) -> str:
    """8 hex digits over the effective values that change samples or timing, and nothing else."""
    return _digest(hashed_values(config))


def hashed_values(config: Config) -> dict[str, Any]:
    """What `config_hash` covers; a local file of questions stands there as its SHA-256."""
    resolved = resolve(config)
    values = _without(to_dict(resolved), OUTSIDE_HASH)
    if not is_generated(resolved.bench):  # then it is a check of the source
        del values["bench"]["num_problems_expected"]
    for name in ("gsm8k_samples", "gsm8k_thinking"):  # they came later: null leaves older hashes
        if values["bench"][name] is None:
            del values["bench"][name]
    if resolved.bench.path is not None:
        values["bench"]["sha256"] = _file_sha256(resolved.bench.path)
    return values


def grader_hash(config: Config) -> str:
    """8 hex digits over the grader's settings: stored verdicts with another hash are graded again."""
    values = to_dict(config)["grader"]
    del values["num_workers"]
    if config.grader.name != "code":  # it came later, and has no part in the other graders
        del values["code"]
    return _digest(values)


def run_name(config: Config) -> str:
    """ "<policy>-<bench>-<model>-<hash8>": the name of the run directory, made of [a-z0-9_.-]."""
    parts = (config.policy.name, config.bench.name, config.model.name, config_hash(config))
    return "-".join(parts)


def run_directory(config: Config) -> Path:
    """Where the results of this configuration are or will be."""
    runs = resolve(config).paths.runs
    assert runs is not None
    return Path(runs) / run_name(config)


def _without(values: dict[str, Any], names: frozenset[str], path: str = "") -> dict[str, Any]:
    return {
        key: _without(item, names, f"{path}{key}.") if isinstance(item, dict) else item
        for key, item in values.items()
        if path + key not in names
    }


def _digest(values: dict[str, Any]) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def _file_sha256(path: str) -> str:
    try:
        if Path(path).is_dir():  # bench=mixed
            parts = [f"{file.name}:{_file_sha256(str(file))}" for file in local_files(path)]
            return sha256("\n".join(parts).encode()).hexdigest()
        if Path(path).exists() and not Path(path).is_file():  # a device or a pipe may never end
            raise UsageError(f"bench.path={path}: cannot be read (not a file).")
        return sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"bench.path={path}: cannot be read ({error.strerror}).") from error
