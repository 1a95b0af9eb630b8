"""The settings a benchmark reads; `growpage.config.BenchConfig` has them all."""

from collections.abc import Sequence
from typing import Protocol


class BenchmarkSpec(Protocol):
    """Attributes a benchmark reads, and no others. `None` asks for the family's own value."""

    @property
    def name(self) -> str: ...

    @property
    def family(self) -> str:
        """Key of `growpage.bench.registry.BENCHMARKS`."""

    @property
    def hub_id(self) -> str | None:
        """Another data set than the family's; then config, split and revision are its own too."""

    @property
    def hub_config(self) -> str | None: ...

    @property
    def split(self) -> str | None: ...

    @property
    def revision(self) -> str | None:
        """A commit of 40 hex digits. Branch names are refused, because branches move."""

    @property
    def path(self) -> str | None:
        """JSON lines with `question`, `answer` and perhaps `id`; used instead of the hub."""

    @property
    def num_problems_expected(self) -> int | None:
        """Hub: another count is an error. Generated problems: how many. Ignored with `path`."""

    @property
    def prompt_role(self) -> str:
        """Who says the instruction: `user`, after the question, or `system`."""

    @property
    def instruction(self) -> str:
        """Replaces the family's instruction unless empty."""

    @property
    def seed(self) -> int:
        """Of generated problems, and of the order of `mixed`; other data sets ignore it."""

    @property
    def gsm8k_samples(self) -> int | None:
        """Answers to a problem of GSM8K in `mixed`."""

    @property
    def gsm8k_thinking(self) -> bool | None:
        """Whether GSM8K is asked with thinking; None leaves it to the model."""

    @property
    def kinds(self) -> Sequence[str] | None:
        """Kinds of generated problems, for the families that have them."""

    @property
    def max_items(self) -> int | None: ...

    @property
    def max_steps(self) -> int | None: ...

    @property
    def max_phases(self) -> int | None: ...
