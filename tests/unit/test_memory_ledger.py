"""The memory ledger of the run record counts every large block that the engine holds."""

from pathlib import Path

import pytest
import torch

from growpage.budget.fullkv import FullKV
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.models.decoder import can_pack
from growpage.engine.models.loader import load_model
from tests.tiny_models import make_tiny


def test_the_ledger_counts_the_packed_copy_of_the_weights(tmp_path: Path) -> None:
    path = make_tiny(tmp_path, "LlamaForCausalLM", tie_word_embeddings=True)
    model = load_model(str(path), dtype="float32", device="cpu")
    if not can_pack(model.decoder.embed):
        pytest.skip("no packed copies on this machine")
    engine = Engine(model, EngineConfig(page_size=4, num_pages=8, device="cpu"), FullKV())
    ledger = engine.describe()["ledger_bytes"]
    norms = sum(p.nbytes for p in model.decoder.parameters() if p.dim() == 1)
    assert ledger["weights_packed"] == ledger["weights"] - norms
    model.decoder.to(torch.float64)  # drops the copies
    assert engine.describe()["ledger_bytes"]["weights_packed"] == 0
