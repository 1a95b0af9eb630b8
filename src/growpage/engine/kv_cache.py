"""The paged KV cache in device memory.

Shape legend: L layers, P pages, b tokens a page, H KV heads, d head dim, n tokens.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from growpage.engine.kernels.page_list import page_list
from growpage.errors import UsageError


class KVCache:
    """Keys (after RoPE) and values of all layers: `data` is [L, 2, P, b, H, d].

    Zero at the start, since masked slots are multiplied by zero weights and NaN would survive that.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.page_size = page_size
        shape = (num_layers, 2, num_pages, page_size, num_kv_heads, head_dim)
        try:
            self.data = torch.zeros(shape, dtype=dtype, device=device)
        except RuntimeError as error:  # torch's word for no memory, and for sizes beyond 64 bits
            gib = prod(shape) * dtype.itemsize / 2**30
            raise UsageError(
                f"engine: no memory for a KV cache of {num_pages} pages ({gib:,.1f} GiB). "
                "Lower engine.num_pages or engine.kv_cache_gib."
            ) from error
        self.keys = [self.data[layer, 0] for layer in range(num_layers)]  # each [P, b, H, d]
        self.values = [self.data[layer, 1] for layer in range(num_layers)]

    @staticmethod
    def page_bytes(
        *, num_layers: int, page_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Bytes of one page over all layers, keys and values."""
        return 2 * num_layers * page_size * num_kv_heads * head_dim * dtype.itemsize

    def gather(self, pages: Sequence[int], num_tokens: int) -> Tensor:
        """The first `num_tokens` slots of these pages, copied: [L, 2, n, H, d]."""
        index = page_list(pages, self.data.device)
        return self.data.index_select(2, index).flatten(2, 3)[:, :, :num_tokens]

    def gather_keys(self, pages: Sequence[int], num_tokens: int) -> Tensor:
        """The keys alone, copied: [L, n, H, d]."""
        index = page_list(pages, self.data.device)
        # A layer at a time: of all layers at once index_select would first copy the whole cache.
        layers = [keys.index_select(0, index) for keys in self.keys]
        return torch.stack(layers).flatten(1, 2)[:, :num_tokens]

    def scatter(self, pages: Sequence[int], tokens: Tensor) -> None:
        """Write whole pages: tokens [L, 2, len(pages) * b, H, d]."""
        index = page_list(pages, self.data.device).long()
        num_layers, _, _, *head = tokens.shape
        paged = tokens.reshape(num_layers, 2, len(pages), self.page_size, *head)
        self.data.index_copy_(2, index, paged.to(self.data.dtype))
