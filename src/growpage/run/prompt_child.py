"""The child of `growpage.run.first_prompt`: reads a configuration as JSON, prints its first prompt."""

import json
import sys

from growpage.bench.base import Benchmark, Problem
from growpage.bench.registry import make_benchmark
from growpage.config import Config, from_dict
from growpage.engine.models.gguf import GgufFile, locate
from growpage.engine.models.loader import checkpoint_folder
from growpage.engine.models.tokenizer import Tokenizer
from growpage.errors import UsageError
from growpage.grade.text import END_THINK, THINK
from growpage.run.generation import make_prompts, render
from growpage.run.resume import plan


def main() -> int:
    config = from_dict(json.load(sys.stdin))
    try:
        print(describe(config))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def describe(config: Config) -> str:
    """A line about the first prompt, then the prompt. Raises `UsageError` for what is not at hand."""
    benchmark = make_benchmark(config.bench)
    problem_set = benchmark.load()
    problem = problem_set.problems[0]
    try:
        tokenizer = _tokenizer(config)
    except UsageError as error:
        return f"first prompt: no chat template at hand ({error})\n{_bare(benchmark, problem)}"
    thinking = config.model.enable_thinking
    items = plan([problem], num_samples=1, base_seed=config.seed, config_hash="")
    prompt = make_prompts(benchmark, tokenizer, items, enable_thinking=thinking)[problem.id]
    text = render(benchmark, tokenizer, problem, enable_thinking=thinking)
    head = (
        f"first prompt: bench={config.bench.name} model={config.model.name} problem={problem.id} "
        f"tokens={len(prompt.token_ids)} template={_template(tokenizer)} think block={_block(text)} "
        f"think tags={_tags(tokenizer)}\n"
        f"data: {len(problem_set.problems)} problems, {_num_requests(problem_set.problems, config)} "
        f"requests, {problem_set.source}, sha256 {problem_set.sha256[:12]}"
    )
    return f"{head}\n--------\n{text}\n--------"


def _bare(benchmark: Benchmark, problem: Problem) -> str:
    """The chat without its template."""
    parts = [f"[{turn['role']}]\n{turn['content']}" for turn in benchmark.messages(problem)]
    return "\n".join(["--------", *parts, "--------"])


def _num_requests(problems: tuple[Problem, ...], config: Config) -> int:
    bench = config.bench
    return sum(problem.num_samples or bench.num_samples for problem in problems[: bench.limit])


def _tokenizer(config: Config) -> Tokenizer:
    path = config.model.path
    if path.startswith("gguf:") or path.endswith(".gguf"):
        return GgufFile(locate(path)).tokenizer()
    folder, _ = checkpoint_folder(path, config.model.revision, has_weights=False)
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer is None:
        raise UsageError(f"model.path={path}: no tokenizer")
    return tokenizer


def _template(tokenizer: Tokenizer) -> str:
    return "none" if tokenizer.chat_template is None else "chat"


def _block(text: str) -> str:
    """How the prompt ends: inside a think block, behind a closed one, or without."""
    if text.rstrip().endswith(THINK):
        return "open"
    return "closed" if text.rstrip().endswith(END_THINK) else "none"


def _tags(tokenizer: Tokenizer) -> str:
    """Whether the tags survive decoding, which the graders need."""
    ids = [tokenizer.encode(tag) for tag in (THINK, END_THINK)]
    kind = "tokens" if all(len(item) == 1 for item in ids) else "text"
    is_whole = [tokenizer.decode(item).strip() for item in ids] == [THINK, END_THINK]
    return kind if is_whole else f"{kind}, lost in decoding"


if __name__ == "__main__":
    sys.exit(main())
