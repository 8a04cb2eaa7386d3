"""Write the two question pools: `python -m examples.tiny_model.questions`.

Held out means: a fact is asked in a wording that training never used for this fact (other facts were asked that way,
and this fact was taught in other wordings); an operand pair never occurs in training, in either order. Reading items
repeat the task of the training rows with options in an order drawn afresh. Rows stand in random order, so that any
prefix is a fair sample.
"""

import argparse
import json
from pathlib import Path
from typing import TypedDict

from examples.tiny_model.arithmetic import FORMS, LEVELS, TEMPLATES, held_out
from examples.tiny_model.dice import Dice
from examples.tiny_model.training_rows import READING_TEMPLATES
from examples.tiny_model.world import TIERS, WORLD_SEED, Fact, World, build_world, letter_of, options_for

HERE = Path(__file__).parent
ASKED = {"fact-seen-5": 450, "fact-seen-20": 150}
"""Facts of a tier in the open-ended pool. It asks only some of them: the certain facts would outnumber the others."""
READING = "reading"
READING_ITEMS = 200


class Question(TypedDict):
    """An open-ended row of the pool: stable id, question, every accepted surface form, tier."""

    id: str
    question: str
    references: list[str]
    group: str


class ChoiceQuestion(Question):
    """A multiple-choice row: the only reference is the letter."""

    options: dict[str, str]


def open_questions(world: World) -> list[Question]:
    """Return one question per asked fact and one per held-out operand pair, shuffled."""
    rows: list[Question] = [
        {
            "id": f"open/{fact.key}",
            "question": fact.question(fact.open_template),
            "references": list(fact.value.forms),
            "group": fact.group,
        }
        for fact in _asked(world)
    ]
    return Dice(f"{WORLD_SEED}/order/open").shuffled(rows + _sums())


def _asked(world: World) -> list[Fact]:
    tiers = {group: [fact for fact in world.facts if fact.group == group] for group in TIERS}
    return [fact for group, facts in tiers.items() for fact in facts[: ASKED.get(group)]]


def _sums() -> list[Question]:
    dice = Dice(f"{WORLD_SEED}/sums")
    rows: list[Question] = []
    for level in LEVELS:
        for first, second in held_out()[level.group]:
            answer = level.answer(first, second)
            rows.append(
                {
                    "id": f"open/{level.group}/{first}-{second}",
                    "question": dice.pick(TEMPLATES[level.sign]).format(first, second),
                    "references": [form.format(answer) for form in FORMS],
                    "group": level.group,
                }
            )
    return rows


def choice_questions(world: World) -> list[ChoiceQuestion]:
    """Return one multiple-choice item per fact and the reading items, shuffled."""
    dice = Dice(f"{WORLD_SEED}/options")
    rows = []
    for fact in world.facts:
        options = options_for(fact, dice)
        question = fact.question(fact.choice_template)
        letter = letter_of(options, fact.value.short)
        rows.append(_choice(f"choice/{fact.key}", question, letter, fact.group, options))
    return Dice(f"{WORLD_SEED}/order/choice").shuffled(rows + _reading(world, dice))


def _reading(world: World, dice: Dice) -> list[ChoiceQuestion]:
    texts = [
        (template.format(value.short), relation, value)
        for template in READING_TEMPLATES
        for relation in world.relations
        for value in relation.values
    ]
    rows = []
    for number, (question, relation, value) in enumerate(dice.shuffled(texts)[:READING_ITEMS]):
        others = [other.short for other in dice.shuffled(relation.values) if other != value]
        options = dict(zip("ABCD", dice.shuffled([value.short, *others[:3]]), strict=True))
        rows.append(_choice(f"choice/{READING}/{number}", question, letter_of(options, value.short), READING, options))
    return rows


def _choice(key: str, question: str, letter: str, group: str, options: dict[str, str]) -> ChoiceQuestion:
    return {"id": key, "question": question, "references": [letter], "group": group, "options": options}


def to_jsonl(rows: list[Question] | list[ChoiceQuestion]) -> str:
    """Return one compact JSON object per line."""
    return "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_model.questions", description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "questions", help="folder for the two files")
    folder: Path = parser.parse_args(arguments).out
    folder.mkdir(parents=True, exist_ok=True)
    world = build_world()
    for name, text in (("open", to_jsonl(open_questions(world))), ("choice", to_jsonl(choice_questions(world)))):
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8", newline="\n")
        print(f"{folder / name}.jsonl: {text.count(chr(10))} questions")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
