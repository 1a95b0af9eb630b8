"""What engine=vllm refuses before a worker starts, through the real command."""

from pathlib import Path

import pytest

from growpage.backends.vllm_fullkv import is_installed
from tests.config.test_cli_errors import run_py

REFUSALS = {  # arguments, what the one line must say
    "policy": ("policy=growpage", "policy=growpage full engine=vllm policy=fullkv"),
    "control": ("policy=random", "policy=random full policy=fullkv"),
    "preemption": (
        "policy=fullkv engine.preempt_mode=swap",
        "engine.preempt_mode=swap no effect recompute",
    ),
    "swap": ("policy=fullkv engine.swap_space_gib=4", "engine.swap_space_gib=4 no effect"),
    "attention": (
        "policy=fullkv engine.attention_backend=torch",
        "engine.attention_backend=torch no effect auto",
    ),
    "threads": ("policy=fullkv engine.num_threads=2", "engine.num_threads=2 no effect null"),
}


def refused(arguments: str, folder: Path) -> str:
    runs = folder / "runs"
    result = run_py("engine=vllm", *arguments.split(), f"paths.runs={runs}", cwd=folder)
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert list(folder.iterdir()) == []
    return result.stderr


@pytest.mark.parametrize("case", REFUSALS)
def test_what_vllm_cannot_do_is_refused_by_name(case: str, tmp_path: Path) -> None:
    arguments, expected = REFUSALS[case]
    line = refused(arguments, tmp_path)
    assert not [word for word in expected.split() if word not in line], line


@pytest.mark.skipif(is_installed(), reason="vLLM is installed here")
def test_a_missing_vllm_is_told_with_its_extra(tmp_path: Path) -> None:
    line = refused("policy=fullkv model=qwen3_8b", tmp_path)
    for words in ("vLLM is not installed", "environment of its own", ".[vllm]", "engine=auto"):
        assert words in line
