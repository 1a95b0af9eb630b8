"""The engine: requests in, finished requests out, one `step` at a time."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from growpage.budget.base import PAPER_BETA_LONG, CapacityPolicy, EvictingPolicy, Signals
from growpage.engine import memory
from growpage.engine.aside import CompactionLane
from growpage.engine.compaction import Compactor, Measurement
from growpage.engine.config import CPU_PAGE_SIZE, GPU_PAGE_SIZE, EngineConfig, PreemptMode
from growpage.engine.events import CapacityEvent
from growpage.engine.forward import Forward, make_forward
from growpage.engine.inputs import BatchMaker
from growpage.engine.kv_cache import KVCache
from growpage.engine.memory import GIB
from growpage.engine.models.loader import LoadedModel
from growpage.engine.plan import Plan
from growpage.engine.query_state import QuerySummaries
from growpage.engine.query_windows import QueryWindows
from growpage.engine.request import EngineStats, Request, RequestOutput
from growpage.engine.runner import Launched, ModelRunner
from growpage.engine.scheduler import Scheduler, SchedulerConfig
from growpage.engine.swap import SwapSpace
from growpage.errors import UsageError, require

if TYPE_CHECKING:
    from growpage.engine.graphs import DecodeGraphs

DEFAULT_KV_GIB = 1.0  # on a CPU


class Engine:
    """Continuous batching over a paged KV cache, with the capacity of each request decided by `policy`."""

    def __init__(self, model: LoadedModel, config: EngineConfig, policy: CapacityPolicy) -> None:
        decoder = model.decoder
        self.device = decoder.embed.device
        self._dtype = decoder.embed.dtype
        self._model = model
        self.config = config
        self.policy = policy
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self.page_size = config.page_size or (
            GPU_PAGE_SIZE if self.device.type == "cuda" else CPU_PAGE_SIZE
        )
        policy.check(self.page_size)
        self.max_model_len = self._max_model_len()
        shape = decoder.config
        self._graph_bytes = 0
        self.summaries: QuerySummaries | None = None
        self.windows: QueryWindows | None = None
        if isinstance(policy, EvictingPolicy):
            self.summaries = self._make_summaries(policy)
            self.windows = self._make_windows(policy)
        self._batches = self._make_batches()
        self._last_tokens = torch.zeros(config.max_num_seqs, dtype=torch.int32, device=self.device)
        self._needs: memory.Needs | None = None
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # kernels are launched on the current device
            self._needs = self._measure_needs()
        self.num_pages = self._num_pages(self._page_bytes())
        self.cache = self._make_cache(self.num_pages)
        self._compactor: Compactor | None = None
        if isinstance(policy, EvictingPolicy):
            assert self.summaries is not None
            self._compactor = Compactor(
                policy,
                self.cache,
                self.summaries,
                self.windows,
                rotate=decoder.rotate,
                softmax_scale=shape.softmax_scale,
                profile=config.profile_capacity_events,
            )
        self._forward = self._make_forward(self.cache)
        self._graphs = self._capture_graphs()
        self.runner = ModelRunner(
            self._forward,
            self._batches,
            self._make_swap_space(),
            self._last_tokens,
            compactor=self._compactor,
            lane=self._make_lane(),
            graphs=self._graphs,
        )
        self.scheduler = Scheduler(policy, self._scheduler_config())
        self._stats = EngineStats(num_pages=self.num_pages)
        is_async = config.async_scheduling
        self._is_async = self.device.type == "cuda" if is_async is None else is_async
        self._launched: Launched | None = None  # the step that still runs
        self._measuring: Measurement | None = None  # signals that the next step takes
        self._decode_start: float | None = None
        self._has_decoded = False
        self._num_decode_steps = 0
        self._num_resident_steps = 0
        self._is_shut_down = False
        self._fault: BaseException | None = None

    # -- the backend protocol -----------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises `UsageError` at once when it can never run."""
        vocab_size = self._model.decoder.config.vocab_size
        unknown = [t for t in request.prompt_token_ids if not 0 <= t < vocab_size]
        if unknown:
            raise UsageError(
                f"request {request.request_id}: token id {unknown[0]} is not in 0..{vocab_size - 1}, "
                "the vocabulary of the model. Use the tokenizer of this checkpoint."
            )
        self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        self.scheduler.abort(request_id)
        self.runner.drop_swapped(request_id)

    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished()

    def step(self) -> list[RequestOutput]:
        """One iteration: measure boundaries, schedule, launch; then take the tokens of what was launched.

        With asynchronous scheduling these are the tokens of the launch before: the device is not idle while the host
        prepares the next step, and what ended is told one step later. Whatever fails in a step stops the engine:
        no request is left, all pages are free, and every later step raises.
        """
        assert not self._is_shut_down, "the engine was shut down"
        if self._fault is not None:
            raise RuntimeError("the engine stopped when a step failed") from self._fault
        started = time.perf_counter()
        try:
            outputs = self._step()
        except BaseException as fault:
            self._stop(fault)
            raise
        self.scheduler.log.end_step(time.perf_counter() - started)
        return outputs

    def _step(self) -> list[RequestOutput]:
        with torch.inference_mode():
            plan = self.scheduler.schedule(self._signals())
            if plan.decodes and self._decode_start is None:
                self._decode_start = time.perf_counter()
            launched = self.runner.launch(plan)
            if self._compactor is not None:
                self._compactor.clear(keep=self._measuring.fields if self._measuring else ())
        self.scheduler.advance(plan)
        self._count_plan(plan)
        due: Launched | None = launched
        if self._is_async:
            due, self._launched = self._launched, None if plan.is_empty else launched
        return self.scheduler.take_ended() if due is None else self._commit(due)

    def _stop(self, fault: BaseException) -> None:
        """Give back all that the requests hold, on the device and on the host."""
        self._fault = fault
        self._launched = self._measuring = None
        if self._compactor is not None:
            self._compactor.clear()
        self.scheduler.fail_all(f"the engine stopped: {fault!r}")
        for output in self.scheduler.take_ended():
            self.runner.drop_swapped(output.request_id)

    def stats(self) -> EngineStats:
        scheduler, stats = self.scheduler, self._stats
        stats.num_steps = scheduler.log.step
        stats.num_waiting = len(scheduler.waiting)
        stats.num_running = len(scheduler.running)
        stats.num_preempted = len(scheduler.preempted)
        stats.num_used_pages = scheduler.pool.num_used
        stats.num_cached_pages = scheduler.pool.num_cached
        stats.counters = scheduler.log.totals
        if not self._is_shut_down and self._compactor is not None:
            stats.stage_times = self._compactor.times.summary()
        if self._num_decode_steps:
            stats.avg_resident_requests = self._num_resident_steps / self._num_decode_steps
        return stats

    def take_events(self) -> list[CapacityEvent]:
        return self.scheduler.log.take()

    def describe(self) -> dict[str, Any]:
        """Plain values for the run record."""
        weights = sum(p.nbytes for p in self._model.decoder.parameters())
        return {
            "engine": "growpage",
            "model": self._model.name,
            "model_files": self._model.files,
            "device": str(self.device),
            "dtype": str(self._dtype).removeprefix("torch."),
            "num_threads": torch.get_num_threads(),
            "attention": self._forward.attention,
            "cuda_graphs": self._graphs is not None,
            "async_scheduling": self._is_async,
            "async_compaction": self.config.async_compaction and self._compactor is not None,
            "capacity_ops": self._compactor.ops.name if self._compactor else None,
            "capacity_stages": {k: asdict(v) for k, v in self.stats().stage_times.items()},
            "page_size": self.page_size,
            "num_pages": self.num_pages,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.config.max_num_seqs,
            "enable_prefix_caching": self.config.enable_prefix_caching,
            "preempt_mode": self.config.preempt_mode.value,
            "admission": self.config.admission.value,
            "policy": {k: getattr(v, "value", v) for k, v in asdict(self.policy).items()},
            "ledger_bytes": {
                "weights": weights,
                "weights_packed": self._model.decoder.packed_bytes(),
                "kv_base": self.cache.data.nbytes,
                "kv_elastic": 0,
                "query_state": self._query_state_bytes(),
                **self._measured_bytes(),
            },
        }

    def shutdown(self) -> None:
        """Free the device memory; the engine cannot be used afterwards."""
        self._is_shut_down = True
        del self.runner, self.cache, self._compactor, self.summaries, self.windows
        del self._forward, self._graphs, self._launched, self._batches

    # -- for tests and studies ----------------------------------------------------------------

    @property
    def compactor(self) -> Compactor:
        assert self._compactor is not None, "this policy never evicts"
        return self._compactor

    def check_integrity(self) -> None:
        """Assert that every page, slot and promise is accounted for."""
        self.scheduler.check_integrity()

    # -- sizes --------------------------------------------------------------------------------

    def _max_model_len(self) -> int:
        limit = self._model.decoder.config.max_position_embeddings
        wanted = self.config.max_model_len
        require(
            wanted is None or wanted <= limit,
            "engine.max_model_len",
            wanted,
            f"at most {limit}, the positions this model was built for",
        )
        return wanted or limit

    def _num_pages(self, page_bytes: int) -> int:
        """Pool size: as asked, but never more than `max_num_seqs` requests of full length can use."""
        if self.config.num_pages is not None:
            return self.config.num_pages
        most = self.config.max_num_seqs * -(-self.max_model_len // self.page_size)
        if self.config.kv_cache_gib is None and self._needs is not None:
            utilization = self.config.gpu_memory_utilization
            room = float(memory.kv_room(self._needs, self.device, utilization, 2 * page_bytes))
        else:
            room = (self.config.kv_cache_gib or DEFAULT_KV_GIB) * GIB
        num_pages = min(int(room // page_bytes), most)
        require(
            num_pages >= 2,
            "engine.kv_cache_gib",
            self.config.kv_cache_gib,
            f"room for at least two pages of {page_bytes} bytes",
        )
        return num_pages

    # -- parts --------------------------------------------------------------------------------

    @property
    def _max_pages(self) -> int:
        """Pages of the longest block table."""
        return -(-self.max_model_len // self.page_size) + 1

    @property
    def _max_num_batched_tokens(self) -> int:
        return max(self.config.max_num_batched_tokens, self.config.max_num_seqs)

    def _make_cache(self, num_pages: int) -> KVCache:
        shape = self._model.decoder.config
        size = num_pages * self._page_bytes()
        if self._needs is not None:
            memory.check_free(size, self._needs, self.device)
        return KVCache(
            num_layers=shape.num_layers,
            num_pages=num_pages,
            page_size=self.page_size,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=self._dtype,
            device=self.device,
        )

    def _page_bytes(self) -> int:
        shape = self._model.decoder.config
        return KVCache.page_bytes(
            num_layers=shape.num_layers,
            page_size=self.page_size,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=self._dtype,
        )

    def _make_batches(self) -> BatchMaker:
        return BatchMaker(
            num_slots=self.config.max_num_seqs,
            max_pages=self._max_pages,
            max_tokens=self._max_num_batched_tokens,
            page_size=self.page_size,
            vocab_size=self._model.decoder.config.vocab_size,
            has_summaries=self.summaries is not None,
            device=self.device,
        )

    def _make_lane(self) -> CompactionLane | None:
        if self._compactor is None or not self.config.async_compaction:
            return None
        return CompactionLane(self._compactor, self.device)

    def _make_swap_space(self) -> SwapSpace:
        """On a GPU its memory is pinned at once, but not more than the pool could ever fill."""
        num_reserved = 0
        if self.device.type == "cuda" and self.config.preempt_mode is PreemptMode.swap:
            num_reserved = min(self._num_swap_pages(), self.num_pages)
        return SwapSpace(self.cache, self.summaries, num_reserved, self.windows)

    def _num_swap_pages(self) -> int:
        return int(self.config.swap_space_gib * GIB // self._page_bytes())

    def _make_forward(self, cache: KVCache) -> Forward:
        backend = self.config.attention_backend
        return make_forward(backend, self._model.decoder, cache, self.summaries, self.windows)

    def _make_graphs(self, forward: Forward) -> "DecodeGraphs | None":
        """Not captured yet; None without a GPU, with the torch path, or when `enforce_eager` says so."""
        is_possible = self.device.type == "cuda" and forward.is_capturable
        if self.config.enforce_eager or not is_possible:
            return None
        from growpage.engine.graphs import DecodeGraphs

        return DecodeGraphs(
            forward,
            self._batches,
            self._last_tokens,
            max_num_seqs=self.config.max_num_seqs,
            max_pages=self._max_pages,
            vocab_size=self._model.decoder.config.vocab_size,
            page_size=self.page_size,
            dtype=self._dtype,
        )

    @torch.inference_mode()
    def _capture_graphs(self) -> "DecodeGraphs | None":
        graphs = self._make_graphs(self._forward)
        if graphs is not None:
            self._graph_bytes = graphs.num_bytes() + memory.growth(self.device, graphs.capture)
        return graphs

    @torch.inference_mode()
    def _measure_needs(self) -> memory.Needs:
        """Run a step of the largest size and capture two graphs, over a cache of one page."""
        forward = self._make_forward(self._make_cache(1))
        peak = memory.activation_peak(
            forward,
            self._last_tokens,
            num_tokens=self._max_num_batched_tokens,
            num_samples=self.config.max_num_seqs,
            page_size=self.page_size,
        )
        non_torch = memory.non_torch_bytes(self.device)
        graphs = self._make_graphs(forward)
        return memory.Needs(
            weights=sum(p.nbytes for p in self._model.decoder.parameters()),
            query_state=self._query_state_bytes(),
            activation_peak=peak,
            graphs=0 if graphs is None else graphs.estimated_bytes(),
            non_torch=non_torch,
        )

    def _measured_bytes(self) -> dict[str, int]:
        """Entries of the ledger that only a GPU has."""
        if self._needs is None:
            return {}
        return {
            "activation_peak": self._needs.activation_peak,
            "graphs": self._graph_bytes,
            "non_torch": self._needs.non_torch,
        }

    def _make_summaries(self, policy: EvictingPolicy) -> QuerySummaries:
        shape = self._model.decoder.config
        beta_long = PAPER_BETA_LONG if policy.beta_long is None else policy.beta_long
        return QuerySummaries(
            num_layers=shape.num_layers,
            num_slots=self.config.max_num_seqs,
            num_heads=shape.num_heads,
            head_dim=shape.head_dim,
            beta_short=policy.beta_short,
            beta_long=beta_long,
            bias_correction=bool(policy.ema_bias_correction),
            device=self.device,
        )

    def _make_windows(self, policy: EvictingPolicy) -> QueryWindows | None:
        shape, window = self._model.decoder.config, policy.scorer_settings.window
        if window is None:
            return None
        return QueryWindows(
            num_layers=shape.num_layers,
            num_slots=self.config.max_num_seqs,
            window=window,
            num_heads=shape.num_heads,
            head_dim=shape.head_dim,
            dtype=self._dtype,
            device=self.device,
        )

    def _query_state_bytes(self) -> int:
        held = [state.num_bytes() for state in (self.summaries, self.windows) if state]
        return sum(held)

    def _scheduler_config(self) -> SchedulerConfig:
        config = self.config
        return SchedulerConfig(
            page_size=self.page_size,
            num_pages=self.num_pages,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=self._max_num_batched_tokens,
            max_model_len=self.max_model_len,
            num_swap_pages=self._num_swap_pages(),
            admission=config.admission,
            preempt_mode=config.preempt_mode,
            async_compaction=config.async_compaction,
            enable_prefix_caching=config.enable_prefix_caching,
            eos_token_ids=frozenset(self._eos_token_ids()),
        )

    def _eos_token_ids(self) -> tuple[int, ...]:
        tokenizer = self._model.tokenizer
        if tokenizer is not None:
            return tokenizer.eos_token_ids
        return self._model.decoder.config.eos_token_ids

    def _signals(self) -> dict[str, Signals]:
        """Signals for this step's boundaries.

        With asynchronous scheduling a request sits out the step in which it is measured: to wait for its signals would
        be to wait for the step before, with the device idle until the next is prepared.
        """
        boundaries = self.scheduler.boundaries()
        if not self._is_async:
            return self.compactor.measure(boundaries) if boundaries else {}
        signals = self._measuring.result() if self._measuring else {}
        new = [sequence for sequence in boundaries if sequence.request_id not in signals]
        self._measuring = self.compactor.start_measuring(new) if new else None
        return signals

    def _commit(self, launched: Launched) -> list[RequestOutput]:
        """Wait for the tokens of a step and hand them to their requests."""
        plan, before = launched.plan, self.scheduler.num_output_tokens
        outputs = self.scheduler.commit(plan, self.runner.collect(launched))
        for output in outputs:
            self.runner.drop_swapped(output.request_id)
        stats, num_tokens = self._stats, self.scheduler.num_output_tokens - before
        stats.num_finished += len(outputs)
        stats.num_output_tokens += num_tokens
        self._has_decoded = self._has_decoded or bool(plan.decodes)
        if self._has_decoded and self._decode_start is not None:
            stats.num_decode_output_tokens += num_tokens
            stats.decode_wall_s = time.perf_counter() - self._decode_start
        return outputs

    def _count_plan(self, plan: Plan) -> None:
        self._stats.num_prompt_tokens += sum(chunk.num_tokens for chunk in plan.prefills)
        if plan.decodes:
            num_waiting = plan.num_measured + plan.num_compacting
            self._num_decode_steps += 1
            self._num_resident_steps += len(plan.decodes) + len(plan.prefills) + num_waiting
