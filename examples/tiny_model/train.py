"""Train the model from scratch: `python -m examples.tiny_model.train --out FOLDER`.

One thread, a fixed seed and a fixed number of steps. The same machine and library versions give the same weights;
bit equality across machines is not promised, because floating-point sums are ordered differently.
"""

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from examples.tiny_model.batches import Batch, make_batches
from examples.tiny_model.recipe import Recipe
from examples.tiny_model.tokenizer import build_tokenizer
from examples.tiny_model.training_rows import RowStream
from examples.tiny_model.world import build_world

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class StepReport:
    """One line of the training log.

    Attributes:
        step: Steps done.
        rate: Learning rate of the step.
        open_loss: Mean cross-entropy per answer token of the open-ended rows, in nats.
        choice_loss: The same for the multiple-choice rows.
        seconds: Wall time since the start.
        tokens: Tokens shown so far, padding included.
    """

    step: int
    rate: float
    open_loss: float
    choice_loss: float
    seconds: float
    tokens: int


def build_model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> LlamaForCausalLM:
    """Return an untrained model."""
    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=160,
        intermediate_size=448,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=recipe.spread,
    )
    return LlamaForCausalLM(config)


def answer_losses(model: LlamaForCausalLM, batches: list[Batch]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean cross-entropy per answer token of the open-ended rows and of the multiple-choice rows.

    The output head is applied to the answer positions alone. 32-bit floats: on CPUs without matrix units bfloat16 is
    slower, and results would depend on the kind of CPU even more.
    """
    losses = []
    for batch in batches:
        hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
        losses.append(cross_entropy(model.lm_head(hidden[batch.scored]), batch.targets, reduction="none"))
    flat, choice = torch.cat(losses), torch.cat([batch.choice for batch in batches])
    return flat[~choice].mean(), flat[choice].mean()


def training_steps(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, stream: RowStream, recipe: Recipe
) -> Iterator[StepReport]:
    """Train the model in place, yielding a report after every step."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": recipe.decay},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98), foreach=True)
    model.train()
    start, tokens = time.monotonic(), 0
    for step in range(recipe.steps):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate_at(step)
        mix = recipe.mix_at(step)
        rows = stream.open_rows(mix) + stream.choice_rows(mix)
        batches = make_batches(tokenizer, rows, parts=4)
        open_loss, choice_loss = answer_losses(model, batches)
        (open_loss + choice_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        tokens += sum(batch.ids.numel() for batch in batches)
        seconds = time.monotonic() - start
        yield StepReport(step + 1, recipe.rate_at(step), open_loss.item(), choice_loss.item(), seconds, tokens)


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the model folder in half precision, as any Llama folder is written."""
    model.eval().half()
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, max_new_tokens=16
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # transformers 5 writes the name of its internal class; this one is known to version 4 as well.
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (folder / "model.safetensors").chmod(0o644)


def train(folder: Path, log: Path, recipe: Recipe, every: int = 50) -> None:
    """Train a model and write its folder and its log.

    Args:
        folder: Folder to write the model to.
        log: CSV file for the training log.
        recipe: The settings that decide the weights.
        every: Steps between two lines of the log; losses are means over these steps.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    world = build_world()
    tokenizer = build_tokenizer(world)
    model = build_model(tokenizer, recipe)
    stream = RowStream(world, f"train/{recipe.seed}")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", newline="", encoding="utf-8") as file, _progress() as progress:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", "learning_rate", "open_loss", "choice_loss", "seconds", "tokens"])
        task = progress.add_task("training", total=recipe.steps)
        recent: list[StepReport] = []
        for report in training_steps(model, tokenizer, stream, recipe):
            recent.append(report)
            progress.update(task, completed=report.step)
            if report.step % every == 0 or report.step == recipe.steps:
                row = _log_row(recent)
                writer.writerow(row)
                file.flush()
                left = report.seconds / report.step * (recipe.steps - report.step)
                progress.console.print(f"step {row[0]}: open {row[2]}, choice {row[3]}, about {left:.0f} s left")
                recent.clear()
    save_model(model, tokenizer, folder)


def _log_row(recent: list[StepReport]) -> list[str]:
    last, count = recent[-1], len(recent)
    open_loss = sum(report.open_loss for report in recent) / count
    choice_loss = sum(report.choice_loss for report in recent) / count
    return [
        str(last.step),
        f"{last.rate:.6f}",
        f"{open_loss:.4f}",
        f"{choice_loss:.4f}",
        f"{last.seconds:.1f}",
        str(last.tokens),
    ]


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_model.train", description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "orrin-1.5m", help="folder for the model")
    parser.add_argument("--log", type=Path, default=HERE / "training_log.csv", help="CSV file for the training log")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="optimiser steps")
    parser.add_argument("--seed", type=int, default=Recipe().seed, help="seed of the weights and of the row stream")
    parser.add_argument("--force", action="store_true", help="overwrite what is there")
    options = parser.parse_args(arguments)
    present = [str(path) for path in (options.out, options.log) if path.exists()]
    if present and not options.force:
        print(f"{' and '.join(present)} already there. Add --force to overwrite.", file=sys.stderr)
        return 2
    train(options.out, options.log, Recipe(steps=options.steps, seed=options.seed))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
