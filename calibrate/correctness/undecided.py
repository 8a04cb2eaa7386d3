"""Answers that a rule left undecided, and the labels of people or of a judge who decided them."""

from __future__ import annotations

from guardrail.errors import UsageError

from ..data.records import GIVEN, Record, RecordFile


def undecided(file: RecordFile) -> list[Record]:
    """The answers that a rule left without a label.

    Raises:
        UsageError: No rule has labelled the file.
    """
    spec = file.header.correctness
    if spec is None or spec.name == GIVEN:
        raise UsageError(f"{file.path} has no labels by a rule. Run first: calibrate label {file.typed} --rule stated")
    return [record for record in file.records if record.correct is None and record.answer is not None]


def with_decided(file: RecordFile, decided: RecordFile, decider: str) -> RecordFile:
    """The file with the labels of the answers that were undecided; all others keep theirs.

    Undecided answers count as wrong, so a label only takes errors away. Rule "certified" tests the same thresholds in
    the same order on fewer errors, so its threshold only grows. If one on the way breaks the promise, the last
    one does, too: wherever people stop, all of these are one fit (docs/guarantees.md, "The ledger").

    Args:
        file: The file that a rule labelled.
        decided: The same records with labels of the decider; a skipped one has a detail that says so.
        decider: "people", or a rule with its parameters. The header lists the deciders in their order:
            "by people, by chat_judge (model m)".
    """
    spec = file.header.correctness
    assert spec is not None, "a rule labelled the file"
    open_ids = {record.id for record in undecided(file)}
    looked_at = {
        record.id: record
        for record in decided.records
        if record.id in open_ids and (record.correct is not None or record.label_detail)
    }
    by = f"by {decider}"
    deciders = str(spec.params.get("undecided", by))
    if not deciders.endswith(by):  # who goes on labelling is listed once
        deciders = f"{deciders}, {by}"
    correctness = spec.model_copy(update={"params": {**spec.params, "undecided": deciders}})
    header = file.header.model_copy(update={"correctness": correctness})
    return RecordFile(file.path, header, tuple(looked_at.get(record.id, record) for record in file.records))
