"""Carries a plan out on the device: moves pages, runs the model, samples.

`launch` does not wait for the device; `collect` waits for the tokens of what was launched. Everything a plan does is
in the order of one stream, so a plan may be launched while the one before still runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from growpage.engine.aside import CompactionLane
from growpage.engine.compaction import Compactor
from growpage.engine.forward import Forward
from growpage.engine.inputs import Batch, BatchMaker
from growpage.engine.plan import Plan
from growpage.engine.swap import SwapSpace

if TYPE_CHECKING:
    from growpage.engine.graphs import DecodeGraphs

_NUM_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A plan on its way and where its tokens arrive, in the order of `plan.sampled`."""

    plan: Plan
    tokens: Tensor | None  # on the host
    done: torch.cuda.Event | None


class ModelRunner:
    """Runs plans one after the other; `compactor` is absent when nothing is ever evicted."""

    def __init__(
        self,
        forward: Forward,
        batches: BatchMaker,
        swap: SwapSpace,
        last_tokens: Tensor,
        *,
        compactor: Compactor | None = None,
        lane: CompactionLane | None = None,
        graphs: "DecodeGraphs | None" = None,
    ) -> None:
        """last_tokens: [max_num_seqs] int32, on the device: the token sampled last in each query slot."""
        self._forward = forward
        self._batches = batches
        self._last_tokens = last_tokens
        self._swap = swap
        self._compactor = compactor
        self._lane = lane
        self._graphs = graphs
        self._device = last_tokens.device
        self._arrivals: list[tuple[Tensor, torch.cuda.Event]] = []
        if self._device.type == "cuda":
            self._arrivals = [self._new_arrival() for _ in range(_NUM_IN_FLIGHT)]
        self.num_graph_steps = 0
        self.logits_listener: Callable[[str, Tensor], None] | None = None

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Launched:
        """Start all that the plan says, in the order of its fields; with a lane, compactions beside what follows."""
        for swap_out in plan.swap_outs:
            pages, slot = swap_out.pages, swap_out.query_slot
            self._swap.put(swap_out.sequence.request_id, pages, slot)
            if self._compactor is not None:
                self._compactor.park(swap_out.sequence.request_id)
        if self._lane is not None:
            with self._lane.beside(plan.compactions):
                return self._launch_rest(plan)
        for compaction in plan.compactions:
            assert self._compactor is not None
            self._compactor.compact(compaction)
        return self._launch_rest(plan)

    def _launch_rest(self, plan: Plan) -> Launched:
        for swap_in in plan.swap_ins:
            self._swap.get(swap_in.sequence.request_id, swap_in.pages, swap_in.query_slot)
        if not plan.decodes and not plan.prefills:
            return Launched(plan=plan, tokens=None, done=None)
        logits, tokens = self._run(plan)
        if self.logits_listener is not None:
            for sequence, row in zip(plan.sampled, logits, strict=False):
                self.logits_listener(sequence.request_id, row.float())
        return self._send_back(plan, tokens)

    def collect(self, launched: Launched) -> list[int]:
        """Wait for the tokens of `plan.sampled`."""
        if launched.tokens is None:
            return []
        if launched.done is not None:
            launched.done.synchronize()
        tokens: list[int] = launched.tokens.tolist()
        return tokens

    def drop_swapped(self, request_id: str) -> None:
        """Free what is kept of a request that will not come back."""
        self._swap.drop(request_id)
        if self._compactor is not None:
            self._compactor.forget(request_id)

    # -- the model ----------------------------------------------------------------------------

    def _run(self, plan: Plan) -> tuple[Tensor, Tensor]:
        """Logits and tokens of the sampled rows; rows of padding may follow."""
        if self._graphs is None or plan.prefills:
            batch = self._batches.make(plan)
            logits = self._forward.logits(batch, self._last_tokens)
            return logits, self._sample(logits, batch)
        batch = self._batches.make(plan, self._graphs.num_padding(len(plan.decodes)))
        self.num_graph_steps += 1
        logits, tokens = self._graphs.run(batch)
        if batch.samples.filters is not None:
            tokens = self._sample(logits, batch)
        return logits, tokens

    def _sample(self, logits: Tensor, batch: Batch) -> Tensor:
        samples = batch.samples
        tokens = self._forward.draw(logits, samples)
        self._forward.keep(tokens, samples.slot_ids[: len(tokens)], self._last_tokens)
        return tokens

    def _send_back(self, plan: Plan, tokens: Tensor) -> Launched:
        """Start the copy of the tokens to the host."""
        count = len(plan.sampled)
        if self._device.type != "cuda":
            return Launched(plan=plan, tokens=tokens[:count], done=None)
        self._arrivals.reverse()
        on_host, done = self._arrivals[0]
        on_host[:count].copy_(tokens[:count], non_blocking=True)
        done.record()
        return Launched(plan=plan, tokens=on_host[:count], done=done)

    def _new_arrival(self) -> tuple[Tensor, torch.cuda.Event]:
        on_host = torch.zeros(len(self._last_tokens), dtype=torch.int64, pin_memory=True)
        return on_host, torch.cuda.Event()  # type: ignore[no-untyped-call]
