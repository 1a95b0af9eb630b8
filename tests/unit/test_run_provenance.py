"""Provenance names what can change a number, and no secret."""

import subprocess
from pathlib import Path

import pytest

from growpage.run.provenance import (
    commits,
    git_facts,
    is_dirty,
    mask_argument,
    safe_environment,
    session_record,
)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("policy.tau=0.1", "policy.tau=0.1"),
        ("sampling.max_tokens=64", "sampling.max_tokens=64"),
        ("policy.num_protected_tokens=16", "policy.num_protected_tokens=16"),
        ("tracker.api_key=abc", "tracker.api_key=***"),
        ("hub.token=abc", "hub.token=***"),
        ("bench.path=https://me:pw@host/x", "bench.path=https://***@host/x"),
        ("model.path=hf_abcdefghijklmnop", "model.path=***"),
    ],
)
def test_secrets_in_arguments_are_hidden_and_settings_are_not(argument: str, expected: str) -> None:
    assert mask_argument(argument) == expected


def test_environment_keeps_what_matters_and_no_secret() -> None:
    environment = {
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "2",
        "HF_TOKEN": "hf_abcdefghijklmnop",
        "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": "https://me:pw@mirror",
        "VLLM_API_KEY": "abc",
        "HOME": "/home/someone",
        "WANDB_API_KEY": "abc",
    }
    assert safe_environment(environment) == {
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_ENDPOINT": "https://***@mirror",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "2",
    }


def test_session_record_is_plain_and_names_versions_and_hardware() -> None:
    record = session_record(["policy=growpage"])
    assert record["overrides"] == ["policy=growpage"]
    assert "torch" in record["packages"]
    assert record["hardware"]["num_cores"] >= 1
    assert record["hardware"]["cpu"]


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True
    )


def test_commit_dirty_flag_and_hash_of_changes(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    clean = git_facts(tmp_path)
    assert clean is not None
    assert clean["is_dirty"] is False
    assert len(clean["commit"]) == 40
    (tmp_path / "a.py").write_text("2\n")
    one = git_facts(tmp_path)
    (tmp_path / "a.py").write_text("3\n")
    other = git_facts(tmp_path)
    assert one is not None
    assert other is not None
    assert one["is_dirty"]
    assert one["diff_sha256"] != other["diff_sha256"]


def test_folder_outside_a_checkout_has_no_commit(tmp_path: Path) -> None:
    assert git_facts(tmp_path) is None


def test_run_is_dirty_when_any_session_was() -> None:
    clean, dirty = {"commit": "a", "is_dirty": False}, {"commit": "b", "is_dirty": True}
    provenance = {"sessions": [{"git": clean}, {"git": dirty}, {"git": None}]}
    assert is_dirty(provenance)
    assert commits(provenance) == ["a", "b"]
    assert not is_dirty({"sessions": [{"git": clean}]})


def test_a_copy_inside_another_checkout_is_not_taken_for_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    copy = tmp_path / "copy"
    copy.mkdir()
    assert git_facts(copy) is None
    (copy / "archived_commit.txt").write_text("$Format:%H$\n")
    assert git_facts(copy) is None
    (copy / "archived_commit.txt").write_text("a" * 40 + "\n")
    assert git_facts(copy) == {"commit": "a" * 40, "is_dirty": False}
