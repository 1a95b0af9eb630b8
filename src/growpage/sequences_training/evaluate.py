"""What the training script measures itself, with full KV: exact traces, accuracy, and the demand signal by kind."""

from collections import defaultdict
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from growpage.bench.sequences.benchmark import FROZEN_SEED, SECOND_SEED, demand_class
from growpage.bench.sequences.transcript import Transcript
from growpage.bench.sequences.vocabulary import EOS, TOKEN_ID
from growpage.sequences_training.config import EvaluateConfig, SummaryConfig, TrainingConfig
from growpage.sequences_training.data import transcripts
from growpage.sequences_training.model import Heads, Reasoner, dense_attention
from growpage.sequences_training.summaries import ema_weights, summary_scores

DEMAND_SEED = 7919  # problems on which the demand signal is looked at; no test split


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Right answers; `exact` counts outputs equal to the worked solution, token for token."""

    num_problems: int
    num_correct: int
    num_exact: int
    num_unfinished: int
    mean_output_tokens: float
    accuracy_by_kind: dict[str, float]

    @property
    def accuracy(self) -> float:
        return self.num_correct / self.num_problems


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandRow:
    """The trend signal over the page boundaries of a group of problems, all tokens resident."""

    group: str
    num_boundaries: int
    short_ratio: float  # mean r_S: share of the candidates that holds the mass
    delta: float  # mean of r_S - r_L
    growing: float  # share of boundaries with r_S > r_L


@torch.inference_mode()
def evaluate(model: Reasoner, config: TrainingConfig) -> dict[str, object]:
    """All measurements as plain values."""
    settings, difficulty = config.evaluate, config.data.difficulty
    frozen = transcripts(FROZEN_SEED, settings.num_problems, difficulty)
    second = transcripts(SECOND_SEED, settings.num_problems, difficulty)
    generator = torch.Generator(device=model.embedding.device).manual_seed(config.seed)
    limit = config.data.buckets[-1]
    both = frozen + second
    outputs = generate(
        model, both + both, [0.0] * len(both) + [settings.temperature] * len(both), limit, generator
    )
    count = len(frozen)
    parts = [outputs[start : start + count] for start in range(0, 4 * count, count)]
    names = ["frozen_greedy", "second_greedy", "frozen_sampled", "second_sampled"]
    result: dict[str, object] = {
        name: _plain(score(problems, part))
        for name, problems, part in zip(names, [frozen, second] * 2, parts, strict=True)
    }
    result["exact_traces"] = exact_traces(model, frozen)
    result["temperature"] = settings.temperature
    if settings.num_demand_problems > 0:
        probed = transcripts(DEMAND_SEED, settings.num_demand_problems, difficulty)
        rows = demand_rows(model, probed, settings, config.summaries)
        result["demand"] = [asdict(row) for row in rows]
    return result


def _plain(value: Score) -> dict[str, object]:
    return {"accuracy": value.accuracy, **asdict(value)}


def exact_traces(model: Reasoner, problems: list[Transcript]) -> float:
    """Share of the problems of whose solution every token is the most likely one, given those before."""
    return sum(_is_exact(model, problem) for problem in problems) / len(problems)


def _is_exact(model: Reasoner, problem: Transcript) -> bool:
    hidden, _ = forward_one(model, problem.ids)
    begin = problem.num_prompt_tokens
    chosen = model.logits(hidden[begin - 1 : -1]).argmax(dim=-1)
    return chosen.tolist() == problem.ids[begin:]


def forward_one(model: Reasoner, ids: list[int]) -> tuple[Tensor, list[Heads]]:
    """Hidden states [tokens, hidden] and heads of one document."""
    device = model.embedding.device
    tokens = torch.tensor([ids], device=device)
    positions = torch.arange(len(ids), device=device)[None]
    hidden, heads = model(
        tokens, positions, lambda _layer: lambda q, k, v: dense_attention(q, k, v, None)
    )
    return hidden, heads


def score(problems: list[Transcript], outputs: list[list[int]]) -> Score:
    right: dict[str, list[bool]] = defaultdict(list)
    num_exact = num_unfinished = 0
    for problem, output in zip(problems, outputs, strict=True):
        tail = problem.ids[-4:]  # newline, the word "answer", its number, <eos>
        right[problem.plan.kind].append(output[-4:] == tail)
        num_exact += output == problem.ids[problem.num_prompt_tokens :]
        num_unfinished += output[-1:] != [TOKEN_ID[EOS]]
    return Score(
        num_problems=len(problems),
        num_correct=sum(map(sum, right.values())),
        num_exact=num_exact,
        num_unfinished=num_unfinished,
        mean_output_tokens=sum(map(len, outputs)) / len(outputs),
        accuracy_by_kind={kind: sum(flags) / len(flags) for kind, flags in sorted(right.items())},
    )


def generate(
    model: Reasoner,
    problems: list[Transcript],
    temperatures: list[float],
    limit: int,
    generator: torch.Generator,
) -> list[list[int]]:
    """Outputs up to and with <eos>, or up to `limit` tokens with the prompt; 0 is argmax.

    One dense cache for all problems, every prompt at position 0. Plain and sufficient for this check; the engine
    serves.
    """
    device = model.embedding.device
    prompts = [problem.ids[: problem.num_prompt_tokens] for problem in problems]
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    width = int(lengths.max())
    padded = torch.tensor([ids + [0] * (width - len(ids)) for ids in prompts], device=device)
    cache = DenseCache(model, len(prompts), limit, device)
    hidden = cache.prefill(padded)
    heat = torch.tensor(temperatures, device=device)
    rows = torch.arange(len(prompts), device=device)
    last = hidden.view(len(prompts), width, -1)[rows, lengths - 1]
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    chosen = []
    for step in range(limit - int(lengths.min())):
        token = _choose(model.logits(last), heat, generator)
        chosen.append(token)
        done |= (token == TOKEN_ID[EOS]) | (lengths + step + 1 >= limit)
        if step % 16 == 0 and bool(done.all()):
            break
        last = cache.decode(token, (lengths + step).clamp(max=limit - 1))
    columns = torch.stack(chosen, dim=1).tolist()
    return [_cut(row, limit - len(prompt)) for row, prompt in zip(columns, prompts, strict=True)]


def _choose(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """[B, vocabulary] -> [B]; Gumbel noise scaled by the temperature, so 0 is the argmax."""
    noise = torch.rand(logits.shape, generator=generator, device=logits.device)
    gumbel = -(-noise.clamp(min=1e-12).log()).clamp(min=1e-12).log()
    return (logits + temperatures[:, None] * gumbel).argmax(dim=-1)


def _cut(ids: list[int], most: int) -> list[int]:
    ids = ids[:most]
    end = TOKEN_ID[EOS]
    return ids[: ids.index(end) + 1] if end in ids else ids


class DenseCache:
    """Keys and values of a batch, [layers, B, heads, limit, D] each, at most `limit` tokens a row."""

    def __init__(self, model: Reasoner, batch: int, limit: int, device: torch.device) -> None:
        shape = model.shape
        size = (shape.num_layers, batch, shape.num_kv_heads, limit, shape.head_dim)
        self._model = model
        self._keys = torch.zeros(size, device=device)
        self._values = torch.zeros(size, device=device)
        self._positions = torch.arange(limit, device=device)
        self._longest = 0

    def prefill(self, ids: Tensor) -> Tensor:
        """ids [B, T], padded on the right -> hidden [B * T, hidden]; padded keys are overwritten later."""
        batch, length = ids.shape
        self._longest = length

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._keys[layer, :, :, :length] = k.transpose(1, 2)
            self._values[layer, :, :, :length] = v.transpose(1, 2)
            return dense_attention(q, k, v, None)

        positions = self._positions[:length].expand(batch, length)
        hidden, _ = self._model(ids, positions, lambda layer: lambda *qkv: attend(layer, *qkv))
        assert isinstance(hidden, Tensor)
        return hidden

    def decode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """One token a row, [B], at its position [B] -> hidden [B, hidden]."""
        rows = torch.arange(len(tokens), device=tokens.device)
        self._longest += 1
        used = min(self._longest, len(self._positions))
        visible = self._positions[:used] <= positions[:, None]
        bias = torch.where(visible, 0.0, float("-inf"))[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._keys[layer, rows, :, positions] = k[:, 0]
            self._values[layer, rows, :, positions] = v[:, 0]
            return grouped_attention(
                q, self._keys[layer, :, :, :used], self._values[layer, :, :, :used], bias
            )

        hidden, _ = self._model(
            tokens[:, None], positions[:, None], lambda layer: lambda *qkv: attend(layer, *qkv)
        )
        assert isinstance(hidden, Tensor)
        return hidden


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention of one query a row without copies of keys: q [B,1,H,D], k, v [B,K,S,D], bias [B,1,1,S]."""
    batch, _, num_heads, size = q.shape
    grouped = q.view(batch, k.shape[1], -1, size)
    scores = grouped @ k.transpose(2, 3) * size**-0.5 + bias
    mixed: Tensor = scores.softmax(dim=-1) @ v
    return mixed.reshape(batch, 1, num_heads, size)


def demand_rows(
    model: Reasoner, problems: list[Transcript], settings: EvaluateConfig, summaries: SummaryConfig
) -> list[DemandRow]:
    """The signal by kind of problem and by demand class."""
    groups: dict[str, list[Tensor]] = defaultdict(list)
    for problem in problems:
        ratios = demand_ratios(model, problem, settings, summaries)
        groups[f"kind {problem.plan.kind}"].append(ratios)
        groups[f"demand {demand_class(problem.plan.num_live_items)}"].append(ratios)
    rows = []
    for group, parts in sorted(groups.items()):
        short, long = torch.cat(parts).unbind(dim=1)
        delta = short - long
        rows.append(
            DemandRow(
                group=group,
                num_boundaries=len(delta),
                short_ratio=float(short.mean()),
                delta=float(delta.mean()),
                growing=float((delta > 0).float().mean()),
            )
        )
    return rows


def demand_ratios(
    model: Reasoner, problem: Transcript, settings: EvaluateConfig, summaries: SummaryConfig
) -> Tensor:
    """r_S and r_L at every page boundary of the solution, [boundaries, 2] (paper Eq. 7, 8).

    Summaries are bias-corrected; candidates are all tokens but the newest page.
    """
    page = settings.page_size
    length, device = len(problem.ids), model.embedding.device
    first = -(-(problem.num_prompt_tokens + page) // page) * page
    boundary = torch.arange(first, length, page, device=device) - 1  # the newest token
    _, heads = forward_one(model, problem.ids)
    prompt = torch.full_like(boundary, problem.num_prompt_tokens)
    weights = ema_weights(prompt, boundary, length, [summaries.beta_short, summaries.beta_long])
    candidates = torch.arange(length, device=device) <= boundary[:, None] - page
    total = torch.zeros(len(boundary), 2, device=device)
    for layer in heads:
        copies = Heads(
            q_raw=layer.q_raw.expand(len(boundary), -1, -1, -1),
            q=layer.q,
            k=layer.k.expand(len(boundary), -1, -1, -1),
        )
        scores = summary_scores(copies, weights, boundary, model.shape.rope_theta)
        scores = scores.masked_fill(~candidates[:, None, None], float("-inf"))
        shares = scores.softmax(dim=-1)
        grouped = shares.view(len(boundary), 2, model.shape.num_kv_heads, -1, length).mean(dim=3)
        total += top_mass_count(grouped, settings.mass).float().mean(dim=-1)
    return (total / len(heads) / candidates.sum(dim=-1, keepdim=True)).cpu()


def top_mass_count(shares: Tensor, mass: float) -> Tensor:
    """The smallest number of keys whose shares sum to at least `mass`; over the last dimension."""
    mounting = shares.sort(dim=-1, descending=True).values.cumsum(dim=-1)
    return ((mounting < mass).sum(dim=-1) + 1).clamp(max=shares.shape[-1])
