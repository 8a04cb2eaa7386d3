"""Judges that read meaning: entailment (NLI) and sentence embeddings, with plain transformers.

One model in memory serves all judges of that model and revision. See ``docs/judges-models.md``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError
from guardrail.judges import EntailmentScores, Item, JudgeSpec
from guardrail.judges.text import guards_hold

from ._local.encoders import Encoder, Precision, load_encoder, with_question
from ._local.loading import Tensor, torch

__all__ = [
    "Embedding",
    "EmbeddingJudge",
    "EmbeddingSimilarity",
    "Nli",
    "NliEntailment",
    "NliJudge",
    "NliSimilarity",
    "entails",
    "label_order",
    "load_embedding",
    "load_nli",
    "pool",
    "scores",
]

VERSION = 2
"""Of all judges here. 2: a pair is unmeasured where words that the model does not know hide how its texts differ."""

# There is no judge that merges on entailment in one direction, on the mere absence of contradiction, or without the
# question. "In Paris" follows from "in Paris, under Henri IV" but not the other way round; "he died in May" and "he was
# a painter" do not contradict each other; "1945" means nothing without what was asked. Peers ship all three under the
# name of semantic entropy, which makes different scores look like one.


@dataclass(frozen=True, kw_only=True)
class _Local:
    """A judge around a local model.

    Attributes:
        model: Folder, hub id or name of a packaged model, as it is to be stored: on another machine the same string has
            to lead to the same files.
        revision: Hub branch, tag or commit; "sha256:..." for a folder, which then must have exactly these files. Once
            loaded it is always the commit or hash, whatever was given.
        precision: "float32" or "bfloat16" (autocast); "auto" is bfloat16 on a GPU and float32 elsewhere. Once loaded
            never "auto", so that a judge made again by its spec computes the same on another device.
        device: Torch device; "auto" takes a GPU when there is one. Not part of the spec.
        max_batch_tokens: Most positions of a forward pass; None chooses by device. Not part of the spec.
    """

    model: str
    revision: str | None = None
    precision: Precision = "auto"
    device: str = field(default="auto", compare=False)
    max_batch_tokens: int | None = field(default=None, compare=False)

    def _settle(self, loaded: Nli | Embedding) -> None:
        """Replace what was asked for by what was found."""
        object.__setattr__(self, "_loaded", loaded)
        object.__setattr__(self, "revision", loaded.encoder.revision)
        object.__setattr__(self, "precision", loaded.encoder.precision(self.precision))

    def _spec(self, name: str, **params: float | bool) -> JudgeSpec:
        shared = {"model": self.model, "revision": self.revision, "precision": self.precision}
        return JudgeSpec(name=name, version=VERSION, params={**shared, **params})


@dataclass(frozen=True, kw_only=True)
class _NliBased(_Local):
    _loaded: Nli = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._settle(
            load_nli(self.model, revision=self.revision, device=self.device, max_batch_tokens=self.max_batch_tokens)
        )


@dataclass(frozen=True, kw_only=True)
class _EmbeddingBased(_Local):
    _loaded: Embedding = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._settle(
            load_embedding(
                self.model, revision=self.revision, device=self.device, max_batch_tokens=self.max_batch_tokens
            )
        )


@dataclass(frozen=True, kw_only=True)
class NliJudge(_NliBased):
    """Two answers are the same iff each entails the other, with the question prepended to both.

    Entailment is the strictly most probable label. Pairs that fail in the first direction are not asked in the second,
    which changes no verdict. An input that is longer than the model reads is unmeasured, never cut; so is a pair whose
    texts differ in words that the model does not know (see ``docs/judges-models.md``). Symmetric.

    Source: Farquhar et al., Nature 2024 (strict entailment, the question as context). Difference: question and answers
    are joined by the tokenizer's own pair encoding, not by a literal " [SEP] ".

    Raises:
        UsageError: The model cannot be loaded, is another revision, or its labels are not those of NLI.
    """

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return self._spec("nli")

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Entailment both ways; see `equivalent_batch`."""
        return self.equivalent_batch([(question, a, b) for a, b in pairs])

    def equivalent_batch(self, items: Sequence[Item]) -> list[bool | None]:
        """Entailment both ways for pairs of several questions; None where a pair could not be read."""
        ordered = [(question, min(a, b), max(a, b)) for question, a, b in items]
        there = self._entailed(ordered)
        passed = list(dict.fromkeys(item for item, yes in zip(ordered, there, strict=True) if yes))
        back = dict(zip(passed, self._entailed([(question, b, a) for question, a, b in passed]), strict=True))
        return [back[item] if yes else yes for item, yes in zip(ordered, there, strict=True)]

    def _entailed(self, items: Sequence[Item]) -> list[bool | None]:
        """Whether the first text entails the second; equal texts do without being asked."""
        asked = [item for item in items if item[1] != item[2]]
        answers = iter(self._loaded.logits(asked, self.precision))
        found: list[bool | None] = []
        for item in items:
            logits = next(answers) if item[1] != item[2] else None
            found.append(True if item[1] == item[2] else None if logits is None else entails(logits))
        return found


@dataclass(frozen=True, kw_only=True)
class NliEntailment(_NliBased):
    """Probabilities of entailment, neutral and contradiction of a premise and a hypothesis: directed.

    The question is prepended to both, unless it is "". A model of two labels (entailment or not) leaves neutral and
    contradiction unmeasured.

    Raises:
        UsageError: As `NliJudge`.
    """

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return self._spec("nli")

    def entailment_batch(self, items: Sequence[Item]) -> list[EntailmentScores | None]:
        """Scores of each (question, premise, hypothesis), in order; None where a pair could not be read."""
        return [None if logits is None else scores(logits) for logits in self._loaded.logits(items, self.precision)]


@dataclass(frozen=True, kw_only=True)
class NliSimilarity(_NliBased):
    """Similarity of two answers: p(entailment), averaged over both directions, with the question prepended.

    sim(a, b) = (p(a entails b) + p(b entails a)) / 2, p = softmax(logits / temperature); equal texts have 1. In [0, 1].

    Attributes:
        temperature: Above 0. The larger, the flatter. Source: Lin et al., TMLR 2024, whose code divides by 3. Here the
            default is 1, the model's own probabilities; pass 3 for theirs.

    Raises:
        UsageError: As `NliJudge`, or the temperature is not above 0.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise UsageError(f"temperature must be above 0, got {self.temperature}. The default is 1.")
        super().__post_init__()

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return self._spec("nli", temperature=self.temperature)

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Mean probability of entailment; see `similarity_batch`."""
        return self.similarity_batch([(question, a, b) for a, b in pairs])

    def similarity_batch(self, items: Sequence[Item]) -> list[float | None]:
        """Mean probability of entailment for pairs of several questions, both directions in one pass."""
        asked = [(question, min(a, b), max(a, b)) for question, a, b in items if a != b]
        both = [*asked, *((question, b, a) for question, a, b in asked)]
        logits = self._loaded.logits(both, self.precision)
        means = iter([self._mean(*two) for two in zip(logits[: len(asked)], logits[len(asked) :], strict=True)])
        return [1.0 if a == b else next(means) for _, a, b in items]

    def _mean(self, there: NDArray[np.float64] | None, back: NDArray[np.float64] | None) -> float | None:
        if there is None or back is None:
            return None
        return (scores(there, self.temperature).entailment + scores(back, self.temperature).entailment) / 2


@dataclass(frozen=True, kw_only=True)
class EmbeddingJudge(_EmbeddingBased):
    """Two answers are the same iff the cosine of their embeddings is >= threshold and both guards hold.

    The question is prepended to both. Guards as in `TokenF1Judge` (the same numbers; both or neither contain a
    negation), because cosine cannot tell 1945 from 1944. Antonyms are *not* caught: use an NLI or chat-model judge
    where they occur. A pair is unmeasured where a text is longer than the model reads, or where words that the model
    does not know hide how the texts differ (see ``docs/judges-models.md``).

    Attributes:
        threshold: Smallest cosine that counts as the same, in (0, 1]. Declared before calibration. The default was
            chosen, not measured: what is a good one depends on the model.

    Raises:
        UsageError: The model cannot be loaded, is another revision, or is not made of encoder, pooling (mean, cls, max)
            and normalisation; or the threshold is out of range.
    """

    threshold: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError(f"threshold must be in (0, 1], got {self.threshold}. The default is 0.9.")
        super().__post_init__()

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return self._spec("embedding", threshold=self.threshold)

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Cosine behind the guards; see `equivalent_batch`."""
        return self.equivalent_batch([(question, a, b) for a, b in pairs])

    def equivalent_batch(self, items: Sequence[Item]) -> list[bool | None]:
        """Cosine behind the guards for pairs of several questions; None where a pair could not be read.

        Texts of pairs that the guards keep apart are not embedded for these; equal texts are the same without it.
        """
        asked = [item for item in items if item[1] != item[2] and guards_hold(item[1], item[2])]
        found = dict(zip(asked, self._loaded.cosines(asked, self.precision), strict=True))
        return [item[1] == item[2] if item not in found else self._alike(found[item]) for item in items]

    def _alike(self, cosine: float | None) -> bool | None:
        return None if cosine is None else cosine >= self.threshold


@dataclass(frozen=True, kw_only=True)
class EmbeddingSimilarity(_EmbeddingBased):
    """Similarity of two answers: max(0, cosine of their embeddings), with the question prepended. Equal texts have 1.

    Without guards it is blind to numbers and negation, and hardly lower for opposites than for paraphrases.

    Attributes:
        guards: Whether pairs with other numbers, or a negation in one of them only, have similarity 0.

    Raises:
        UsageError: As `EmbeddingJudge`.
    """

    guards: bool = False

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return self._spec("embedding", guards=self.guards)

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Cosine, at least 0; see `similarity_batch`."""
        return self.similarity_batch([(question, a, b) for a, b in pairs])

    def similarity_batch(self, items: Sequence[Item]) -> list[float | None]:
        """Cosine, at least 0, for pairs of several questions; None where a pair could not be read."""
        asked = [(question, a, b) for question, a, b in items if a != b and self._comparable(a, b)]
        found = dict(zip(asked, self._loaded.cosines(asked, self.precision), strict=True))
        return [float(item[1] == item[2]) if item not in found else _positive(found[item]) for item in items]

    def _comparable(self, a: str, b: str) -> bool:
        return not self.guards or guards_hold(a, b)


def _positive(cosine: float | None) -> float | None:
    return None if cosine is None else max(0.0, cosine)


# -- Sentence embeddings with plain transformers, from folders in the format of sentence-transformers ------------------

_MODES = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max"}


@dataclass(frozen=True, slots=True)
class Embedding:
    """A model of sentence embeddings and how it pools its tokens."""

    encoder: Encoder
    pooling: str
    """"mean", "cls" or "max"."""
    lower: bool
    """Whether texts are lower-cased first, as its settings say."""
    limit: int | None
    """Most tokens by its settings; the encoder may have a lower limit of its own."""

    def cosines(self, items: Sequence[Item], precision: Precision) -> list[float | None]:
        """Cosine of the embeddings of question + a and question + b; each distinct text is embedded once.

        None where a text is longer than the model reads, where words that it does not know hide how the texts differ,
        or an embedding is zero or not finite.
        """
        read = [tuple(text.lower() if self.lower else text for text in item) for item in items]
        inputs = [(with_question(question, text),) for question, *both in read for text in both]
        hidden = self.encoder.hides([(a, b) for _, a, b in read])
        found = self.encoder.run(
            inputs, lambda output, mask: pool(output[0], mask, self.pooling), precision, self.limit
        )
        cosines = [_cosine(a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
        return [None if unread else cosine for unread, cosine in zip(hidden, cosines, strict=True)]


def pool(states: Tensor, mask: Tensor, mode: str) -> Tensor:
    """Text vectors (rows, size) from token states (rows, tokens, size); padding (mask 0) plays no part."""
    states = states.float()
    if mode == "cls":
        return states[:, 0]
    there = mask.unsqueeze(-1).bool()
    if mode == "max":
        return states.masked_fill(~there, -torch.inf).amax(1)
    return (states * there).sum(1) / there.sum(1).clamp(min=1)


def _cosine(a: NDArray[np.float64] | None, b: NDArray[np.float64] | None) -> float | None:
    if a is None or b is None:
        return None
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.clip(a @ b / size, -1.0, 1.0)) if size > 0 else None


def load_embedding(model: str, *, revision: str | None, device: str, max_batch_tokens: int | None = None) -> Embedding:
    """Load a model of sentence embeddings; judges of the same model and revision share it.

    Raises:
        UsageError: It cannot be loaded, is not in the format of sentence-transformers, or has a part besides encoder,
            pooling (mean, cls, max) and normalisation.
    """
    encoder = load_encoder("AutoModel", model, revision=revision, device=device, max_batch_tokens=max_batch_tokens)
    modules = encoder.read_json("modules.json", model)
    if modules is None:
        raise UsageError(f"model {model!r} has no modules.json, so it does not say how its tokens become one vector")
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0]["path"]:
        raise UsageError(
            f"model {model!r} is made of {', '.join(kinds)}; only an encoder at the top of the folder with pooling and "
            "normalisation can be read"
        )
    settings = encoder.read_json("sentence_bert_config.json", model) or {}
    pooling = _pooling(encoder.read_json(f"{modules[1]['path']}/config.json", model) or {}, model)
    return Embedding(encoder, pooling, bool(settings.get("do_lower_case")), settings.get("max_seq_length"))


def _pooling(config: dict[str, Any], model: str) -> str:
    """The one pooling mode, as older ("pooling_mode_mean_tokens": true) and newer files ("pooling_mode") write it."""
    named = config.get("pooling_mode")
    modes = [
        name.removeprefix("pooling_mode_") for name, on in config.items() if on is True and "pooling_mode_" in name
    ]
    found = [named] if isinstance(named, str) else [_MODES.get(mode, mode) for mode in modes]
    if len(found) != 1 or found[0] not in _MODES.values():
        raise UsageError(f"model {model!r} pools its tokens by {found}; one of 'mean', 'cls' and 'max' can be read")
    return found[0]


# -- A cross-encoder for natural language inference, whatever the order of its labels ----------------------------------

THREE = ("entailment", "neutral", "contradiction")
TWO = ("entailment", "not_entailment")
_KINDS = (
    (re.compile("(not|non)entail"), "not_entailment"),
    (re.compile("entail"), "entailment"),
    (re.compile("neutral"), "neutral"),
    (re.compile("contradict"), "contradiction"),
)


@dataclass(frozen=True, slots=True)
class Nli:
    """An NLI model and the places of its labels."""

    encoder: Encoder
    order: tuple[int, ...]
    """Places of entailment, neutral and contradiction among the logits; or of entailment and its absence."""

    def logits(self, items: Sequence[Item], precision: Precision) -> list[NDArray[np.float64] | None]:
        """Logits of each (question, premise, hypothesis): entailment first, then as in ``order``.

        The question is prepended to both sides. None where the pair is longer than the model reads, where words that it
        does not know hide how the texts differ, or a logit is not finite.
        """
        pairs = [
            (with_question(question, premise), with_question(question, other)) for question, premise, other in items
        ]
        columns = list(self.order)
        hidden = self.encoder.hides([(premise, other) for _, premise, other in items])
        found = self.encoder.run(pairs, lambda output, _: output.logits[:, columns], precision)
        return [None if unread else logits for unread, logits in zip(hidden, found, strict=True)]


def load_nli(model: str, *, revision: str | None, device: str, max_batch_tokens: int | None = None) -> Nli:
    """Load an NLI cross-encoder; judges of the same model and revision share it.

    Raises:
        UsageError: It cannot be loaded, or its labels are not those of an NLI model.
    """
    encoder = load_encoder(
        "AutoModelForSequenceClassification",
        model,
        revision=revision,
        device=device,
        max_batch_tokens=max_batch_tokens,
    )
    return Nli(encoder, label_order(encoder.model.config.id2label, model))


def label_order(id2label: dict[int, str], model: str) -> tuple[int, ...]:
    """Places of the labels, entailment first.

    Args:
        id2label: The model's own names of its outputs. Case and punctuation play no part.
        model: The model, for the error.

    Raises:
        UsageError: They are neither the three labels of NLI nor entailment and its absence, once each.
    """
    places: dict[str, int] = {}
    for place, label in id2label.items():
        plain = re.sub("[^a-z]", "", label.lower())
        kind = next((kind for pattern, kind in _KINDS if pattern.match(plain)), None)
        if kind is not None:
            places.setdefault(kind, int(place))
    wanted = next((labels for labels in (THREE, TWO) if set(labels) == places.keys()), None)
    if wanted is None or len(id2label) != len(wanted):
        raise UsageError(
            f"model {model!r} calls its labels {', '.join(map(repr, id2label.values()))}; an NLI model has "
            "'entailment', 'neutral' and 'contradiction', or 'entailment' and 'not_entailment'. If it is one under "
            "other names, write these into id2label of its config.json."
        )
    return tuple(places[label] for label in wanted)


def entails(logits: NDArray[np.float64]) -> bool:
    """Whether entailment is strictly the most probable label; a tie is not entailment."""
    return bool(logits[0] > logits[1:].max())


def scores(logits: NDArray[np.float64], temperature: float = 1.0) -> EntailmentScores:
    """Softmax of the logits over ``temperature``; what a model of two labels cannot tell is None."""
    shifted = np.exp((logits - logits.max()) / temperature)
    shares = [float(share) for share in shifted / shifted.sum()]
    if len(shares) == len(TWO):
        return EntailmentScores(shares[0])
    return EntailmentScores(*shares)
