"""How long the stages of a capacity event take (paper Figure 8)."""

import time
from bisect import insort
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from typing import Any

import torch

from growpage.engine.request import StageTime


class Stage(str, Enum):
    """The paper's five stages as this engine runs them; a fused stage has the names of its parts."""

    SUMMARY_LOGITS = "summary_logits"  # reads the keys once, for the demand and the score
    ONLINE_DEMAND = "online_demand"
    ATTENTION_SCORE = "attention_score"
    SELECTION = "window_mask+topk_selection"
    COMPACTION = "kv_compaction"


class StageTimes:
    """Spans between two CUDA events, which cost the host no wait; on other devices `perf_counter`."""

    def __init__(self, device: torch.device, *, is_enabled: bool) -> None:
        self._is_cuda = device.type == "cuda"
        self._is_enabled = is_enabled
        self._running: list[tuple[Stage, Any, Any]] = []  # CUDA events, or seconds
        self._spans_ms: dict[Stage, list[float]] = {stage: [] for stage in Stage}  # sorted

    def stage(self, stage: Stage) -> AbstractContextManager[None]:
        """Time the body as one event of this stage; nothing when disabled."""
        return self._timed(stage) if self._is_enabled else nullcontext()

    def summary(self) -> dict[str, StageTime]:
        """What is known by now, in the order of the stages. Empty when disabled."""
        self._collect()
        return {
            stage.value: StageTime(
                num_events=len(spans),
                mean_ms=sum(spans) / len(spans),
                median_ms=spans[len(spans) // 2],
            )
            for stage, spans in self._spans_ms.items()
            if spans
        }

    @contextmanager
    def _timed(self, stage: Stage) -> Iterator[None]:
        start = self._mark()
        yield
        self._running.append((stage, start, self._mark()))

    def _mark(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event_type: Any = torch.cuda.Event  # its methods have no annotations
        event = event_type(enable_timing=True)
        event.record()
        return event

    def _collect(self) -> None:
        """Move the spans that are over to their stages, in milliseconds."""
        still_running = []
        for stage, start, stop in self._running:
            if not self._is_cuda:
                insort(self._spans_ms[stage], 1000 * (stop - start))
            elif stop.query():
                insort(self._spans_ms[stage], start.elapsed_time(stop))
            else:
                still_running.append((stage, start, stop))
        self._running = still_running
