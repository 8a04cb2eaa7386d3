"""Judges of meaning: entailment (NLI) and sentence embeddings, with plain transformers.

One model in memory serves all judges of that model and revision. See ``docs/judges-models.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError
from guardrail.judges import EntailmentScores, Item, JudgeSpec
from guardrail.judges.text import agree, normalise

from ._local.encoders import Precision
from ._local.judge_models import Embedding, Nli, entails, load_embedding, load_nli, scores

__all__ = ["EmbeddingJudge", "EmbeddingSimilarity", "NliEntailment", "NliJudge", "NliSimilarity"]

VERSION = 7
"""Version of all judges here. 2: a pair is unmeasured if unknown tokens hide how its texts differ. 3: the model is
asked about every two texts that differ, and the guards compare marks unchanged. 4: the guards count paths with dots and
short strings in quotes as marks. 5: they count units written to a number, versions, exceptions and letters before
numbers. 7: the guards are those of `guardrail.judges.text.agree`. `EmbeddingSimilarity` is one version ahead: texts
that are equal once normalised have similarity 1 again."""

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

    model: str
    revision: str | None = None
    precision: Precision = "auto"
    device: str = field(default="auto", compare=False)
    max_batch_tokens: int | None = field(default=None, compare=False)

    def _settle(self, loaded: Nli | Embedding) -> None:
        """Replace the given revision and precision by those of the loaded model."""
        object.__setattr__(self, "_loaded", loaded)
        object.__setattr__(self, "revision", loaded.encoder.revision)
        object.__setattr__(self, "precision", loaded.encoder.precision(self.precision))

    def _spec(self, name: str, *, version: int = VERSION, **params: float | bool) -> JudgeSpec:
        shared = {"model": self.model, "revision": self.revision, "precision": self.precision}
        return JudgeSpec(name=name, version=version, params={**shared, **params})


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

    Entailment is the strictly most probable label. Pairs that fail in the first direction are not tried in the second,
    which changes no verdict. An input that is longer than the model's limit is unmeasured, never cut. A pair is also
    unmeasured if its texts differ in words that the model does not know (see ``docs/judges-models.md``). Symmetric.

    Source: Farquhar et al., Nature 2024 (strict entailment, the question as context). Difference: question and answers
    are joined by the tokenizer's pair encoding, not by a literal " [SEP] ".

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
        """Entailment both ways for pairs of several questions; None for a pair that could not be read."""
        ordered = [(question, min(a, b), max(a, b)) for question, a, b in items]
        there = self._entailed(ordered)
        passed = list(dict.fromkeys(item for item, yes in zip(ordered, there, strict=True) if yes))
        back = dict(zip(passed, self._entailed([(question, b, a) for question, a, b in passed]), strict=True))
        return [back[item] if yes else yes for item, yes in zip(ordered, there, strict=True)]

    def _entailed(self, items: Sequence[Item]) -> list[bool | None]:
        """Whether the first text entails the second; equal texts do, and the model does not see them."""
        differing = [item for item in items if item[1] != item[2]]
        answers = iter(self._loaded.logits(differing, self.precision))
        verdicts: list[bool | None] = []
        for item in items:
            logits = next(answers) if item[1] != item[2] else None
            verdicts.append(True if item[1] == item[2] else None if logits is None else entails(logits))
        return verdicts


@dataclass(frozen=True, kw_only=True)
class NliEntailment(_NliBased):
    """Probabilities of entailment, neutral and contradiction of a premise and a hypothesis: directed.

    The question is prepended to both, unless it is "". A model of two labels (entailment or not) leaves neutral and
    contradiction unmeasured.

    Raises:
        UsageError: As for `NliJudge`.
    """

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return self._spec("nli")

    def entailment_batch(self, items: Sequence[Item]) -> list[EntailmentScores | None]:
        """Scores of each (question, premise, hypothesis), in order; None for a pair that could not be read."""
        return [None if logits is None else scores(logits) for logits in self._loaded.logits(items, self.precision)]


@dataclass(frozen=True, kw_only=True)
class NliSimilarity(_NliBased):
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

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return self._spec("nli", temperature=self.temperature)

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Mean probability of entailment; see `similarity_batch`."""
        return self.similarity_batch([(question, a, b) for a, b in pairs])

    def similarity_batch(self, items: Sequence[Item]) -> list[float | None]:
        """Mean probability of entailment for pairs of several questions, both directions in one pass."""
        differing = [(question, min(a, b), max(a, b)) for question, a, b in items if a != b]
        both = [*differing, *((question, b, a) for question, a, b in differing)]
        logits = self._loaded.logits(both, self.precision)
        means = iter([self._mean(*two) for two in zip(logits[: len(differing)], logits[len(differing) :], strict=True)])
        return [1.0 if a == b else next(means) for _, a, b in items]

    def _mean(self, there: NDArray[np.float64] | None, back: NDArray[np.float64] | None) -> float | None:
        if there is None or back is None:
            return None
        return (scores(there, self.temperature).entailment + scores(back, self.temperature).entailment) / 2


@dataclass(frozen=True, kw_only=True)
class EmbeddingJudge(_EmbeddingBased):
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

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return self._spec("embedding", threshold=self.threshold)

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Cosine behind the guards; see `equivalent_batch`."""
        return self.equivalent_batch([(question, a, b) for a, b in pairs])

    def equivalent_batch(self, items: Sequence[Item]) -> list[bool | None]:
        """Cosine behind the guards for pairs of several questions; None for a pair that could not be read.

        Pairs that a guard keeps apart and pairs of equal texts need no embedding.
        """
        differing = [item for item in items if item[1] != item[2] and agree(item[1], item[2])]
        cosines = dict(zip(differing, self._loaded.cosines(differing, self.precision), strict=True))
        return [item[1] == item[2] if item not in cosines else self._alike(cosines[item]) for item in items]

    def _alike(self, cosine: float | None) -> bool | None:
        return None if cosine is None else cosine >= self.threshold


@dataclass(frozen=True, kw_only=True)
class EmbeddingSimilarity(_EmbeddingBased):
    """Similarity of two answers: max(0, cosine of their embeddings), with the question prepended. Equal texts have 1.

    Equal means equal once normalised ("Paris." and "paris"): the cosine of such texts is a little below 1, which an
    estimator over a graph takes for disagreement. A judge does not take this short cut, because it asks about meaning.
    Without guards it ignores numbers and negation, and is hardly lower for opposites than for paraphrases.

    Attributes:
        guards: Whether pairs with different numbers, or with a negation in one text only, have similarity 0.

    Raises:
        UsageError: As for `EmbeddingJudge`.
    """

    guards: bool = False

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return self._spec("embedding", version=VERSION + 1, guards=self.guards)

    def identity(self, text: str) -> str:
        """The normalised text (`guardrail.judges.normalise`): answers with equal keys are one answer."""
        return normalise(text)

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Cosine, at least 0; see `similarity_batch`."""
        return self.similarity_batch([(question, a, b) for a, b in pairs])

    def similarity_batch(self, items: Sequence[Item]) -> list[float | None]:
        """Cosine, at least 0, for pairs of several questions; None for a pair that could not be read."""
        same = [self.identity(a) == self.identity(b) for _, a, b in items]
        differing = [item for item, equal in zip(items, same, strict=True) if not equal and self._comparable(*item[1:])]
        cosines = dict(zip(differing, self._loaded.cosines(differing, self.precision), strict=True))
        return [
            _positive(cosines[item]) if item in cosines else float(equal)
            for item, equal in zip(items, same, strict=True)
        ]

    def _comparable(self, a: str, b: str) -> bool:
        return not self.guards or agree(a, b)


def _positive(cosine: float | None) -> float | None:
    return None if cosine is None else max(0.0, cosine)
