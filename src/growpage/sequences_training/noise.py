"""Eviction noise: tokens vanish from attention once they are no longer needed.

It teaches the model to keep what it needs in few tokens and not to lean on the others. All heads lose the same tokens
here; under a real policy each head loses its own.
"""

import torch
from torch import Tensor

from growpage.sequences_training.config import NoiseConfig


def draw_expiry(last_read: Tensor, config: NoiseConfig, generator: torch.Generator) -> Tensor:
    """The last position from which each token may be read, [B, T].

    last_read: [B, T], from the problem generator. A document draws a share and a least age; a token of the share
    vanishes after the later of its last read and its age, any other stays. <bos> always stays.
    """
    batch, length = last_read.shape
    device = last_read.device

    def draw(choices: list[float]) -> Tensor:
        index = torch.randint(len(choices), (batch, 1), generator=generator, device=device)
        return torch.tensor(choices).to(device, non_blocking=True)[
            index
        ]  # a blocking copy would stall

    share, age = draw(config.shares), draw([float(age) for age in config.ages_tokens])
    positions = torch.arange(length, device=device)
    vanishes = torch.rand((batch, length), generator=generator, device=device) < share
    vanishes[:, 0] = False
    expiry = torch.maximum(last_read, positions + age.long())
    return torch.where(vanishes, expiry, length)


def attention_bias(expiry: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a key is visible and -inf elsewhere, [B, 1, T, T]; every query sees itself."""
    length = expiry.shape[1]
    positions = torch.arange(length, device=expiry.device)
    query, key = positions[:, None], positions[None, :]
    visible = (key <= query) & (query <= expiry[:, None, :])
    zero = torch.zeros((), dtype=dtype, device=expiry.device)
    return torch.where(visible, zero, float("-inf")).unsqueeze(1)
