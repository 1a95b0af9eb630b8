"""The work items of a session on their way through the engine: submitted when due, given back when answered."""

import time
from collections.abc import Mapping, Sequence

from growpage.backends.base import Backend
from growpage.config import Config
from growpage.engine.arrivals import Arrivals
from growpage.run.generation import Prompt, submit
from growpage.run.resume import WorkItem

_IDLE_S = 0.005  # between two looks for an arrival


class Load:
    """`started` is the `time.perf_counter` of the first arrivals, which are submitted at once."""

    def __init__(
        self,
        backend: Backend,
        items: Sequence[WorkItem],
        prompts: Mapping[str, Prompt],
        config: Config,
    ) -> None:
        """Raises `UsageError` for a request that can never run; so does `submit_due`."""
        self._backend = backend
        self._items = items
        self._prompts = prompts
        self._sampling = config.sampling
        self._place_of = {item.request_id: place for place, item in enumerate(items)}
        lengths = [len(prompts[item.problem.id].token_ids) for item in items]
        self._arrivals = Arrivals(config.arrivals, lengths, seed=config.seed)
        self.started = time.perf_counter()
        self.submit_due()

    @property
    def is_unfinished(self) -> bool:
        return self._arrivals.num_left > 0 or self._backend.has_unfinished_requests()

    def submit_due(self) -> None:
        for place in self._arrivals.due(self._now()):
            item = self._items[place]
            submit(self._backend, item, self._prompts[item.problem.id], self._sampling)

    def wait_for_arrivals(self) -> bool:
        """Submit what is due. True when the engine then has work; else a moment has passed."""
        self.submit_due()
        if self._backend.has_unfinished_requests():
            return True
        time.sleep(_IDLE_S)
        return False

    def answered(self, request_id: str) -> WorkItem:
        """The item of a request that ended, once."""
        place = self._place_of.pop(request_id)
        self._arrivals.finished(place, self._now())
        return self._items[place]

    def check_complete(self) -> None:
        lost = sorted(self._place_of)
        assert not lost, f"the engine lost {lost[:3]}"

    def _now(self) -> float:
        return time.perf_counter() - self.started
