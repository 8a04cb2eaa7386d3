"""The fits that a set of labels has carried: remembered beside the record file, counted, said and paid for.

Every fit on the same labels is one more chance to be lucky: of twelve scores that say nothing the best one's
certificate at delta = .1 is false in half of the cases. So each fit, one that found no threshold included, leaves a
line in ``RECORDS.fits.jsonl`` beside its record file. An artifact in the folder of the new one counts as well. Fits
share labels if they share a question.

* A fit is its score (name, version, parameters), rule and options, delta, segments, cut, label rule, and labels.
  Another alpha is the same fit, and so is rule ``acrc`` before ``certified``: every artifact carries that certificate.
* Cascades and gates of parts spend their whole delta, and state it beside the delta of the other fits.
* The first fit spends delta; the j-th spends 6 delta / (pi j)^2, so that no number of fits spends more than 1.4 delta.
* Rule ``certified`` after undecided answers, which count as wrong, were decided is the same fit: labels only fall, so
  its threshold only grows, and where the risk does not fall with acceptance the last certificate fails if any before
  did.
* m scores that are declared before the first fit spend delta / m each. Declared looks spend delta together.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import pi
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, field_validator

from guardrail.artifact import CalibrationArtifact, CascadeArtifact, CascadeOutcome, Selection
from guardrail.errors import ArtifactError, UsageError
from guardrail.files import atomic_write, check_version
from guardrail.notebook import percent
from guardrail.outcome import AVERAGE, CERTIFIED
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.types import Frozen

from .data.records import exclusive
from .data.table import among
from .pipeline import CERTIFICATE_DELTA, DECLARED, hashes_of_fit, with_selection
from .thresholds import DEFAULT_DELTA

__all__ = [
    "Fit",
    "FitSettings",
    "Fits",
    "beside",
    "counted",
    "counted_cascade",
    "counted_parts",
    "selection_warning",
]

SKETCH = 1_000
"""Questions that a line keeps, those with the smallest hashes: two sets that share a hundredth of a larger number share
some of these with near certainty, and all of a smaller number are kept."""


class Fit(Frozen):
    """One line of the memory."""

    format: Literal[1] = 1
    """Version of this layout."""
    created: str
    """When it was fitted, ISO 8601."""
    fit: str
    """As `Selection.fit`."""
    family: str
    """As `Selection.family`."""
    score: str
    """Name of the score, for messages."""
    rule: str
    """Name of the rule, for messages."""
    n: int
    """Labels that were used, for messages."""
    spent: float = Field(ge=0, le=1)
    """Failure probability that all fits of the family spend together."""
    declared: tuple[str, ...] = ()
    """Scores that were declared with it."""
    base: str = ""
    """Digest of score, settings and questions without what was decided: fits with equal ones differ in labels alone."""
    undecided: int = 0
    """Answers among ``n`` that were undecided and counted as wrong."""
    wrong: str = ""
    """Base64 of the labels in order of the scores, a bit each, 1 for wrong; "" where nothing was undecided."""
    look: int | None = None
    """Which of several declared looks it is, from 1; None without looks."""
    questions: str
    """Base64 of the smallest hashes of its questions: little-endian, 8 bytes each, sorted; at most a thousand."""

    @field_validator("wrong", "questions")
    @classmethod
    def _readable(cls, text: str) -> str:
        b64decode(text, validate=True)
        return text

    @field_validator("questions")
    @classmethod
    def _whole_hashes(cls, text: str) -> str:
        if len(b64decode(text)) % 8:
            raise ValueError("the hashes of the questions are cut off")
        return text

    @classmethod
    def of(cls, artifact: CalibrationArtifact) -> Fit:
        """The line of an artifact, by its own count if it has one; without, it spent all of its delta."""
        outcome, selection = artifact.outcome, artifact.selection
        # Options that were left out are None in the artifact, and were not asked for.
        options = {name: value for name in DECLARED if (value := outcome.options.get(name)) is not None}
        delta = artifact.segments.delta if artifact.segments is not None else outcome.delta
        part = (1 if artifact.looks is None else artifact.looks.part) * (1 if selection is None else selection.part)
        settings = FitSettings(artifact.estimator.name, None if delta is None else delta / part, options)
        if selection is None:
            digest, family = _digests(artifact, settings)
            selection = Selection(fits=1, fit=digest, family=family)
        return _line(artifact, selection, settings)

    @staticmethod
    def packed(hashes: NDArray[np.uint64]) -> str:
        """Sorted hashes as `questions` keeps them."""
        return b64encode(hashes[:SKETCH].astype("<u8").tobytes()).decode()

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """The stored hashes."""
        return np.frombuffer(b64decode(self.questions), dtype="<u8").astype(np.uint64)

    def shares(self, questions: NDArray[np.uint64]) -> bool:
        """Whether it used any of these questions (sorted hashes)."""
        return bool(among(self.hashes, questions).any())


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Facts about a fit that its artifact does not state.

    Attributes:
        score: Key of the score in the records.
        delta: Failure probability asked for; None for the default.
        options: Options of the rule that were given.
        declare: Keys of scores declared before the first fit, in any order.
    """

    score: str
    delta: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    declare: tuple[str, ...] = ()


@dataclass(slots=True)
class Fits:
    """A memory of fits: in files beside record files, or, without any, in this object.

    Attributes:
        paths: The files; a new fit is written into each.
        folder: Artifacts in this folder count as well; None for none.
        entries: Fits that this object remembers, oldest first.
        unwritten: The file that could not be written, after `counted`; None if all were.
    """

    paths: Sequence[Path] = ()
    folder: Path | None = None
    entries: list[Fit] = field(default_factory=list)
    unwritten: Path | None = None

    def read(self) -> list[Fit]:
        """All fits: of this object, of the files, and of artifacts in the folder; each once, oldest first.

        Raises:
            UsageError: A file is damaged, or of another version.
        """
        stored = [*self.entries, *(fit for path in self.paths for fit in _read(path)), *_of_folder(self.folder)]
        unique: dict[str, Fit] = {}
        for fit in stored:
            unique.setdefault(fit.fit, fit)  # a line of a file rather than the artifact it is about
        # A stable sort: lines of one second keep their order.
        return sorted(unique.values(), key=lambda fit: fit.created)

    def add(self, new: Fit) -> None:
        """Remember a fit, atomically."""
        self.entries.append(new)
        for path in self.paths:
            before = path.read_bytes() if path.is_file() else b""
            if before and not before.endswith(b"\n"):  # an editor may have taken the last one
                before += b"\n"
            try:
                atomic_write(path, before + f"{canonical_json(new.model_dump())}\n".encode())
            except OSError:  # a folder that others own; the artifact still counts
                self.unwritten = path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from fitting on these records until this fit is remembered."""
        with ExitStack() as locks:
            for path in sorted(set(self.paths)):
                with suppress(OSError):
                    locks.enter_context(exclusive(path))
            yield


def beside(records: Path) -> Path:
    """The memory of a record file."""
    return records.with_name(f"{records.stem}.fits.jsonl")


def counted(
    make: Callable[[Selection | None], CalibrationArtifact],
    fits: Fits,
    settings: FitSettings,
    *,
    strict: bool = False,
) -> CalibrationArtifact:
    """Fit, count the fits on its labels, pay for this one, and remember it.

    Args:
        make: Fits, with the part of delta that a selection spends.
        fits: The memory.
        settings: What was asked for.
        strict: Refuse a fit on labels that have carried others which were not declared with it.

    Raises:
        UsageError: Such a fit; scores declared after the first fit, or without this one; or an unreadable memory.
    """
    artifact = make(None)
    with fits.held():
        earlier = [fit for fit in fits.read() if fit.shares(hashes_of_fit(artifact))]
        selection = _selection(artifact, earlier, settings)
        if strict and selection.fits > 1:
            raise UsageError(f"{_count(earlier)} --strict refuses another one. {_WAYS}")
        if all(fit.fit != selection.fit for fit in earlier):
            fits.add(_line(artifact, selection, settings))
    return with_selection(artifact, selection) if selection.part == 1 else make(selection)


def counted_cascade(
    artifact: CascadeArtifact, fits: Fits, scores: Sequence[str], *, strict: bool = False
) -> CascadeArtifact:
    """Count the fits on the labels of a cascade and remember this one, which spends all of its delta.

    Args:
        artifact: The new cascade.
        fits: The memory, with a file beside each stage's records.
        scores: Key of the score of each stage.
        strict: As for `counted`.
    """
    outcome = artifact.outcome if artifact.outcome.rule == CERTIFIED else artifact.certificate
    delta = CERTIFICATE_DELTA if outcome.delta is None else outcome.delta
    stages = [
        [stage.estimator.model_dump(mode="json"), stage.correctness.model_dump(mode="json"), stage.data.sha256]
        + [sha256(values.tobytes()).hexdigest() for values in _ranked(stage)]
        for stage in artifact.stages
    ]
    selection = _at_whole_delta(
        fits,
        np.unique(np.concatenate([hashes_of_fit(stage) for stage in artifact.stages])),
        Fit(
            created=artifact.created,
            fit=_digest(["cascade", outcome.options.get("price"), round(delta, 12), stages]),
            family="",
            score=" > ".join(scores),
            rule=artifact.outcome.rule,
            n=artifact.outcome.n,
            spent=delta,
            questions="",
        ),
        strict=strict,
        ways=_WAYS,
    )
    return artifact.model_copy(
        update={
            "selection": selection,
            "outcome": _said(artifact.outcome, selection),
            "certificate": _said(artifact.certificate, selection),
        }
    )


def _said(outcome: CascadeOutcome, selection: Selection) -> CascadeOutcome:
    text = selection.describe(outcome.delta)
    return outcome.model_copy(update={"guarantee": f"{outcome.guarantee} {text}".strip()})


def counted_parts(
    artifact: CalibrationArtifact, fits: Fits, score: str, *, strict: bool = False
) -> CalibrationArtifact:
    """Count the fits on the labels of a gate of parts and remember this one, which spends all of its delta.

    All fits of one planned number of answers are one fit, as its rule is valid at each of them together.
    """
    gate = artifact.parts
    assert gate is not None, "an artifact of parts"
    configuration = gate.model_dump(mode="json", include={"rule", "per", "delta", "allowed", "bands", "cut"})
    # Without the start of the sequence, which depends on alpha.
    configuration["options"] = {
        name: value for name, value in gate.options.items() if name not in ("start", "start_from")
    }
    labels = [artifact.correctness.model_dump(mode="json"), artifact.data.sha256, artifact.data.n_used]
    planned = gate.options.get("planned") is not None
    selection = _at_whole_delta(
        fits,
        hashes_of_fit(artifact),
        Fit(
            created=artifact.created,
            fit=_digest(
                ["parts", score, configuration, artifact.estimator.model_dump(mode="json"), None if planned else labels]
            ),
            family="",
            score=score,
            rule=gate.rule,
            n=artifact.data.n_used,
            spent=CERTIFICATE_DELTA if gate.delta is None else gate.delta,
            questions="",
        ),
        strict=strict,
        ways=_WAYS_OF_PARTS,
    )
    return artifact.model_copy(update={"selection": selection})


def _at_whole_delta(fits: Fits, questions: NDArray[np.uint64], fit: Fit, *, strict: bool, ways: str) -> Selection:
    """Remember a fit that spends all of its delta, and return the count with it."""
    fit = fit.model_copy(update={"family": fit.fit, "questions": Fit.packed(questions)})
    with fits.held():
        earlier = [each for each in fits.read() if each.shares(questions)]
        if strict and any(each.family != fit.family for each in earlier):
            raise UsageError(f"{_count(earlier)} --strict refuses another one. {ways}")
        if all(each.fit != fit.fit for each in earlier):
            fits.add(fit)
    families = {each.family: each.spent for each in reversed(earlier) if each.family != fit.family}
    others = min(1.0, sum(families.values()))
    return Selection(fits=len(families) + 1, others=others, fit=fit.fit, family=fit.family)


def selection_warning(artifact: CalibrationArtifact | CascadeArtifact) -> str | None:
    """Effect of several fits on the labels of a new artifact on its promise; None for one, and for declared ones."""
    selection = artifact.selection
    if selection is None or selection.fits == 1:
        return None
    spent = selection.spent(_whole_delta(artifact))
    if isinstance(artifact, CalibrationArtifact) and artifact.parts is not None:
        return (
            f"These labels, or a part of them, have carried {selection.fits} fits. Each spends its whole failure "
            f"probability, together {spent:.2g}: whichever of them you use, the certificate holds with "
            f"{percent(1 - spent)} confidence. {_WAYS_OF_PARTS}"
        )
    return (
        f"These labels have carried {selection.fits} fits: whichever you use, the certificate holds with "
        f"{percent(1 - spent)} confidence. The best of several errs more than it shows, under every rule. Fit on fresh "
        "labels, or let --estimator auto choose the score (docs/calibrating.md says what counts as a fit)."
    )


_WAYS = (
    "Fit on fresh labels, let --estimator auto compare scores on questions that the fit does not use, or declare "
    "scores before the first fit (--declare NAME,NAME) or looks before the first label (calibrate sample --looks "
    "100,200,400)."
)


_WAYS_OF_PARTS = (
    "Choose the rule before the first fit, fit on fresh labels, or fit while labels come in with --planned, which "
    "counts as one fit."
)


def _selection(artifact: CalibrationArtifact, earlier: Sequence[Fit], settings: FitSettings) -> Selection:
    """The count for a new artifact; the earlier fits share labels with it."""
    settings = _as_declared(artifact, earlier, settings)
    declared = tuple(sorted(set(settings.declare)))
    if declared and settings.score not in declared:
        raise UsageError(
            f"{settings.score!r} is not among the declared scores ({', '.join(declared)}). Declare it as well."
        )
    digest, family = _digests(artifact, settings)
    decided = _decided_since(artifact, earlier, settings)
    look = _look(artifact)
    if decided is not None:
        family, declared = decided.family, decided.declared
    elif not declared and any(f.family == family and f.look == look and f.fit != digest for f in earlier):
        family = digest  # declared looks pay for one fit at each of them, and this look had other labels
    families: dict[str, Fit] = {}
    for fit in earlier:
        families.setdefault(fit.family, fit)
    place = list(families).index(family) if family in families else len(families)
    if declared and place > 0:
        raise UsageError(
            f"{_count(earlier)} Scores are declared before the first fit on their labels. Fit on fresh labels, or "
            "without --declare: then each further fit spends less of delta."
        )
    if decided is None and any(
        declared and f.family == family and (f.score, f.look) == (settings.score, look) and f.fit != digest
        for f in earlier
    ):
        raise UsageError(
            f"the declared score {settings.score!r} was fitted on these labels before, with other values. A "
            "declaration pays for one fit of each score: fit it without --declare."
        )
    return Selection(
        fits=len(families) + (family not in families),
        others=min(1.0, sum(fit.spent for fit in families.values() if fit.family != family)),
        part=1 / len(declared) if declared else _paid(place + 1),
        declared=declared,
        fit=digest,
        family=family,
    )


def _look(artifact: CalibrationArtifact) -> int | None:
    """`Fit.look` of an artifact."""
    return None if artifact.looks is None else artifact.looks.look


def _paid(number: int) -> float:
    """Share of delta that a fit spends which was not declared: all of it the first, later ones .392 together."""
    return 1.0 if number == 1 else 6 / (pi * number) ** 2


def _as_declared(artifact: CalibrationArtifact, earlier: Sequence[Fit], settings: FitSettings) -> FitSettings:
    """The settings with the declaration of an earlier fit, if this score is one of it."""
    if settings.declare:
        return settings
    for fit in earlier:
        again = replace(settings, declare=fit.declared)
        if settings.score in fit.declared:
            digest, family = _digests(artifact, again)
            mine = (family, settings.score, _look(artifact))
            same = [each for each in earlier if (each.family, each.score, each.look) == mine]
            if family == fit.family and all(each.fit == digest for each in same):
                return again
    return settings


def _decided_since(artifact: CalibrationArtifact, earlier: Sequence[Fit], settings: FitSettings) -> Fit | None:
    """The last fit that differs from this one only in undecided answers that were decided since; None without one.

    At every threshold no more answers are wrong than then, and no more have become right than were undecided.
    """
    base = _base(artifact, settings)
    last = next((fit for fit in reversed(earlier) if fit.base == base and fit.score == settings.score), None)
    if last is None or not last.wrong or artifact.outcome.rule not in (CERTIFIED, AVERAGE):
        return None
    u, now = _ranked(artifact)
    before = np.unpackbits(np.frombuffer(b64decode(last.wrong), dtype=np.uint8), count=now.size)
    ends = np.flatnonzero(np.append(u[1:] != u[:-1], True))
    fallen = np.cumsum(before.astype(np.int64) - now)[ends]
    return last if fallen.min() >= 0 and fallen[-1] <= last.undecided else None


def _base(artifact: CalibrationArtifact, settings: FitSettings) -> str:
    """`Fit.base` of an artifact."""
    spec = artifact.correctness
    params = {name: value for name, value in spec.params.items() if name != "undecided"}
    bare = artifact.model_copy(update={"correctness": spec.model_copy(update={"params": params})})
    u, _ = _ranked(artifact)
    configuration = _asked(bare, settings)
    return _digest(
        [
            configuration,
            artifact.estimator.model_dump(mode="json"),
            artifact.data.sha256,
            sha256(u.tobytes()).hexdigest(),
        ]
    )


def _ranked(artifact: CalibrationArtifact) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Scores in order, and the labels of their questions, right ones first among equal scores."""
    scores = artifact.calibration
    u, error = np.asarray(scores.uncertainty, dtype="<f8"), np.asarray(scores.error, dtype="<i1")
    order = np.lexsort((error, u))
    return u[order], error[order]


def _count(earlier: Sequence[Fit]) -> str:
    """The number of fits that share the labels, with the first few."""
    shown = ", ".join(f"{fit.score} by {fit.rule} on {fit.n}" for fit in earlier[:3])
    more = "" if len(earlier) <= 3 else f" and {len(earlier) - 3} more"
    times = "1 fit" if len(earlier) == 1 else f"{len(earlier)} fits"
    return f"these labels, or a part of them, have carried {times} ({shown}{more})."


def _digests(artifact: CalibrationArtifact, settings: FitSettings) -> tuple[str, str]:
    """`Selection.fit` and `Selection.family` of an artifact."""
    configuration, score, looks = _asked(artifact, settings), artifact.estimator.model_dump(mode="json"), artifact.looks
    u, error = _ranked(artifact)
    digest = _digest([configuration, score, artifact.data.sha256, sha256(u.tobytes() + error.tobytes()).hexdigest()])
    if settings.declare:
        # Declared looks are one family on any labels.
        questions = None if looks is not None else sha256(hashes_of_fit(artifact).tobytes()).hexdigest()
        return digest, _digest([configuration, sorted(set(settings.declare)), questions])
    return digest, digest if looks is None else _digest([configuration, score])


def _asked(artifact: CalibrationArtifact, settings: FitSettings) -> list[object]:
    """Settings of the fit, apart from the score, the labels and alpha."""
    certifies, segments, looks = artifact.outcome.certifies, artifact.segments, artifact.looks
    return [
        # Every artifact carries the plain certificate, so a rule that certifies nothing is the same test.
        artifact.outcome.rule if certifies else CERTIFIED,
        dict(settings.options) if certifies else {},
        round(_delta(artifact, settings), 12),
        artifact.correctness.model_dump(mode="json"),
        None if artifact.reach is None else artifact.reach.cut,
        artifact.calibration.group is not None,
        None if segments is None else [segments.share, segments.unknown, segments.min_labels],
        None if looks is None else [looks.schedule, looks.parts],
    ]


def _delta(artifact: CalibrationArtifact, settings: FitSettings) -> float:
    """Failure probability asked for: that of the rule in use if it certifies, else that of the certificate."""
    return (settings.delta or DEFAULT_DELTA) if artifact.outcome.certifies else CERTIFICATE_DELTA


def _whole_delta(artifact: CalibrationArtifact | CascadeArtifact) -> float:
    """Failure probability that the certificate states, over all declared looks."""
    delta = artifact.certificate.delta or CERTIFICATE_DELTA
    looks = None if isinstance(artifact, CascadeArtifact) else artifact.looks
    return delta if looks is None else delta / looks.part


def _digest(value: object) -> str:
    return sha256_hex(canonical_json(value, default=str))[:32]


def _line(artifact: CalibrationArtifact, selection: Selection, settings: FitSettings) -> Fit:
    """The line that remembers a fit."""
    paid = 1.0 if selection.declared else selection.part
    return Fit(
        created=artifact.created,
        fit=selection.fit,
        family=selection.family,
        score=settings.score,
        rule=artifact.outcome.rule,
        n=artifact.data.n_used,
        spent=paid * _delta(artifact, settings),
        declared=selection.declared,
        base=_base(artifact, settings),
        undecided=artifact.data.n_undecided,
        wrong=b64encode(np.packbits(_ranked(artifact)[1]).tobytes()).decode() if artifact.data.n_undecided else "",
        look=_look(artifact),
        questions=Fit.packed(hashes_of_fit(artifact)),
    )


def _read(path: Path) -> list[Fit]:
    if not path.is_file():
        return []
    fits = []
    # By newlines alone: `splitlines` also cuts at characters that JSON leaves in names.
    lines = path.read_bytes().removesuffix(b"\n").split(b"\n") if path.stat().st_size else []
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        damaged = f"{where} is not a line that `calibrate fit` wrote. Restore the file: it counts the fits."
        try:
            row = json.loads(line)
            version = row.get("format")
        except (ValueError, AttributeError) as error:
            raise UsageError(damaged) from error
        check_version(version, 1, where, "remove the file, which forgets the fits")
        try:
            fits.append(Fit.from_stored(row))
        except ValidationError as error:
            raise UsageError(damaged) from error
    return fits


def _of_folder(folder: Path | None) -> list[Fit]:
    """Fits of the artifacts in a folder."""
    if folder is None:
        return []
    fits = []
    for path in sorted(folder.glob("*.json")):
        try:
            with path.open("rb") as file:
                if not file.read(11).startswith(b'{\n "digest"'):
                    continue  # other JSON, which may take long to read
            artifact = CalibrationArtifact.load(path)
        except (ArtifactError, OSError):
            continue
        fits.append(Fit.of(artifact))
    return fits
