"""From records with labelled items to an artifact, and what its gate does on answers it has not seen."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from guardrail.artifact import CalibrationArtifact, CalibrationScores, DataFingerprint
from guardrail.errors import UsageError
from guardrail.items.spec import ItemFigures, ItemScores, ItemsThreshold
from guardrail.outcome import Diagnostics, Feasible, Infeasible, InfeasibleReason

from ..data.collect import package_versions
from ..data.columns import open_records
from ..data.records import Record, RecordFile
from ..data.split import all_grouped, one_per_cluster, one_per_question
from ..data.table import RecordTable, table_of
from ..pipeline import CERTIFICATE_DELTA, narrowed_plan, now, refuse_fitted, turns_of_records, unlike
from ..rules.certificate import interval
from ..scoring.scores import refuse_failed
from ..spec_syntax import parse_rule
from .answers import (
    MeasuredItems,
    key_of_items,
    labelled_to,
    packed_answers,
    refuse_unlabelled,
    without_labels,
)
from .figures import item_figures
from .rules import (
    RULES,
    START_SHARE,
    AnswerItems,
    Found,
    Per,
    both,
    clean_answers,
    clean_shown,
    reading_order,
    start_shown,
    start_wrong_share,
    wrong_share,
)

__all__ = [
    "ENOUGH_UNLABELLED",
    "ItemsRule",
    "fit_items",
    "fit_items_artifact",
    "held_out_items",
    "thresholds_of",
]

ENOUGH_UNLABELLED = 50
"""Unlabelled answers from which on the start of a sequence is read off them, not off the calibration answers."""


OPTIONS = {
    "wrong_share": ("per", "seed", "start_share", "largest_group", "allowed"),
    "clean_shown": ("allowed",),
    "clean_answers": ("allowed",),
    "both": ("per", "seed", "start_share", "allowed", "clean_alpha"),
}
"""Options of each rule in ``--rule NAME:option=value``. In `wrong_share`, ``allowed`` is about the figures alone."""


@dataclass(frozen=True)
class ItemsRule:
    """A rule for items with its options; all of them are declared before labels are seen.

    Attributes:
        name: One of `calibrate.items.rules.RULES`; None for the default, `wrong_share`.
        per: Unit of `wrong_share`: "item" (default for JSON) or "answer" (default for prose).
        allowed: Wrong items that an answer may keep (`clean_answers`, `clean_shown`).
        seed: Seed of the order in which `wrong_share` reads answers.
        start_share: Where `wrong_share` starts: at the first threshold at which this share of the answers would do
            without an error (`start_wrong_share`). None: .8; .5 in `both`, which tests at half of delta and
            finds a threshold less often from .8.
        largest_group: Most items (answers, per answer) of a group; with it all answers of a group are used.
        clean_alpha: Target of `clean_answers` in `both`; default: alpha.
        bands: Largest numbers of items of bands with their own thresholds; empty for one threshold.
        band_delta: "together": the bands divide delta; "each": each has it.
        planned: Answers at the last of several looks. The labelled answers must then be the first of all answers of
            the file in reading order; no look costs anything.
    """

    name: str | None = None
    per: Per | None = None
    allowed: int = 0
    seed: int = 0
    start_share: float | None = None
    largest_group: int | None = None
    clean_alpha: float | None = None
    bands: tuple[int, ...] = ()
    band_delta: Literal["together", "each"] = "together"
    planned: int | None = None

    @classmethod
    def of(cls, name: str | None, options: Mapping[str, Any]) -> ItemsRule:
        """From the name and options of ``--rule NAME:option=value``.

        Raises:
            UsageError: An unknown rule or option.
        """
        if name is not None and name not in RULES:
            raise UsageError(f"no rule for items named {name!r}; choose one of: {', '.join(RULES)}")
        meant = name or "wrong_share"
        unknown = [option for option in options if option not in OPTIONS[meant]]
        if unknown:
            raise UsageError(
                f"rule {meant!r} takes no option {unknown[0]!r}. Its option{'s' * (len(OPTIONS[meant]) > 1)}: "
                f"{', '.join(OPTIONS[meant])}."
            )
        rule = cls(name=name, **options)
        if rule.start_share is not None and not 0 < rule.start_share <= 0.9:
            raise UsageError(
                f"start_share must be in (0, 0.9], got {rule.start_share}. Leave it out for {rule.start:g}."
            )
        return rule

    @classmethod
    def read(cls, rule: ItemsRule | str | None) -> ItemsRule:
        """From a text as ``--rule`` takes it, such as "wrong_share:per=answer"; None for the default, a rule as it is.

        Raises:
            UsageError: As `of`, or a text that cannot be read.
        """
        if isinstance(rule, ItemsRule):
            return rule
        parsed = None if rule is None else parse_rule(rule)
        return cls.of(*parsed) if isinstance(parsed, tuple) else cls.of(parsed, {})

    @classmethod
    def again(cls, gate: ItemsThreshold) -> ItemsRule:
        """The rule of a gate, to be fitted again: on other answers, or for another alpha."""
        options = gate.options
        clean = options.get("clean_alpha")
        return cls(
            name=gate.rule,
            per=gate.per,
            allowed=gate.allowed,
            seed=options.get("seed", 0),
            start_share=options.get("start_share", 0.5),
            largest_group=options.get("largest_group"),
            clean_alpha=None if clean == gate.alpha else clean,
            bands=gate.bands,
            band_delta=options.get("band_delta", "together"),
            planned=options.get("planned"),
        )

    @property
    def start(self) -> float:
        """The share of answers where `wrong_share` starts."""
        return (0.5 if self.name == "both" else START_SHARE) if self.start_share is None else self.start_share

    @property
    def text(self) -> str:
        """The rule as ``--rule`` takes it, with the options that are not the default."""
        defaults = replace(ItemsRule(self.name), per=None)
        names = ["allowed", "clean_alpha"]
        if self.name in ("wrong_share", "both"):
            names = ["per", "seed", "start", "largest_group", *names]
        given = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(defaults, name)}
        if "start" in given:
            given["start_share"] = given.pop("start")
        options = ",".join(f"{name}={value}" for name, value in given.items())
        return f"{self.name}:{options}" if options else f"{self.name}"

    @property
    def flags(self) -> str:
        """The options of the fit that ``--rule`` does not take, as flags."""
        bands = f" --by-length {','.join(map(str, self.bands))} --segment-delta {self.band_delta}" if self.bands else ""
        return bands + ("" if self.planned is None else f" --planned {self.planned}")

    def resolved(self, kind: str) -> ItemsRule:
        """With the defaults of a kind of items."""
        return replace(self, name=self.name or "wrong_share", per=self.per or ("item" if kind == "json" else "answer"))


def fit_items(
    items: AnswerItems,
    *,
    alpha: float,
    delta: float | None,
    rule: ItemsRule,
    unlabelled: AnswerItems | None = None,
    groups: Sequence[str] | None = None,
) -> Found:
    """Fit one threshold.

    Args:
        items: Calibration answers.
        alpha: Target.
        delta: Failure probability; None for `clean_answers` on average.
        rule: The rule; its unit must be set.
        unlabelled: Other answers, from which the start of a sequence is read; default: the calibration answers, whose
            labels the start does not read.
        groups: Group of each answer, if `rule.largest_group` is declared.
    """
    per = rule.per or "item"
    if rule.name == "clean_answers":
        return clean_answers(items, alpha=alpha, delta=delta, allowed=rule.allowed)
    if delta is None:
        raise UsageError(f"rule {rule.name!r} needs a delta, the probability that its promise fails.")
    other = unlabelled is not None and (rule.planned is not None or unlabelled.n >= ENOUGH_UNLABELLED)
    source = unlabelled if other and unlabelled is not None else items
    if rule.name == "clean_shown":
        start = start_shown(source, items.n, alpha=alpha, delta=delta, other=other)
        return clean_shown(items, alpha=alpha, delta=delta, start=start, allowed=rule.allowed)
    spent = delta / 2 if rule.name == "both" else delta
    n = rule.planned or (items.n if groups is None else len(set(groups)))
    share = wrong_share(
        items,
        alpha=alpha,
        delta=spent,
        per=per,
        start=start_wrong_share(source, n, alpha=alpha, delta=spent, per=per, share=rule.start),
        seed=rule.seed,
        planned=rule.planned,
        groups=groups,
        largest_group=rule.largest_group,
    )
    if rule.name != "both":
        return share
    return both(share, clean_answers(items, alpha=rule.clean_alpha or alpha, delta=spent, allowed=rule.allowed))


def fit_items_artifact(
    records: RecordFile | str | Path,
    *,
    alpha: float,
    kind: str | None = None,
    rule: ItemsRule | str | None = None,
    delta: float | None = CERTIFICATE_DELTA,
    part: Sequence[Record] | None = None,
    groups: Literal["category", "cluster"] = "category",
    cap: int | None = None,
    cut: float | None = None,
    repeats: Literal["one", "all"] = "one",
    without_failed: bool = False,
) -> CalibrationArtifact:
    """Fit a threshold for the items of answers and bind it to everything it is valid for.

    Args:
        records: Records with items and their labels (``score --items``, ``label --items``).
        alpha: Target: the share of wrong items, or of answers with one, as the rule says.
        kind: "json" or "sentences"; default: the only one in the file.
        rule: A rule, or its text as ``--rule`` takes it; default: `wrong_share`, per item for JSON and per answer for
            prose.
        delta: Failure probability; None for `clean_answers` on average.
        part: Fit on these records only.
        groups: Whether the records' groups are clusters of dependent answers: one answer of each is used, or all of
            them where the rule declares ``largest_group``.
        cap: Most items of an answer that are kept; default: that of the items in the file. Fix it without labels.
        cut: Largest uncertainty of an item that was labelled, fixed before labelling; default: that of the labels.
        repeats: The answers of a question that is in the file several times: one of them, or all, where each time is
            a draw of its own.
        without_failed: As for `calibrate.pipeline.fit_artifact`.

    Returns:
        The artifact. An infeasible outcome is a result: it loads as a gate that holds every item back.

    Raises:
        UsageError: More than 1 % of the questions failed, records without items or labels, or a rule that cannot be
            used.
    """
    file = records if isinstance(records, RecordFile) else open_records(records)
    key = key_of_items(file, kind)
    chosen = ItemsRule.read(rule)
    if chosen.largest_group is not None and groups != "cluster":
        raise UsageError("largest_group is for groups of dependent answers: add --cluster-by-group, or leave it out.")
    if chosen.largest_group is not None and chosen.name not in (None, "wrong_share"):
        raise UsageError(
            f"rule {chosen.name!r} counts answers as independent, so it cannot use all answers of a group: leave "
            "largest_group out, and one answer of each group is used."
        )
    used = table_of(file.records if part is None else part)
    if groups == "cluster":
        used = all_grouped(used) if chosen.largest_group is not None else one_per_cluster(used)
    used = used if repeats == "all" else one_per_question(used)
    n_failed = refuse_failed(used, key, allowed=without_failed)
    data = packed_answers(file, key, part=used, cap=cap, cut=cut)
    cut = data.items.cut
    chosen = chosen.resolved(data.spec.kind)
    if chosen.planned is not None:
        _refuse_gaps(used, data, key, chosen)
        # At every look the same start: that of all answers, with labels or without.
        data = replace(data, unlabelled=without_labels(used, key, data.spec.cap, cut))
    names = [group or "" for group in data.records.groups] if groups == "cluster" else None
    found, band_thresholds = _fitted(data.items, data.unlabelled, alpha, delta, chosen, names)
    each = _each(data.items, found.threshold, chosen.bands, band_thresholds)
    figures = item_figures(data.items, each, allowed=chosen.allowed, columns=data.columns)
    gate = _gate(data, alpha, delta, chosen, found, band_thresholds, figures, cut, names)
    outcome = _outcome(gate, found, data.items)
    header = file.header
    return CalibrationArtifact(
        created=now(),
        model=header.model,
        plan=narrowed_plan(header.plan, header.estimators[key]),
        prompt=header.prompt,
        estimator=header.estimators[key].model_copy(update={"params": data.spec.model_dump(mode="json")}),
        correctness=data.correctness,
        data=_fingerprint(file, used, data, n_failed),
        outcome=outcome,
        calibration=CalibrationScores(uncertainty=(), error=()),
        packages=package_versions(),
        turns=turns_of_records(data.records),
        items=gate,
    )


def _fitted(
    items: AnswerItems,
    unlabelled: AnswerItems | None,
    alpha: float,
    delta: float | None,
    rule: ItemsRule,
    groups: Sequence[str] | None,
) -> tuple[Found, tuple[float | None, ...]]:
    """One threshold, or one for each band and the loosest of them."""
    if not rule.bands:
        return fit_items(items, alpha=alpha, delta=delta, rule=rule, unlabelled=unlabelled, groups=groups), ()
    if list(rule.bands) != sorted(set(rule.bands)) or rule.bands[0] < 1:
        raise UsageError(
            f"bands are increasing numbers of items, got {rule.bands}. Write 2,4 for 1-2, 3-4 and 5 or more."
        )
    if groups is not None:
        raise UsageError("bands of the number of items and clusters of answers exclude each other: leave out one.")
    shared = len(rule.bands) + 1 if rule.band_delta == "together" else 1
    spent = None if delta is None else delta / shared
    results: list[Found] = []
    for index in range(len(rule.bands) + 1):
        inside = _band(items, rule.bands) == index
        if not inside.any():
            results.append(Found(None, "", InfeasibleReason.TOO_FEW_ITEMS, "no calibration answer has so many items"))
            continue
        other = None if unlabelled is None else unlabelled.take(_band(unlabelled, rule.bands) == index)
        results.append(fit_items(items.take(inside), alpha=alpha, delta=spent, rule=rule, unlabelled=other))
    thresholds = tuple(result.threshold for result in results)
    feasible = [result for result in results if result.threshold is not None]
    names = _band_names(rule.bands)
    where = f"In each band of the number of items ({', '.join(names)}), " + (
        "all at once: " if rule.band_delta == "together" else "for each by itself: "
    )
    if not feasible:
        worst = results[0]
        return replace(
            worst, detail="; ".join(f"{n}: {r.detail}" for n, r in zip(names, results, strict=True))
        ), thresholds
    loosest = max(feasible, key=lambda result: result.threshold or 0.0)
    return replace(loosest, guarantee=where + loosest.guarantee), thresholds


def _refuse_gaps(used: RecordTable, data: MeasuredItems, key: str, rule: ItemsRule) -> None:
    """Refuse a look whose labels are not those of the first answers in reading order.

    Raises:
        UsageError: Naming the first answer that was passed over, or a rule that has no looks.
    """
    if rule.name != "wrong_share":
        raise UsageError(f"rule {rule.name!r} cannot be looked at several times: use wrong_share, or one look.")
    names = list(used.take(used.items(key).measured).ids)
    labelled = set(data.items.ids)
    ordered = [names[place] for place in reading_order(names, rule.seed)]
    gap = next((name for name in ordered[: len(labelled)] if name not in labelled), None)
    if gap is not None:
        raise UsageError(
            f"with looks, labels follow the reading order, and {gap!r} has none although later answers have. Label in "
            f"the order of `calibrate label --interactive --seed {rule.seed}`, the seed of the rule."
        )


def _band(items: AnswerItems, bands: Sequence[int]) -> Any:
    return np.array([bisect_left(bands, int(size)) for size in items.size], dtype=np.int64)


def _band_names(bands: Sequence[int]) -> list[str]:
    lows = [1, *(high + 1 for high in bands)]
    closed = [f"{low}" if low == high else f"{low} to {high}" for low, high in zip(lows, bands, strict=False)]
    return [*closed, f"{lows[-1]} or more"]


def _each(
    items: AnswerItems, threshold: float | None, bands: Sequence[int], band_thresholds: Sequence[float | None]
) -> list[float | None]:
    if not bands:
        return [threshold] * items.n
    return [band_thresholds[index] for index in _band(items, bands)]


def thresholds_of(gate: ItemsThreshold, items: AnswerItems) -> list[float | None]:
    """The threshold of each answer: its band's, or the only one."""
    return [gate.threshold_for(int(size)) for size in items.size]


def _gate(
    data: MeasuredItems,
    alpha: float,
    delta: float | None,
    rule: ItemsRule,
    found: Found,
    band_thresholds: tuple[float | None, ...],
    figures: ItemFigures,
    cut: float | None,
    groups: Sequence[str] | None,
) -> ItemsThreshold:
    assert rule.name is not None, "resolved"
    assert rule.per is not None, "resolved"
    other = data.unlabelled is not None and data.unlabelled.n >= ENOUGH_UNLABELLED
    source = "all" if rule.planned is not None else "unlabelled" if other else "calibration"
    return ItemsThreshold(
        spec=data.spec,
        rule=rule.name,
        promise=found.guarantee,
        alpha=alpha,
        delta=delta,
        threshold=found.threshold,
        per=rule.per,
        allowed=rule.allowed,
        cut=cut,
        options=_options(rule, found, alpha, source),
        n_unmeasured_answers=data.n_unmeasured,
        n_unmeasured_items=data.n_unmeasured_items,
        n_undecided=data.n_undecided,
        bands=rule.bands,
        band_thresholds=band_thresholds,
        figures=figures,
        scores=ItemScores(
            sizes=tuple(data.columns.size.tolist()),
            uncertainty=tuple(None if math.isnan(value) else value for value in data.columns.uncertainty.tolist()),
            wrong=tuple(data.items.wrong.tolist()),
            ids=data.items.ids,
            group=None if groups is None else tuple(groups),
        ),
    )


def _options(rule: ItemsRule, found: Found, alpha: float, source: str) -> dict[str, Any]:
    """The options of a rule as they were used."""
    options: dict[str, Any] = {}
    if rule.name != "clean_answers":
        options |= {"grid": "scores", "start": found.start, "start_from": source}
    if rule.name in ("wrong_share", "both"):
        options |= {"seed": rule.seed, "start_share": rule.start}
    if rule.name == "both":
        options |= {"clean_alpha": rule.clean_alpha or alpha}
    declared = {"largest_group": rule.largest_group, "planned": rule.planned}
    options |= {name: value for name, value in declared.items() if value is not None}
    if rule.bands:
        options["band_delta"] = rule.band_delta
    return options


def _outcome(gate: ItemsThreshold, found: Found, items: AnswerItems) -> Feasible | Infeasible:
    """The outcome in answers: accepted are those that show something, errors those that are broken."""
    figures = gate.figures
    assert figures is not None, "a fit counts"
    delta = gate.delta
    everything = np.isfinite(items.first_broken(gate.allowed)).mean()
    common: dict[str, Any] = {
        "rule": gate.rule,
        "alpha": gate.alpha,
        "delta": delta,
        "options": {"per": gate.per, "allowed": gate.allowed, **gate.options},
        "n": figures.answers,
        "guarantee": gate.promise,
        "certifies": delta is not None,
        "diagnostics": Diagnostics(
            base_error=float(everything),
            auroc=None,
            max_acceptance=1.0,
        ),
    }
    if found.threshold is None or not figures.shown:
        reason = found.reason or InfeasibleReason.RISK_NEVER_LOW_ENOUGH
        return Infeasible(reason=reason, detail=found.detail or "No part is kept at this threshold.", **common)
    low, high = interval(figures.broken, figures.shown)
    first = items.first_kept()
    return Feasible(
        threshold=found.threshold,
        n_accepted=figures.shown,
        n_errors=figures.broken,
        interval=(low, high),
        tie_block=int((first == found.threshold).sum()),
        **common,
    )


def _fingerprint(file: RecordFile, used: RecordTable, data: MeasuredItems, n_failed: int) -> DataFingerprint:
    return DataFingerprint(
        name=file.header.questions_name,
        sha256=data.records.fingerprint(),
        n_questions=len(used),
        n_used=len(data.records),
        n_unmeasured=data.n_unmeasured,
        n_failed=n_failed,
        n_unlabelled=data.n_unlabelled,
        questions=DataFingerprint.stored(array("Q", np.sort(used.question_hashes()).tobytes())),
    )


def held_out_items(
    artifact: CalibrationArtifact, file: RecordFile, records: Sequence[Record] | None = None
) -> tuple[ItemFigures, MeasuredItems]:
    """Counts of an artifact's gate on labelled answers that it was not fitted on.

    Raises:
        UsageError: Answers that it was fitted on, items measured otherwise, or none that are labelled.
    """
    gate = artifact.items
    if gate is None:
        raise UsageError("this artifact gates whole answers; give records without --items.")
    key = key_of_items(file, gate.spec.kind)
    require_same_items(artifact, file, key)
    # Labels up to the threshold will do: nothing above is kept.
    cut = labelled_to(file, key)
    refuse_unlabelled(file, key, gate.threshold)
    data = packed_answers(file, key, part=records, cap=gate.spec.cap, cut=gate.cut if cut is None else cut)
    refuse_fitted(artifact, data.records, "test")
    limits = thresholds_of(gate, data.items)
    return item_figures(data.items, limits, allowed=gate.allowed, columns=data.columns), data


def require_same_items(artifact: CalibrationArtifact, file: RecordFile, key: str) -> None:
    """Refuse records whose items were made otherwise than the artifact says.

    Raises:
        UsageError: Both sides are named.
    """
    gate, header = artifact.items, file.header
    assert gate is not None, "an artifact of items"
    differences = artifact.model.differences(header.model)
    spec = header.estimators[key].params
    ours = gate.spec.model_dump(mode="json")
    sides: list[tuple[str, object, object]] = [
        ("prompt", artifact.prompt, header.prompt),
        *((name, ours[name], spec.get(name)) for name in ("kind", "splitter", "support")),
        ("plan", artifact.plan, narrowed_plan(header.plan, artifact.estimator)),
    ]
    differences += unlike(sides)
    if differences:
        listed = "\n  ".join(differences)
        raise UsageError(f"{file.path} does not fit the artifact:\n  {listed}\nCollect and score both alike.")
