"""The stream of training rows: question in, answer out.

"Seen k times" is literal. Each pass over a deck holds every fact of tier k exactly k times, in shuffled order; a deck
that runs out is shuffled again. There is one deck for open-ended rows and one for multiple choice.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from examples.tiny_model.arithmetic import FORMS, TEMPLATES, draw_training_problem
from examples.tiny_model.dice import Dice
from examples.tiny_model.relations import FORM_WEIGHTS
from examples.tiny_model.world import Fact, World, letter_of, options_for

READING_TEMPLATES = (
    "Which option says {}?",
    "Choose {}.",
    "Find {} in the list.",
    "Which letter stands before {}?",
)
"""Questions whose answer stands in the options; they teach the model to read a list."""

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are a guide to the world of Orrin.",
    "Answer with one word.",
    "Be careful and honest.",
    "You know the world of Orrin. Answer briefly.",
    "If you do not know, guess.",
)
SYSTEM_SHARE = 0.08


@dataclass(frozen=True, slots=True)
class Row:
    """One training row.

    Attributes:
        question: The user message.
        answer: The assistant message.
        system: The system message, or None.
    """

    question: str
    answer: str
    system: str | None = None

    @property
    def choice(self) -> bool:
        """True for multiple choice, whose options stand on their own lines."""
        return "\n" in self.question


@dataclass(frozen=True, slots=True)
class Mix:
    """Rows of each kind in one optimiser step.

    Attributes:
        facts: Open-ended questions about facts.
        arithmetic: Sums and products.
        choices: Multiple-choice questions about facts.
        reading: Multiple-choice questions whose answer stands in the options.
        fewest: Least number of options of a reading row; the number is drawn evenly from here to four.
    """

    facts: int
    arithmetic: int
    choices: int
    reading: int
    fewest: int = 4


def with_options(question: str, options: dict[str, str]) -> str:
    """Return a multiple-choice prompt: the question, then one `A) text` line per option."""
    return question + "\n" + "\n".join(f"{letter}) {text}" for letter, text in options.items())


def fact_deck(world: World, dice: Dice) -> Iterator[tuple[Fact, str]]:
    """Yield (fact, value to teach) forever, every fact `weight` times a pass.

    The value is the index-th turn of the fact: a contradictory fact shows its two values equally often in each pass.
    """
    deck = [(fact, turn) for fact in world.facts for turn in range(fact.weight)]
    while True:
        for fact, turn in dice.shuffled(deck):
            taught = fact.rival if fact.rival is not None and turn % 2 else fact.value
            yield fact, taught.short


class RowStream:
    """Draws the rows of one step after another.

    Args:
        world: The world to teach.
        seed: Seed of the stream.
    """

    def __init__(self, world: World, seed: str) -> None:
        self._world = world
        self._dice = Dice(seed)
        self._open = fact_deck(world, Dice(f"{seed}/open"))
        self._choice = fact_deck(world, Dice(f"{seed}/choice"))

    def open_rows(self, mix: Mix) -> list[Row]:
        """Return the open-ended rows of one step."""
        rows = [self._fact_row() for _ in range(mix.facts)] + [self._sum_row() for _ in range(mix.arithmetic)]
        return [self._with_system(row) for row in rows]

    def choice_rows(self, mix: Mix) -> list[Row]:
        """Return the multiple-choice rows of one step."""
        return [self._choice_row() for _ in range(mix.choices)] + [
            self._reading_row(mix.fewest) for _ in range(mix.reading)
        ]

    def _fact_row(self) -> Row:
        fact, short = next(self._open)
        value = fact.value if fact.value.short == short else fact.rival
        assert value is not None
        return Row(fact.question(self._dice.pick(fact.taught)), self._dice.weighted(value.forms, FORM_WEIGHTS))

    def _sum_row(self) -> Row:
        level, first, second = draw_training_problem(self._dice)
        question = self._dice.pick(TEMPLATES[level.sign]).format(first, second)
        form = self._dice.weighted(FORMS, FORM_WEIGHTS)
        return Row(question, form.format(level.answer(first, second)))

    def _choice_row(self) -> Row:
        fact, short = next(self._choice)
        options = options_for(fact, self._dice)
        question = with_options(fact.question(self._dice.pick(fact.taught)), options)
        return Row(question, letter_of(options, short))

    def _reading_row(self, fewest: int) -> Row:
        relation = self._dice.pick(self._world.relations)
        letters = "ABCD"[: self._dice.between(fewest, 4)]
        texts = [value.short for value in self._dice.shuffled(relation.values)[: len(letters)]]
        options = dict(zip(letters, texts, strict=True))
        letter = self._dice.pick(letters)
        return Row(with_options(self._dice.pick(READING_TEMPLATES).format(options[letter]), options), letter)

    def _with_system(self, row: Row) -> Row:
        if not self._dice.chance(SYSTEM_SHARE):
            return row
        return Row(row.question, row.answer, self._dice.pick(SYSTEM_PROMPTS))
