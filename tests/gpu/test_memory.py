"""Pages from what is left of the card, and errors that say how much is missing."""

from pathlib import Path

import pytest
import torch

from growpage.budget.fullkv import FullKV
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.models.loader import load_model
from growpage.errors import UsageError
from tests.tiny_models import make_tiny

GIB = 1 << 30


def _engine(tmp_path: Path, **settings) -> Engine:
    path = make_tiny(tmp_path, "Qwen3ForCausalLM", head_dim=64, hidden_size=128)
    model = load_model(str(path), dtype="bfloat16", device="cuda")
    defaults = {"max_num_seqs": 16, "max_num_batched_tokens": 256, "device": "cuda"}
    return Engine(model, EngineConfig(**(defaults | settings)), FullKV())


def test_the_pool_takes_what_the_model_leaves(tmp_path: Path) -> None:
    """With room for every request at full length the pool stops there; the ledger counts every part."""
    engine = _engine(tmp_path, gpu_memory_utilization=0.2)
    assert engine.num_pages == 16 * (4096 // 256)
    ledger = engine.describe()["ledger_bytes"]
    assert ledger["activation_peak"] > 0
    assert ledger["graphs"] > 0
    assert 0 < ledger["non_torch"] < 8 * GIB


def test_too_little_room_says_how_much_and_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"too little for two KV pages.*weights") as error:
        _engine(tmp_path, gpu_memory_utilization=0.0001)
    assert "engine.gpu_memory_utilization" in str(error.value)


def test_a_pool_that_does_not_fit_is_refused_before_it_is_made(tmp_path: Path) -> None:
    _, total = torch.cuda.mem_get_info()
    with pytest.raises(UsageError, match="do not fit") as error:
        _engine(tmp_path, num_pages=int(total // (2 * 2 * 256 * 2 * 64 * 2)) + 1)
    assert "engine.num_pages" in str(error.value)
