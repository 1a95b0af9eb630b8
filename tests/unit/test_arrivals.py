"""When requests come: each once, at the rate that was asked for, chats after their answers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growpage.engine.arrivals import ArrivalConfig, ArrivalKind, Arrivals
from growpage.errors import UsageError


def _times(arrivals: Arrivals, answer_s: float = 1.0) -> dict[int, float]:
    """Serve everything; each answer takes `answer_s`."""
    times: dict[int, float] = {}
    answers: list[tuple[float, int]] = []
    while arrivals.num_left:
        moments = [t for t in (arrivals.next_s, *(a[0] for a in answers)) if t is not None]
        now = min(moments)
        for answer in [a for a in answers if a[0] <= now]:
            answers.remove(answer)
            arrivals.finished(answer[1], now)
        for index in arrivals.due(now):
            assert index not in times
            times[index] = now
            answers.append((now + answer_s, index))
    return times


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(ArrivalKind),
    lengths=st.lists(st.integers(1, 50), max_size=30),
    size=st.integers(1, 9),
    think_time_s=st.floats(0.0, 3.0),
    share=st.floats(0.0, 1.0),
)
def test_every_request_comes_once_and_the_seed_decides_when(
    kind: ArrivalKind, lengths: list[int], size: int, think_time_s: float, share: float
) -> None:
    config = ArrivalConfig(
        kind=kind, burst_size=size, num_users=size, think_time_s=think_time_s, long_share=share
    )
    times = _times(Arrivals(config, lengths, seed=3))
    assert sorted(times) == list(range(len(lengths)))
    assert times == _times(Arrivals(config, lengths, seed=3))


@pytest.mark.parametrize("kind", ["poisson", "bursts"])
def test_the_rate_holds_on_average(kind: str) -> None:
    config = ArrivalConfig(kind=ArrivalKind(kind), rate=4.0, burst_size=5)
    times = _times(Arrivals(config, [1] * 8000, seed=1))
    assert 8000 / max(times.values()) == pytest.approx(4.0, rel=0.1)
    sizes = [list(times.values()).count(moment) for moment in set(times.values())]
    assert max(sizes) == (5 if kind == "bursts" else 1)


def test_users_wait_for_their_answers_and_think() -> None:
    config = ArrivalConfig(kind=ArrivalKind.chat, num_users=3, think_time_s=0.5)
    arrivals = Arrivals(config, [1] * 9)
    assert len(arrivals.due(1e9)) == 3
    assert arrivals.next_s is None
    arrivals.finished(1, 10.0)
    assert arrivals.next_s is not None
    assert arrivals.next_s > 10.0
    assert arrivals.due(1e9) == [4]
    assert arrivals.num_left == 5


def test_long_prompts_come_one_by_one_among_the_others() -> None:
    config = ArrivalConfig(kind=ArrivalKind.long_prompts, long_share=0.4, long_every_s=2.0)
    times = _times(Arrivals(config, [5, 90, 5, 80, 5]))
    assert times == {0: 0.0, 2: 0.0, 4: 0.0, 1: 2.0, 3: 4.0}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rate": 0.0}, "arrivals.rate=0.0"),
        ({"rate": float("nan")}, "arrivals.rate"),
        ({"burst_size": 0}, "arrivals.burst_size"),
        ({"num_users": 0}, "arrivals.num_users"),
        ({"think_time_s": -1.0}, "arrivals.think_time_s"),
        ({"long_share": 1.5}, "arrivals.long_share"),
        ({"kind": "poison"}, "Did you mean poisson"),
    ],
)
def test_values_out_of_range_are_refused(values: dict, words: str) -> None:
    with pytest.raises(UsageError) as error:
        ArrivalConfig(**values)
    assert words in str(error.value)
