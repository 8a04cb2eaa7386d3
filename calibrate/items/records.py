"""The items of records in Python: each step of a calibration is a method, under the name that it has for answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, get_args

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.items.json_fields import json_spec, schema_of
from guardrail.items.measure import items_measure
from guardrail.items.sentences import sentence_spec
from guardrail.items.spec import ItemsSpec, Kind
from guardrail.judges import Entailment
from guardrail.plain_json import canonical_json, sha256_hex

from ..data.records import RecordFile
from ..data.split import Groups
from ..ledger import Ledger, counted
from ..pipeline import CERTIFICATE_DELTA
from .answers import key_of_items, label_items, labels_by_hand, labels_of_file, measure_records, spec_of_answers
from .audit import LEVEL, ItemsAudit, audit_items
from .evaluate import SIZES, ItemsRow, chosen_rules, compared_rules, evaluate_items, pilot_items, plan_items
from .fit import ItemsRule, fit_items_artifact

__all__ = ["RecordItems"]


class _Holder(Protocol):
    """The records that the items belong to."""

    file: RecordFile
    artifact: CalibrationArtifact | None
    ledger: Ledger


class RecordItems:
    """The items of the answers of `calibrate.Records`, as `Records.items` returns them.

    ``from_frame(df, items="json").items("json").score().label()``, then ``fit``, ``evaluate``, ``audit``, ``plan``.
    ``score``, ``label`` and ``fit`` change the records. `Records.split`, `write` and `report` serve items as well.

    Args:
        records: The records.
        kind: "json" (the fields of a document or of a tool call's arguments) or "sentences".

    Raises:
        UsageError: Another kind.
    """

    def __init__(self, records: _Holder, kind: Kind) -> None:
        if kind not in get_args(Kind):
            raise UsageError(f"there are no items of the kind {kind!r}: choose json or sentences.")
        self._records = records
        self.kind = kind

    def __repr__(self) -> str:
        """The short form."""
        return f"{self._records!r}.items({self.kind!r})"

    @property
    def _file(self) -> RecordFile:
        return self._records.file

    def score(self, *, cap: int | None = None, entailment: Entailment | None = None, **options: Any) -> Self:
        """Split every answer into items and measure each: ``calibrate score --items``.

        Args:
            cap: Most items of an answer that are ever kept. Default: that of the schema, else the 90th percentile of
                the numbers of items (the median below 300 answers).
            entailment: Of sentences: the entailment model. Default: the model itself was asked
                (`collect --items`).
            **options: As `guardrail.items.json_fields.json_spec` (``judges``, ``keys``, ``optional``, ``schema``) or
                `guardrail.items.sentences.sentence_spec` (``least``) take them.

        Raises:
            UsageError: The records lack what the items need, or a path in the options is that of no field.
        """
        bindings = self._file.header.plan.bindings
        schema = options.get("schema") or schema_of(bindings)

        def make(largest: int | None) -> ItemsSpec:
            if self.kind == "json":
                return json_spec(bindings, cap=largest, **options)
            if largest is None:
                raise UsageError("sentences need a cap.")
            return sentence_spec(largest, entailment=entailment, **options)

        spec = spec_of_answers(make, self._file.records, cap=cap, schema=schema, entailment=entailment)
        return self._changed(measure_records(self._file, items_measure(spec, entailment=entailment)))

    def label(
        self, labels: str | Path | Iterable[Mapping[str, Any]] | None = None, *, cut: float | None = None
    ) -> Self:
        """Label the items: ``calibrate label --items``.

        Args:
            labels: What people decided: rows ``{"id": ..., "items": {"/total": True, ...}}``, or a file of them; see
                `calibrate.items.answers.labels_by_hand`. Default: the fields of every answer are compared with its
                reference, each by its judge.
            cut: Of labels that people gave: the largest uncertainty of an item that they were asked about, fixed before
                labelling. The later steps take it from the records.

        Raises:
            UsageError: The records have no such items, or neither labels nor references fit them.
        """
        key = key_of_items(self._file, self.kind)
        if labels is None:
            return self._changed(label_items(self._file, key))
        if isinstance(labels, str | Path):
            return self._changed(labels_of_file(self._file, key, Path(labels), cut))
        rows = [dict(row) for row in labels]
        digest = sha256_hex(canonical_json(rows))
        return self._changed(labels_by_hand(self._file, key, rows, "labels", digest, cut))

    def fit(
        self,
        *,
        alpha: float,
        rule: ItemsRule | str | None = None,
        delta: float | None = CERTIFICATE_DELTA,
        groups: Groups = "category",
        cap: int | None = None,
        cut: float | None = None,
        without_failed: bool = False,
    ) -> CalibrationArtifact:
        """Fit a threshold for items; the artifact loads as a guard that passes on the items that are kept.

        Args:
            alpha: Target, in (0, 1). Choose it before you look at results.
            rule: As ``--rule`` takes it ("wrong_share:per=answer"), or `calibrate.items.fit.ItemsRule` with its
                options; default: the share of wrong items among those kept, per item for JSON and per answer for prose.
            delta: Failure probability; None for `clean_answers` on average.
            groups: Whether groups are categories, or clusters of dependent answers.
            cap: Another cap than that of the items.
            cut: Largest uncertainty of an item that was labelled, fixed before labelling; default: that of the labels.
            without_failed: As for `calibrate.pipeline.fit_artifact`.

        Raises:
            UsageError: As `calibrate.items.fit.fit_items_artifact`.
        """
        artifact = fit_items_artifact(
            self._file,
            alpha=alpha,
            kind=self.kind,
            rule=rule,
            delta=delta,
            groups=groups,
            cap=cap,
            cut=cut,
            without_failed=without_failed,
        )
        key = key_of_items(self._file, self.kind)
        artifact = counted(artifact, self._records.ledger, key)
        self._records.artifact = artifact
        return artifact

    def evaluate(
        self,
        *,
        alphas: Sequence[float],
        rules: Sequence[ItemsRule | str] = (),
        n_calibration: int | None = None,
        splits: int = 100,
        seed: int = 0,
        delta: float = CERTIFICATE_DELTA,
        cap: int | None = None,
        cut: float | None = None,
    ) -> list[ItemsRow]:
        """Compare rules over random splits: ``calibrate evaluate --items``. ``pandas.DataFrame(rows)`` is a table.

        Args:
            alphas: Targets.
            rules: As in `fit`; default: all, that of the kind first.
            n_calibration: Answers to fit on in each split; default: half.
            splits: Random splits.
            seed: Of the splits.
            delta: Failure probability.
            cap: As in `fit`.
            cut: As in `fit`.

        Raises:
            UsageError: No labels, an unknown rule, or too few answers.
        """
        return evaluate_items(
            pilot_items(self._file, self.kind, cap=cap, cut=cut),
            rules=chosen_rules(self.kind, rules) or compared_rules(self.kind),
            alphas=alphas,
            delta=delta,
            n_calibration=n_calibration,
            splits=splits,
            seed=seed,
        )

    def plan(
        self,
        *,
        alpha: float,
        rules: Sequence[ItemsRule | str] = ("wrong_share",),
        sizes: Sequence[int] = SIZES,
        delta: float = CERTIFICATE_DELTA,
        repetitions: int = 250,
        seed: int = 0,
        cap: int | None = None,
        cut: float | None = None,
    ) -> list[ItemsRow]:
        """Simulate calibrations of several sizes on these answers as a pilot: ``calibrate plan --items``.

        Args:
            alpha: Target.
            rules: As in `fit`.
            sizes: Labelled answers of a calibration.
            delta: Failure probability.
            repetitions: Simulated calibrations of each size.
            seed: Of the simulation.
            cap: As in `fit`.
            cut: As in `fit`.

        Raises:
            UsageError: No labels, or an unknown rule.
        """
        return plan_items(
            pilot_items(self._file, self.kind, cap=cap, cut=cut),
            rules=chosen_rules(self.kind, rules),
            alpha=alpha,
            sizes=sizes,
            delta=delta,
            calibrations=repetitions,
            seed=seed,
        )

    def audit(self, artifact: CalibrationArtifact, *, level: float = LEVEL, target: float | None = None) -> ItemsAudit:
        """Test the promise of a gate that was not fitted on these records: ``calibrate audit``.

        Args:
            artifact: The gate. Records without items or labels are measured and labelled as it says.
            level: Probability of refuting a gate whose risk is exactly its target; and of supporting it.
            target: Share to test instead of the artifact's alpha.

        Raises:
            UsageError: It was fitted on some of these records, or they were made otherwise.
        """
        return audit_items(artifact, self._file, level=level, target=target)

    def _changed(self, file: RecordFile) -> Self:
        self._records.file, self._records.artifact = file, None
        return self
