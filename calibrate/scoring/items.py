"""The labelled answers among records, with their items as a rule reads them."""

from __future__ import annotations

from dataclasses import dataclass

from guardrail.errors import UsageError
from guardrail.items.spec import ITEMS, ItemScores, ItemsSpec
from guardrail.specs import EstimatorSpec

from ..data.item_columns import ItemColumns, lists_of
from ..data.table import RecordTable
from ..rules.items import AnswerItems

__all__ = ["ScoredItems", "with_cap"]


@dataclass(frozen=True, slots=True)
class ScoredItems:
    """The labelled answers with items; the fields that `calibrate.scoring.scores.Scored` has mean the same.

    Attributes:
        records: The labelled and measured answers, in order.
        columns: Their stored items, with paths and references.
        items: Their items as the gate compares them.
        n_unmeasured: Answers that could not be measured. They abstain, and are not among ``records``.
        n_unlabelled: Measured answers without labels.
        n_undecided: Items that nobody decided; they count as wrong.
    """

    records: RecordTable
    columns: ItemColumns
    items: AnswerItems
    n_unmeasured: int
    n_unlabelled: int
    n_undecided: int

    @classmethod
    def of(cls, used: RecordTable, spec: ItemsSpec) -> ScoredItems:
        """The labelled answers among these records, with the cap of a specification.

        Raises:
            UsageError: No answer has both items and labels.
        """
        everything = used.items()
        labelled = everything.labelled
        if not labelled.any():
            raise UsageError("no record has both items and their labels. Run: calibrate label RECORDS --items")
        own, columns = used.take(labelled), everything.take(labelled)
        # 1 is a right item, and all else, also an undecided one, is wrong.
        wrong = lists_of(columns.labels, columns.right != 1)
        return cls(
            records=own,
            columns=columns,
            items=AnswerItems.of(lists_of(columns.size, columns.uncertainty), wrong, cap=spec.cap, ids=own.ids),
            n_unmeasured=int((~everything.measured).sum()),
            n_unlabelled=int((everything.measured & ~labelled).sum()),
            n_undecided=int((columns.right < 0).sum()),
        )

    @property
    def ids(self) -> list[str]:
        """Ids of the answers."""
        return self.records.ids

    def stored(self, *, clusters: bool) -> ItemScores:
        """The part that an artifact keeps; with the cluster of each answer if these are its units."""
        return ItemScores(
            sizes=tuple(self.columns.size.tolist()),
            uncertainty=tuple(self.columns.uncertainty.tolist()),
            error=tuple(self.items.wrong.tolist()),
            group=tuple(group or "" for group in self.records.groups) if clusters else None,
        )


def with_cap(spec: EstimatorSpec, cap: int | None) -> EstimatorSpec:
    """The score of items with another cap, which plays no part in measuring; other scores unchanged."""
    if cap is None or spec.name != ITEMS:
        return spec
    return spec.model_copy(update={"params": {**spec.params, "cap": cap}})
