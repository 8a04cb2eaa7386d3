"""Calibration in Python: a data frame of logged generations in, and every step of the command line as a method."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, Literal, Self, cast

from langchain_core.language_models import BaseChatModel

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import describe, fits_line, nouns_of
from guardrail.errors import RecordError, UsageError, require
from guardrail.items.measure import items_measure
from guardrail.items.spec import ITEMS
from guardrail.plain_json import canonical_json, sha256_hex, spelled
from guardrail.specs import ModelIdentity, identify
from guardrail.uncertainty import Estimator, Scorer

from .correctness import CorrectnessRule, default_rule, label_file, make_rule
from .data.formats.field_map import ColumnMap, ImportSettings, ScoreColumn, ScoreKind
from .data.formats.names import column_names
from .data.formats.read import import_rows, with_recognised
from .data.records import RecordFile, read_records, write_records
from .data.row import RawRow, is_nan
from .data.split import Groups, Repeats, split
from .data.table import RecordTable, table_of
from .evaluation.audit import audit, prepared
from .evaluation.choice import AUTO, choose_score
from .evaluation.grid import evaluate_grid, keys_of
from .evaluation.label_checks import refuse_broken
from .evaluation.promise_test import Audit
from .evaluation.results import Evaluation, EvaluationGrid
from .items.answers import label_items, labels_by_hand, labels_of_file, measure_records, spec_of_answers
from .items.documents import import_documents
from .judging import keys_of_score, require_same, without_choice
from .ledger import Ledger, counted
from .pipeline import fit_artifact, part_header, refuse_few
from .report import write_report
from .report.assessment import MOST_WARNINGS, Found, verdict_text
from .rules import Rule, compared_rules
from .scoring.compute import score_records, supported
from .scoring.names import key_of, parse_estimator

log = logging.getLogger("guardrail")


_OPTION = re.compile(r"""(?:the )?--(?P<name>[a-z-]+)(?: (?P<value>'[^'\n]*'|"[^"\n]*"|[^\s;)]*[\w\]-]))?""")
"""An option in an error of `calibrate import` or `fit`, with its value."""
_FLAGS = {
    "few": "few=True",
    "trust-labels": "trust_labels=True",
    "cluster-by-group": 'groups="cluster"',
    "skip-bad": "settings=calibrate.ImportSettings(skip_bad=True)",
}
_SETTINGS = ("right", "cut", "other-labels", "option-scale")
_COMMANDS = (
    (r"""--rows "\[\?(.+?) == '(.+?)'\]\"""", r'frame[frame["\1"] == "\2"]'),
    (", or name the tool that wrote the file: --format [^.]*", ""),  # a frame has no file
    (r"`calibrate label [^`]*--rule (\w+)`(, or --correctness \w+ of `run`)?", r'label("\1")'),
    (r"Run: calibrate (score|label) \S+ --items", r"Call \1_items() first"),
    (r"Run: calibrate (score|label) \S+?( --score \S+)?(?=[.;]?(\s|$))", r"Call \1() first"),
)
"""Commands in errors, and the calls that do the same."""


@contextmanager
def _arguments_named() -> Iterator[None]:
    """Errors name the arguments and methods of Python in place of the options and commands of the command line."""
    try:
        yield
    except (RecordError, UsageError) as error:
        raise type(error)(_in_python(str(error))) from error


def _in_python(message: str) -> str:
    """A message with the arguments of `from_frame` and `fit` in place of the options that do the same."""
    for command, call in _COMMANDS:
        message = re.sub(command, call, message)
    return re.sub(r'" (?=\w+=["\[])', '", ', _OPTION.sub(_argument, message))


def _argument(option: re.Match[str]) -> str:
    name, value = option["name"], option["value"] or ""
    text = value.strip("'\"")
    if name == "set":
        name, _, text = text.partition("=")
    elif name == "map" and "=" in text:
        field, column = text.split("=", 1)
        column = column.rpartition(":")[2]  # the name of a score is that of its column
        return f"drop the column {field}" if column == "-" else f"{field}={json.dumps(_listed(column))}"
    elif name == "score":
        return f'score="{text}"'
    elif name == "map":
        return "the arguments"
    elif name not in _SETTINGS:
        return str(_FLAGS.get(name, option[0]))
    number = text.replace(".", "", 1).isdecimal()
    return f"settings=calibrate.ImportSettings({name.replace('-', '_')}={text if number else json.dumps(text)})"


def _listed(columns: str) -> str | list[str]:
    return columns.split(",") if "," in columns else columns


class Records:
    """Records of questions with answers, scores and labels; each step of a calibration is a method.

    ``from_frame(df, ...).score().label()``, then ``compare``, ``fit``, ``evaluate``, ``report``. The steps are the
    functions of this package, which also work alone: `score_records`, `label_records`, `evaluate`, `fit_artifact`,
    `write_report`, and on plain arrays `calibrate.fit` and `calibrate.evaluate`. ``score``, ``label`` and ``fit``
    change this object, as in most notebooks, so a cell may be run again. With ``score_items`` and ``label_items`` in
    place of ``score`` and ``label`` the fields of the answers are gated.

    Args:
        file: Header and records, e.g. of `read_records`.
        notes: What a reader of the records should know.

    Attributes:
        file: The present records, a frozen value.
        artifact: What `fit` made last; None before it, and after new scores or labels.
        notes: What a reader of the records should know.
        ledger: The fits on the labels of these records.
    """

    def __init__(self, file: RecordFile, notes: Sequence[str] = ()) -> None:
        self.file = file
        self.artifact: CalibrationArtifact | None = None
        self.notes = tuple(notes)
        # Records without a file, of a data frame, remember their fits in this object.
        self.ledger = Ledger([file.path] if file.path.is_file() else [])

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Records that a command or `write` wrote; fits are remembered beside them, as by the command line."""
        return cls(read_records(path))

    def write(self, path: str | Path) -> None:
        """Write the records for the command line, atomically, and the fits of their labels beside them."""
        write_records(path, self.file.header, self.file.records)
        self.ledger.copy_to(Path(path))

    def __len__(self) -> int:
        return len(self.file.records)

    def __repr__(self) -> str:
        """The short form."""
        return repr(self.file).replace("RecordFile(", "Records(", 1)

    def _repr_html_(self) -> str:
        fitted = "" if self.artifact is None else f"<pre>{escape(describe(self.artifact))}</pre>"
        return self.file._repr_html_() + fitted

    @_arguments_named()
    def plot(self, estimator: str | None = None, ax: Any = None) -> Any:
        """Scores of right and wrong answers on a matplotlib axis; default: those of `fit`."""
        return self.file.plot(self._key(estimator), ax)

    @_arguments_named()
    def score(self, *estimators: str | Estimator | Scorer) -> Self:
        """Measure the uncertainty of every record; no model is called, unless a judge or a scorer calls one.

        Args:
            *estimators: Names as for ``calibrate score --score``, estimators, or scorers, which rate the answers
                on file. Default: all estimators that the records support.

        Raises:
            UsageError: An unknown name, or nothing can be measured on these records.
        """
        computed = [
            parse_estimator(each, bindings=self.file.header.plan.bindings)
            if isinstance(each, str)
            else each.estimator
            if isinstance(each, Scorer)
            else each
            for each in estimators
        ]
        self.file = score_records(self.file, computed or supported(self.file.header.plan))
        self.artifact = None
        return self

    def score_items(self, *, cap: int | None = None, **options: Any) -> Self:
        """Split every answer into items and measure each: ``calibrate score --items``.

        Args:
            cap: Most items of an answer that are ever kept. Default: that of the schema, else the 90th percentile of
                the numbers of items (the median below 300 answers).
            **options: As `guardrail.items.json_fields.json_spec` takes them: ``judges``, ``keys``, ``optional``,
                ``schema``.

        Raises:
            UsageError: A path in the options is that of no field.
        """
        spec = spec_of_answers(self.file.records, self.file.header.plan.bindings, cap=cap, **options)
        self.file, self.artifact = measure_records(self.file, items_measure(spec)), None
        return self

    @_arguments_named()
    def label_items(self, labels: str | Path | Iterable[Mapping[str, Any]] | None = None) -> Self:
        """Label the items: ``calibrate label --items``.

        Args:
            labels: What people decided: rows ``{"id": ..., "items": {"/total": True, ...}}``, or a file of them; see
                `calibrate.items.answers.labels_by_hand`. Default: the fields of every answer are compared with its
                reference, each by its judge.

        Raises:
            UsageError: The records have no items, or neither labels nor references fit them.
        """
        if labels is None:
            file = label_items(self.file)
        elif isinstance(labels, str | Path):
            file = labels_of_file(self.file, Path(labels))
        else:
            rows = [dict(row) for row in labels]
            file = labels_by_hand(self.file, rows, "labels", sha256_hex(canonical_json(rows)))
        self.file, self.artifact = file, None
        return self

    def label(self, rule: str | CorrectnessRule | None = None, **params: Any) -> Self:
        """Decide which answers are right. Labels that came with the frame (``correct=``) are replaced.

        Logs a warning about answers that the rule leaves undecided, which count as wrong.

        Args:
            rule: Name of a correctness rule, or a rule of your own; default: by the questions, see `default_rule`.
            **params: Parameters of a named rule, e.g. ``threshold=0.6``.

        Raises:
            UsageError: An unknown rule or parameter, or records without answers.
        """
        if params and not isinstance(rule, str):
            raise UsageError(f"parameters {sorted(params)} belong to a rule that is named: label('token_f1', ...).")
        if isinstance(rule, str):
            rule = make_rule(rule, **params)
        chosen = rule or default_rule(self.file.records, self.file.header.plan.bindings)
        self.file, self.artifact = label_file(self.file, chosen), None
        if undecided := int(self.file.records.undecided().sum()):
            log.warning(
                "calibrate: %d of %d answers are undecided by rule %s and count as wrong until a person or a judge "
                "labels them: write(PATH), `calibrate label PATH --undecided --interactive`, Records.read(PATH).",
                *(undecided, len(self.file.records), chosen.spec.name),
            )
        return self

    def split(self, test_fraction: float, *, seed: int = 0, groups: Groups = "category") -> tuple[Self, Self]:
        """Cut in two at random: records to calibrate on, and records to test on.

        Raises:
            UsageError: As `calibrate.split`.
        """
        splits = split(self.file.records, test_fraction=test_fraction, seed=seed, groups=groups)
        files = [replace(self.file, header=part_header(self.file.header, p), records=table_of(p)) for p in splits]
        both = type(self)(files[0], self.notes), type(self)(files[1], self.notes)
        for each in both:  # a fit before the cut has seen the labels of both
            each.ledger = self.ledger
        return both

    @_arguments_named()
    def compare(
        self,
        *,
        alpha: float,
        splits: int = 100,
    ) -> EvaluationGrid:
        """Compare estimators on random halves of the records: how well each ranks errors, and what rules make of it.

        To choose the best of several on the records that are fitted afterwards weakens the promise. Let
        ``fit(score="auto")`` choose, or `split` first.

        Args:
            alpha: Target error rate among accepted answers.
            splits: Random splits.

        Raises:
            UsageError: No scores or labels.
        """
        rules = ("acrc", "certified")
        return evaluate_grid(self.file, keys_of(self.file), rules=rules, alphas=[alpha], splits=splits)

    @_arguments_named()
    def evaluate(
        self,
        *,
        alphas: Sequence[float] | None = None,
        rules: Sequence[str | Rule] | None = None,
        score: str | None = None,
        splits: int = 100,
        groups: Groups = "category",
    ) -> Evaluation:
        """Run threshold rules over many random splits of the records.

        Args:
            alphas: Targets; default: that of the artifact.
            rules: Names, or rules of your own; default: those that the report compares.
            score: Key of the scores; default: those that are fitted, else as `fit`.
            splits: Random splits into halves.
            groups: With "cluster" the groups stay whole.

        Raises:
            UsageError: No alphas and no artifact, no scores or labels, or as `calibrate.evaluate`.
        """
        if alphas is None and self.artifact is None:
            raise UsageError("evaluate needs targets where nothing is fitted yet: evaluate(alphas=[0.1]).")
        key = self._key(score)
        grid = evaluate_grid(
            replace(self.file, records=self._unchosen()),
            [key],
            rules=rules or compared_rules("item" if key == ITEMS else "answer"),
            alphas=alphas or [self._fitted().alpha],
            splits=splits,
            cluster_by_group=groups == "cluster",
        )
        return grid.cells[0].evaluation

    @_arguments_named()
    def fit(
        self,
        *,
        alpha: float | Literal["smallest"],
        rule: str | Rule | None = None,
        score: str | None = None,
        delta: float | None = None,
        groups: Groups = "category",
        trust_labels: bool = False,
        few: bool = False,
        repeats: Repeats = "once",
        without_failed: bool = False,
    ) -> CalibrationArtifact:
        """Fit the threshold; ``artifact.save(path)`` writes the file that a `Guardrail` loads.

        Fits on these labels are counted (`calibrate.ledger`): each spends its delta, and the promises state the
        confidence of all of them together. Logs what the command line warns of: further fits, answers that
        the score does not read, and a gate that stops or accepts nothing.

        Args:
            alpha: Target error rate among accepted answers, in (0, 1). Choose it before you look at results.
            rule: Threshold rule, as for `fit_artifact`; default: certified, and wrong_share for items.
            score: Key of the scores; default: semantic entropy, or predictive entropy with options; without
                log-probabilities graded disagreement, or, if the answer is the vote of the samples, discrete semantic
                entropy; "items" where only `score_items` was called. "auto": the one with the highest AUROC on 20 % of
                the questions, which the fit does not use.
            delta: Failure probability, for rules that have one.
            groups: Whether groups are categories, or clusters of dependent questions.
            trust_labels: Fit even where the labels look broken.
            few: Fit on fewer than 50 labels.
            repeats: As for `fit_artifact`.
            without_failed: As for `fit_artifact`.

        Returns:
            The artifact; an infeasible outcome is a result: its gate abstains on everything. ``print(artifact)`` shows
            the threshold in use and its promise.

        Raises:
            UsageError: As `fit_artifact` and `counted`, or nearly no answer is right and many wrong ones contain a
                reference.
        """
        self._refuse_unready(score)
        if not trust_labels:
            refuse_broken(self.file)
        refuse_few(self.file, allowed=few)
        part = choice = None
        if score == AUTO:
            chosen = choose_score(self.file, groups=groups)
            score, part, choice = chosen.estimator, chosen.rest, chosen.choice
        key = key_of(self.file, score)
        refuse_few(self.file, key, allowed=few)
        artifact = fit_artifact(
            self.file,
            score=key,
            alpha=alpha,
            rule=rule,
            delta=delta,
            groups=groups,
            part=part,
            repeats=repeats,
            without_failed=without_failed,
            choice=choice,
        )
        self.artifact = counted(artifact, self.ledger)
        self._warn(self.artifact, key)
        return self.artifact

    def _warn(self, artifact: CalibrationArtifact, key: str) -> None:
        """Log what `calibrate fit` prints in yellow and red."""
        text = verdict_text(artifact, found=Found.of(self.file, key, self.file.records))
        nothing = () if artifact.outcome.n_accepted else text.lines
        for line in (*nothing, fits_line(artifact), *text.warnings[:MOST_WARNINGS]):
            if line is not None:
                log.warning("calibrate: %s", _in_python(line))

    @_arguments_named()
    def audit(self, artifact: CalibrationArtifact, *, anytime: bool = False) -> Audit:
        """Test the promise of a gate that was not fitted on these records: ``calibrate audit``.

        Args:
            artifact: The gate. Records without scores or labels are scored and labelled as it says.
            anytime: Whether the verdict holds however often the audit of growing records is repeated.

        Raises:
            UsageError: It was fitted on these records, or they were made otherwise.
        """
        file, key = prepared(self.file, artifact)
        if left_out := len(self.file.records) - len(file.records):
            log.warning(
                "calibrate: %d of %d %s are left out: the artifact was fitted on them.",
                *(left_out, len(self.file.records), nouns_of(artifact).asked),
            )
        return audit(artifact, file.records, key, anytime=anytime)

    @_arguments_named()
    def report(
        self,
        path: str | Path,
        artifact: CalibrationArtifact | None = None,
        *,
        test: Records | None = None,
        splits: int = 100,
    ) -> list[Path]:
        """Write the report: one HTML page, and its figures as PNG next to it.

        Args:
            path: The HTML file.
            artifact: What was fitted on these records; default: by the last `fit`.
            test: Records that were kept out of the fit, scored and labelled alike; default: those of these records
                that were not fitted on, if any.
            splits: Random splits of the records for the table of rules; 0 leaves it out.

        Returns:
            The files written, the HTML first.

        Raises:
            UsageError: Nothing is fitted, or on other records.
        """
        artifact = artifact or self._fitted()
        key = self._key(None, artifact)
        require_same(artifact, self.file, key)
        if test is not None:
            require_same(artifact, test.file, key)
        tested = () if test is None else test.file.records
        return write_report(path, artifact, self.file.records, estimator=key, test=tested, splits=splits)

    def _refuse_unready(self, score: str | None) -> None:
        """Refuse to fit records without scores or labels, and name the call that makes them."""
        by_item = score == ITEMS or (not score and not self.file.header.whole_answer_keys)
        notes = "".join(f" {note}." for note in self.notes if note.startswith("Columns "))
        if not self.file.header.estimators:
            raise UsageError(
                "these records have no scores yet. Call score() first, which measures how much the samples disagree; a "
                'score of your own goes in with the frame: from_frame(..., score="COLUMN"), or '
                f'confidence="COLUMN" for a confidence.{notes}'
            )
        if self.file.header.label_rule(ITEMS if by_item else "") is None:
            raise UsageError(
                f"these records have no labels yet. Call {'label_items' if by_item else 'label'}() first, which "
                "compares answers with references; grades "
                f'of your own go in with the frame: from_frame(..., correct="COLUMN").{notes}'
            )

    def _key(self, estimator: str | None, artifact: CalibrationArtifact | None = None) -> str:
        """The scores that are named, else those of the artifact, else the default."""
        artifact = artifact or self.artifact
        fitted = (
            [] if artifact is None or estimator is not None else keys_of_score(self.file.header, artifact.estimator)
        )
        return fitted[0] if fitted else key_of(self.file, estimator)

    def _unchosen(self) -> RecordTable:
        """The records without those that the artifact's estimator was chosen on."""
        return self.file.records if self.artifact is None else without_choice(self.artifact, self.file.records)

    def _fitted(self) -> CalibrationArtifact:
        if self.artifact is None:
            raise UsageError("nothing is fitted on these records yet. Call fit(alpha=...) first.")
        return self.artifact


def from_frame(
    frame: Any,
    *,
    question: str | None = None,
    references: str | None = None,
    samples: str | Sequence[str] | None = None,
    logprobs: str | None = None,
    model: str | ModelIdentity | BaseChatModel | None = None,
    correct: str | None = None,
    group: str | None = None,
    id: str | None = None,
    answer: str | None = None,
    options: str | None = None,
    score: str | Sequence[str] = (),
    confidence: str | Sequence[str] = (),
    certainty: str | Sequence[str] = (),
    settings: ImportSettings | None = None,
    items: bool = False,
) -> Records:
    """Records from logged generations: one row a question.

    A field without a column is read from the column of the same name, if there is one. A frame that has labels and a
    score already, and no samples, needs no argument where its columns have usual names such as "confidence" and
    "is_correct": ``from_frame(df).fit(alpha=0.1)``. `Records.notes` says which column was taken for what.

    Args:
        frame: A pandas or Polars data frame, a pyarrow table, anything else that narwhals reads, or a list of dicts.
        question: Column with the question.
        references: Column with the accepted answers: a list, or one text.
        samples: Column with the sampled answers, a list in each cell; or several columns, one sample each.
        logprobs: Column with their token log-probabilities, natural logarithm: a list of numbers for each sample.
        model: Column with the name of the model (of one: filter the frame); or the chat model itself
            (or its identity), which binds the artifact to it, so that a `Guardrail` with that model loads it.
        correct: Column that says whether the answer is right. Without it, `Records.label` decides.
        group: Column with the category, or the cluster of dependent questions (conversation, user, document).
        id: Column with the id of the row; default: a hash of the question.
        answer: Column with the primary answer, which stands for the greedy one; default: the most frequent sample
            (``settings.primary``). The artifact remembers which, and a guard gives out the same: the vote of its
            samples for a majority.
        options: Column with the options of multiple choice, label to text.
        score: Columns with an uncertainty of your own (higher is less certain). No guard can compute a score of a
            column, so none can use an artifact that is fitted on it: for a guard, write the score as a
            `guardrail.scorer` and call `Records.score` with it.
        confidence: Columns with a confidence of your own in [0, 1] (higher is more certain); otherwise as ``score``.
        certainty: Columns with any number that is higher for more certain answers (a logit, a log-probability);
            otherwise as ``score``.
        settings: How the answers were drawn and the questions asked; its columns are not read.
        items: Whether references, samples and answer are JSON documents (objects, or their texts).

    Returns:
        The records, in the order of the rows.

    Raises:
        UsageError: A missing column, a lazy frame, no rows, or several models.
        RecordError: A malformed row, named by its number from 1.
        MissingDependencyError: narwhals is not installed (extra "calibrate").
    """
    # In a document null is a value, so what is missing there stays NaN, and is refused.
    inside = math.nan if items else None
    rows = [{name: _plain(value, inside=inside) for name, value in row.items()} for row in _rows(frame)]
    _refuse_unnamed(rows)
    own_model = None if model is None or isinstance(model, str) else model
    if isinstance(model, str) and not any(model in row for row in rows):
        raise UsageError(
            f"no row has a column {model!r}. Name the column, or give the chat model: model=ChatOpenAI(...)."
        )
    named: dict[str, str | Sequence[str] | None] = {
        **{"question": question, "references": references, "samples": samples, "correct": correct, "group": group},
        **{"id": id, "answer": answer, "options": options, "logprobs": logprobs},
        "model": () if own_model is not None else cast(str | None, model),
    }
    columns = {
        name: (column,) if isinstance(column, str) else tuple(column)
        for name, column in named.items()
        if column is not None
    }
    score_columns: list[tuple[ScoreKind, str | Sequence[str]]]
    score_columns = [("score", score), ("confidence", confidence), ("certainty", certainty)]
    listed = [(holds, [own] if isinstance(own, str) else own) for holds, own in score_columns]
    scores = tuple(ScoreColumn(name, name, holds) for holds, names in listed for name in names)
    mapped = replace(settings or ImportSettings(), columns=ColumnMap(columns, scores))
    return _imported(rows, mapped, own_model, items=items)


def _imported(
    rows: Sequence[Mapping[str, Any]],
    settings: ImportSettings,
    model: ModelIdentity | BaseChatModel | None,
    *,
    items: bool,
) -> Records:
    """The records of rows; errors and notes name the arguments of `from_frame`."""
    numbered = [RawRow(f"frame:{number}", row) for number, row in enumerate(rows, start=1)]
    notes: list[str] = []
    columns, names = settings.columns, column_names(numbered)
    computable = any(name in names for field in ("samples", "option_scores") for name in columns.of(field))
    with _arguments_named():
        if not columns.scores and not computable:
            recognised = with_recognised(numbered, settings)
            if recognised is not None:
                settings, note_of_columns = recognised
                notes.append(note_of_columns)
        imported = (import_documents if items else import_rows)(numbered, settings, name="frame")
    file = imported.file
    if model is not None:
        identity = model if isinstance(model, ModelIdentity) else identify(model)
        file = replace(file, header=file.header.model_copy(update={"model": identity}))
    left_out = [f"{len(imported.bad)} malformed rows are left out: {imported.bad[0].problem}"] if imported.bad else []
    return Records(file, [*notes, *(_in_python(note) for note in (*imported.notes, *left_out))])


def _rows(frame: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(frame, list | tuple):
        wrong = next((row for row in frame if not isinstance(row, Mapping)), None)
        if wrong is not None:
            raise UsageError(f"a list must hold one dict a question, got {type(wrong).__name__}.")
        return iter(frame)
    narwhals = require("narwhals", extra="calibrate")
    try:
        return iter(narwhals.from_native(frame, eager_only=True).iter_rows(named=True))
    except narwhals.exceptions.DuplicateError as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"two columns have one name ({reason}). Rename the column: frame.columns = [...].") from error
    except TypeError as error:
        raise UsageError(
            f"got {type(frame).__name__}; give a pandas or Polars data frame, a pyarrow table or a list of dicts. Of a "
            "lazy frame call collect() first."
        ) from error


def _refuse_unnamed(rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse names of columns that are not texts, and a file that was read with a separator it does not have."""
    for name in rows[0] if rows else ():
        if not isinstance(name, str):
            raise UsageError(f"the column name {name!r} is not a text. Rename the column: frame.columns = [...].")
    if rows and len(rows[0]) == 1:
        (name,) = rows[0]
        separator = next((mark for mark in (";", "\t", "|") if mark in str(name)), None)
        if separator is not None:
            raise UsageError(
                f"the only column is {name!r}: the file is separated by {separator!r}, not by commas. Read it with "
                f"pandas.read_csv(path, sep={separator!r}) (Polars: separator={separator!r})."
            )


def _plain(value: Any, missing: float | None = None, *, inside: float | None = None) -> Any:
    """A cell as JSON would hold it: arrays are lists, and what pandas marks as missing is ``missing``.

    Within lists and objects it is ``inside``.
    """
    if hasattr(value, "tolist"):  # a numpy array or scalar
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(item, inside, inside=inside) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, inside, inside=inside) for item in value]
    if isinstance(value, str) and spelled(value) != value:
        raise UsageError(f"a text has half of a character: {value[:80]!r}. Write it whole, or remove it.")
    return missing if is_nan(value) or type(value).__name__ in ("NAType", "NaTType") else value
