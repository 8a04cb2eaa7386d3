"""From one foreign row to one record."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from guardrail.errors import RecordError
from guardrail.judges import majority
from guardrail.plain_json import has_visible
from guardrail.sampling.replies.ends import is_cut
from guardrail.sampling.replies.read import only_readable
from guardrail.types import LEAST_LOGPROB, Missing, OptionScores, Sample, SampleSet, Uncertainty, Unmeasured

from ..questions import Question, content_id, reference_label
from ..record import Record
from ..row import RawRow, is_plain, parsed, read_list
from .answers import Cautions, Drawn, loglikelihood, read_answer, read_samples, text_of, with_end
from .field_map import ImportSettings, ScoreColumn
from .truth import Labels


class Builder:
    """Makes records of rows by field (`ColumnMap.fields`).

    Args:
        settings: What the rows hold.
        fields: Fields that the file has (`ColumnMap.found`); a question, answers and options are then in every row.

    Attributes:
        labels: How labels are read, and what was found among them.
        cautions: Values that were read otherwise than they are written.
        numbered: Ids of rows that have neither id nor question.
    """

    def __init__(self, settings: ImportSettings, fields: frozenset[str]) -> None:
        self.fields = fields
        self.labels = Labels(settings.words, settings.cut, settings.other_labels)
        self.cautions = Cautions()
        self.numbered: set[str] = set()
        self._settings = settings
        columns = settings.columns.of("option_scores")
        self._option_labels = columns if len(columns) > 1 else None
        self._n_rows = 0

    def build(self, row: RawRow) -> Record:
        """The record of a row.

        Raises:
            RecordError: A field is missing or malformed; file, line and column are named.
        """
        labels = self._option_labels
        try:
            return self._record(row)
        except RecordError:
            self._option_labels = labels  # a row that is skipped does not say which options the others have
            raise

    def _record(self, row: RawRow) -> Record:
        if row.textual:
            self.cautions.missing.update(row.column(name) for name, value in row.values.items() if value is None)
        self._n_rows += 1
        question = self._question(row)
        options = self._option_scores(row) if "option_scores" in self.fields else None
        if self._option_labels is not None and question.options is None:
            question = question.model_copy(update={"options": {label: label for label in self._option_labels}})
        refuse_no_option(row, question)
        columns = self._settings.columns
        samples = read_samples(row, columns.of("samples"), self.cautions) if "samples" in self.fields else []
        primary, rest = self._answer(row, samples, options)
        drawn = missing = None
        if primary is not None or self.fields & {"answer", "samples", "option_scores"}:
            drawn = self._drawn(question, primary, rest, options)
            missing = self._held_back(drawn)
        return Record(
            **question.model_dump(),
            drawn=drawn,
            scores={score.key: self._score(row, score, missing) for score in columns.scores},
            correct=self._correct(row, primary),
        )

    @property
    def planned(self) -> Literal["greedy", "sampled", "majority"]:
        """The primary answer that a guard draws, so that it gives out answers like those that were read."""
        # An answer in a column, and the first of the samples, stand for the greedy one; options have no samples.
        own_column = self.fields & {"answer", "option_scores"} or "samples" not in self.fields
        return "greedy" if own_column or self._settings.primary == "first" else self._settings.primary

    # -- The question --------------------------------------------------------------------------------------------------

    def _question(self, row: RawRow) -> Question:
        """The question of a row, with the conversation that it ends if that has more than one turn."""
        name = row.name("id")
        options = None
        if "options" in self.fields:
            options = {label: str(text) for label, text in (row.labelled("options") or {}).items()}
            if not options:
                raise row.fail("options", None, "every row must have its options, label to text")
        messages = None
        tools = _tools(row)
        if "question" in self.fields:
            text, messages = self._asked(row)
        else:
            name = name or self._number(row)
            text = f"(question {name})"
        return Question(
            id=name or content_id(text, options, tools=tools, messages=messages),
            question=text,
            references=read_references(row, self.cautions.counts),
            options=options,
            group=row.name("group"),
            tools=tools,
            messages=messages,
        )

    def _number(self, row: RawRow) -> str:
        """An id for a row without question and id: graded scores without any text can be certified."""
        if self.fields & {"answer", "samples"}:
            raise row.fail("question", None, "answers need a question or an id. Map one: --map question=COLUMN")
        self.cautions.counts["rows have neither id nor question: the number of the row stands for both."] += 1
        name = f"row-{self._n_rows}"
        self.numbered.add(name)
        return name

    def _asked(self, row: RawRow) -> tuple[str, tuple[dict[str, Any], ...] | None]:
        """The text of a question, and the conversation before and with it: a text, or messages in OpenAI's form."""
        value = parsed(row.values.get("question"))
        if isinstance(value, dict):
            row = replace(row, values={"question": value})  # a cell with JSON: the error names the fields in it
            value = value.get("messages")
        if not isinstance(value, list):
            return row.text("question"), None
        turns = [turn for turn in value if isinstance(turn, dict) and isinstance(turn.get("role"), str)]
        spoken = [turn for turn in turns if turn["role"] not in ("system", "developer")]
        if len(turns) < len(value) or not spoken or spoken[-1]["role"] != "user":
            raise row.fail("question", value, "a list must be messages with role and content, the last of the user")
        if len(spoken) < len(turns):
            self.cautions.counts["rows have a system message, which is not read; name it with --set system=TEXT."] += 1
        text = replace(row, values={"question": text_of(spoken[-1].get("content"))}).text("question")
        return text, tuple(spoken) if len(spoken) > 1 else None

    # -- The answer ----------------------------------------------------------------------------------------------------

    def _option_scores(self, row: RawRow) -> OptionScores | None:
        values = row.labelled("option_scores", keep=self._option_labels or ())
        if values is None:
            raise row.fail("option_scores", None, "every row must have a score for each option")
        self._option_labels = self._option_labels or tuple(values)
        if set(values) != set(self._option_labels):
            rule = f"the rows before have options {', '.join(self._option_labels)}; split the file"
            raise row.fail("option_scores", list(values), rule)
        scale = self._settings.option_scale or row.values.get("option_scale")
        if scale not in ("logit", "logprob", "probability"):
            way_out = "say what option scores are: --option-scale logit, logprob or probability"
            raise row.fail("option_scale", scale, way_out)
        listed = [loglikelihood(row, "option_scores", values[label], scale) for label in self._option_labels]
        measured = [value for value in listed if value is not None]
        if len(measured) < len(listed) or min(measured) - max(measured) < LEAST_LOGPROB:
            self.cautions.unmeasured("rows have scores of options")
            return None
        return OptionScores(labels=self._option_labels, loglikelihoods=tuple(measured))

    def _answer(
        self, row: RawRow, samples: Sequence[Drawn], options: OptionScores | None
    ) -> tuple[Drawn | None, Sequence[Drawn]]:
        """The primary answer, and what remains as samples."""
        if "answer" in self.fields:
            value = row.values.get("answer", "" if row.textual else ...)
            if value is None:
                return None, samples  # marked as missing: the record stays and abstains
            details = () if samples else [row.values.get(name) for name in ("logprobs", "tokens")]
            drawn = read_answer(row, "answer", self.cautions, None if value is ... else value, *details)
            named = "finish_reason" in self.fields
            return with_end(drawn, row.values.get("finish_reason")) if named else drawn, samples
        if options is not None:
            return Drawn(Sample(text=options.best)), samples
        if not samples:
            return None, samples
        if self._settings.primary != "majority":
            return samples[0], samples[1:]
        index = majority([drawn.sample for drawn in samples])
        assert index is not None, "there are samples"
        return samples[index], samples

    def _drawn(
        self, question: Question, primary: Drawn | None, rest: Sequence[Drawn], options: OptionScores | None
    ) -> SampleSet:
        """The sample set of a row, read as a guard reads replies."""
        problem = Missing(Unmeasured.MODEL_FAILED, "the file has no answer here") if primary is None else None
        if primary is None and "option_scores" in self.fields:
            problem = Missing(Unmeasured.NO_OPTIONS, "the score of an option is a placeholder")
        # Of samples the most frequent is the answer, so each of them must be whole.
        given_out = rest if self.planned == "majority" else (primary,)
        if self._settings.cut_off == "abstain" and any(drawn is not None and drawn.unended for drawn in given_out):
            problem = Missing(Unmeasured.UNREADABLE, "the file does not say why the answer ended (finish_reason)")
        drawn = SampleSet(
            question=question.question,
            primary=primary.sample if primary else None,
            samples=tuple(drawn.sample for drawn in rest),
            options=options,
            problem=None if problem is None else problem.reason,
            problem_detail="" if problem is None else problem.detail,
        )
        read = only_readable(drawn)  # it leaves faulty samples out, which here stay to be looked at
        return drawn.model_copy(update={"problem": read.problem, "problem_detail": read.problem_detail})

    def _held_back(self, drawn: SampleSet) -> Missing | None:
        """The reason why a score of the answer does not count: a guard would not give it out."""
        primary = drawn.primary
        if primary is not None and not primary.tool_calls and not has_visible(primary.text):
            return Missing(Unmeasured.EMPTY_ANSWER, "the answer is empty")
        broke_off = drawn.problem is Unmeasured.MODEL_FAILED and primary is not None
        if drawn.problem is not None and (broke_off or drawn.problem is Unmeasured.UNREADABLE):
            return Missing(drawn.problem, drawn.problem_detail)
        cut = self._settings.cut_off == "abstain" and primary is not None and is_cut(primary.finish_reason)
        return Missing(Unmeasured.CUT_OFF, "the answer was cut off") if cut else None

    # -- Its label and scores ------------------------------------------------------------------------------------------

    def _correct(self, row: RawRow, primary: Drawn | None) -> bool | None:
        columns = [name for name in ("correct", "error") if name in row.values]
        labels = {self.labels.read(row, name, of_errors=name == "error") for name in columns} - {None}
        if len(labels) > 1:
            raise row.fail("error", row.values["error"], "the row says both that it is correct and that it is not")
        if labels:
            return labels.pop()
        return None if primary is None else primary.correct

    def _score(self, row: RawRow, score: ScoreColumn, missing: Missing | None) -> Uncertainty:
        """An imported score; unmeasured if the answer is not whole, or without a number."""
        value = row.values.get(score.key)
        stored = None
        if value is None or not str(value).strip():
            missing = missing or Missing(Unmeasured.NOT_RECORDED, f"the file has no value in column {score.column!r}")
        else:
            stored = _stored(row, score, value)
            if stored is None:
                self.cautions.unmeasured("scores have values")
                missing = missing or Missing(Unmeasured.NOT_RECORDED, f"column {score.column!r} has a placeholder here")
        if missing is None:
            return Uncertainty(value=stored, unit=score.spec.unit, estimator=score.key)
        return Uncertainty(
            value=None, unit=score.spec.unit, estimator=score.key, reason=missing.reason, detail=missing.detail
        )


def _tools(row: RawRow) -> tuple[dict[str, Any] | str, ...] | None:
    written = row.values.get("tools")
    tools = read_list(written) if isinstance(written, str) else written
    if written is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict | str) for tool in tools):
        raise row.fail("tools", written, "it must be a list of the offered tools, objects or names")
    return tuple(tools)


def read_references(row: RawRow, repaired: Counter[str] | None = None) -> tuple[str, ...]:
    """The accepted answers of a row; () without any.

    Args:
        row: The row.
        repaired: Counts, as sentences, what is read otherwise than it is written; None: that is refused.

    Raises:
        RecordError: They are no texts, or what would be repaired.
    """
    written = row.values.get("references")
    inner = read_list(written) if isinstance(written, str) and written.lstrip().startswith("[") else None
    items = row.listed("references")
    if not row.textual and inner and all(isinstance(item, str) for item in inner):
        if repaired is None:
            as_list = json.dumps(inner, ensure_ascii=False)
            rule = f"this text reads as a list of answers. Write {as_list}; if it is one answer, [TEXT]"
            raise row.fail("references", written, rule)
        items = inner
        repaired['references are lists written as text (["a", "b"]) and were read as lists.'] += 1
    good = [item for item in items if item is not None and str(item).strip()]
    for item in good if good and repaired is not None else items:
        if not is_plain(item) or not str(item).strip():
            raise row.fail("references", items, f"every accepted answer must be a non-empty text; {item!r} is not")
    if repaired is not None and len(good) < len(items):
        repaired["rows have an empty accepted answer among others; it was left out."] += 1
    return tuple(str(item).strip() for item in good)


def repeated(row: RawRow, question: Question, first: str) -> RecordError:
    """The error of a row whose id, or whose question where rows have no id, an earlier row has."""
    if row.name("id") is not None:
        way_out = "Correct the id, or leave one of the rows out (`import` chooses: --rows \"[?NAME == 'VALUE']\")."
        return row.fail("id", question.id, f"this id is already at {first}. {way_out}")
    return row.fail(
        "question",
        question.question,
        f"this question is already at {first}, and a question is measured once. Remove one of the rows; if they "
        "differ in another column, give each an id: --map id=COLUMN.",
    )


def refuse_no_option(row: RawRow, question: Question) -> None:
    """Refuse a question with options of which no reference names one.

    Raises:
        RecordError: None of them is a label, or the text of exactly one option.
    """
    if question.options and question.references and reference_label(question) is None:
        rule = f"one of them must be an option label ({', '.join(question.options)}) or the text of exactly one option"
        raise row.fail("references", list(question.references), rule)


def _stored(row: RawRow, score: ScoreColumn, value: object) -> float | None:
    """The uncertainty that a value is stored as; None for a placeholder: infinite, or lower than any score can be."""
    if score.holds != "confidence":
        number = row.number(score.key, value)
        if math.isinf(number) or number < LEAST_LOGPROB:
            return None
        return number if score.holds == "score" else -number
    written = str(value).strip()
    percent = written.endswith("%")
    number = row.number(score.key, written.removesuffix("%").strip() if percent else value) / (100 if percent else 1)
    if not 0 <= number <= 1:
        named = score.name if score.name == score.column else f"{score.name}:{score.column}"
        raise row.fail(
            score.key,
            value,
            "a confidence must be in [0, 1], or have the sign %. Map the column that holds one; if this one holds "
            f"numbers that are higher for certain answers, --map {shlex.quote(f'certainty={named}')}",
        )
    return 1 - number
