"""Measure the model on its question pools and write `metrics.json`: `python -m examples.tiny_model.evaluate`."""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from examples.tiny_model.asking import LETTERS, greedy, letter_probabilities, load, sample
from examples.tiny_model.measures import auroc, is_right, normalise, share_accepted, string_entropy
from examples.tiny_model.questions import ChoiceQuestion, Question, choice_questions, open_questions
from examples.tiny_model.training_rows import with_options
from examples.tiny_model.world import build_world

HERE = Path(__file__).parent
SAMPLING = {"count": 10, "temperature": 0.7, "top_p": 0.9, "seed": 0}
ALLOWED_ERROR = 0.1

Metrics = dict[str, object]


def by_group(groups: Sequence[str], right: Sequence[bool]) -> dict[str, dict[str, float]]:
    """Return, by group in alphabetical order, the number of questions and the accuracy."""
    hits_by_group: dict[str, list[bool]] = defaultdict(list)
    for group, hit in zip(groups, right, strict=True):
        hits_by_group[group].append(hit)
    return {group: {"n": len(hits), "accuracy": _share(hits)} for group, hits in sorted(hits_by_group.items())}


def form_meanings() -> dict[str, str]:
    """Return, for every surface form in normalised writing, the short form: a perfect judge of equal meaning."""
    values = [value for relation in build_world().relations for value in relation.values]
    return {normalise(form): value.short for value in values for form in value.forms}


def open_metrics(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: Sequence[Question]) -> Metrics:
    """Return the greedy accuracy, and the AUROC of the samples' disagreement at finding the errors."""
    questions = [row["question"] for row in rows]
    answers = greedy(model, tokenizer, questions)
    right = [is_right(answer, row["references"]) for answer, row in zip(answers, rows, strict=True)]
    samples = sample(
        model,
        tokenizer,
        questions,
        count=int(SAMPLING["count"]),
        temperature=SAMPLING["temperature"],
        top_p=SAMPLING["top_p"],
        seed=int(SAMPLING["seed"]),
    )
    exact = [string_entropy(texts) for texts in samples]
    normalised = [string_entropy([normalise(text) for text in texts]) for texts in samples]
    meanings = form_meanings()
    merged = [string_entropy([meanings.get(normalise(text), normalise(text)) for text in texts]) for texts in samples]
    return {
        "n": len(rows),
        "accuracy": _share(right),
        "sampling": SAMPLING,
        "auroc_exact_string_entropy": round(auroc(exact, right), 4),
        "auroc_normalised_string_entropy": round(auroc(normalised, right), 4),
        "auroc_merged_form_entropy": round(auroc(merged, right), 4),
        "share_accepted_at_error_0.1": round(share_accepted(exact, right, ALLOWED_ERROR), 4),
        "groups": by_group([row["group"] for row in rows], right),
    }


def choice_metrics(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: Sequence[ChoiceQuestion]
) -> Metrics:
    """Return the accuracy of the most probable letter, and the AUROC of the entropy over the letters."""
    prompts = [with_options(row["question"], row["options"]) for row in rows]
    probabilities = letter_probabilities(model, tokenizer, prompts)
    picks = [LETTERS[index] for index in probabilities.argmax(dim=-1).tolist()]
    right = [pick == row["references"][0] for pick, row in zip(picks, rows, strict=True)]
    entropy = torch.special.entr(probabilities).sum(dim=-1).tolist()
    return {
        "n": len(rows),
        "accuracy": _share(right),
        "auroc_letter_entropy": round(auroc(entropy, right), 4),
        "share_accepted_at_error_0.1": round(share_accepted(entropy, right, ALLOWED_ERROR), 4),
        "groups": by_group([row["group"] for row in rows], right),
    }


def _share(right: Sequence[bool]) -> float:
    return round(sum(right) / len(right), 4)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_model.evaluate", description=__doc__)
    parser.add_argument("--model", type=Path, default=HERE / "orrin-1.5m", help="model folder")
    parser.add_argument("--out", type=Path, default=HERE / "metrics.json", help="file for the numbers")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    world = build_world()
    model, tokenizer = load(options.model)
    metrics: Metrics = {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "open": open_metrics(model, tokenizer, open_questions(world)),
        "choice": choice_metrics(model, tokenizer, choice_questions(world)),
    }
    text = json.dumps(metrics, indent=2) + "\n"
    options.out.write_text(text, encoding="utf-8", newline="\n")
    print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
