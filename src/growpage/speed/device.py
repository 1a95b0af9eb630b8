"""What the device can do: a copy between buffers far larger than its caches, and a large matrix product."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

COPY_BYTES = 4 << 30  # of one buffer
MATMUL_SIZE = 8192
NUM_REPLAYS = 15


def measure_rates(*, is_tiny: bool) -> dict[str, Any]:
    """Copy bandwidth (bytes read and written a second), matmul rate in bf16, and the name of the device."""
    size = MATMUL_SIZE if not is_tiny else 64
    name = "cpu" if is_tiny else torch.cuda.get_device_name()
    return {
        "name": name,
        "copy_bytes_per_s": copy_bandwidth(is_tiny=is_tiny),
        "copy_buffer_bytes": COPY_BYTES if not is_tiny else 1 << 20,
        "matmul_flops_per_s": matmul_rate(size, is_tiny=is_tiny),
        "matmul_size": size,
    }


def copy_bandwidth(*, is_tiny: bool) -> float:
    """Bytes read and written a second by the faster of torch's copy and an elementwise kernel.

    Not in a CUDA graph: there torch's copy is a memcpy node, and on an H200 reached 2.7 TB/s where a copy launched on
    its own reached 4.3.
    """
    num_bytes = COPY_BYTES if not is_tiny else 1 << 20
    device = "cpu" if is_tiny else "cuda"
    source = torch.zeros(num_bytes // 4, dtype=torch.int32, device=device)
    source.copy_(torch.arange(len(source), device=device))  # zeros could be cheaper to move
    target = torch.empty_like(source)
    ms = min(
        _median_launched_ms(lambda: target.copy_(source)),
        _median_launched_ms(lambda: torch.bitwise_not(source, out=target)),
    )
    return 2 * num_bytes / (ms / 1e3)


def matmul_rate(size: int, *, is_tiny: bool) -> float:
    device, dtype = ("cpu", torch.float32) if is_tiny else ("cuda", torch.bfloat16)
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    out = torch.empty_like(a)
    ms = median_ms([lambda: torch.mm(a, b, out=out)] * 4)
    return 2 * size**3 / (ms / 1e3)


def median_ms(calls: Sequence[Callable[[], object]], num_replays: int = NUM_REPLAYS) -> float:
    """Median time of one call: on a GPU all of them in one CUDA graph, so that launches cost nothing.

    Give calls over different data, so that the data of one are not in the cache when its turn comes again.
    """
    if not torch.cuda.is_available():
        return _host_ms(calls)
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times: list[float] = []
    for replay in range(num_replays + 3):
        begin, end = _event(), _event()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if replay >= 3:
            times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2] / len(calls)


def _median_launched_ms(call: Callable[[], object]) -> float:
    """Median time of one call that takes far longer than its launch; calls are launched ahead of the device."""
    if not torch.cuda.is_available():
        return _host_ms([call])
    events = [_event() for _ in range(NUM_REPLAYS + 4)]
    for event in events:
        event.record()
        call()
    torch.cuda.synchronize()
    times: list[float] = [begin.elapsed_time(end) for begin, end in pairwise(events)][3:]
    return sorted(times)[len(times) // 2]


def median_wall_ms(call: Callable[[int], object], num_repeats: int) -> float:
    """Median from host clock to host clock, the device idle before and after; `call(i)` for repeat i."""
    times = []
    for repeat in range(num_repeats + 2):
        synchronize()
        begin = time.perf_counter()
        call(repeat)
        synchronize()
        if repeat >= 2 or num_repeats == 1:
            times.append(1e3 * (time.perf_counter() - begin))
    return sorted(times)[len(times) // 2]


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _host_ms(calls: Sequence[Callable[[], object]]) -> float:
    begin = time.perf_counter()
    for call in calls:
        call()
    return 1e3 * (time.perf_counter() - begin) / len(calls)
