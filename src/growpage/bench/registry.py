"""Benchmark families by name. A new one is a class, a line here and a file in conf/bench."""

from collections.abc import Callable

from growpage.bench.arithmetic import Arithmetic
from growpage.bench.base import Benchmark
from growpage.bench.livecodebench import LiveCodeBench
from growpage.bench.math_datasets import Aime24, Amc23, Gsm8k, Math500
from growpage.bench.mixed import Mixed
from growpage.bench.sequences.benchmark import Sequences
from growpage.bench.spec import BenchmarkSpec
from growpage.errors import unknown

BENCHMARKS: dict[str, Callable[[BenchmarkSpec], Benchmark]] = {
    "gsm8k": Gsm8k,
    "math500": Math500,
    "amc23": Amc23,
    "aime24": Aime24,
    "livecodebench": LiveCodeBench,
    "mixed": Mixed,
    "arithmetic": Arithmetic,
    "sequences": Sequences,
}


def make_benchmark(config: BenchmarkSpec) -> Benchmark:
    """The benchmark of `config.family`. Raises `UsageError` for an unknown family."""
    if config.family not in BENCHMARKS:
        raise unknown("bench.family", config.family, BENCHMARKS)
    return BENCHMARKS[config.family](config)
