"""Judges of meaning: entailment (NLI) and sentence embeddings, with plain transformers.

One model in memory serves all judges of that model and revision. See ``docs/judges-models.md``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError
from guardrail.judges import Entailment, EntailmentScores, Item, Judge, JudgeSpec, Similarity
from guardrail.judges.words import agree, normalise

from ._local.encoders import Encoder, Precision, load_encoder
from ._local.loading import Tensor, torch

__all__ = ["EmbeddingJudge", "EmbeddingSimilarity", "NliEntailment", "NliJudge", "NliSimilarity"]

# No judge here merges on entailment in one direction, on the absence of contradiction alone, or without the question.
# "In Paris, under Henri IV" entails "in Paris" but not the other way round; "he died in May" and "he was a painter" do
# not contradict each other; "1945" means nothing without its question. Other libraries offer all three rules under the
# name of semantic entropy, which hides that their scores differ.


@dataclass(frozen=True, kw_only=True)
class _Local:
    """A judge around a local model.

    Attributes:
        model: Folder, hub id or name of a packaged model, as artifacts store it: on another machine the same string
            must lead to the same files.
        revision: Hub branch, tag or commit; "sha256:..." for a folder, which then must have exactly these files. After
            loading it is always the commit or hash.
        precision: "float32" or "bfloat16" (autocast); "auto" is bfloat16 on a GPU and float32 elsewhere. After loading
            it is never "auto", so that a judge made from its spec computes the same on another device.
        device: Torch device; "auto" takes a GPU if there is one. Not part of the spec.
        max_batch_tokens: Most positions of a forward pass; None chooses by device. Not part of the spec.
    """

    NAME: ClassVar[str]
    """Name in the spec."""
    VERSION: ClassVar[int] = 7
    AUTO_CLASS: ClassVar[str]
    """Class of transformers that loads the model."""

    model: str
    revision: str | None = None
    precision: Precision = "auto"
    device: str = field(default="auto", compare=False)
    max_batch_tokens: int | None = field(default=None, compare=False)
    _encoder: Encoder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        encoder = load_encoder(
            self.AUTO_CLASS,
            self.model,
            revision=self.revision,
            device=self.device,
            max_batch_tokens=self.max_batch_tokens,
        )
        loaded = {"_encoder": encoder, "revision": encoder.revision, "precision": encoder.precision(self.precision)}
        for name, value in loaded.items():
            object.__setattr__(self, name, value)

    @property
    def spec(self) -> JudgeSpec:
        """Name, version, and the fields by which two judges differ."""
        params = {field.name: getattr(self, field.name) for field in fields(self) if field.compare}
        return JudgeSpec(name=self.NAME, version=self.VERSION, params=params)


# -- natural language inference, in any order of the labels ------------------------------------------------------------

THREE = ("entailment", "neutral", "contradiction")
TWO = ("entailment", "not_entailment")
_KINDS = (
    (re.compile("(not|non)entail"), "not_entailment"),
    (re.compile("entail"), "entailment"),
    (re.compile("neutral"), "neutral"),
    (re.compile("contradict"), "contradiction"),
)


def label_order(id2label: dict[int, str], model: str) -> tuple[int, ...]:
    """Positions of the labels, entailment first.

    Args:
        id2label: Names of the model's outputs. Case and punctuation are ignored.
        model: The model, for the error.

    Raises:
        UsageError: The labels are neither the three labels of NLI nor entailment and its absence, each once.
    """
    places: dict[str, int] = {}
    for index, label in id2label.items():
        plain = re.sub("[^a-z]", "", label.lower())
        kind = next((kind for pattern, kind in _KINDS if pattern.match(plain)), None)
        if kind is not None:
            places.setdefault(kind, int(index))
    labels = next((labels for labels in (THREE, TWO) if set(labels) == places.keys()), None)
    if labels is None or len(id2label) != len(labels):
        raise UsageError(
            f"model {model!r} calls its labels {', '.join(map(repr, id2label.values()))}; an NLI model has "
            "'entailment', 'neutral' and 'contradiction', or 'entailment' and 'not_entailment'. If the labels mean the "
            "same, write these names into id2label of its config.json."
        )
    return tuple(places[label] for label in labels)


def entails(logits: NDArray[np.float64]) -> bool:
    """Whether entailment is strictly the most probable label; a tie is not entailment."""
    return bool(logits[0] > logits[1:].max())


def scores(logits: NDArray[np.float64], temperature: float = 1.0) -> EntailmentScores:
    """Softmax of the logits over ``temperature``; neutral and contradiction are None for a model of two labels."""
    shifted = np.exp((logits - logits.max()) / temperature)
    shares = [float(share) for share in shifted / shifted.sum()]
    if len(shares) == len(TWO):
        return EntailmentScores(shares[0])
    return EntailmentScores(*shares)


def with_question(question: str, answer: str) -> str:
    """The text that a model reads: "question answer", or the answer alone if the question is ""."""
    return f"{question} {answer}" if question else answer


@dataclass(frozen=True, kw_only=True)
class _NliBased(_Local):
    NAME, AUTO_CLASS = "nli", "AutoModelForSequenceClassification"
    _order: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Positions of entailment, neutral and contradiction among the logits; or of entailment and its absence."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_order", label_order(self._encoder.model.config.id2label, self.model))

    def _logits(self, items: Sequence[Item]) -> list[NDArray[np.float64] | None]:
        """Logits of each (question, premise, hypothesis), entailment first.

        The question is prepended to both sides. None if the pair is longer than the model's limit, if unknown tokens
        hide how the texts differ, or if a logit is not finite.
        """
        pairs = [
            (with_question(question, premise), with_question(question, other)) for question, premise, other in items
        ]
        columns = list(self._order)
        lost = self._encoder.lost_to_unknown_tokens([(premise, other) for _, premise, other in items])
        outputs = self._encoder.run(pairs, lambda output, _: output.logits[:, columns], self.precision)
        return [None if unread else logits for unread, logits in zip(lost, outputs, strict=True)]


@dataclass(frozen=True, kw_only=True)
class NliJudge(_NliBased, Judge):
    """Two answers are the same iff each entails the other, with the question prepended to both.

    Entailment is the strictly most probable label. Pairs that fail in the first direction are not tried in the second,
    which changes no verdict. An input that is longer than the model's limit is unmeasured, never cut. A pair is also
    unmeasured if its texts differ in words that the model does not know (see ``docs/judges-models.md``). Symmetric.

    Source: Farquhar et al., Nature 2024 (strict entailment, the question as context). Difference: question and answers
    are joined by the tokenizer's pair encoding, not by a literal " [SEP] ".

    Raises:
        UsageError: The model cannot be loaded, is another revision, or its labels are not those of NLI.
    """

    def compare(self, items: Sequence[Item]) -> list[bool | None]:
        """Entailment both ways for pairs of several questions; None for a pair that could not be read."""
        ordered = [(question, min(a, b), max(a, b)) for question, a, b in items]
        there = self._entailed(ordered)
        passed = list(dict.fromkeys(item for item, yes in zip(ordered, there, strict=True) if yes))
        back = dict(zip(passed, self._entailed([(question, b, a) for question, a, b in passed]), strict=True))
        return [back[item] if yes else yes for item, yes in zip(ordered, there, strict=True)]

    def _entailed(self, items: Sequence[Item]) -> list[bool | None]:
        """Whether the first text entails the second; equal texts do, and the model does not see them."""
        differing = [item for item in items if item[1] != item[2]]
        read = dict(zip(differing, self._logits(differing), strict=True))
        verdicts = {item: None if logits is None else entails(logits) for item, logits in read.items()}
        return [verdicts.get(item, True) for item in items]


@dataclass(frozen=True, kw_only=True)
class NliEntailment(_NliBased, Entailment):
    """Probabilities of entailment, neutral and contradiction of a premise and a hypothesis: directed.

    The question is prepended to both, unless it is "". A model of two labels (entailment or not) leaves neutral and
    contradiction unmeasured.

    Raises:
        UsageError: As for `NliJudge`.
    """

    def compare(self, items: Sequence[Item]) -> list[EntailmentScores | None]:
        """Scores of each (question, premise, hypothesis), in order; None for a pair that could not be read."""
        return [None if logits is None else scores(logits) for logits in self._logits(items)]


@dataclass(frozen=True, kw_only=True)
class NliSimilarity(_NliBased, Similarity):
    """Similarity of two answers: p(entailment), averaged over both directions, with the question prepended.

    sim(a, b) = (p(a entails b) + p(b entails a)) / 2, p = softmax(logits / temperature); equal texts have 1. In [0, 1].

    Attributes:
        temperature: Above 0. The larger, the flatter. Source: Lin et al., TMLR 2024, whose code divides by 3. The
            default here is 1, the model's probabilities; pass 3 for theirs.

    Raises:
        UsageError: As for `NliJudge`, or the temperature is not a finite number above 0.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise UsageError(f"temperature must be a finite number above 0, got {self.temperature}. The default is 1.")
        super().__post_init__()

    def compare(self, items: Sequence[Item]) -> list[float | None]:
        """Mean probability of entailment for pairs of several questions, both directions in one pass."""
        # Sorted, so that the batches do not depend on the order of a pair.
        ordered = [(question, min(a, b), max(a, b)) for question, a, b in items if a != b]
        both = [*ordered, *((question, b, a) for question, a, b in ordered)]
        read = dict(zip(both, self._logits(both), strict=True))
        shares = {
            item: None if logits is None else scores(logits, self.temperature).entailment
            for item, logits in read.items()
        }

        def mean(there: float | None, back: float | None) -> float | None:
            return None if there is None or back is None else (there + back) / 2

        return [1.0 if a == b else mean(shares[q, a, b], shares[q, b, a]) for q, a, b in items]


# -- sentence embeddings, from folders in the format of sentence-transformers ------------------------------------------

_MODES = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max"}


def pool(states: Tensor, mask: Tensor, mode: str) -> Tensor:
    """Text vectors (rows, size) from token states (rows, tokens, size); padding (mask 0) is ignored."""
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


def _pooling(config: dict[str, Any], model: str) -> str:
    """The only pooling mode, written as "pooling_mode_mean_tokens": true in older files, "pooling_mode" in newer."""
    named = config.get("pooling_mode")
    modes = [
        name.removeprefix("pooling_mode_") for name, on in config.items() if on is True and "pooling_mode_" in name
    ]
    pooling = [named] if isinstance(named, str) else [_MODES.get(mode, mode) for mode in modes]
    if len(pooling) != 1 or pooling[0] not in _MODES.values():
        raise UsageError(f"model {model!r} pools its tokens by {pooling}; supported are 'mean', 'cls' and 'max'")
    return pooling[0]


@dataclass(frozen=True, kw_only=True)
class _EmbeddingBased(_Local):
    NAME, AUTO_CLASS = "embedding", "AutoModel"
    _pooling: str = field(init=False, repr=False, compare=False)
    """"mean", "cls" or "max"."""
    _settings: dict[str, Any] = field(init=False, repr=False, compare=False)
    """Whether the model lower-cases texts first, and its limit in tokens (the encoder may have a lower one)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        modules = self._encoder.read_json("modules.json", self.model)
        if modules is None:
            raise UsageError(f"model {self.model!r} has no modules.json, which says how its tokens become one vector")
        kinds = [module["type"].rpartition(".")[2] for module in modules]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0]["path"]:
            raise UsageError(
                f"model {self.model!r} consists of {', '.join(kinds)}; supported is an encoder at the top of the "
                "folder, with pooling and normalisation"
            )
        config = self._encoder.read_json(f"{modules[1]['path']}/config.json", self.model) or {}
        object.__setattr__(self, "_pooling", _pooling(config, self.model))
        settings = self._encoder.read_json("sentence_bert_config.json", self.model) or {}
        object.__setattr__(self, "_settings", settings)

    def _cosines(self, items: Sequence[Item]) -> list[float | None]:
        """Cosine of the embeddings of question + a and question + b; each distinct text is embedded once.

        None if a text is longer than the model's limit, if unknown tokens hide how the texts differ, or if an embedding
        is zero or not finite.
        """
        if self._settings.get("do_lower_case"):
            items = [(question.lower(), a.lower(), b.lower()) for question, a, b in items]
        inputs = [(with_question(question, text),) for question, *both in items for text in both]
        lost = self._encoder.lost_to_unknown_tokens([(a, b) for _, a, b in items])
        vectors = self._encoder.run(
            inputs,
            lambda output, mask: pool(output[0], mask, self._pooling),
            self.precision,
            self._settings.get("max_seq_length"),
        )
        cosines = [_cosine(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        return [None if unread else cosine for unread, cosine in zip(lost, cosines, strict=True)]


@dataclass(frozen=True, kw_only=True)
class EmbeddingJudge(_EmbeddingBased, Judge):
    """Two answers are the same iff the cosine of their embeddings is >= threshold and both guards hold.

    The question is prepended to both. Guards as in `GuardedJaccard` (the same numbers; both or neither contain a
    negation), because cosine cannot tell 1945 from 1944. Antonyms are *not* caught: use an NLI or chat-model judge
    where they occur. A pair is unmeasured if a text is longer than the model's limit, or if words that the model does
    not know hide how the texts differ (see ``docs/judges-models.md``).

    Attributes:
        threshold: Smallest cosine that counts as the same, in (0, 1]. Declared before calibration. The default was
            chosen, not measured: a good value depends on the model.

    Raises:
        UsageError: The model cannot be loaded, is another revision, or does not consist of encoder, pooling (mean, cls,
            max) and normalisation; or the threshold is out of range.
    """

    threshold: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError(f"threshold must be in (0, 1], got {self.threshold}. The default is 0.9.")
        super().__post_init__()

    def compare(self, items: Sequence[Item]) -> list[bool | None]:
        """Cosine behind the guards for pairs of several questions; None for a pair that could not be read.

        Pairs that a guard keeps apart and pairs of equal texts need no embedding.
        """
        differing = [item for item in items if item[1] != item[2] and agree(item[1], item[2])]
        cosines = dict(zip(differing, self._cosines(differing), strict=True))
        verdicts = {item: None if cosine is None else cosine >= self.threshold for item, cosine in cosines.items()}
        return [verdicts.get(item, item[1] == item[2]) for item in items]


@dataclass(frozen=True, kw_only=True)
class EmbeddingSimilarity(_EmbeddingBased, Similarity):
    """Similarity of two answers: max(0, cosine of their embeddings), with the question prepended. Equal texts have 1.

    Equal means equal once normalised ("Paris." and "paris"): the cosine of such texts is a little below 1, which an
    estimator over a graph takes for disagreement. A judge does not take this short cut, because it asks about meaning.
    Without guards it ignores numbers and negation, and is hardly lower for opposites than for paraphrases.

    Attributes:
        guards: Whether pairs with different numbers, or with a negation in one text only, have similarity 0.

    Raises:
        UsageError: As for `EmbeddingJudge`.
    """

    VERSION = 8

    guards: bool = False

    def identity(self, text: str) -> str:
        """The normalised text (`guardrail.judges.normalise`): answers with equal keys are one answer."""
        return normalise(text)

    def compare(self, items: Sequence[Item]) -> list[float | None]:
        """Cosine, at least 0, for pairs of several questions; None for a pair that could not be read."""
        equal = {item: self.identity(item[1]) == self.identity(item[2]) for item in items}
        differing = [item for item in items if not equal[item] and (not self.guards or agree(*item[1:]))]
        cosines = dict(zip(differing, self._cosines(differing), strict=True))
        similar = {item: None if cosine is None else max(0.0, cosine) for item, cosine in cosines.items()}
        return [similar.get(item, float(equal[item])) for item in items]
