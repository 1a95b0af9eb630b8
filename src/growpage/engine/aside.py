"""Compactions beside the step they belong to: on a CUDA stream of their own, in a thread without a GPU.

Who compacts is not in the batch of that step, and no page that a compaction reads or writes is touched by it
(`CapacityControl` gives such pages back only when the step is over). So the two may run in any order.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from growpage.engine.compaction import Compactor
from growpage.engine.plan import Compaction


class CompactionLane:
    """`beside` runs compactions while its body runs; what follows the body finds them done."""

    def __init__(self, compactor: Compactor, device: torch.device) -> None:
        self._compactor = compactor
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._threads: ThreadPoolExecutor | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        else:
            self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compaction")

    @contextmanager
    def beside(self, compactions: Sequence[Compaction]) -> Iterator[None]:
        """Raises what a compaction raised, at the latest behind the body."""
        if not compactions:
            yield
        elif self._stream is not None:
            with self._on_stream(self._stream, compactions):
                yield
        else:
            with self._in_thread(compactions):
                yield

    @contextmanager
    def _on_stream(
        self, stream: torch.cuda.Stream, compactions: Sequence[Compaction]
    ) -> Iterator[None]:
        """The host waits for nothing: both streams wait for each other."""
        main = torch.cuda.current_stream(self._device)
        stream.wait_stream(main)
        try:
            with torch.cuda.stream(stream):
                self._compact(compactions)
            yield
        finally:
            main.wait_stream(stream)

    @contextmanager
    def _in_thread(self, compactions: Sequence[Compaction]) -> Iterator[None]:
        assert self._threads is not None
        work = self._threads.submit(self._compact, compactions)
        try:
            yield
        finally:
            work.result()

    @torch.inference_mode()  # of this thread
    def _compact(self, compactions: Sequence[Compaction]) -> None:
        for compaction in compactions:
            self._compactor.compact(compaction)
