"""Memory for the paged cache."""

import pytest
import torch

from growpage.engine.kv_cache import KVCache
from growpage.errors import UsageError


@pytest.mark.parametrize("num_pages", [2**24, 10**16])
def test_cache_without_memory_for_it_names_what_to_lower(num_pages: int) -> None:
    with pytest.raises(UsageError, match=r"Lower engine\.num_pages or engine\.kv_cache_gib"):
        KVCache(
            num_layers=128,
            num_pages=num_pages,
            page_size=2**16,
            num_kv_heads=8,
            head_dim=128,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
