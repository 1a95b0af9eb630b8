"""The oracle: a dense model in which evicted (layer, KV head, token) entries are masked from their eviction on."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from growpage.engine.compaction import CompactionRecord
from growpage.engine.engine import Engine
from growpage.engine.events import EventKind
from growpage.engine.models.decoder import Decoder
from growpage.engine.request import Request, RequestOutput


@dataclass
class Trace:
    """What one request did since its last dense prefill: logits by output position, evictions by position."""

    logits: dict[int, Tensor] = field(default_factory=dict)
    compactions: list[CompactionRecord] = field(default_factory=list)


class Recorder:
    """Listens to an engine and keeps a list of traces per request; a recompute opens a new one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.traces: dict[str, list[Trace]] = {}
        self.num_outputs: dict[str, int] = {}
        self.events: list = []
        engine.runner.logits_listener = self._on_logits
        if engine.summaries is not None:
            engine.compactor.listener = self._on_compaction

    def run(self, requests: list[Request], max_steps: int = 5000) -> dict[str, RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        for request in requests:
            self.traces[request.request_id] = [Trace()]
            self.num_outputs[request.request_id] = 0
            self.engine.add_request(request)
        for _ in range(max_steps):
            if not self.engine.has_unfinished_requests():
                break
            for output in self.engine.step():
                outputs[output.request_id] = output
            self.engine.check_integrity()
            for event in self.engine.take_events():
                self.events.append(event)
                if event.kind is EventKind.PREEMPT_RECOMPUTE:
                    self.traces[event.request_id].append(Trace())
        assert not self.engine.has_unfinished_requests(), "the engine did not finish"
        return outputs

    def _on_logits(self, request_id: str, logits: Tensor) -> None:
        self.traces[request_id][-1].logits[self.num_outputs[request_id]] = logits.clone()
        self.num_outputs[request_id] += 1

    def _on_compaction(self, record: CompactionRecord) -> None:
        self.traces[record.request_id][-1].compactions.append(record)


def visibility(decoder: Decoder, compactions: list[CompactionRecord], num_tokens: int) -> Tensor:
    """[L, H, T, T] bool: whether query row i may read token j."""
    shape = decoder.config
    visible = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    visible = visible.expand(shape.num_layers, shape.num_kv_heads, -1, -1).clone()
    resident = torch.arange(0).expand(shape.num_layers, shape.num_kv_heads, 0)
    position = 0
    for record in compactions:
        arrived = torch.arange(position, record.position)
        arrived = arrived.expand(shape.num_layers, shape.num_kv_heads, -1)
        resident = torch.cat([resident, arrived], -1)
        assert resident.shape[-1] == record.num_tokens
        resident = resident.gather(-1, record.kept)
        position = record.position
        stays = torch.zeros(shape.num_layers, shape.num_kv_heads, num_tokens, dtype=torch.bool)
        stays.scatter_(-1, resident, True)
        stays[..., position:] = True
        visible[:, :, position:] &= stays[:, :, None]
    return visible


def dense_logits(decoder: Decoder, token_ids: list[int], visible: Tensor) -> Tensor:
    """Logits [T, vocab] of all rows under a visibility mask."""
    scale = decoder.config.softmax_scale

    def attend(layer: int, q_raw: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        mask = visible[layer].repeat_interleave(group, 0)
        scores = torch.einsum("ihd,jhd->hij", q, k) * scale
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        return torch.einsum("hij,jhd->ihd", weights, v)

    tokens = torch.tensor(token_ids)
    with torch.inference_mode():
        hidden = decoder(tokens, torch.arange(len(token_ids)), attend)
        return decoder.compute_logits(hidden)


def worst_difference(decoder: Decoder, recorder: Recorder, output: RequestOutput) -> float:
    """Largest |paged - dense| over all logits of a finished request."""
    tokens = [*output.prompt_token_ids, *output.token_ids]
    num_prompt = len(output.prompt_token_ids)
    worst = 0.0
    compared = 0
    for trace in recorder.traces[output.request_id]:
        if not trace.logits:
            continue
        visible = visibility(decoder, trace.compactions, len(tokens))
        dense = dense_logits(decoder, tokens, visible)
        for index, paged in trace.logits.items():
            worst = max(worst, float((dense[num_prompt + index - 1] - paged).abs().max()))
            compared += 1
    assert compared == len(output.token_ids)
    return worst
