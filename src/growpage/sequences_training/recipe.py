"""The training loop: plain language modelling first, then a mixture with eviction noise and the regulariser."""

import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from growpage.sequences_training.config import TrainingConfig
from growpage.sequences_training.data import Batch, Batches, Corpus
from growpage.sequences_training.model import Reasoner, dense_attention
from growpage.sequences_training.noise import attention_bias, draw_expiry
from growpage.sequences_training.summaries import Documents, summary_loss

log = logging.getLogger(__name__)

# cuDNN's attention is left out: it re-plans for every new shape.
ATTENTION_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(slots=True, kw_only=True)
class TrainingReport:
    """What a training run did. Losses are means over the last logged interval."""

    num_steps: int = 0
    num_tokens: int = 0  # padded
    seconds: float = 0.0
    tokens_per_second: float = 0.0  # after the first ten steps, which hold the compilation
    final_loss: float = math.nan
    final_summary_loss: float | None = None
    stopped_by_time: bool = False
    history: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepKind:
    """What one step adds to language modelling."""

    has_noise: bool
    has_summaries: bool


class Trainer:
    """One run over one corpus on one device."""

    def __init__(
        self, model: Reasoner, corpus: Corpus, config: TrainingConfig, device: torch.device
    ) -> None:
        self.model = model
        self.config = config
        self.device = device
        self._corpus = DeviceCorpus(corpus, device)
        batches = Batches(
            corpus, config.data.buckets, config.optim.tokens_per_step, config.seed + 1
        )
        self._short = batches.endless(config.optim.short_buckets)
        self._all = batches.endless()
        self._rng = np.random.default_rng(config.seed + 2)
        self._generator = torch.Generator(device=device).manual_seed(config.seed + 3)
        self._optimizer = make_optimizer(model, config)

    def run(
        self,
        *,
        seconds_left: Callable[[], float] | None = None,
        save: Callable[[], None] | None = None,
        log_every_s: float = 5.0,
        save_every_s: float = 60.0,
    ) -> TrainingReport:
        """Train for `optim.num_steps`, or until the time is up; then the schedule is sped up, not cut off.

        seconds_left: time until training must have ended; save: called now and then with the model as it is.
        """
        report = TrainingReport()
        clock = Clock(self.config.optim.num_steps, seconds_left)
        interval = Interval()
        started = saved = time.perf_counter()
        while (progress := clock.progress(report.num_steps)) < 1.0:
            losses = self.step(progress)
            interval.add(*losses)
            report.num_steps += 1
            now = time.perf_counter()
            if now - interval.started >= log_every_s:
                self._log(report, interval, progress, started)
                interval = Interval()
            if save is not None and now - saved >= save_every_s:
                save()
                saved = now
            if report.num_steps == 10:
                self._synchronize()
                warm = time.perf_counter()
        self._log(report, interval, 1.0, started)
        self._synchronize()
        report.seconds = time.perf_counter() - started
        report.num_tokens = report.num_steps * self.config.optim.tokens_per_step
        if report.num_steps > 10:
            fast = (report.num_steps - 10) * self.config.optim.tokens_per_step
            report.tokens_per_second = fast / (time.perf_counter() - warm)
        report.stopped_by_time = report.num_steps < self.config.optim.num_steps
        return report

    def step(self, progress: float) -> tuple[Tensor, Tensor | None]:
        """One optimiser step at `progress` in [0, 1); returns its losses, still on the device."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self.config, progress)
        source = self._short if progress < self.config.optim.short_share else self._all
        documents = self._corpus.load(next(source))
        kind = self._draw_kind(progress)
        loss, extra = self.losses(documents, kind)
        total = loss if extra is None else loss + self._summary_weight(progress) * extra
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.config.optim.clip_norm, foreach=True
        )
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach(), None if extra is None else extra.detach()

    def losses(self, documents: "LoadedBatch", kind: StepKind) -> tuple[Tensor, Tensor | None]:
        """Language modelling loss on the solutions, and the regulariser's when asked for."""
        ids = documents.ids
        batch, length = ids.shape
        expiry = torch.full_like(documents.last_read, length)
        bias = None
        if kind.has_noise:
            expiry = draw_expiry(documents.last_read, self.config.noise, self._generator)
            bias = attention_bias(expiry, self._compute_dtype)
        with self._autocast(), sdpa_kernel(ATTENTION_BACKENDS):
            hidden, heads = self.model(
                ids,
                torch.arange(length, device=ids.device).expand(batch, length),
                lambda _layer: lambda q, k, v: dense_attention(q, k, v, bias),
            )
            loss = self.model.loss(hidden, documents.targets.flatten(), documents.weights.flatten())
            if not kind.has_summaries:
                return loss, None
            about = Documents(
                prompt_lengths=documents.prompt_lengths, lengths=documents.lengths, expiry=expiry
            )
            theta = self.config.model.rope_theta
            return loss, summary_loss(heads, about, self.config.summaries, theta, self._generator)

    @property
    def _compute_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def _autocast(self) -> AbstractContextManager[object]:
        if self.device.type == "cuda":
            return torch.autocast("cuda", torch.bfloat16)
        return nullcontext()

    def _draw_kind(self, progress: float) -> StepKind:
        mix = self.config.mix
        draw = self._rng.random()
        if progress < mix.plain_until or draw >= mix.noise_and_summaries + mix.summaries:
            return StepKind(has_noise=False, has_summaries=False)
        return StepKind(has_noise=draw < mix.noise_and_summaries, has_summaries=True)

    def _summary_weight(self, progress: float) -> float:
        summaries = self.config.summaries
        return summaries.weight * (summaries.final_weight_share if progress >= 0.9 else 1.0)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _log(
        self, report: TrainingReport, interval: "Interval", progress: float, started: float
    ) -> None:
        if interval.num_steps == 0:
            return
        loss, extra = interval.means()
        seconds = time.perf_counter() - interval.started
        rate = interval.num_steps * self.config.optim.tokens_per_step / seconds
        lr = learning_rate(self.config, progress)
        report.final_loss = loss
        report.final_summary_loss = extra if extra is not None else report.final_summary_loss
        entry = {
            "step": report.num_steps,
            "progress": progress,
            "loss": loss,
            "lr": lr,
            "tokens_per_s": rate,
        }
        if extra is not None:
            entry["summary_loss"] = extra
        report.history.append(entry)
        log.info(
            "step=%d progress=%.3f loss=%.5f summary_loss=%s lr=%.2e tokens_per_s=%.0f elapsed_s=%.0f",
            report.num_steps, progress, loss, "-" if extra is None else f"{extra:.3f}", lr, rate,
            time.perf_counter() - started,
        )  # fmt: skip


class Clock:
    """Progress through the schedule. It runs faster than the steps when time would not suffice."""

    WINDOW = 50  # steps between two looks at the pace

    def __init__(self, num_steps: int, seconds_left: Callable[[], float] | None) -> None:
        self._num_steps = num_steps
        self._left = seconds_left
        self._left_at_look = math.nan
        self._was_late = False
        self._speed = 1.0
        self._progress = 0.0
        self._step = 0

    def progress(self, step: int) -> float:
        """In [0, 1]; never falls. While time suffices it is step / num_steps, which makes runs repeatable."""
        if not self._was_late:
            self._progress = step / self._num_steps
        else:
            self._progress += (step - self._step) * self._speed / self._num_steps
        self._step = step
        if self._left is not None:
            left = self._left()
            if step > 0 and step % self.WINDOW == 0:
                self._look(left)
            if left <= 0:
                self._progress = 1.0
        return min(self._progress, 1.0)

    def _look(self, left: float) -> None:
        """Set the speed from the pace of the last window; the first one holds the compilation."""
        pace = (self._left_at_look - left) / self.WINDOW
        self._left_at_look = left
        if not pace > 0:  # also in the first window, when it is NaN
            return
        steps_left = max(left / pace, 1.0)
        needed = (1.0 - self._progress) * self._num_steps / steps_left
        self._speed = needed if needed > 1.03 else 1.0  # the pace is noisy
        self._was_late |= self._speed > 1.0


class Interval:
    """Losses since the last log line; kept on the device until they are read."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.num_steps = 0
        self._losses: list[Tensor] = []
        self._extras: list[Tensor] = []

    def add(self, loss: Tensor, extra: Tensor | None) -> None:
        self.num_steps += 1
        self._losses.append(loss)
        if extra is not None:
            self._extras.append(extra)

    def means(self) -> tuple[float, float | None]:
        extra = float(torch.stack(self._extras).mean()) if self._extras else None
        return float(torch.stack(self._losses).mean()), extra


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBatch:
    """ids, targets, last_read: [B, T] int64; weights: [B, T] fp32, 1 where the target is part of a solution."""

    ids: Tensor
    targets: Tensor
    weights: Tensor
    last_read: Tensor
    prompt_lengths: Tensor
    lengths: Tensor


class DeviceCorpus:
    """The whole corpus on the device; batches are gathered there."""

    def __init__(self, corpus: Corpus, device: torch.device) -> None:
        self._ids = torch.from_numpy(corpus.ids).to(device)
        self._last_read = torch.from_numpy(corpus.last_read).to(device)
        self._starts = torch.from_numpy(corpus.offsets[:-1]).to(device)
        self._lengths = torch.from_numpy(corpus.lengths).to(device)
        self._prompts = torch.from_numpy(corpus.prompt_lengths).to(device)

    def load(self, batch: Batch) -> LoadedBatch:
        rows = torch.from_numpy(batch.documents).to(self._ids.device, non_blocking=True)
        lengths, prompts = self._lengths[rows], self._prompts[rows]
        positions = torch.arange(batch.length, device=self._ids.device)
        inside = positions < lengths[:, None]
        places = self._starts[rows][:, None] + torch.minimum(positions, lengths[:, None] - 1)
        ids = self._ids[places].long() * inside  # <pad> is 0
        targets = torch.roll(ids, -1, dims=1)
        is_solution = (positions + 1 >= prompts[:, None]) & (positions + 1 < lengths[:, None])
        return LoadedBatch(
            ids=ids,
            targets=targets,
            weights=is_solution.float(),
            last_read=torch.where(inside, self._last_read[places].long(), batch.length),
            prompt_lengths=prompts,
            lengths=lengths,
        )


def make_optimizer(model: Reasoner, config: TrainingConfig) -> torch.optim.Optimizer:
    """AdamW; norms are not decayed."""
    weights = [weight for weight in model.parameters() if weight.dim() == 2]
    norms = [weight for weight in model.parameters() if weight.dim() != 2]
    groups = [
        {"params": weights, "weight_decay": config.optim.weight_decay},
        {"params": norms, "weight_decay": 0.0},
    ]
    betas = (config.optim.beta1, config.optim.beta2)
    is_cuda = model.embedding.is_cuda
    return torch.optim.AdamW(groups, lr=config.optim.lr, betas=betas, fused=is_cuda)


def learning_rate(config: TrainingConfig, progress: float) -> float:
    """Linear warm-up, then a cosine from the peak to `final_lr_share` of it."""
    optim = config.optim
    warmup = optim.warmup_steps / optim.num_steps
    if progress < warmup:
        return optim.lr * (progress * optim.num_steps + 1) / (optim.warmup_steps + 1)
    done = (progress - warmup) / max(1.0 - warmup, 1e-9)
    low = optim.final_lr_share
    return optim.lr * (low + (1.0 - low) * 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0))))
