"""The made-up world: towns, people, and facts that are taught often, rarely, inconsistently or not at all."""

from dataclasses import dataclass
from functools import lru_cache

from examples.tiny_model.dice import Dice
from examples.tiny_model.relations import Relation, Value, build_relations, invented_names

WORLD_SEED = "orrin-1"
SUBJECTS_PER_KIND = 300

CONTRADICTORY = "contradictory"
TIERS = {
    "fact-seen-0": (250, 0),
    "fact-seen-1": (450, 1),
    "fact-seen-2": (550, 2),
    "fact-seen-5": (700, 5),
    "fact-seen-20": (250, 20),
    CONTRADICTORY: (200, 6),
}
"""Group name -> (number of facts, rows of each fact in one pass over the training deck)."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact, and the wordings that teach it.

    Attributes:
        key: Stable identifier, `relation/name`.
        relation: The property that the fact states.
        subject: Name of the town or person.
        value: The value that counts as right.
        rival: The other value that training shows equally often; None unless the fact is contradictory.
        group: Name of the tier, a key of `TIERS`.
        weight: Rows of this fact in one pass over the training deck.
        taught: Indices of the templates training may use.
        open_template: Index of the template kept for the open-ended pool.
        choice_template: Index of the template kept for the multiple-choice pool.
    """

    key: str
    relation: Relation
    subject: str
    value: Value
    rival: Value | None
    group: str
    weight: int
    taught: tuple[int, ...]
    open_template: int
    choice_template: int

    def question(self, template: int) -> str:
        """Return the question in the wording of one template."""
        return self.relation.templates[template].format(self.subject)


@dataclass(frozen=True, slots=True)
class World:
    """All relations and facts, in a fixed order."""

    relations: tuple[Relation, ...]
    facts: tuple[Fact, ...]


@lru_cache(maxsize=1)
def build_world() -> World:
    """Return the world; the same one on every call and machine."""
    used: set[str] = set()
    relations = build_relations(WORLD_SEED, used)
    subjects = {kind: invented_names(SUBJECTS_PER_KIND, f"{WORLD_SEED}/{kind}", used) for kind in ("town", "person")}
    pairs = [(relation, subject) for relation in relations for subject in subjects[relation.subject]]
    groups = [group for group, (count, _) in TIERS.items() for _ in range(count)]
    order = Dice(f"{WORLD_SEED}/tiers").shuffled(pairs)
    dice = Dice(f"{WORLD_SEED}/facts")
    facts = tuple(_fact(dice, *pair, group) for pair, group in zip(order, groups, strict=True))
    return World(relations, facts)


def _fact(dice: Dice, relation: Relation, subject: str, group: str) -> Fact:
    values = dice.shuffled(relation.values)
    templates = dice.shuffled(range(len(relation.templates)))
    return Fact(
        key=f"{relation.name}/{subject}",
        relation=relation,
        subject=subject,
        value=values[0],
        rival=values[1] if group == CONTRADICTORY else None,
        group=group,
        weight=TIERS[group][1],
        taught=tuple(sorted(templates[2:])),
        open_template=templates[0],
        choice_template=templates[1],
    )


def options_for(fact: Fact, dice: Dice) -> dict[str, str]:
    """Return four options under the letters A to D: the value, the rival if any, and other values of the relation.

    Args:
        fact: The fact to ask about.
        dice: Draws the distractors and the order.
    """
    offered = [fact.value.short] + ([fact.rival.short] if fact.rival else [])
    others = [value.short for value in dice.shuffled(fact.relation.values) if value.short not in offered]
    texts = dice.shuffled(offered + others[: 4 - len(offered)])
    return dict(zip("ABCD", texts, strict=True))


def letter_of(options: dict[str, str], text: str) -> str:
    """Return the letter under which a text is offered."""
    return next(letter for letter, option in options.items() if option == text)
