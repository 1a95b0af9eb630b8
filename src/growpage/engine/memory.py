"""How the memory of a GPU is shared out: what the model needs is measured, the rest becomes KV pages, as in vLLM.

Only what this process uses counts against `gpu_memory_utilization`. What other processes hold can make a size
impossible, and is then named.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from growpage.engine.forward import Forward
from growpage.engine.inputs import Batch, Prefills, Samples
from growpage.errors import UsageError

logger = logging.getLogger(__name__)

GIB = 1 << 30
_CHUNK_TOKENS = 512
# Believed of the device's total, where the process cannot be told from others.
_MOST_NON_TORCH = 2 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes that do not hold KV pages."""

    weights: int
    query_state: int
    activation_peak: int  # of a step of max_num_batched_tokens rows
    graphs: int
    non_torch: int  # the CUDA context, libraries, compiled kernels

    def total(self) -> int:
        return self.weights + self.query_state + self.activation_peak + self.graphs + self.non_torch

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "query summaries": self.query_state,
            "activations": self.activation_peak,
            "CUDA graphs": self.graphs,
            "context and libraries": self.non_torch,
        }
        return ", ".join(f"{name} {_gib(size)}" for name, size in parts.items())


def kv_room(needs: Needs, device: torch.device, utilization: float, least: int) -> int:
    """Bytes for KV pages. Raises `UsageError` when fewer than `least` are left."""
    _, total = torch.cuda.mem_get_info(device)
    room = int(total * utilization) - needs.total()
    if room < least:
        raise UsageError(
            f"engine.gpu_memory_utilization={utilization}: {_gib(int(total * utilization))} of "
            f"{_gib(total)} is {_gib(least - room)} too little for two KV pages ({needs}). Raise it, "
            "or lower engine.max_num_batched_tokens, engine.max_num_seqs or engine.page_size."
        )
    return room


def check_free(size: int, needs: Needs, device: torch.device) -> None:
    """Raise `UsageError` unless `size` bytes of KV pages, and the graphs, can be had now."""
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    missing = size + needs.graphs + needs.activation_peak - free
    if missing > 0:
        others = max(0, total - free - torch.cuda.memory_allocated(device) - needs.non_torch)
        raise UsageError(
            f"the KV pages of {_gib(size)} do not fit: {_gib(missing)} too little is free on {device} "
            f"(besides {needs}; other processes hold about {_gib(others)}). Lower "
            "engine.gpu_memory_utilization, engine.kv_cache_gib or engine.num_pages."
        )


def used_by_process(device: torch.device) -> int:
    """Bytes of the device that this process holds, context and libraries included."""
    named = _named_by_driver(device)
    if named is not None:
        return named
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    return reserved + min(max(0, total - free - reserved), _MOST_NON_TORCH)


def non_torch_bytes(device: torch.device) -> int:
    return max(0, used_by_process(device) - torch.cuda.memory_reserved(device))


def activation_peak(
    forward: Forward, last_tokens: Tensor, *, num_tokens: int, num_samples: int, page_size: int
) -> int:
    """Bytes a step of so many prompt tokens and sampled rows needs at its peak; measured by running it.

    The cache behind `forward` needs one page, which is spoilt.
    """
    device = last_tokens.device
    batch = _largest_batch(num_tokens, num_samples, page_size, device)
    # What is compiled or made at the first call is no activation.
    _step(forward, batch, last_tokens)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    _step(forward, batch, last_tokens)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def growth(device: torch.device, make: Callable[[], object]) -> int:
    """Bytes by which what this process holds grows by `make`."""
    torch.cuda.empty_cache()
    before = used_by_process(device)
    made = make()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    size = used_by_process(device) - before
    del made
    return max(0, size)


def _step(forward: Forward, batch: Batch, last_tokens: Tensor) -> None:
    logits = forward.logits(batch, last_tokens)
    forward.draw(logits, batch.samples)


def _largest_batch(
    num_tokens: int, num_samples: int, page_size: int, device: torch.device
) -> Batch:
    """Rows of prefill chunks over page 0, whose content does not matter."""

    def ints(*shape: int, value: int = 0) -> Tensor:
        return torch.full(shape, value, dtype=torch.int32, device=device)

    starts = [*range(0, num_tokens, _CHUNK_TOKENS), num_tokens]
    cu_query_lens = torch.tensor(starts, dtype=torch.int32, device=device)
    num_chunks = len(starts) - 1
    return Batch(
        token_ids=ints(num_tokens),
        positions=ints(num_tokens),
        slots=ints(num_tokens),
        num_decodes=0,
        is_fresh=ints(0),
        context_lens=ints(0),
        block_tables=ints(0, 1),
        width=ints(1, value=1),
        prefills=Prefills(
            block_tables=ints(num_chunks, -(-_CHUNK_TOKENS // page_size)),
            cu_query_lens=cu_query_lens,
            context_lens=cu_query_lens.diff(),
            max_query_len=min(num_tokens, _CHUNK_TOKENS),
        ),
        samples=Samples(
            slot_ids=ints(num_samples, value=-1),
            rows=ints(num_samples),
            output_positions=ints(num_samples),
            words=ints(num_samples, 2),
            temperature=torch.ones(num_samples, device=device),
            filters=None,
            is_greedy=False,
        ),
    )


def _named_by_driver(device: torch.device) -> int | None:
    """What the driver says of this process; None without NVML, or where process ids differ inside a container."""
    if find_spec("pynvml") is None:
        return None
    pynvml = import_module("pynvml")
    try:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory)
    except pynvml.NVMLError as error:
        logger.info("nvml does not answer error=%s", error)
    return None


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
