"""The items of records in Python: each step of a calibration is a method, under the name that it has for answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from guardrail.artifact import CalibrationArtifact
from guardrail.items.measure import items_measure
from guardrail.plain_json import canonical_json, sha256_hex

from ..data.records import RecordFile
from ..ledger import Ledger, counted
from .answers import label_items, labels_by_hand, labels_of_file, measure_records, spec_of_answers
from .audit import ItemsAudit, audit_items
from .evaluate import ItemsRow, evaluate_items, pilot_items, plan_items
from .fit import fit_items_artifact
from .rules import RULES, rule_named

__all__ = ["RecordItems"]


class _Holder(Protocol):
    """The records that the items belong to."""

    file: RecordFile
    artifact: CalibrationArtifact | None
    ledger: Ledger


class RecordItems:
    """The items of the answers of `calibrate.Records`, as `Records.items` returns them: the fields of their JSON.

    ``from_frame(df, items=True).items().score().label()``, then ``fit``, ``evaluate``, ``audit``, ``plan``. ``score``,
    ``label`` and ``fit`` change the records. `Records.split`, `write` and `report` serve items as well.

    Args:
        records: The records.
    """

    def __init__(self, records: _Holder) -> None:
        self._records = records

    def __repr__(self) -> str:
        """The short form."""
        return f"{self._records!r}.items()"

    @property
    def _file(self) -> RecordFile:
        return self._records.file

    def score(self, *, cap: int | None = None, **options: Any) -> Self:
        """Split every answer into items and measure each: ``calibrate score --items``.

        Args:
            cap: Most items of an answer that are ever kept. Default: that of the schema, else the 90th percentile of
                the numbers of items (the median below 300 answers).
            **options: As `guardrail.items.json_fields.json_spec` takes them: ``judges``, ``keys``, ``optional``,
                ``schema``.

        Raises:
            UsageError: A path in the options is that of no field.
        """
        spec = spec_of_answers(self._file.records, self._file.header.plan.bindings, cap=cap, **options)
        return self._changed(measure_records(self._file, items_measure(spec)))

    def label(self, labels: str | Path | Iterable[Mapping[str, Any]] | None = None) -> Self:
        """Label the items: ``calibrate label --items``.

        Args:
            labels: What people decided: rows ``{"id": ..., "items": {"/total": True, ...}}``, or a file of them; see
                `calibrate.items.answers.labels_by_hand`. Default: the fields of every answer are compared with its
                reference, each by its judge.

        Raises:
            UsageError: The records have no items, or neither labels nor references fit them.
        """
        if labels is None:
            return self._changed(label_items(self._file))
        if isinstance(labels, str | Path):
            return self._changed(labels_of_file(self._file, Path(labels)))
        rows = [dict(row) for row in labels]
        return self._changed(labels_by_hand(self._file, rows, "labels", sha256_hex(canonical_json(rows))))

    def fit(self, *, alpha: float, **options: Any) -> CalibrationArtifact:
        """Fit a threshold for items; the artifact loads as a guard that passes on the items that are kept.

        Args:
            alpha: Target, in (0, 1). Choose it before you look at results.
            **options: ``rule``, ``delta``, ``groups``, ``cap`` and ``without_failed`` of
                `calibrate.items.fit.fit_items_artifact`.

        Raises:
            UsageError: As `fit_items_artifact`.
        """
        artifact = counted(fit_items_artifact(self._file, alpha=alpha, **options), self._records.ledger)
        self._records.artifact = artifact
        return artifact

    def evaluate(
        self, *, alphas: Sequence[float], rules: Sequence[str] = (), cap: int | None = None, **options: Any
    ) -> list[ItemsRow]:
        """Compare rules over random splits: ``calibrate evaluate --items``.

        Args:
            alphas: Targets.
            rules: Rules by name; default: all.
            cap: Another cap than that of the items.
            **options: ``delta``, ``n_calibration``, ``splits`` and ``seed`` of
                `calibrate.items.evaluate.evaluate_items`.

        Raises:
            UsageError: No labels, or an unknown rule.
        """
        chosen = [rule_named(rule) for rule in rules] or RULES
        return evaluate_items(pilot_items(self._file, cap), alphas=alphas, rules=chosen, **options)

    def plan(
        self, *, alpha: float, rules: Sequence[str] = (), cap: int | None = None, **options: Any
    ) -> list[ItemsRow]:
        """Simulate calibrations of several sizes on these answers as a pilot: ``calibrate plan --items``.

        Args:
            alpha: Target.
            rules: Rules by name; default: `wrong_share`.
            cap: Another cap than that of the items.
            **options: ``sizes``, ``delta``, ``repetitions`` and ``seed`` of `calibrate.items.evaluate.plan_items`.

        Raises:
            UsageError: No labels, or an unknown rule.
        """
        chosen = [rule_named(rule) for rule in rules] or RULES[:1]
        return plan_items(pilot_items(self._file, cap), alpha=alpha, rules=chosen, **options)

    def audit(self, artifact: CalibrationArtifact, *, level: float = 0.05, target: float | None = None) -> ItemsAudit:
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
