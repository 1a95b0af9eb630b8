"""What one step does, as the scheduler decided it. No torch.

The runner carries a plan out in the order of its fields: pages that leave the device first, since their slots
may be written by what follows.
"""

from dataclasses import dataclass, field

from growpage.engine.sequence import Sequence

NOT_FINITE = -1  # in place of a sampled token: the model gave no logits to draw from


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Keep `num_retained` of the first `num_tokens` stored tokens, written to `target_pages` in order."""

    sequence: Sequence
    source_pages: tuple[int, ...]
    num_tokens: int
    target_pages: tuple[int, ...]
    num_retained: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapOut:
    sequence: Sequence
    pages: tuple[int, ...]
    query_slot: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapIn:
    sequence: Sequence
    pages: tuple[int, ...]
    query_slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunk:
    """Tokens `position .. position + num_tokens` of the sequence, computed over its pages."""

    sequence: Sequence
    num_tokens: int

    @property
    def completes(self) -> bool:
        """Whether the prompt is then complete, so that its last row gives a token."""
        return self.sequence.position + self.num_tokens == self.sequence.prefill_target


@dataclass(slots=True, kw_only=True)
class Plan:
    """`sampled` lists whose token comes out, in this order: the decodes, then the prompts completed.

    `capacities` and `residents` are tokens of pages and tokens stored of each decode, noted when the plan ran.
    `num_measured` running requests sit this step out, since their signals are on their way, and `num_compacting`
    others, since their compaction runs beside it.
    """

    swap_outs: list[SwapOut] = field(default_factory=list)
    compactions: list[Compaction] = field(default_factory=list)
    swap_ins: list[SwapIn] = field(default_factory=list)
    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[PrefillChunk] = field(default_factory=list)
    sampled: list[Sequence] = field(default_factory=list)
    capacities: list[int] = field(default_factory=list)
    residents: list[int] = field(default_factory=list)
    num_measured: int = 0
    num_compacting: int = 0

    @property
    def is_empty(self) -> bool:
        return not (
            self.swap_outs or self.compactions or self.swap_ins or self.decodes or self.prefills
        )
