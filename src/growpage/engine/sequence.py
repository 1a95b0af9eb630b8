"""One request while it lives in the engine. No torch."""

from dataclasses import dataclass, field
from enum import Enum

from growpage.budget.base import Action, Signals
from growpage.engine.request import Request, RequestMetrics

UNKNOWN_TOKEN = -1


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"  # its pages are in host memory
    EVICTED = "evicted"  # preempted for recompute: its pages are gone
    DRAINING = "draining"  # it has all its tokens but the last, which is still being computed
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A primary decision and what it saw."""

    action: Action
    signals: Signals


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Tokens, pages and progress of a request.

    `position` is logical: tokens whose keys were computed, which is also the RoPE position of the next one.
    `num_resident_tokens` is physical: stored tokens, so the next one goes to slot `num_resident_tokens` of the
    block table. They differ once tokens have been evicted.

    The last `num_unknown_tokens` of `token_ids` are `UNKNOWN_TOKEN`: sampled by a step that still runs.
    """

    request: Request
    arrival: int  # order of submission
    metrics: RequestMetrics
    token_ids: list[int]
    num_prompt_tokens: int
    max_output_tokens: int  # it ends here, whatever its tokens are
    stop_token_ids: frozenset[int]  # or at one of these
    num_unknown_tokens: int = 0
    status: Status = Status.WAITING
    block_table: list[int] = field(default_factory=list)
    position: int = 0
    num_resident_tokens: int = 0
    prefill_target: int = 0  # decoding starts when `position` has reached it
    query_slot: int | None = None
    has_query: bool = False  # the slot holds a query of this request
    has_warmed_up: bool = False  # held P0 pages once
    is_dense: bool = True  # no token was evicted, so pages hold what their hash would say
    num_hashed_pages: int = 0
    last_hash: bytes = b""
    num_decisions: int = 0
    pending: Decision | None = None  # decided, not yet carried out
    num_reserved_pages: int = 0  # counted by admission, not yet held
    restore_pages: int | None = None  # capacity to compact back to after a recompute
    num_swapped_pages: int = 0  # pages it held when it was swapped out
    num_capacity_token_steps: int = 0
    num_resident_token_steps: int = 0
    last_token_time: float | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_pages(self) -> int:
        return len(self.block_table)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_tokens_left(self) -> int:
        """Output tokens that it may still get, besides those on their way."""
        return self.max_output_tokens + self.num_prompt_tokens - len(self.token_ids)

    @property
    def is_prefilling(self) -> bool:
        return self.position < self.prefill_target

    def has_free_slot(self, page_size: int) -> bool:
        """False at a boundary: the next token has no slot (docs/algorithm.md §2)."""
        return self.num_resident_tokens < self.num_pages * page_size
