"""The first prompt of a run as the model would read it, for `dry_run=true`; from what lies on this machine only.

A process of its own makes it (`growpage.run.prompt_child`), since chat templates import torch and the process that the
user started does not.
"""

import json
import os
import subprocess
import sys

from growpage.config import Config, to_dict

_LIMIT_S = 120.0
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def first_prompt(config: Config) -> str:
    """The text, or why there is none here. Never raises for what is missing."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "growpage.run.prompt_child"],
            input=json.dumps(to_dict(config)),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=_LIMIT_S,
            check=False,
            env={**os.environ, **_OFFLINE},
        )
    except subprocess.TimeoutExpired:
        return f"first prompt: not shown (it took longer than {_LIMIT_S:g} s)"
    if done.returncode == 0:
        return done.stdout.rstrip("\n")
    reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return f"first prompt: not shown ({reason})"
