"""Page numbers on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor


def page_list(pages: Sequence[int], device: torch.device) -> Tensor:
    """[len(pages)] int32. The copy leaves pinned memory, so that the host does not wait for the stream."""
    on_host = torch.tensor(pages, dtype=torch.int32, pin_memory=device.type == "cuda")
    return on_host.to(device, non_blocking=True)
