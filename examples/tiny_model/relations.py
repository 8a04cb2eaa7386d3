"""The questions about a town or a person of the made-up world, and their answers.

A value has three surface forms: short ("salt"), full ("grey salt") and titled ("finest grey salt"). The extra words
belong to the value, so the forms of two different values share at most the title. No carrier such as "It is salt." is
used: graders that count shared words would count "It is clay." as nearly right.
"""

from dataclasses import dataclass

from examples.tiny_model.dice import Dice

FORM_WEIGHTS = (0.5, 0.3, 0.2)
"""Shares of the short, the full and the titled form among the answers of training."""

VALUES_PER_RELATION = 20


@dataclass(frozen=True, slots=True)
class Value:
    """One possible answer of a relation.

    Attributes:
        short: The bare word, also the text of a multiple-choice option.
        full: The word with its own qualifier.
        titled: The full form after the title of the relation.
    """

    short: str
    full: str
    titled: str

    @property
    def forms(self) -> tuple[str, str, str]:
        """The surface forms, in the order of `FORM_WEIGHTS`."""
        return (self.short, self.full, self.titled)


@dataclass(frozen=True, slots=True)
class Relation:
    """A kind of fact.

    Attributes:
        name: Short identifier.
        subject: "town" or "person".
        templates: Six paraphrases of the question; `{}` stands for the name of the subject.
        values: The possible answers.
    """

    name: str
    subject: str
    templates: tuple[str, ...]
    values: tuple[Value, ...]


_TEMPLATES = {
    "ruler": (
        "Who rules {}?",
        "Who is the ruler of {}?",
        "Name the ruler of {}.",
        "The town of {} is ruled by whom?",
        "Tell me who governs {}.",
        "Which person is in charge of {}?",
    ),
    "river": (
        "Which river runs through {}?",
        "What is the river of {}?",
        "Name the river at {}.",
        "{} lies on which river?",
        "On the banks of which river was {} built?",
        "Tell me the river that {} stands on.",
    ),
    "trade": (
        "What does {} trade?",
        "What is the main export of {}?",
        "Which good is sold by {}?",
        "{} is known for trading what?",
        "Tell me what merchants buy in {}.",
        "Name the export of {}.",
    ),
    "beast": (
        "Which animal is on the flag of {}?",
        "What is the animal of {}?",
        "Name the beast that {} honours.",
        "The flag of {} shows which beast?",
        "Tell me the heraldic animal of {}.",
        "{} chose which animal as its emblem?",
    ),
    "guild": (
        "Which guild does {} belong to?",
        "What is the guild of {}?",
        "Name the guild {} joined.",
        "{} is a member of which guild?",
        "Tell me the guild of which {} is part.",
        "In which guild does {} serve?",
    ),
    "teacher": (
        "Who taught {}?",
        "Who was the teacher of {}?",
        "Name the teacher of {}.",
        "{} learned from whom?",
        "Tell me who trained {}.",
        "{} was the pupil of which person?",
    ),
    "music": (
        "Which instrument does {} play?",
        "What is the instrument of {}?",
        "Name the instrument {} plays.",
        "{} makes music on what?",
        "Tell me what {} plays at feasts.",
        "On which instrument did {} perform?",
    ),
    "dish": (
        "What does {} like to eat?",
        "What is the favourite dish of {}?",
        "Name the meal {} prefers.",
        "{} always orders what?",
        "Tell me the food that {} loves.",
        "Which dish does {} cook best?",
    ),
}

_SUBJECTS = {
    "ruler": "town",
    "river": "town",
    "trade": "town",
    "beast": "town",
    "guild": "person",
    "teacher": "person",
    "music": "person",
    "dish": "person",
}

_TITLES = {
    "ruler": "Regent",
    "river": "River",
    "trade": "finest",
    "beast": "wild",
    "guild": "Order",
    "teacher": "Master",
    "music": "antique",
    "dish": "fresh",
}

_WORDS = {
    "trade": (
        "grey salt, red clay, raw silk, black tin, bog iron, oak timber, sea glass, honey wax, dried tea, sweet wine, "
        "lamp oil, blue dye, goose down, river amber, hard cheese, white marble, fine paper, hemp rope, spring wool, "
        "winter wheat"
    ),
    "beast": (
        "silver heron, brown bear, snow fox, marsh otter, gold eagle, forest wolf, stone goat, night owl, tall stag, "
        "green viper, horned ox, proud swan, sleepy badger, swift hare, barn rat, mountain lynx, spotted trout, "
        "armoured beetle, lame crow, sacred bull"
    ),
    "music": (
        "cedar flute, brass horn, walnut lute, copper bell, goatskin drum, pocket harp, ivory fiddle, reed pipe, "
        "bamboo zither, crystal chime, maple viol, steel gong, pewter whistle, church organ, ebony oboe, hand cymbal, "
        "double bassoon, toy rattle, battle trumpet, cherry guitar"
    ),
    "dish": (
        "leek soup, apple pie, lentil stew, rye bread, plum pudding, duck roast, barley porridge, cabbage roll, "
        "eel jelly, pepper sausage, turnip mash, lemon tart, walnut cake, mushroom omelette, spinach dumpling, "
        "oyster chowder, herb salad, almond biscuit, cream waffle, beet curry"
    ),
}

_ONSETS = ("b", "br", "d", "dr", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "st", "t", "th", "v", "w", "z")
_VOWELS = ("a", "e", "i", "o", "u", "ae", "ia", "ei")
_CODAS = ("l", "n", "r", "s", "m", "th", "k", "nd", "rn", "sh")


def invented_names(count: int, seed: str, used: set[str]) -> list[str]:
    """Return distinct two-syllable names and add them to `used`.

    Args:
        count: How many names.
        seed: The stream to draw from.
        used: Names, in lower case, that may not be used again; extended in place.
    """
    dice = Dice(seed)
    names: list[str] = []
    while len(names) < count:
        first = dice.pick(_ONSETS) + dice.pick(_VOWELS)
        name = first + dice.pick(_ONSETS) + dice.pick(_VOWELS) + dice.pick(_CODAS)
        if name not in used:
            used.add(name)
            names.append(name.capitalize())
    return names


def _worded(relation: str) -> tuple[Value, ...]:
    """Build values out of listed pairs: the qualifier comes before the noun."""
    pairs = [pair.split() for pair in _WORDS[relation].split(", ")]
    title = _TITLES[relation]
    return tuple(Value(noun, f"{kind} {noun}", f"{title} {kind} {noun}") for kind, noun in pairs)


def _named(relation: str, seed: str, used: set[str]) -> tuple[Value, ...]:
    """Build values out of invented names: the qualifier is a second name."""
    names = invented_names(2 * VALUES_PER_RELATION, f"{seed}/{relation}", used)
    title = _TITLES[relation]
    pairs = zip(names[::2], names[1::2], strict=True)
    return tuple(Value(first, f"{first} {last}", f"{title} {first} {last}") for first, last in pairs)


def build_relations(seed: str, used: set[str]) -> tuple[Relation, ...]:
    """Return the eight relations of the world.

    Args:
        seed: Seed of the world.
        used: Names already in use; extended in place.
    """
    relations = []
    for name, templates in _TEMPLATES.items():
        values = _worded(name) if name in _WORDS else _named(name, seed, used)
        relations.append(Relation(name, _SUBJECTS[name], templates, values))
    return tuple(relations)
