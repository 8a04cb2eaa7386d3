"""The trained model that ships with the examples: format, chat template, measured numbers."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the tiny model needs the `local` extra")
pytest.importorskip("transformers", reason="the tiny model needs the `local` extra")
pytest.importorskip("scipy", reason="the measures need the `calibrate` extra")

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from examples.tiny_model import train
from examples.tiny_model.asking import LETTERS, greedy, letter_probabilities, load
from examples.tiny_model.measures import auroc, is_right, share_accepted, string_entropy
from examples.tiny_model.questions import choice_questions, open_questions
from examples.tiny_model.training_rows import with_options
from examples.tiny_model.world import TIERS, build_world

HERE = Path(train.__file__).parent
FOLDER = HERE / "orrin-1.5m"
METRICS: dict[str, Any] = json.loads((HERE / "metrics.json").read_text(encoding="utf-8"))
Loaded = tuple[LlamaForCausalLM, PreTrainedTokenizerFast]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(FOLDER)


def test_the_folder_is_small_and_holds_no_pickle() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors",
    }
    assert (FOLDER / "model.safetensors").stat().st_size <= 4_000_000


def test_parameters_and_special_tokens(loaded: Loaded) -> None:
    model, tokenizer = loaded
    count = sum(weight.numel() for weight in model.parameters())
    assert 1_300_000 <= count <= 1_700_000
    assert count == METRICS["parameters"]
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == tokenizer.encode("<|end|>")[0]
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id


def test_letters_and_values_are_single_tokens(loaded: Loaded) -> None:
    _, tokenizer = loaded
    words = [value.short for relation in build_world().relations for value in relation.values]
    for text in [*LETTERS, *words]:
        assert len(tokenizer.encode(text)) == 1
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_chat_template_renders_every_role(loaded: Loaded) -> None:
    _, tokenizer = loaded
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4"},
    ]
    text = tokenizer.apply_chat_template(
        messages, tools=[{"type": "function", "function": {"name": "f"}}], tokenize=False, add_generation_prompt=True
    )
    assert text.startswith(
        '<|tools|>[{"type": "function", "function": {"name": "f"}}]<|end|><|system|>Be brief.<|end|>'
    )
    assert text.endswith("<|end|><|tool|>4<|end|><|assistant|>")
    assert "<|user|>Hi<|end|><|assistant|>[" in text


def test_the_chat_template_refuses_an_unknown_role(loaded: Loaded) -> None:
    _, tokenizer = loaded
    with pytest.raises(Exception, match="unknown role: robot"):
        tokenizer.apply_chat_template([{"role": "robot", "content": "x"}], tokenize=False)


def test_measured_numbers_are_in_the_required_ranges() -> None:
    questions, choice = METRICS["open"], METRICS["choice"]
    assert 0.60 <= questions["accuracy"] <= 0.80
    assert questions["auroc_exact_string_entropy"] >= 0.80
    assert 0.60 <= choice["accuracy"] <= 0.90
    assert choice["auroc_letter_entropy"] >= 0.70


def test_the_card_states_the_measured_numbers() -> None:
    card = (HERE / "MODEL_CARD.md").read_text(encoding="utf-8")
    questions, choice = METRICS["open"], METRICS["choice"]
    lines = {line.split("|")[1].strip(): line for line in card.splitlines() if line.startswith("|")}
    for part in (questions, choice):
        for group, numbers in part["groups"].items():
            assert f"| {numbers['n']} | {numbers['accuracy']:.3f} |" in lines[group]
        assert f"**{part['n']}** | **{part['accuracy']:.3f}**" in lines["**all**"]
    for number in (questions["auroc_exact_string_entropy"], choice["auroc_letter_entropy"]):
        assert f"| {number:.3f} |" in card


def test_accuracy_grows_with_how_often_a_fact_was_seen() -> None:
    groups = METRICS["open"]["groups"]
    ladder = [groups[f"fact-seen-{times}"]["accuracy"] for times in (0, 1, 2, 5, 20)]
    assert ladder == sorted(ladder)
    assert ladder[0] < 0.15
    assert ladder[-1] > 0.9
    assert any(0.2 < accuracy < 0.9 for accuracy in ladder)
    assert set(TIERS) <= set(groups)


def test_greedy_answers_to_a_slice_of_the_pool(loaded: Loaded) -> None:
    """150 questions: four standard errors of the accuracy on the pool are 0.15."""
    rows = open_questions(build_world())[:150]
    answers = greedy(*loaded, [row["question"] for row in rows])
    hits = [is_right(answer, row["references"]) for answer, row in zip(answers, rows, strict=True)]
    assert abs(sum(hits) / 150 - METRICS["open"]["accuracy"]) < 0.15


def test_letters_of_a_slice_of_the_pool(loaded: Loaded) -> None:
    """150 questions: four standard errors of the accuracy on the pool are 0.15."""
    rows = choice_questions(build_world())[:150]
    probabilities = letter_probabilities(*loaded, [with_options(row["question"], row["options"]) for row in rows])
    picks = [LETTERS[index] for index in probabilities.argmax(dim=-1).tolist()]
    hits = [pick == row["references"][0] for pick, row in zip(picks, rows, strict=True)]
    assert abs(sum(hits) / 150 - METRICS["choice"]["accuracy"]) < 0.15


def test_training_refuses_to_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.csv"
    log.write_text("kept", encoding="utf-8")
    assert train.main(["--out", str(tmp_path / "model"), "--log", str(log), "--steps", "1"]) == 2
    assert log.read_text(encoding="utf-8") == "kept"
    assert "--force" in capsys.readouterr().err


def test_auroc_by_hand() -> None:
    # Wrong: 3 and 1. Right: 2 and 1. Of the four pairs, wrong is higher in (3, 2) and (3, 1), ties in (1, 1).
    assert auroc([3.0, 1.0, 2.0, 1.0], [False, False, True, True]) == pytest.approx(2.5 / 4)
    with pytest.raises(ValueError, match="got 2 right and 0 wrong"):
        auroc([1.0, 2.0], [True, True])


def test_string_entropy_by_hand() -> None:
    assert string_entropy(["a"] * 10) == 0.0
    assert string_entropy(["a", "b"]) == pytest.approx(0.6931472)


def test_share_accepted_by_hand() -> None:
    # At threshold 2, one of four accepted answers is wrong; at 1, none of two.
    uncertainty, right = [1.0, 1.0, 2.0, 2.0, 3.0], [True, True, True, False, False]
    assert share_accepted(uncertainty, right, 0.25) == pytest.approx(0.8)
    assert share_accepted(uncertainty, right, 0.1) == pytest.approx(0.4)
    assert share_accepted([1.0], [False], 0.1) == 0.0


def test_is_right_ignores_case_and_punctuation() -> None:
    assert is_right("= 12", ["12"])
    assert is_right("Grey  Salt.", ["grey salt"])
    assert not is_right("salt water", ["salt"])
