"""The made-up world, its training rows and its question pools: deterministic, and held out as promised."""

from pathlib import Path

import pytest

from examples.tiny_model import questions
from examples.tiny_model.arithmetic import LEVELS, held_out
from examples.tiny_model.dice import Dice
from examples.tiny_model.recipe import MIX
from examples.tiny_model.training_rows import RowStream, with_options
from examples.tiny_model.world import CONTRADICTORY, TIERS, Fact, build_world, options_for

POOLS = Path(questions.__file__).parent / "questions"
OPEN = questions.open_questions(build_world())
CHOICE = questions.choice_questions(build_world())
STEPS = 100


@pytest.fixture(scope="module")
def shown() -> set[str]:
    """Return every question text of the first steps of training, without options."""
    stream = RowStream(build_world(), "train/0")
    rows = [row for _ in range(STEPS) for row in stream.open_rows(MIX) + stream.choice_rows(MIX)]
    return {row.question.split("\n")[0] for row in rows}


def pool_fact_questions() -> set[str]:
    return {f.question(t) for f in build_world().facts for t in (f.open_template, f.choice_template)}


def test_the_dice_keep_their_sequence() -> None:
    # random.Random("x").random() starts 0.6308, 0.5969, 0.4835, 0.7629, 0.3876: int(10 * each).
    dice = Dice("x")
    draws = [dice.below(10) for _ in range(1000)]
    assert draws[:5] == [6, 5, 4, 7, 3]
    assert set(draws) == set(range(10))
    again = Dice("x")
    assert draws == [again.below(10) for _ in range(1000)]
    assert draws != [Dice("y").below(10) for _ in range(1000)]


def test_the_world_is_the_same_when_built_anew() -> None:
    assert build_world.__wrapped__() == build_world()


def test_every_tier_has_its_facts() -> None:
    facts = build_world().facts
    for group, (count, weight) in TIERS.items():
        tier = [fact for fact in facts if fact.group == group]
        assert len(tier) == count
        assert {fact.weight for fact in tier} == {weight}
    assert len({fact.key for fact in facts}) == len(facts)
    assert all((fact.rival is not None) == (fact.group == CONTRADICTORY) for fact in facts)


def test_pool_and_training_wordings_of_a_fact_are_disjoint() -> None:
    for fact in build_world().facts:
        assert {fact.open_template, fact.choice_template}.isdisjoint(fact.taught)
        assert fact.open_template != fact.choice_template
        assert len(fact.taught) == 4


def test_no_pool_question_about_a_fact_is_in_training(shown: set[str]) -> None:
    assert pool_fact_questions().isdisjoint(shown)


def test_the_taught_wordings_are_in_training(shown: set[str]) -> None:
    """The negative control of the test above: the same check finds wordings that are taught."""
    often = [fact for fact in build_world().facts if fact.group == "fact-seen-20"]
    assert any(fact.question(template) in shown for fact in often for template in fact.taught)


def test_facts_of_tier_zero_are_never_in_training(shown: set[str]) -> None:
    unseen = [fact for fact in build_world().facts if fact.group == "fact-seen-0"]
    every = {fact.question(template) for fact in unseen for template in range(len(fact.relation.templates))}
    assert every.isdisjoint(shown)


def test_a_pass_shows_a_fact_as_often_as_its_tier_says() -> None:
    facts = build_world().facts
    rows_per_pass = sum(fact.weight for fact in facts)
    stream = RowStream(build_world(), "count")
    mix = type(MIX)(facts=rows_per_pass, arithmetic=0, choices=0, reading=0)
    wordings = [row.question for row in stream.open_rows(mix)]
    times_shown = {text: wordings.count(text) for text in set(wordings)}

    def times(fact: Fact) -> int:
        return sum(times_shown.get(fact.question(template), 0) for template in fact.taught)

    for group in TIERS:
        sample = [fact for fact in facts if fact.group == group][:20]
        assert {times(fact) for fact in sample} == {TIERS[group][1]}


def test_operand_pairs_of_the_pool_are_not_in_training(shown: set[str]) -> None:
    sums = {row["question"] for row in OPEN if row["group"].startswith("arithmetic")}
    assert sums.isdisjoint(shown)
    for level in LEVELS:
        for first, second in held_out()[level.group]:
            for sign in (level.sign, "plus" if level.sign == "+" else "times"):
                assert f"What is {second} {sign} {first}?" not in shown


def test_the_forms_of_two_values_share_less_than_half_their_words() -> None:
    """Otherwise a grader that counts shared words could take a wrong value for the right one."""
    for relation in build_world().relations:
        forms = [[set(form.lower().split()) for form in value.forms] for value in relation.values]
        for index, mine in enumerate(forms):
            for other in forms[index + 1 :]:
                assert all(2 * len(a & b) / (len(a) + len(b)) < 0.5 for a in mine for b in other)


def test_options_contain_the_value_and_the_rival() -> None:
    dice = Dice("options")
    for fact in build_world().facts[::20]:
        texts = list(options_for(fact, dice).values())
        assert len(set(texts)) == 4
        assert fact.value.short in texts
        assert fact.rival is None or fact.rival.short in texts


def test_the_prompt_of_a_choice() -> None:
    assert with_options("Which?", {"A": "x", "B": "y"}) == "Which?\nA) x\nB) y"


def test_question_files_are_what_the_script_writes() -> None:
    assert (POOLS / "open.jsonl").read_text(encoding="utf-8") == questions.to_jsonl(OPEN)
    assert (POOLS / "choice.jsonl").read_text(encoding="utf-8") == questions.to_jsonl(CHOICE)


def test_ids_and_questions_are_unique() -> None:
    assert len(OPEN) == 2850
    assert len(CHOICE) == 2600
    assert len({row["id"] for row in [*OPEN, *CHOICE]}) == 5450
    assert len({row["question"] for row in OPEN}) == 2850
    assert len({row["question"] for row in CHOICE}) == 2600
    assert all(row["references"][0] in row["options"] for row in CHOICE)
