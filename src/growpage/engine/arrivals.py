"""When requests reach the engine: all at once, at random, in bursts, as chats, or long prompts among others. No torch.

Times are seconds since the first call. The load is open (the clock alone decides) but for `chat`, where a user's
next request waits for the answer to the last.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush
from random import Random

from growpage.errors import require, unknown


class ArrivalKind(str, Enum):
    all = "all"
    poisson = "poisson"
    bursts = "bursts"
    chat = "chat"
    long_prompts = "long_prompts"


@dataclass(slots=True, kw_only=True)
class ArrivalConfig:
    """A kind and the settings that it reads."""

    kind: ArrivalKind = ArrivalKind.all
    rate: float = 1.0  # requests a second, on average (poisson, bursts)
    burst_size: int = 8  # requests that come together (bursts)
    num_users: int = 4  # who chat at a time (chat)
    think_time_s: float = 5.0  # mean, from an answer to the next question (chat)
    long_share: float = 0.1  # of the requests, those with the longest prompts (long_prompts)
    long_every_s: float = 5.0  # from one long prompt to the next (long_prompts)

    def __post_init__(self) -> None:
        if not isinstance(self.kind, ArrivalKind):
            if self.kind not in ArrivalKind.__members__:
                raise unknown("arrivals.kind", str(self.kind), ArrivalKind.__members__)
            self.kind = ArrivalKind(self.kind)
        require(0.0 < self.rate <= 1e6, "arrivals.rate", self.rate, "in (0, 1e6] requests a second")
        require(1 <= self.burst_size <= 2**20, "arrivals.burst_size", self.burst_size, "in 1..2^20")
        require(1 <= self.num_users <= 2**20, "arrivals.num_users", self.num_users, "in 1..2^20")
        require(
            0.0 <= self.think_time_s <= 86400.0,
            "arrivals.think_time_s", self.think_time_s, "in 0..86400",
        )  # fmt: skip
        require(0.0 <= self.long_share <= 1.0, "arrivals.long_share", self.long_share, "in 0..1")
        require(
            0.0 <= self.long_every_s <= 86400.0,
            "arrivals.long_every_s", self.long_every_s, "in 0..86400",
        )  # fmt: skip


class Arrivals:
    """Which of `len(prompt_lengths)` requests are due; the same seed gives the same times."""

    def __init__(self, config: ArrivalConfig, prompt_lengths: Sequence[int], seed: int = 0) -> None:
        self._config = config
        self._rng = Random(seed)
        self._due = _MAKERS[config.kind](config, prompt_lengths, self._rng)
        heapify(self._due)
        self._next_of: dict[int, int] = {}  # the request that waits for this one's answer
        self.num_left = len(prompt_lengths)
        if config.kind is ArrivalKind.chat:
            users = config.num_users
            self._next_of = {i: i + users for i in range(len(prompt_lengths) - users)}

    def due(self, now_s: float) -> list[int]:
        """Take the requests whose time has come, by time; each is handed out once."""
        taken = []
        while self._due and self._due[0][0] <= now_s:
            taken.append(heappop(self._due)[1])
        self.num_left -= len(taken)
        return taken

    def finished(self, index: int, now_s: float) -> None:
        """Request `index` has its answer: its user begins to think."""
        following = self._next_of.get(index)
        if following is not None:
            pause = _exponential(self._rng, self._config.think_time_s)
            heappush(self._due, (now_s + pause, following))

    @property
    def next_s(self) -> float | None:
        """When the next request is due; None when none is left or an answer must come first."""
        return self._due[0][0] if self._due else None


_Times = list[tuple[float, int]]


def _all(config: ArrivalConfig, lengths: Sequence[int], rng: Random) -> _Times:
    return [(0.0, index) for index in range(len(lengths))]


def _poisson(config: ArrivalConfig, lengths: Sequence[int], rng: Random) -> _Times:
    return _bursts_of(1, config.rate, len(lengths), rng)


def _bursts(config: ArrivalConfig, lengths: Sequence[int], rng: Random) -> _Times:
    return _bursts_of(config.burst_size, config.rate, len(lengths), rng)


def _bursts_of(size: int, rate: float, count: int, rng: Random) -> _Times:
    """Groups of `size`, the gaps between groups exponential, so that `rate` holds on average."""
    times: _Times = []
    moment = 0.0
    for index in range(count):
        if index and index % size == 0:
            moment += _exponential(rng, size / rate)
        times.append((moment, index))
    return times


def _chat(config: ArrivalConfig, lengths: Sequence[int], rng: Random) -> _Times:
    """The first question of each user; the others follow answers."""
    first = range(min(config.num_users, len(lengths)))
    return [(_exponential(rng, config.think_time_s), index) for index in first]


def _long_prompts(config: ArrivalConfig, lengths: Sequence[int], rng: Random) -> _Times:
    """The others at once, so that the long ones meet a batch that decodes."""
    num_long = math.ceil(config.long_share * len(lengths))
    by_length = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    turns = {index: turn for turn, index in enumerate(sorted(by_length[:num_long]), 1)}
    return [(config.long_every_s * turns.get(index, 0), index) for index in range(len(lengths))]


def _exponential(rng: Random, mean: float) -> float:
    return -mean * math.log(1.0 - rng.random())


_MAKERS = {
    ArrivalKind.all: _all,
    ArrivalKind.poisson: _poisson,
    ArrivalKind.bursts: _bursts,
    ArrivalKind.chat: _chat,
    ArrivalKind.long_prompts: _long_prompts,
}
