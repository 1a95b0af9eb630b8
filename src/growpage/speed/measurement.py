"""One workload on one engine: what is timed, and the numbers that come of it. No torch.

Throughputs have one definition for all engines: `output_throughput` counts from the first submission to the end,
`decode_throughput` from the moment the first token came back, when decoding begins (docs/algorithm.md §8).
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from growpage.backends.base import Backend
from growpage.engine.request import Request, RequestMetrics, RequestOutput, SamplingParams
from growpage.metrics.events import event_metrics
from growpage.metrics.serving import RequestTiming, SessionTotals, serving_metrics
from growpage.speed.presets import Workload


@dataclass(frozen=True, slots=True)
class _Moment:
    """The engine between two steps."""

    time: float
    num_steps: int
    num_running: int
    num_used_pages: int


def requests(workload: Workload, vocab_size: int, seed: str) -> list[Request]:
    """Fixed lengths, temperature 1."""
    return [
        Request(
            request_id=f"{seed}-{index}",
            prompt_token_ids=prompt,
            sampling=SamplingParams(
                temperature=1.0,
                max_tokens=workload.num_output_tokens,
                ignore_eos=True,
                seed=index,
            ),
        )
        for index, prompt in enumerate(workload.prompts(vocab_size, seed))
    ]


def warm_up(backend: Backend, workload: Workload, vocab_size: int) -> float:
    """The workload with other prompts and short outputs, so that everything is compiled; seconds."""
    short = replace(workload, num_output_tokens=min(8, workload.num_output_tokens))
    return _serve(backend, requests(short, vocab_size, "warm-up"))


def warm_up_decisions(
    backend: Backend, vocab_size: int, *, page_size: int, first_pages: int, max_model_len: int
) -> float:
    """Requests whose prompts fill P0, 2 P0 and 4 P0 pages, so that they decide at once at each size; seconds."""
    todo: list[Request] = []
    num_output_tokens = 2 * page_size + 4
    for num_pages in (first_pages, 2 * first_pages, 4 * first_pages):
        length = min(num_pages * page_size, max_model_len - num_output_tokens) - 2
        workload = Workload(
            name=f"decisions at {num_pages} pages",
            num_requests=3,
            num_output_tokens=num_output_tokens,
            min_prompt_tokens=length,
            max_prompt_tokens=length,
        )
        todo += requests(workload, vocab_size, f"warm-up/{num_pages}")
    return _serve(backend, todo)


def _serve(backend: Backend, todo: Sequence[Request]) -> float:
    started = time.perf_counter()
    for request in todo:
        backend.add_request(request)
    while backend.has_unfinished_requests():
        backend.step()
    backend.take_events()
    return time.perf_counter() - started


def measure(backend: Backend, workload: Workload, vocab_size: int, seed: str) -> dict[str, Any]:
    """Plain values for JSON. Raises what the engine raises."""
    todo = requests(workload, vocab_size, seed)
    steps_before = backend.stats().num_steps
    recomputes_before = backend.stats().counters.preempt_recompute
    outputs: list[RequestOutput] = []
    moments: list[_Moment] = []
    started = time.perf_counter()
    moments.append(_Moment(started, steps_before, 0, 0))
    for request in todo:
        backend.add_request(request)
    while backend.has_unfinished_requests():
        outputs += backend.step()
        stats = backend.stats()
        moments.append(
            _Moment(time.perf_counter(), stats.num_steps, stats.num_running, stats.num_used_pages)
        )
    ended = time.perf_counter()
    backend.take_events()
    stats = backend.stats()
    return {
        **_throughputs(outputs, moments, started, ended),
        "num_steps": stats.num_steps - steps_before,
        "num_requests": len(outputs),
        "num_prompt_tokens": sum(len(output.prompt_token_ids) for output in outputs),
        "num_output_tokens": sum(len(output.token_ids) for output in outputs),
        **_capacity(outputs, stats.counters.preempt_recompute - recomputes_before),
        "stage_times": {name: asdict(item) for name, item in stats.stage_times.items()},
        "errors": [output.error for output in outputs if output.error][:3],
        "finish_reasons": sorted({output.finish_reason.value for output in outputs}),
    }


def _throughputs(
    outputs: Sequence[RequestOutput], moments: Sequence[_Moment], started: float, ended: float
) -> dict[str, Any]:
    firsts = [m.first_token_time for o in outputs if (m := o.metrics).first_token_time is not None]
    decode_start = min(firsts, default=ended)
    num_first = sum(first <= decode_start for first in firsts)
    num_tokens = sum(len(output.token_ids) for output in outputs)
    decoding = [moment for moment in moments if moment.time > decode_start][1:]
    before = next(m.num_steps for m in reversed(moments) if m.time <= decode_start)
    num_steps = max(decoding[-1].num_steps - before - 1, 0) if decoding else 0
    resident = sum(moment.num_running for moment in decoding) / len(decoding) if decoding else None
    totals = SessionTotals(
        wall_s=ended - started,
        num_output_tokens=num_tokens,
        decode_wall_s=ended - decode_start,
        num_decode_output_tokens=num_tokens - num_first,
        num_steps=num_steps,
        avg_resident_requests=resident or 0.0,
    )
    serving = asdict(serving_metrics([_timing(output) for output in outputs], [totals]))
    del serving["num_sessions"]
    return {
        **serving,
        "avg_resident_requests": resident,
        "decode_wall_s": totals.decode_wall_s,
        "num_decode_output_tokens": totals.num_decode_output_tokens,
        "num_decode_steps": num_steps,
        "step_ms": 1e3 * totals.decode_wall_s / num_steps if num_steps else None,
        "max_used_pages": max(moment.num_used_pages for moment in moments),
    }


def _timing(output: RequestOutput) -> RequestTiming:
    metrics = output.metrics

    def since_arrival(moment: float | None) -> float | None:
        return None if moment is None else moment - metrics.arrival_time

    return RequestTiming(
        num_output_tokens=len(output.token_ids),
        ttft_s=since_arrival(metrics.first_token_time),
        e2el_s=since_arrival(metrics.finished_time),
        max_itl_s=metrics.max_itl_s,
    )


def _capacity(outputs: Sequence[RequestOutput], num_recomputes: int) -> dict[str, Any]:
    """Recomputes are those of the engine: vLLM does not tell them by request."""
    metrics = [output.metrics for output in outputs]
    events = event_metrics([asdict(item.counters) for item in metrics])
    totals = {**events.totals, "preempt_recompute": num_recomputes}
    return {
        "counters": totals,
        "grow_ratio": events.grow_ratio,
        "fallback_share": _share(totals.get("fallback", 0), totals.get("grow", 0)),
        "avg_capacity_tokens": _mean([item.avg_capacity_tokens for item in metrics]),
        "avg_resident_tokens": _mean([item.avg_resident_tokens for item in metrics]),
        "kv_token_steps": sum(_token_steps(item) for item in metrics),
    }


def _token_steps(metrics: RequestMetrics) -> float:
    """Stored tokens that were read, summed over the decode steps."""
    return metrics.num_decode_steps * (metrics.avg_resident_tokens or 0.0)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
