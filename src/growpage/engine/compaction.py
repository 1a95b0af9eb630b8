"""Measures a request at a boundary and compacts its pages (paper §3.2, §3.3).

Shape legend: L layers, H KV heads, G query heads a group, n stored tokens, d head dim.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from growpage.budget.base import DemandPolicy, EvictingPolicy, Signal, Signals
from growpage.budget.scorers.base import ScoringInput
from growpage.budget.scorers.dual_timescale import dual_timescale
from growpage.budget.scorers.registry import SCORERS
from growpage.engine.budget_ops import budget_ops
from growpage.engine.kv_cache import KVCache
from growpage.engine.plan import Compaction
from growpage.engine.query_state import QuerySummaries, on_host
from growpage.engine.query_windows import QueryWindows
from growpage.engine.sequence import Sequence
from growpage.engine.stage_times import Stage, StageTimes

Rotate = Callable[[Tensor, Tensor], Tensor]

MAX_HELD_BYTES = 1 << 28  # logits kept between measuring and compacting; more are computed again


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRecord:
    """What a compaction kept, for whoever listens: `kept` [L, H, retained], slots before it, increasing."""

    request_id: str
    position: int
    num_tokens: int
    kept: Tensor


@dataclass(slots=True, kw_only=True)
class _View:
    """What a request's summaries see of its stored tokens, at one position."""

    pages: tuple[int, ...]
    num_tokens: int
    logits: Tensor  # [2, L, H, G, n]
    kept: dict[int, Tensor]  # num_retained → selection
    window_queries: Tensor | None  # [L, m, Hq, d]
    old_memory: Tensor | None  # [L, H, n]
    memory: Tensor | None = None  # [L, H, n], once scored


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Signals on their way to the host."""

    fields: dict[str, tuple[str, ...]]  # request id → names in a row
    rows: Tensor | None  # [requests, fields], on the host
    arrived: torch.cuda.Event | None

    def result(self) -> dict[str, Signals]:
        """Wait for them: request id → signals."""
        if self.rows is None:
            return {}
        if self.arrived is not None:
            self.arrived.synchronize()
        return {
            name: Signals(**dict(zip(names, row, strict=True)))
            for (name, names), row in zip(self.fields.items(), self.rows.tolist(), strict=True)
        }


class Compactor:
    """Signals and compactions of one step share what they compute; `clear` ends the step."""

    def __init__(
        self,
        policy: EvictingPolicy,
        cache: KVCache,
        summaries: QuerySummaries,
        windows: QueryWindows | None = None,
        *,
        rotate: Rotate,
        softmax_scale: float,
        profile: bool = False,
    ) -> None:
        """rotate: the model's RoPE, (x [T, Hq, d], positions [T]) → x rotated."""
        self.listener: Callable[[CompactionRecord], None] | None = None
        self.ops = budget_ops(cache.data.device)
        self.times = StageTimes(cache.data.device, is_enabled=profile)
        self._scorer = SCORERS[policy.scorer]
        self._policy = policy
        self._cache = cache
        self._summaries = summaries
        self._windows = windows
        self._memories: dict[str, Tensor] = {}  # request id → of its kept tokens, [L, H, retained]
        self._rotate = rotate
        self._scale = softmax_scale
        self._views: dict[str, _View] = {}
        self._num_held_bytes = 0

    def measure(self, sequences: Iterable[Sequence]) -> dict[str, Signals]:
        """What the policy asks for at these boundaries, by request id; the host waits once for all of them."""
        return self.start_measuring(sequences).result()

    def start_measuring(self, sequences: Iterable[Sequence]) -> Measurement:
        """`measure` without waiting. The requests must stay as they are until the step that takes the result."""
        measured = {s.request_id: self._measure(s) for s in sequences}
        fields = {name: tuple(values) for name, values in measured.items()}
        if not measured:
            return Measurement(fields=fields, rows=None, arrived=None)
        rows = torch.stack([torch.stack(list(m.values())) for m in measured.values()])
        if not rows.is_cuda:
            return Measurement(fields=fields, rows=rows, arrived=None)
        on_host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        on_host.copy_(rows, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        return Measurement(fields=fields, rows=on_host, arrived=arrived)

    def compact(self, compaction: Compaction) -> None:
        """Move the kept tokens of every layer and KV head into the target pages, in their order."""
        view = self._view(compaction.sequence, compaction.source_pages, compaction.num_tokens)
        kept = self._kept(view, compaction.num_retained)
        with self.times.stage(Stage.COMPACTION):
            self.ops.move(self._cache, compaction.source_pages, compaction.target_pages, kept)
        if view.memory is not None:
            self._memories[compaction.sequence.request_id] = view.memory.gather(-1, kept)
        if self.listener is not None:
            self.listener(
                CompactionRecord(
                    request_id=compaction.sequence.request_id,
                    position=compaction.sequence.position,
                    num_tokens=compaction.num_tokens,
                    kept=kept,
                )
            )

    def park(self, request_id: str) -> None:
        """A request leaves the device; its memory waits on the host."""
        if request_id in self._memories:
            self._memories[request_id] = on_host(self._memories[request_id])

    def forget(self, request_id: str) -> None:
        self._memories.pop(request_id, None)

    def clear(self, keep: Container[str] = ()) -> None:
        """End a step; the views of the requests in `keep` last until the next."""
        self._views = {name: view for name, view in self._views.items() if name in keep}
        self._num_held_bytes = sum(view.logits.nbytes for view in self._views.values())

    def _view(
        self, sequence: Sequence, pages: list[int] | tuple[int, ...], num_tokens: int
    ) -> _View:
        view = self._views.get(sequence.request_id)
        if view is None or (view.pages, view.num_tokens) != (tuple(pages), num_tokens):
            with self.times.stage(Stage.SUMMARY_LOGITS):
                queries = self._queries(sequence)
                logits = self.ops.logits(queries, self._cache, pages, num_tokens, self._scale)
            view = _View(
                pages=tuple(pages),
                num_tokens=num_tokens,
                logits=logits,
                kept={},
                window_queries=self._window_queries(sequence),
                old_memory=self._old_memory(sequence, num_tokens),
            )
            # Requests of one prompt meet their boundaries in the same step.
            if self._num_held_bytes + logits.nbytes <= MAX_HELD_BYTES:
                self._views[sequence.request_id] = view
                self._num_held_bytes += logits.nbytes
        return view

    def _queries(self, sequence: Sequence) -> Tensor:
        """Calibrated summaries, rotated to the position of the next token: [2, L, Hq, d]."""
        assert sequence.query_slot is not None
        assert sequence.has_query
        queries = self._summaries.calibrated(sequence.query_slot)
        flat = queries.flatten(0, 1)
        positions = torch.full((flat.shape[0],), sequence.position, device=flat.device)
        return self._rotate(flat, positions).view_as(queries)

    def _window_queries(self, sequence: Sequence) -> Tensor | None:
        """Of the decode steps since the prompt, or since the request was computed again."""
        if self._windows is None:
            return None
        assert sequence.query_slot is not None
        count = sequence.position - sequence.prefill_target
        return self._windows.newest(sequence.query_slot, sequence.position, count)

    def _old_memory(self, sequence: Sequence, num_tokens: int) -> Tensor | None:
        """Zero for the tokens that came since; nothing is left after a request was computed again."""
        memory = self._memories.get(sequence.request_id)
        is_dense = num_tokens == sequence.position
        if memory is None or is_dense:
            return None
        memory = memory.to(self._cache.data.device, non_blocking=True)
        return torch.nn.functional.pad(memory, (0, num_tokens - memory.shape[-1]))

    def _measure(self, sequence: Sequence) -> dict[str, Tensor]:
        """Fields of `Signals` as numbers on the device (Eq. 7, 8; Theorem 3.1 for the lost mass)."""
        view = self._view(sequence, sequence.block_table, sequence.num_resident_tokens)
        measured = {}
        if Signal.DELTA in self._policy.signals():
            measured["r_short"], measured["r_long"] = self._demand(view)
        if Signal.LOST_MASS in self._policy.signals():
            measured["lost_mass"] = self._lost_mass(view, sequence.num_pages)
        return measured

    def _demand(self, view: _View) -> Tensor:
        """r of the two summaries over all stored tokens but the newest page: [2]."""
        policy = self._policy
        assert isinstance(policy, DemandPolicy), f"{policy.name} asks for Δ and is no DemandPolicy"
        candidates = view.logits[..., : -self._cache.page_size]
        with self.times.stage(Stage.ONLINE_DEMAND):
            attention = self.ops.attention(candidates, policy.group_reduce)
            return self.ops.demand(attention, policy.metric, policy.mass)

    def _kept(self, view: _View, num_retained: int) -> Tensor:
        if num_retained not in view.kept:
            page_size = self._cache.page_size
            with self.times.stage(Stage.ATTENTION_SCORE):
                scores = self._scores(view)
            with self.times.stage(Stage.SELECTION):
                view.kept[num_retained] = self.ops.select(
                    scores,
                    num_tokens=view.num_tokens,
                    num_retained=num_retained,
                    page_size=page_size,
                    k_loc=self._policy.local_quota(page_size),
                )
        return view.kept[num_retained]

    def _scores(self, view: _View) -> Tensor:
        """[L, H, candidates]; only scorers that look at keys or values pay for a copy of them."""
        num_candidates, reduce = self._num_candidates(view), self._policy.group_reduce
        if self._scorer is dual_timescale:
            return self.ops.dual_timescale(view.logits[..., :num_candidates], reduce)
        tokens = self._cache.gather(view.pages, view.num_tokens)
        scored = self._scorer(
            ScoringInput(
                keys=tokens[:, 0],
                values=tokens[:, 1],
                logits=view.logits,
                num_candidates=num_candidates,
                group_reduce=reduce,
                page_size=self._cache.page_size,
                softmax_scale=self._scale,
                settings=self._policy.scorer_settings,
                window_queries=view.window_queries,
                memory=view.old_memory,
            )
        )
        view.memory = scored.memory
        return scored.scores

    def _num_candidates(self, view: _View) -> int:
        return view.num_tokens - self._policy.num_kept_newest(self._cache.page_size)

    def _lost_mass(self, view: _View, num_pages: int) -> Tensor:
        """Attention over the historical candidates that Compress & Hold would evict: [].

        Per layer and KV head the worse of the two summaries, then the mean.
        """
        page_size = self._cache.page_size
        bound = self._policy.max_pages(page_size)
        held = num_pages if bound is None else min(num_pages, bound)
        kept = self._kept(view, (held - 1) * page_size)
        num_candidates = self._num_candidates(view)
        with self.times.stage(Stage.ONLINE_DEMAND):
            candidates = view.logits[..., :num_candidates]
            attention = self.ops.attention(candidates, self._policy.group_reduce)
            is_kept = torch.zeros(
                (*kept.shape[:2], view.num_tokens), dtype=torch.bool, device=kept.device
            ).scatter_(-1, kept, True)[..., :num_candidates]
            lost: Tensor = attention.masked_fill(is_kept, 0.0).sum(-1)
            return lost.amax(0).mean()
