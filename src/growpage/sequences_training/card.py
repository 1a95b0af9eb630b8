"""The model card: what the model is, how it was made, what was measured, and the hash of its weights. No torch."""

from pathlib import Path
from typing import Any

import yaml

from growpage.engine.models.card import CARD, WEIGHTS, check_weights, hash_line, named_sha256
from growpage.errors import UsageError

_TEMPLATE = """---
library_name: transformers
pipeline_tag: text-generation
license: apache-2.0
---

# {name}

A small decoder (Qwen3 architecture, {params} parameters) that solves the procedural problems of growpage's
`bench=sequences` and nothing else. It exists so that KV budgets can be studied on a laptop: what it solves with its
whole cache is measured below, and it fails when a cache too small for the problem is forced on it. It was trained from
scratch on generated text; no other data or model went in. What holds for it is no evidence about large models.

{hash_line}

## Disclosure

Two parts of the training make the model fit for KV eviction on purpose:

* *Eviction noise*: tokens that are no longer needed vanish from attention, so the model does not lean on them.
* *Summary regulariser*: exponential averages of the queries are pulled to look where sampled queries of a window
  around a boundary really read (short summary {window_short}, long summary {window_long} tokens before and after it).
  So the premise "query summaries tell what will be read" is **trained into** this model. The decision to grow or to
  hold is not trained, and no policy took part in the training.

## Language

One token a word, {vocab_size} words. A prompt gives a start value and one to three phases (walk, ledger, facts,
lookup); the output works them out step by step and ends with `answer N`. The model takes up to
{longest} tokens, prompt included. Words outside the vocabulary become `<unk>`; the model was never trained on it.

## Measured by the training script

{measured}

## Training

* {num_steps} steps of {tokens_per_step} tokens (padded), {tokens} in all, in {seconds}; {rate} tokens/s.{cut}
* {num_problems} training problems, seed {seed}; {dropped} left out, since a test split has them.
* Last training loss {loss} (per token of the solutions), regulariser {summary_loss}.
* Hardware: {hardware}. Software: {software}. Source: {source}.
* The same recipe and seed give the same accuracy within a point, not the same bytes.

```yaml
{config}```
"""


def write_card(folder: Path, facts: dict[str, Any]) -> None:
    """Write the card from plain facts; `facts["evaluation"]` is None when nothing was measured."""
    config, report = facts["config"], facts["report"]
    loss, summary_loss = report["final_loss"], report["final_summary_loss"]
    text = _TEMPLATE.format(
        name=config["name"],
        params=f"{facts['num_parameters']:,}",
        hash_line=hash_line(folder),
        window_short=config["summaries"]["window_short"],
        window_long=config["summaries"]["window_long"],
        vocab_size=facts["vocab_size"],
        longest=config["data"]["buckets"][-1],
        measured=_measured(facts["evaluation"]),
        num_steps=report["num_steps"],
        tokens_per_step=config["optim"]["tokens_per_step"],
        tokens=f"{report['num_tokens'] / 1e6:.0f} M",
        seconds=f"{report['seconds']:.0f} s",
        rate=f"{report['tokens_per_second']:,.0f}",
        cut=" The time limit sped the schedule up." if report["stopped_by_time"] else "",
        num_problems=facts["num_documents"],
        dropped=facts["num_dropped"],
        seed=config["seed"],
        loss=f"{loss:.6f}",
        summary_loss="-" if summary_loss is None else f"{summary_loss:.3f}",
        hardware=facts["hardware"],
        software=facts["software"],
        source=facts["source"],
        config=yaml.safe_dump(config, sort_keys=False),
    )
    (folder / CARD).write_text(text, encoding="utf-8")


def _measured(evaluation: dict[str, Any] | None) -> str:
    if evaluation is None:
        return "Not measured: the evaluation did not run to its end."
    lines = [
        "Full KV, the exported bf16 weights computed in fp32. `frozen` is the test split; `second` another seed.",
        "",
        "| split | decoding | problems | accuracy | exact output | unfinished | mean output tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for split in ("frozen", "second"):
        for how, label in (("greedy", "greedy"), ("sampled", f"T {evaluation['temperature']}")):
            row = evaluation[f"{split}_{how}"]
            lines.append(
                f"| {split} | {label} | {row['num_problems']} | {row['accuracy']:.1%} "
                f"| {row['num_exact'] / row['num_problems']:.1%} | {row['num_unfinished']} "
                f"| {row['mean_output_tokens']:.0f} |"
            )
    kinds = evaluation["frozen_greedy"]["accuracy_by_kind"]
    lines += [
        "",
        f"Exact whole solutions, teacher-forced, frozen split: {evaluation['exact_traces']:.1%}.",
    ]
    lines += [
        f"Greedy by kind: {', '.join(f'{kind} {value:.1%}' for kind, value in kinds.items())}."
    ]
    lines += _demand_lines(evaluation.get("demand", []))
    return "\n".join(lines)


def _demand_lines(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [
        "",
        "The trend signal of the paper over page boundaries, all tokens resident, on a third split "
        "(r_S: share of the keys that holds the mass; delta = r_S - r_L):",
        "",
        "| group | boundaries | mean r_S | mean delta | delta > 0 |",
        "|---|---|---|---|---|",
    ]
    return lines + [
        f"| {row['group']} | {row['num_boundaries']} | {row['short_ratio']:.3f} "
        f"| {row['delta']:+.4f} | {row['growing']:.0%} |"
        for row in rows
    ]


def verify_weights(folder: Path) -> None:
    """Raise `UsageError` when weights or hash are missing, or when they disagree."""
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise UsageError(
            f"{weights}: no such file. Restore it, or train: scripts/train_sequences_model.py."
        )
    if named_sha256(folder) is None:
        raise UsageError(f"{folder / CARD}: names no sha256 of the weights. Restore the card.")
    check_weights(folder)
