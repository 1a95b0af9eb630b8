"""The capacity policy: at a boundary, what happens to a request's page count? No torch.

A policy is a dataclass of hyperparameters and one pure function of the boundary record. What every policy
shares (warm-up, growth while one page is all there is, fallback) is the scheduler's, not the policy's.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from growpage.budget.scorer_settings import ScorerSettings, resolved
from growpage.errors import UsageError, require


class Action(str, Enum):
    GROW = "grow"  # append one page
    COMPRESS = "compress"  # keep the pages, free one page worth of slots
    SHRINK = "shrink"  # free two pages worth of slots and give one page back


class Signal(str, Enum):
    """What a policy has to know at a boundary beyond the page count."""

    DELTA = "delta"  # r_short - r_long, Eq. 8
    LOST_MASS = "lost_mass"  # attention mass that compaction would lose


class GroupReduce(str, Enum):
    """Over the query heads of a KV head: what one attention is made of theirs."""

    mean = "mean"
    max = "max"


class DemandMetric(str, Enum):
    topp = "topp"  # size of the working set, Eq. 2
    entropy = "entropy"  # over its maximum (paper Table 2)


class RetentionCandidates(str, Enum):
    """What a compaction may evict."""

    all = "all"  # but the protected tokens
    exclude_newest = "exclude_newest"  # nothing of the newest page either


class SwapSummaries(str, Enum):
    """The query summaries of a request that comes back from host memory."""

    restore = "restore"  # as they were
    reinit = "reinit"  # from its next query on


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What was measured at a boundary; absent signals were not asked for.

    `r_short` and `r_long` are the working-set ratios of Eq. 8, `lost_mass` the attention mass that a compaction
    would evict (per layer and KV head the worse of the two summaries, then the mean).
    """

    r_short: float | None = None
    r_long: float | None = None
    lost_mass: float | None = None

    @property
    def delta(self) -> float | None:
        if self.r_short is None or self.r_long is None:
            return None
        return self.r_short - self.r_long


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """A decoding request whose next token has no slot (docs/algorithm.md §2).

    `index` counts the primary decisions this request has been asked before; `position` is logical.
    """

    request_seed: int
    index: int
    num_pages: int
    page_size: int
    position: int
    delta: float | None = None
    lost_mass: float | None = None


@dataclass(slots=True, kw_only=True)
class CapacityPolicy:
    """Base of all policies. Subclasses set `NAME`, add hyperparameters and implement `decide`."""

    NAME: ClassVar[str] = ""
    SIGNALS: ClassVar[frozenset[Signal]] = frozenset()

    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or self.NAME
        require(self.name == self.NAME, "policy.name", self.name, f"{self.NAME!r} for this policy")

    def check(self, page_size: int) -> None:
        """Ranges that need the page size. Raises `UsageError`."""

    def signals(self) -> frozenset[Signal]:
        """Signals to measure before `decide`."""
        return self.SIGNALS

    def warmup_pages(self, page_size: int) -> int | None:
        """Pages a request grows to before it is asked the first time; None: it is never asked."""
        return None

    def max_pages(self, page_size: int) -> int | None:
        """The largest page count after a compaction, None when the policy sets no bound."""
        return None

    def decide(self, boundary: Boundary) -> Action:
        raise NotImplementedError


@dataclass(slots=True, kw_only=True)
class EvictingPolicy(CapacityPolicy):
    """A policy under which requests compress: retention settings and the dual-timescale summaries.

    `None` asks the next owner: the model's kv_defaults, then the paper (docs/algorithm.md §1).
    """

    scorer: str = "dual_timescale"
    scorer_settings: ScorerSettings = field(default_factory=ScorerSettings)  # None: its recipe's
    initial_pages: int | None = None  # P0; paper-like default 8
    num_protected_tokens: int = 16  # R
    k_loc: int | None = None  # tokens a page keeps at least; None: a quarter of it, or by recipe
    beta_short: float = 0.9
    beta_long: float | None = None  # paper: 0.999
    ema_bias_correction: bool | None = None  # paper: no
    group_reduce: GroupReduce = GroupReduce.mean
    retention_candidates: RetentionCandidates = RetentionCandidates.all
    swap_summaries: SwapSummaries = SwapSummaries.restore

    def __post_init__(self) -> None:
        CapacityPolicy.__post_init__(self)
        self.scorer_settings = resolved(self.scorer, self.scorer_settings)
        if self.scorer != "dual_timescale" and self.k_loc is None:
            self.k_loc = 0  # the block-local quota is Eq. 10's; no other method has one
        require(
            self.initial_pages is None or self.initial_pages >= 1,
            "policy.initial_pages",
            self.initial_pages,
            ">= 1",
        )
        require(
            self.num_protected_tokens >= 0,
            "policy.num_protected_tokens",
            self.num_protected_tokens,
            ">= 0",
        )
        if self.scorer_settings.window and self.swap_summaries is SwapSummaries.reinit:
            raise UsageError(
                f"policy.swap_summaries=reinit: policy.scorer={self.scorer} keeps its queries through "
                "a swap. Leave it out, or choose policy.scorer=dual_timescale."
            )
        require(self.k_loc is None or self.k_loc >= 0, "policy.k_loc", self.k_loc, ">= 0")
        require(0.0 <= self.beta_short < 1.0, "policy.beta_short", self.beta_short, "in [0, 1)")
        require(
            self.beta_long is None or self.beta_short < self.beta_long < 1.0,
            "policy.beta_long",
            self.beta_long,
            f"above policy.beta_short={self.beta_short} and below 1",
        )

    def check(self, page_size: int) -> None:
        require(
            self.k_loc is None or self.k_loc <= page_size,
            "policy.k_loc",
            self.k_loc,
            f"in 0..{page_size} (page size {page_size})",
            f"Set policy.k_loc={page_size // 4}, or raise engine.page_size.",
        )

    @property
    def num_initial_pages(self) -> int:
        """P0: pages a request may reach before its first decision."""
        return PAPER_INITIAL_PAGES if self.initial_pages is None else self.initial_pages

    @property
    def num_protected(self) -> int:
        """R, or the scorer's window where that is larger: its queries' own tokens stay."""
        return max(self.num_protected_tokens, self.scorer_settings.window or 0)

    def num_kept_newest(self, page_size: int) -> int:
        """Newest tokens that a compaction never evicts."""
        if self.retention_candidates is RetentionCandidates.exclude_newest:
            return max(self.num_protected, page_size)
        return self.num_protected

    def local_quota(self, page_size: int) -> int:
        """k_loc: tokens each historical page keeps; the paper's 64 of 256 by default."""
        return page_size // 4 if self.k_loc is None else self.k_loc

    def warmup_pages(self, page_size: int) -> int | None:
        return self.num_initial_pages


@dataclass(slots=True, kw_only=True)
class DemandPolicy(EvictingPolicy):
    """A policy that looks at the demand trend Δ = r_short - r_long (Eq. 7, 8)."""

    SIGNALS: ClassVar[frozenset[Signal]] = frozenset({Signal.DELTA})

    mass: float = 0.99  # p of Eq. 7
    metric: DemandMetric = DemandMetric.topp

    def __post_init__(self) -> None:
        EvictingPolicy.__post_init__(self)
        require(0.0 < self.mass < 1.0, "policy.mass", self.mass, "in (0, 1)")


PAPER_INITIAL_PAGES = 8
PAPER_BETA_LONG = 0.999
PAPER_BUDGET_TOKENS = 4096
