"""The calibration artifact: one JSON file that binds a threshold to everything it is valid for.

Nothing else passes from calibration to run time. The class is part of ``guardrail`` so that run time needs neither
scipy nor ``calibrate``. The artifact cannot bind the population of questions: its promise assumes that run-time
questions are exchangeable with the calibration questions.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from langchain_core.messages import BaseMessage
from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_validator,
)

from .errors import ArtifactMismatchError, TurnsMismatchError
from .files import Persisted
from .items.spec import ItemFigures, ItemScores
from .outcome import CERTIFIED, Feasible, InfeasibleReason, Outcome
from .plain_json import PACKED_FROM, pack, unpack
from .prompting import ONE_QUESTION, PromptWrapping, turns_of
from .specs import CorrectnessSpec, EstimatorSpec, ModelIdentity
from .types import Fingerprint, Frozen, SamplingPlan, Unmeasured

ALL_OTHERS = "all others"
"""The name, in a router, of the artifact for questions of no other group."""
MOST_FAILED = 0.01
"""Share of questions without a score because a server, a rate limit or a time-out failed, up to which a fit leaves them
out unasked."""


MANY_CUT_OFF = 0.02
"""Share of answers that were cut off from which on it is worth a larger ``max_tokens``."""


class EstimatorChoice(Frozen):
    """Which estimators were compared, and on what: questions that the fit did not use, so its promise is unchanged."""

    candidates: tuple[str, ...] = Field(min_length=1)
    """Keys of their scores by AUROC, the highest and chosen one first."""
    auroc: float
    """AUROC of the chosen one there; as the highest of several it is too high on average."""
    n: int
    """Labelled questions they were compared on."""
    questions: tuple[str, ...]
    """Short hashes of what was asked, for every question of that part, sorted."""
    share: float
    """Share of the questions asked for that part."""


class DataFingerprint(Frozen):
    """Which labelled questions the threshold was fitted on."""

    name: str
    """Name of the question set, e.g. its file name without folders."""
    sha256: str
    """SHA-256 over the questions that were used: over the first 16 bytes of SHA-256 of each canonical row, sorted."""
    n_questions: int
    """Questions in the calibration part."""
    n_used: int
    """Questions with a score and a label: those the rule was fitted on."""
    n_unmeasured: int
    """Questions whose uncertainty could not be measured. They always abstain, and they are among the n of the fit."""
    n_failed: int = 0
    """Questions among ``n_unmeasured`` without a score because a server, a rate limit or a time-out failed, which says
    nothing about the question."""
    n_unlabelled: int
    """Questions that nobody has labelled yet; left out of the fit."""
    n_undecided: int = 0
    """Answers (with items, items of answers) among ``n_used`` whose label could not be decided; they count as wrong."""
    n_cut_off: int | None = None
    """Questions whose primary answer was cut off, most often at ``max_tokens``. None if nothing says how answers ended
    (imported scores)."""
    questions: tuple[str, ...] | dict[str, str] = Field(repr=False)
    """Short hashes of what was asked, for every question of the calibration part, sorted: they tell its records from
    others. Many are packed (see `hashes`)."""
    turns: tuple[str, ...] | None = None
    """Turns of the calibration prompts (`guardrail.prompting.turns_of`), each once, sorted: ("human",) for single
    questions. None if they were not recorded: a guard takes them for single questions."""
    choice: EstimatorChoice | None = None
    """The questions set aside to choose the score (`--score auto`); None if it was named."""

    @field_validator("questions")
    @classmethod
    def _readable(cls, questions: tuple[str, ...] | dict[str, str]) -> tuple[str, ...] | dict[str, str]:
        if isinstance(questions, dict):
            unpack(questions, "Q")
        return questions

    @staticmethod
    def stored(hashes: array[int]) -> tuple[str, ...] | dict[str, str]:
        """Sorted hashes as `questions` keeps them."""
        return pack(hashes) if len(hashes) >= PACKED_FROM else tuple(f"{number:016x}" for number in hashes)

    @property
    def hashes(self) -> array[int]:
        """The numbers behind `questions`."""
        if isinstance(self.questions, dict):
            return unpack(self.questions, "Q")
        return array("Q", (int(digits, 16) for digits in self.questions))

    @property
    def measured(self) -> float:
        """Share of the questions that could be measured: no more can be answered."""
        return 1 - self.n_unmeasured / self.n_questions if self.n_questions else 1.0

    @property
    def many_cut_off(self) -> bool:
        """Whether so many primary answers were cut off that ``max_tokens`` is too small for these questions."""
        return (self.n_cut_off or 0) > MANY_CUT_OFF * self.n_questions


class Made(Frozen):
    """When an artifact was made, and with what."""

    at: str
    """ISO 8601 with time zone."""
    packages: dict[str, str]
    """Versions of the packages that can move a number."""


class Spent(Frozen):
    """The fits that the labels behind a threshold have carried, this one included, and what they spend together.

    Whichever of the fits is used, its promise holds with probability at least 1 - delta (union bound).
    """

    fits: int = Field(ge=1)
    """Number of fits, those that found no threshold included."""
    delta: float = Field(ge=0, le=1)
    """Failure probability of all of them together."""


class CalibrationScores(Frozen):
    """Scores and errors the rule was fitted on, kept so that another alpha can be fitted without calling the model."""

    kind: ClassVar[Literal["threshold"]] = "threshold"
    """Kind of an artifact with such scores."""
    uncertainty: Sequence[float]
    """Score of each calibration item; higher is less certain. A tuple; of many items an array of doubles."""
    error: Sequence[Literal[0, 1]]
    """1 where the answer was wrong. A tuple; of many items an array of bytes."""
    group: tuple[str, ...] | None = None
    """Cluster id of each item (conversation, user, document), or None when items are independent."""

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        lengths = {len(part) for part in (self.uncertainty, self.error, self.group) if part is not None}
        if len(lengths) != 1:
            raise ValueError(f"uncertainty, error and group differ in length: {sorted(lengths)}")
        return self

    @field_validator("uncertainty", "error", mode="wrap")
    @classmethod
    def _compact(cls, scores: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        # Five million scores take 38 MiB in an array, and 190 MiB in a tuple.
        kind = "d" if info.field_name == "uncertainty" else "b"
        if isinstance(scores, dict):
            scores = unpack(scores, "bd")
        if isinstance(scores, array) and scores.typecode != kind:
            scores = scores.tolist()
        if not isinstance(scores, array) or (kind == "b" and not set(scores) <= {0, 1}):
            scores = check(tuple(scores) if isinstance(scores, array) else scores)
        if len(scores) < PACKED_FROM:
            return tuple(scores)
        return scores if isinstance(scores, array) else array(kind, scores)

    @field_serializer("uncertainty", "error", when_used="json")
    def _packed(self, values: Sequence[float]) -> Any:
        return pack(values) if isinstance(values, array) else values

    @property
    def n(self) -> int:
        """Number of answers."""
        return len(self.error)

    @property
    def n_wrong(self) -> int:
        """Number of wrong ones."""
        return sum(self.error)

    @property
    def of_answers(self) -> Sequence[float]:
        """One number for each measured answer, by which populations of answers are compared: its score."""
        return self.uncertainty


def _unit_of(scores: Any) -> str:
    has_items = "sizes" in scores if isinstance(scores, dict) else isinstance(scores, ItemScores)
    return "items" if has_items else "answers"


Scores = Annotated[
    Annotated[CalibrationScores, Tag("answers")] | Annotated[ItemScores, Tag("items")], Discriminator(_unit_of)
]
"""What a threshold was fitted on: a score and a label for each answer, or for each of its items."""


class CalibrationArtifact(Persisted):
    """A threshold, and everything it is valid for.

    Current limitations: parts are bound by name and hash. A model that its provider changes under the same name is
    noticed by `guardrail doctor` alone, where there is a `fingerprint`; questions that drift are not noticed.
    """

    kind: Literal["threshold", "items"] = "threshold"
    """Whether whole answers are gated, or the items of answers (fields of JSON). With items ``outcome`` counts answers:
    accepted are those of which some item is kept, errors those that keep a wrong one."""
    made: Made
    """When it was fitted, and with which packages."""
    model: ModelIdentity
    """The model whose answers were calibrated."""
    plan: SamplingPlan
    """The way outputs are drawn, at calibration and at run time."""
    prompt: PromptWrapping
    """The way a question becomes messages."""
    estimator: EstimatorSpec
    """The estimator that turns samples into an uncertainty, with its judge and their versions."""
    correctness: CorrectnessSpec
    """The rule that decided which answers were correct."""
    data: DataFingerprint
    """The questions that were used."""
    outcome: Outcome
    """The fitted threshold with its rule, alpha, counts, diagnostics, or the reason why there is none."""
    calibration: Scores = Field(repr=False)
    """The scores and errors themselves."""
    spent: Spent | None = None
    """Fits that these labels have carried; None if they were not counted (`calibrate.pipeline.fit_artifact` alone)."""
    fingerprint: Fingerprint | None = Field(default=None, exclude_if=lambda kept: kept is None, repr=False)
    """Tokens and log-probabilities of the endpoint's greedy answers to the probe's questions, by which `guardrail
    doctor` notices other weights behind the same name; None if the endpoint gave none, or the model is a local one."""
    items: ItemFigures | None = None
    """Counts of the items at the threshold; None if whole answers are gated, or nothing was fitted."""

    @model_validator(mode="after")
    def _scores_of_its_kind(self) -> Self:
        if self.kind != self.calibration.kind:
            raise ValueError(f"the kind is {self.kind!r}, and the calibration scores are of {self.calibration.kind!r}")
        return self

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """The short form; the fields have the rest."""
        yield "model", self.model.model
        yield "estimator", self.estimator.name
        yield "rule", self.outcome.rule
        yield "alpha", self.alpha
        yield "threshold", self.threshold
        yield "acceptance", round(self.acceptance, 4)
        yield "n", self.calibration.n

    @property
    def gates(self) -> tuple[CalibrationArtifact, ...]:
        """The artifacts of the single gates in this one, as every kind of artifact has them: itself."""
        return (self,)

    @property
    def threshold(self) -> float | None:
        """Accept iff uncertainty <= threshold; None when infeasible (nothing is accepted)."""
        return self.outcome.threshold if isinstance(self.outcome, Feasible) else None

    @property
    def alpha(self) -> float:
        """Target error rate among accepted answers."""
        return self.outcome.alpha

    @property
    def acceptance(self) -> float:
        """Share of all questions asked that the gate accepts, as estimated at calibration; 0 when infeasible.

        Questions that could not be measured are among those asked; what nobody labelled is taken to be like the rest.
        """
        scope = self.outcome.scope
        return scope.of_measured(self.outcome.acceptance) * scope.measured

    def check_prompt(self, messages: Sequence[BaseMessage]) -> None:
        """Refuse messages that are not wrapped as at calibration; see `PromptWrapping.check`.

        Raises:
            ArtifactMismatchError: They are not; the message says what a calibration with them would take.
        """
        try:
            self.prompt.check(messages, self.plan.options)
        except ArtifactMismatchError as error:
            way_out = f"{error.way_out} A new calibration takes {self._price_of_another}."
            raise ArtifactMismatchError(error.fault, way_out, public=error.public) from None

    @property
    def _price_of_another(self) -> str:
        """The price of a calibration like this one with another model or prompt."""
        return f"{self.data.n_questions:,} questions x {self.plan.calls} calls; labels of equal answers are kept"

    def check_model(self, running: ModelIdentity) -> None:
        """Refuse a model that is not the calibrated one.

        Raises:
            ArtifactMismatchError: The models differ; the message names both.
        """
        differences = self.model.differences(running)
        if not differences:
            return
        way_out = f"load that model, or calibrate this one ({self._price_of_another})."
        if not self.model.is_known:
            way_out = (
                "these answers were imported without naming their model. If this one gave them, name it with "
                "`calibrate import RECORDS --model MODEL` (in Python from_frame(..., model=model)) and fit again, "
                "which is the same fit."
            )
        raise ArtifactMismatchError(
            f"{'; '.join(differences)}. A threshold is valid for the model it was calibrated with: {way_out}"
        )

    def unknown_turns(self, messages: Sequence[BaseMessage]) -> str | None:
        """The turns of a prompt if there were none such at calibration, otherwise None."""
        turns = turns_of(messages, self.plan.bindings)
        return None if turns in (self.data.turns or (ONE_QUESTION,)) else turns

    def marked_turns(self, messages: Sequence[BaseMessage]) -> str | None:
        """The turns of a prompt for its verdict to name, if there were none such at calibration; otherwise None.

        Raises:
            TurnsMismatchError: There were none such, and ``other_turns`` of the prompt is "refuse".
        """
        unknown = self.unknown_turns(messages)
        if unknown is not None and self.prompt.other_turns == "refuse":
            calibrated = ", ".join(map(repr, self.data.turns or (ONE_QUESTION,)))
            raise TurnsMismatchError(
                f"this artifact was calibrated on prompts with the turns {calibrated}, received {unknown[:200]!r}.",
                "Ask one question at a time, calibrate on conversations "
                "(calibrate.collect_records(messages=...)), or answer others without the promise: calibrate with "
                "--set other_turns=mark, which asks nothing again.",
            )
        return unknown


def uncalibrated(
    model: ModelIdentity,
    plan: SamplingPlan,
    prompt: PromptWrapping,
    estimator: EstimatorSpec,
    outcome: Outcome,
    *,
    scores: CalibrationScores | ItemScores | None = None,
    turns: tuple[str, ...] | None = None,
) -> CalibrationArtifact:
    """An artifact around an outcome that no calibration gave: a threshold for tests, or none at all.

    Args:
        model: The model it loads with.
        plan: How samples are drawn.
        prompt: Prompt wrapping.
        estimator: The estimator.
        outcome: The outcome; its rule is "none" where nothing was calibrated.
        scores: Scores to state, of a gate of items those of items; None for none.
        turns: Turns of the prompts it answers.
    """
    scores = scores or CalibrationScores(uncertainty=(), error=())
    n = scores.n
    return CalibrationArtifact(
        kind="items" if isinstance(scores, ItemScores) else "threshold",
        made=Made(at="1970-01-01T00:00:00+00:00", packages={}),  # so that the digest is the same in every process
        model=model,
        plan=plan,
        prompt=prompt,
        estimator=estimator,
        correctness=CorrectnessSpec(name="none", version=0),
        data=DataFingerprint(
            name="none",
            sha256="",
            n_questions=n,
            n_used=n,
            n_unmeasured=0,
            n_unlabelled=0,
            questions=(),
            turns=turns,
        ),
        outcome=outcome,
        calibration=scores,
    )


# -- Compositions: artifacts by group, and thresholds that were chosen together --------------------------------------


class RouterArtifact(Persisted):
    """Artifacts by the name of a group of questions (intent, tenant, language), each valid for its group alone.

    Given how many questions each group has, those of one are draws from its population: each promise holds in its
    group, so for any mix of groups. All of them hold at once with probability at least 1 minus the sum of their deltas
    (union bound).
    """

    kind: Literal["router"] = "router"
    """Distinguishes the file from the artifact of a single guard."""
    artifacts: dict[str, CalibrationArtifact] = Field(min_length=1)
    """The artifact of each group by its name; that of `ALL_OTHERS`, if there is one, is for questions of no group."""

    @model_validator(mode="after")
    def _one_procedure(self) -> Self:
        first = next(iter(self.artifacts.values()))
        for name, artifact in self.artifacts.items():
            for field in ("model", "prompt", "estimator"):
                if getattr(artifact, field) != getattr(first, field):
                    raise ValueError(f"group {name!r} has another {field} than the others; fit all on one record file")
        return self

    @property
    def gates(self) -> tuple[CalibrationArtifact, ...]:
        """The artifacts of the groups."""
        return tuple(self.artifacts.values())


GOES_ON = frozenset({Unmeasured.CUT_OFF, Unmeasured.EMPTY_ANSWER, Unmeasured.REFUSED})
"""Reasons of an unmeasured stage after which the next one is asked: its model has no answer to this very question, as
it had none to some of the calibration questions. Any other cause (an outage, say) affects every question."""


class StageShare(Frozen):
    """Counts of one stage on the calibration questions."""

    threshold: float | None
    """The stage answers iff its uncertainty <= threshold; None: it never answers."""
    n_accepted: int
    """Questions that this stage answers, after all earlier stages passed them on."""
    n_errors: int
    """Wrong answers among them."""


class CascadeOutcome(Frozen):
    """Thresholds of all stages, or the reason why the rule found none."""

    rule: str
    """Name of the rule."""
    alpha: float
    """Target error rate among the answers of the whole system."""
    delta: float | None
    """Failure probability of the statement; None for rules that do not make one."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options the rule was called with, resolved."""
    n: int
    """Calibration questions."""
    stages: tuple[StageShare, ...]
    """One entry per stage; no stage has a threshold if the outcome is infeasible."""
    last_alone: StageShare | None = None
    """What the last model alone would answer of the same questions by the same rule, which is what a cascade costs."""
    interval: tuple[float, float] | None
    """95 % Clopper-Pearson interval of the error rate among accepted calibration answers. Post-selection: it describes
    these questions and is not a certificate. None if nothing is accepted."""
    reason: InfeasibleReason | None = None
    """The reason why no thresholds satisfy the rule; None if some do."""
    needed: int | None = None
    """Of too few questions: how many without a single error would do."""

    @property
    def certifies(self) -> bool:
        """Whether the rule certifies the error rate among the system's answers."""
        return self.rule == CERTIFIED

    @property
    def feasible(self) -> bool:
        """Whether any stage may answer."""
        return self.reason is None

    @property
    def n_accepted(self) -> int:
        """Calibration questions answered by any stage."""
        return sum(stage.n_accepted for stage in self.stages)

    @property
    def n_errors(self) -> int:
        """Wrong answers among them."""
        return sum(stage.n_errors for stage in self.stages)

    @property
    def acceptance(self) -> float:
        """Share of calibration questions answered."""
        return self.n_accepted / self.n


class CascadeArtifact(Persisted):
    """One system: models asked in order, with thresholds that control the error rate of their answers together."""

    kind: Literal["cascade"] = "cascade"
    """Distinguishes the file from the artifact of a single guard."""
    stages: tuple[CalibrationArtifact, ...] = Field(min_length=2)
    """The parts that each stage's threshold is valid for: model, plan, prompt, estimator, labels and scores.

    The promise is about the system; a stage alone promises nothing.
    """
    outcome: CascadeOutcome
    """The thresholds in force."""
    spent: Spent | None = None
    """Fits that these labels have carried; None if they were not counted."""
    n_unmeasured: int = 0
    """Questions that no stage could measure; they count, and the system abstains on them."""
    n_failed: int = 0
    """Questions without a score because a server, a rate limit or a time-out failed, at the stage with the most."""

    @model_validator(mode="after")
    def _one_system(self) -> Self:
        if len(self.stages) != len(self.outcome.stages):
            raise ValueError(f"{len(self.stages)} stages but {len(self.outcome.stages)} thresholds")
        for i, (stage, share) in enumerate(zip(self.stages, self.outcome.stages, strict=True), start=1):
            if stage.kind == "items":
                raise ValueError(f"stage {i} gates items of answers; a stage of a cascade gives a whole answer or none")
            if stage.threshold != share.threshold:
                raise ValueError(f"stage {i} has threshold {stage.threshold}, the outcome says {share.threshold}")
        return self

    @property
    def gates(self) -> tuple[CalibrationArtifact, ...]:
        """The artifacts of the stages, in order."""
        return self.stages

    @property
    def alpha(self) -> float:
        """Target error rate among the system's answers."""
        return self.outcome.alpha

    @property
    def acceptance(self) -> float:
        """Share of the calibration questions that the system answers."""
        return self.outcome.acceptance


Artifact = CalibrationArtifact | RouterArtifact | CascadeArtifact
"""What a guard, a `Router` or a `Cascade` is made of."""
_COMPOSED: Mapping[str, type[RouterArtifact | CascadeArtifact]] = {"router": RouterArtifact, "cascade": CascadeArtifact}


def load_artifact(path: str | os.PathLike[str]) -> Artifact:
    """Read an artifact of any kind; the file says which.

    Raises:
        ArtifactError: As `CalibrationArtifact.load`.
    """
    content = Persisted._read(path)
    kind = str(content.get("kind")) if isinstance(content, dict) else ""
    return _COMPOSED.get(kind, CalibrationArtifact)._from_content(content, str(path))
