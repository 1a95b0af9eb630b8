"""Tokens as they come: one item a step, with requests added and aborted in between."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from growpage.engine.engine import Engine
from growpage.engine.request import RequestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """`index` counts the output tokens of the request; `time_s` is the clock of its metrics."""

    request_id: str
    token_id: int
    index: int
    time_s: float


@dataclass(slots=True, kw_only=True)
class StepResult:
    """What one step told: tokens in the order of its batch, and the requests that ended."""

    tokens: list[NewToken] = field(default_factory=list)
    finished: list[RequestOutput] = field(default_factory=list)


def stream(engine: Engine) -> Iterator[StepResult]:
    """Step the engine until nothing is unfinished; `add_request` and `abort` may be called between two items.

    The last token of a request comes in the item in which it is finished. Ends early when the caller stops asking.
    """
    told: list[NewToken] = []

    def note(request_id: str, token_id: int, index: int, time_s: float) -> None:
        told.append(NewToken(request_id=request_id, token_id=token_id, index=index, time_s=time_s))

    scheduler = engine.scheduler
    assert scheduler.token_listener is None, "this engine is streamed already"
    scheduler.token_listener = note
    try:
        while engine.has_unfinished_requests():
            finished = engine.step()
            yield StepResult(tokens=list(told), finished=finished)
            told.clear()
    finally:
        scheduler.token_listener = None
