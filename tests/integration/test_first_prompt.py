"""`dry_run=true` shows what a model would be asked, from what lies on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def dry_run(*overrides: str) -> str:
    command = [sys.executable, str(ROOT / "run.py"), "dry_run=true", *overrides]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": os.devnull}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_prompt_of_the_bundled_model_is_shown_with_its_template() -> None:
    shown = dry_run("bench=sequences")
    assert "first prompt: bench=sequences model=sequences_reasoner problem=sequences/" in shown
    assert "think block=open think tags=tokens" in shown
    assert "data: 200 problems, 200 requests, growpage.bench.sequences" in shown


def test_a_model_that_is_not_here_leaves_the_chat(tmp_path: Path) -> None:
    path = tmp_path / "lcb.jsonl"
    tests = [{"input": "1\n", "output": "1\n"}]
    path.write_text(json.dumps({"id": "a", "question": "Echo.", "kind": "stdin", "tests": tests}))
    shown = dry_run("bench=livecodebench", f"bench.path={path}", "model=qwen3_8b")
    assert "no chat template at hand" in shown
    assert "[user]\nYou are an expert Python programmer." in shown
    assert "### Question:\nEcho." in shown


def test_data_that_are_not_here_are_named() -> None:
    shown = dry_run("bench=gsm8k", "model=sequences_reasoner")
    assert "first prompt: not shown (bench.hub_id=openai/gsm8k" in shown


@pytest.mark.parametrize("template", ["opened", "closed"])
def test_a_template_is_read_from_the_checkpoint(template: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    end = "<think>" if template == "opened" else "<think></think>"
    vocabulary = {"<unk>": 0, "<think>": 1, "</think>": 2}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    chat = "{% for m in messages %}{{ m.content }}{% endfor %}" + end
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": chat}))
    (tmp_path / "config.json").write_text("{}")
    shown = dry_run("bench=arithmetic", "model=local", f"model.path={tmp_path}")
    expected = "open" if template == "opened" else "closed"
    assert f"template=chat think block={expected} think tags=tokens" in shown
    assert end in shown
