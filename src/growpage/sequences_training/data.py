"""Training problems as flat arrays, grouped by length. No torch here: the worker processes import this."""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
import numpy.typing as npt

from growpage.bench.sequences.benchmark import FROZEN_SEED, SECOND_SEED, split_plan
from growpage.bench.sequences.generator import VERSION, Difficulty, make_plan
from growpage.bench.sequences.plan import Plan, question_text
from growpage.bench.sequences.transcript import Transcript
from growpage.errors import UsageError
from growpage.sequences_training.config import DataConfig

Ints = npt.NDArray[np.int64]

NUM_HELD_OUT = 1000  # problems of each test split that training avoids
CHUNK = 500  # problems a task


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Documents one after another.

    ids, last_read: [tokens] int16; last_read is a position within the document.
    offsets: [documents + 1]; prompt_lengths: [documents]. num_dropped: left out, since a test split has them.
    """

    ids: npt.NDArray[np.int16]
    last_read: npt.NDArray[np.int16]
    offsets: Ints
    prompt_lengths: Ints
    num_dropped: int

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Documents of one bucket; `length` tokens each, padded."""

    documents: Ints
    length: int


Chunk = tuple[npt.NDArray[np.int16], npt.NDArray[np.int16], Ints, Ints, int]


def build_corpus(config: DataConfig, seed: int) -> Corpus:
    """The same corpus for the same config and seed, whatever the number of workers."""
    starts = range(0, config.num_problems, CHUNK)
    stream = f"sequences-{VERSION}/train/{seed}"
    difficulty = config.difficulty
    make = partial(
        _make_chunk, stream, config.num_problems, difficulty, held_out_questions(difficulty)
    )
    workers = (os.cpu_count() or 1) if config.num_workers is None else config.num_workers
    if workers == 0:
        return _join([make(start) for start in starts])
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return _join(list(pool.map(make, starts)))


def transcripts(seed: int, num_problems: int, difficulty: Difficulty) -> list[Transcript]:
    """Worked solutions of the first problems of a split."""
    return [Transcript(split_plan(seed, index, difficulty)) for index in range(num_problems)]


def held_out_questions(difficulty: Difficulty) -> frozenset[bytes]:
    """Digests of the questions of the test splits, at full difficulty and at this one."""
    return frozenset(
        _digest(split_plan(seed, index, knobs))
        for knobs in {Difficulty(), difficulty}
        for seed in (FROZEN_SEED, SECOND_SEED)
        for index in range(NUM_HELD_OUT)
    )


def _digest(plan: Plan) -> bytes:
    return hashlib.blake2b(question_text(plan).encode(), digest_size=12).digest()


def _make_chunk(
    stream: str, end: int, difficulty: Difficulty, held_out: frozenset[bytes], start: int
) -> Chunk:
    ids: list[int] = []
    last_read: list[int] = []
    lengths, prompts, dropped = [], [], 0
    for index in range(start, min(start + CHUNK, end)):
        plan = make_plan(stream, index, difficulty)
        if _digest(plan) in held_out:
            dropped += 1
            continue
        transcript = Transcript(plan)
        ids += transcript.ids
        last_read += transcript.last_read
        lengths.append(len(transcript.ids))
        prompts.append(transcript.num_prompt_tokens)
    return (
        np.array(ids, dtype=np.int16),
        np.array(last_read, dtype=np.int16),
        np.array(lengths, dtype=np.int64),
        np.array(prompts, dtype=np.int64),
        dropped,
    )


def _join(chunks: list[Chunk]) -> Corpus:
    ids, last_read, lengths, prompts, dropped = zip(*chunks, strict=True)
    return Corpus(
        ids=np.concatenate(ids),
        last_read=np.concatenate(last_read),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))]),
        prompt_lengths=np.concatenate(prompts),
        num_dropped=sum(dropped),
    )


class Batches:
    """Endless batches of about `tokens_per_step` padded tokens; every epoch is shuffled anew."""

    def __init__(self, corpus: Corpus, buckets: list[int], tokens_per_step: int, seed: int) -> None:
        lengths = corpus.lengths
        if lengths.max() > buckets[-1]:
            raise UsageError(
                f"data.buckets={buckets}: must reach the longest problem, {lengths.max()} tokens."
                " Add a longer bucket, or lower data.max_steps and data.max_items."
            )
        place = np.searchsorted(np.array(buckets), lengths)
        self._members = [np.flatnonzero(place == index) for index in range(len(buckets))]
        self._buckets = buckets
        self._tokens = tokens_per_step
        self._rng = np.random.default_rng(seed)

    def endless(self, num_buckets: int | None = None) -> Iterator[Batch]:
        """Batches of the first `num_buckets` buckets (all when None)."""
        while True:
            epoch = [
                batch
                for index in range(len(self._buckets))[:num_buckets]
                for batch in self._cut(index)
            ]
            if not epoch:
                raise UsageError(
                    f"data.num_problems: no bucket of {self._buckets[:num_buckets]} holds a document."
                )
            for index in self._rng.permutation(len(epoch)):
                yield epoch[index]

    def _cut(self, bucket: int) -> list[Batch]:
        """Full batches of a bucket; the last one is filled up with documents drawn again."""
        members, length = self._members[bucket], self._buckets[bucket]
        size = self._tokens // length
        if len(members) == 0:
            return []
        order = self._rng.permutation(members)
        missing = -len(order) % size
        order = np.concatenate([order, self._rng.choice(members, missing)])
        return [Batch(documents=part, length=length) for part in order.reshape(-1, size)]
