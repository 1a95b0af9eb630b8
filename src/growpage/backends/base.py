"""The protocol between a run and whatever generates tokens. `growpage.engine.engine.Engine` is one."""

from typing import Any, Protocol

from growpage.engine.events import CapacityEvent
from growpage.engine.request import EngineStats, Request, RequestOutput

BACKENDS = ("growpage", "vllm")  # values of engine.backend


class Backend(Protocol):
    def add_request(self, request: Request) -> None:
        """Queue a request. Raises `UsageError` at once when it can never run."""

    def abort(self, request_id: str) -> None:
        """End a request early; unknown ids are ignored. Its output comes back with reason `abort`."""

    def step(self) -> list[RequestOutput]:
        """Advance by one iteration; return the requests that finished in it."""

    def has_unfinished_requests(self) -> bool: ...

    def stats(self) -> EngineStats: ...

    def take_events(self) -> list[CapacityEvent]:
        """Capacity events since the last call, in order."""

    def describe(self) -> dict[str, Any]:
        """Plain values for the run record: device, dtype, kernel path, memory ledger, effective settings."""

    def shutdown(self) -> None: ...
