"""From work items to requests, and from finished requests to sample rows."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from growpage.backends.base import Backend
from growpage.bench.base import Benchmark, Problem
from growpage.config import SamplingConfig
from growpage.engine.request import FinishReason, Request, RequestOutput, SamplingParams
from growpage.errors import UsageError
from growpage.grade.text import END_THINK, THINK
from growpage.run.build import ChatTokenizer
from growpage.run.resume import WorkItem, prompt_hash
from growpage.store.schema import SampleCapacity, SampleRow, SampleTimes


class Prompt:
    """The token ids of one problem and what the run needs to know about them."""

    __slots__ = ("hash", "is_reasoning_open", "token_ids")

    def __init__(self, text: str, token_ids: Sequence[int]) -> None:
        self.token_ids = tuple(token_ids)
        self.hash = prompt_hash(self.token_ids)
        self.is_reasoning_open = text.rstrip().endswith(THINK)


def make_prompts(
    benchmark: Benchmark,
    tokenizer: ChatTokenizer,
    items: Iterable[WorkItem],
    *,
    enable_thinking: bool | None,
) -> dict[str, Prompt]:
    """One prompt a problem, by problem id. Raises `UsageError` for words outside the vocabulary."""
    prompts: dict[str, Prompt] = {}
    for problem in {item.problem.id: item.problem for item in items}.values():
        text = render(benchmark, tokenizer, problem, enable_thinking=enable_thinking)
        if words := tokenizer.unknown_words(text):
            raise UsageError(
                f"problem {problem.id}: the vocabulary of the model does not cover {words[0]!r} and "
                f"{len(words) - 1} other words of the prompt. Choose a model made for this benchmark."
            )
        prompts[problem.id] = Prompt(text, tokenizer.encode(text))
    return prompts


def render(
    benchmark: Benchmark,
    tokenizer: ChatTokenizer,
    problem: Problem,
    *,
    enable_thinking: bool | None,
) -> str:
    """The prompt; where a problem is asked without thinking, with a think block that is closed.

    Some templates close it themselves, others open one or know of none; a model that has no token
    for it does not think.
    """
    messages = benchmark.messages(problem)
    if problem.is_thinking is not False:
        return tokenizer.render(messages, enable_thinking=enable_thinking)
    text = tokenizer.render(messages, enable_thinking=False)
    has_token = len(tokenizer.encode(END_THINK)) == 1
    if not has_token or text.rstrip().endswith(END_THINK):
        return text
    is_open = text.rstrip().endswith(THINK)
    return f"{text.rstrip() if is_open else text + THINK}\n\n{END_THINK}\n\n"


def submit(backend: Backend, item: WorkItem, prompt: Prompt, sampling: SamplingConfig) -> None:
    """Raises `UsageError`, with the problem's id, for a request that can never run."""
    assert sampling.max_tokens is not None, "resolve() fills it"
    params = SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=sampling.max_tokens,
        ignore_eos=sampling.ignore_eos,
        seed=item.seed,
    )
    try:
        backend.add_request(
            Request(request_id=item.request_id, prompt_token_ids=prompt.token_ids, sampling=params)
        )
    except UsageError as error:
        raise UsageError(f"{error} (problem {item.problem.id})") from error


def sample_row(
    item: WorkItem, prompt: Prompt, output: RequestOutput, text: str, *, session: int, start: float
) -> SampleRow:
    """The row of a finished request. start: the session's first `time.perf_counter`."""
    assert output.finish_reason is not FinishReason.ABORT, output.request_id
    metrics = output.metrics

    def since_start(moment: float | None) -> float | None:
        return None if moment is None else moment - start

    return SampleRow(
        problem_id=item.problem.id,
        sample_index=item.sample_index,
        seed=item.seed,
        config_hash=item.config_hash,
        kind=item.problem.kind,
        prompt_hash=prompt.hash,
        num_prompt_tokens=len(prompt.token_ids),
        token_ids=tuple(output.token_ids),
        text=storable(text),
        finish_reason=output.finish_reason.value,
        reasoning_open=prompt.is_reasoning_open,
        error=output.error,
        session=session,
        times=SampleTimes(
            arrival_s=metrics.arrival_time - start,
            first_scheduled_s=since_start(metrics.first_scheduled_time),
            first_token_s=since_start(metrics.first_token_time),
            finished_s=since_start(metrics.finished_time),
            max_itl_s=metrics.max_itl_s,
        ),
        capacity=SampleCapacity(
            avg_capacity_tokens=metrics.avg_capacity_tokens,
            avg_resident_tokens=metrics.avg_resident_tokens,
            peak_capacity_tokens=metrics.peak_capacity_tokens,
            num_decode_steps=metrics.num_decode_steps,
            num_cached_tokens=metrics.num_cached_tokens,
        ),
        counters=asdict(metrics.counters),
    )


def storable(text: str) -> str:
    """The text without lone surrogates, which no file format takes."""
    return text.encode(errors="replace").decode()
