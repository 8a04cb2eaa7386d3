"""Gate by items against gate by whole answers: `python -m benchmarks.items [--pools embedded smollm2 bank]`.

Records with three to six fields are made with the embedded model (examples/tiny_model): each question asks for facts
about a town or a person and for sums. The model cannot write JSON, so the JSON of an answer is composed of the model's
separate answers to each field, the j-th sample of a record of the j-th sample of each field. The fields of a record are
then as dependent as its questions are, and no more.

The recorded answers of SmolLM2-135M-Instruct (examples/recorded/smollm2) are composed in the same way into records of
three to six questions of any kind, each question in one record. The judge, the labels and alpha .25 are those of the
demo of that model. A value is the answer without the words of its question ("April", not "The month after March is
April."). Such items are independent of each other but for the difficulty of their kinds: the items of an answer that a
model writes at once depend on each other more.

The calls are those of agents: transfers of the bank's stand-in model (examples/bank_agent), and with ``--calls FOLDER``
calls that models made on the Berkeley Function-Calling Leaderboard, recorded in HuanzhiMao/BFCL-Result on GitHub, where
FOLDER is that of a date, such as 2024-08-11. A call by one model is compared with the calls of ten other models.

Calibrations draw 300 answers with replacement from the pool, so the true risk is known: it is that of the pool.
Printed: right fields that pass, as a share of all right fields, by items and by whole answers (rule certified on the
share of samples of which any field differs), and how often the true risk is above alpha.
"""

from __future__ import annotations

import argparse
import ast
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.correctness import CorrectnessRule, make_rule
from calibrate.data.questions import Question
from calibrate.fitting import fit
from calibrate.items.answers import cap_of_counts
from calibrate.rules import RULES, compared_rules
from calibrate.rules.counts import Infeasible
from calibrate.rules.items import AnswerItems
from examples.bank_agent.calibration import COMPARED
from examples.bank_agent.calibration import recorded as recorded_transfers
from examples.bank_agent.model import Teller
from examples.demo.llm import CORRECTNESS
from examples.demo.smollm2 import recorded
from examples.tiny_model.asking import greedy, load, sample
from examples.tiny_model.dice import Dice
from examples.tiny_model.world import Fact, build_world
from guardrail.items.json_fields import OtherDocument, document_of, json_spec, leaves
from guardrail.items.measure import ItemsMeasure, items_measure
from guardrail.judges.json_value import read_json
from guardrail.judges.words import asked_words, read
from guardrail.outcome import Feasible
from guardrail.sampling.calls import SAMPLE_INDEX
from guardrail.sampling.replies.read import part_of_an_answer
from guardrail.types import Missing, Sample, SampleSet, ToolCall

TINY = Path(__file__).resolve().parent.parent / "examples" / "tiny_model"
SAMPLES, TEMPERATURE, TOP_P = 10, 1.0, 0.95
DELTA, N = 0.1, 300
POOLS = ("embedded", "smollm2", "bank")
UNKNOWN = ("fact-seen-0", "arithmetic-multiply", "arithmetic-add-huge", "arithmetic-add-giant")
"""Tiers of which the model gets less than a tenth right."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Answers with their items, labels and the score of the whole answer.

    Attributes:
        name: Of the data.
        items: Uncertainties and labels.
        whole: Share of samples that differ from the whole answer, shape (n,).
        samples: Samples of an answer.
    """

    name: str
    items: AnswerItems
    whole: NDArray[np.float64]
    samples: int

    @property
    def wrong(self) -> NDArray[np.int8]:
        """1 for an answer with a wrong item, shape (n,)."""
        return (np.bincount(self.items.answer, weights=self.items.wrong, minlength=self.items.n) > 0).astype(np.int8)


# -- Records of several fields -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record: its name, its question, the accepted answers and its tier."""

    name: str
    question: str
    references: tuple[str, ...]
    tier: str


def records_of(count: int) -> list[list[Field]]:
    """Make records of three to six fields: facts about one subject, then sums."""
    facts: dict[str, list[Fact]] = {}
    for fact in build_world().facts:
        facts.setdefault(fact.subject, []).append(fact)
    rows = (json.loads(line) for line in (TINY / "questions" / "open.jsonl").open(encoding="utf-8"))
    sums = [row for row in rows if not row["group"].startswith("fact") and row["group"] != "contradictory"]
    dice, records, used = Dice("benchmarks/items"), [], 0
    for subject in list(facts)[:count]:
        own = dice.shuffled(facts[subject])[: dice.pick((2, 3, 4))]
        fields = [
            Field(fact.relation.name, fact.question(fact.open_template), fact.value.forms, fact.group) for fact in own
        ]
        for k in range(dice.pick((1, 2))):
            row = sums[used % len(sums)]
            used += 1
            fields.append(Field(f"sum_{k + 1}", row["question"], tuple(row["references"]), row["group"]))
        records.append(fields)
    return records


def asked(records: Sequence[Sequence[Field]], path: Path) -> list[dict[str, Any]]:
    """Return greedy answers and samples of every field, asking the model unless ``path`` has them."""
    if path.is_file():
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    model, tokenizer = load(TINY / "orrin-1.5m")
    questions = [field.question for fields in records for field in fields]
    first = greedy(model, tokenizer, questions)
    others = sample(model, tokenizer, questions, SAMPLES, TEMPERATURE, TOP_P, seed=0)
    flat = iter(zip(first, others, strict=True))
    rows = []
    for fields in records:
        drawn = [next(flat) for _ in fields]
        rows.append(
            {
                "names": [field.name for field in fields],
                "references": [list(field.references) for field in fields],
                "answers": [answer for answer, _ in drawn],
                "samples": [texts for _, texts in drawn],
            }
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def of_known_facts(records: Sequence[Sequence[Field]], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compose other records of the same answers: three to six fields of the tiers that the model can know.

    On records of all fields a gate of whole answers passes nothing, so that no ratio can be given.
    """
    answers = [
        {key: row[key][k] for key in row}
        for fields, row in zip(records, rows, strict=True)
        for k, field in enumerate(fields)
        if field.tier not in UNKNOWN
    ]
    dice, composed = Dice("benchmarks/items/known"), []
    for _ in rows:
        chosen = {answer["names"]: answer for answer in dice.shuffled(answers)[:12]}
        some = list(chosen.values())[: dice.pick((3, 4, 5, 6))]
        composed.append({key: [answer[key] for answer in some] for key in rows[0]})
    return composed


def json_pool(name: str, rows: Sequence[dict[str, Any]]) -> Pool:
    """Measure the fields of composed JSON answers.

    Fields of facts are compared by text, for the model says "salt" or "grey salt", and sums as numbers.
    """
    names = sorted({name for row in rows for name in row["names"]})
    cap = max(len(row["names"]) for row in rows)
    judges = {f"/{name}": "numeric" if name.startswith("sum") else "text" for name in names}
    measure = items_measure(json_spec(cap=cap, judges=judges))
    supported = [
        _supported(
            measure,
            _composed(row["names"], row["answers"]),
            [_composed(row["names"], texts) for texts in zip(*row["samples"], strict=True)],
        )
        for row in rows
    ]
    return _pool(name, supported, [row["wrong"] for row in rows], cap)


def _supported(measure: ItemsMeasure, primary: Sample, samples: Sequence[Sample]) -> NDArray[np.bool_]:
    """Which sample supports which item of the answer, shape (samples, items)."""
    rows = []
    for other in samples:
        items = measure.items(SampleSet(question="", primary=primary, samples=(other,)))
        assert not isinstance(items, Missing), items
        rows.append([item.uncertainty == 0 for item in items])
    return np.array(rows)


def _pool(name: str, supported: Sequence[NDArray[np.bool_]], wrong: Sequence[Sequence[int]], cap: int) -> Pool:
    """A pool from the support of every item: a sample differs from the whole answer if it does not support all."""
    scores = [(np.count_nonzero(~agree, axis=0) / len(agree)).tolist() for agree in supported]
    whole = np.array([float((~agree.all(axis=1)).mean()) for agree in supported])
    return Pool(name, AnswerItems.of(scores, wrong, cap=cap), whole, len(supported[0]))


def _composed(names: Sequence[str], answers: Sequence[str]) -> Sample:
    return Sample(text=json.dumps(dict(zip(names, answers, strict=True))))


def _labelled(row: dict[str, Any], rule: CorrectnessRule) -> dict[str, Any]:
    pairs = zip(row["answers"], row["references"], strict=True)
    return {**row, "wrong": [_wrong(rule, *pair) for pair in pairs]}


def _wrong(rule: CorrectnessRule, answer: str, references: Sequence[str]) -> int:
    return int(rule.label(answer, Question(id="0", question="field", references=tuple(references))).correct is not True)


# -- Recorded answers of a real small model ----------------------------------------------------------------------------


def recorded_facts() -> list[dict[str, Any]]:
    """Return the recorded questions whose answer is measured at run time: it is not empty and was not cut off.

    Of each: the question, answer and samples in full, and whether the answer is right.
    """
    rule, facts = make_rule(CORRECTNESS), []
    with tempfile.TemporaryDirectory() as folder:
        file = recorded(Path(folder) / "records.jsonl")
        for record in file.records:
            drawn = record.drawn
            if drawn is None or drawn.primary is None or not drawn.primary.comparable or drawn.problem is not None:
                continue
            if part_of_an_answer(drawn, file.header.plan) is not None:
                continue
            right = rule.label(drawn.primary.comparable, record.to_question()).correct
            facts.append(
                {
                    "kinds": record.group,
                    "questions": record.question,
                    "answers": drawn.primary.comparable,
                    "samples": [sample.comparable for sample in drawn.samples],
                    "wrong": int(right is not True),
                }
            )
    return facts


def composed_records(facts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Group the facts at random into records of three to six, each fact in one record."""
    dice = Dice("benchmarks/items/smollm2")
    left, composed = dice.shuffled(facts), []
    while len(left) >= 6:
        size = dice.pick((3, 4, 5, 6))
        some, left = left[:size], left[size:]
        composed.append({key: [fact[key] for fact in some] for key in some[0]})
    return composed


def of_better_kinds(facts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the facts of the kinds of which at least half are right.

    As with `of_known_facts`: on records of all kinds a gate of whole answers passes nothing.
    """
    wrong: dict[str, list[int]] = {}
    for fact in facts:
        wrong.setdefault(fact["kinds"], []).append(fact["wrong"])
    return [fact for fact in facts if np.mean(wrong[fact["kinds"]]) <= 0.5]


def as_values(row: dict[str, Any]) -> dict[str, Any]:
    """Return a record whose answers and samples are values: each without the words of its question."""
    asked_about = [asked_words(question) for question in row["questions"]]
    return {
        **row,
        "names": [f"fact_{k}" for k in range(1, len(asked_about) + 1)],
        "answers": [_value(*pair) for pair in zip(row["answers"], asked_about, strict=True)],
        "samples": [
            [_value(text, own) for text in texts] for texts, own in zip(row["samples"], asked_about, strict=True)
        ],
    }


def _value(answer: str, question: frozenset[str]) -> str:
    """The answer without the words of its question; all of it if there are no others."""
    return " ".join(word for word in answer.split() if not question.issuperset(read(word).words)) or answer


# -- Recorded calls of agents ------------------------------------------------------------------------------------------


def bank_pool(requests: int) -> Pool:
    """Return the pool of the bank's recorded transfers: an item is the payee or the amount.

    The memo does not count, as in the example's gate. The agent is the example's stand-in for a model.
    """
    teller, measure, supported, wrong = Teller(), items_measure(json_spec(cap=2)), [], []

    def transfer(request: str, metadata: dict[str, int]) -> Sample:
        arguments = teller.invoke(request, config={"metadata": metadata}).tool_calls[0]["args"]
        compared = {name: arguments[name] for name in COMPARED["transfer"]}
        return Sample(text="", tool_calls=(ToolCall(name="transfer", arguments=compared),))

    for step in recorded_transfers(requests):
        request = step.question
        primary, *samples = (transfer(request, {} if k is None else {SAMPLE_INDEX: k}) for k in (None, *range(SAMPLES)))
        (intended,) = json.loads(step.references[0])
        supported.append(_supported(measure, primary, samples))
        made = primary.tool_calls[0].arguments
        wrong.append([int(made[name] != intended["arguments"][name]) for name in made])
    return _pool("transfers of the bank agent", supported, wrong, cap=2)


CALLING = ("command-r-plus-FC", "meta-llama_Meta-Llama-3-8B-Instruct")
"""Models whose calls are gated by default."""
OTHERS = (
    "claude-3-haiku-20240307-FC",
    "claude-3-sonnet-20240229-FC",
    "firefunction-v1-FC",
    "firefunction-v2-FC",
    "gemini-1.0-pro",
    "gpt-3.5-turbo-0125-FC",
    "gpt-4o-mini-2024-07-18-FC",
    "meetkai_functionary-small-v3.1-FC",
    "mistral-small-2402-FC-Auto",
    "open-mistral-nemo-2407-FC-Any",
)
"""Models whose calls are the samples: ten with native tool calls, of seven vendors."""
CATEGORIES = ("simple", "multiple_function")
"""Categories of questions that ask for one call."""


def recorded_calls(folder: Path, models: Sequence[str] = CALLING, cap: int | None = None) -> list[Pool]:
    """Return the pools of recorded tool calls with several arguments: an item is an argument, or an item of a list.

    Values are compared by the judge `exact`. An argument is right if the benchmark accepts it; of a call of another
    tool none is. An argument that a call lacks is no part, and counts as no error of either gate.

    Args:
        folder: ``result`` and ``score`` of one date of BFCL-Result.
        models: Names of the models whose calls are gated.
        cap: Most arguments that can be kept; default: that of answers without a schema.
    """
    accepted = _accepted_arguments(folder)
    others = [_calls(folder, model) for model in OTHERS]
    pools = []
    for model in models:
        calls = {key: call for key, call in _calls(folder, model).items() if key in accepted}
        names = {name for call in calls.values() for name in call.arguments}
        judges = {f"/{name}{rest}": "exact" for name in names for rest in ("", "/*")}
        measure, supported, wrong = items_measure(json_spec(cap=1, judges=judges)), [], []
        for key, call in calls.items():
            labels = _wrong_arguments(call, accepted[key], measure)
            if len(labels) < 2:
                continue
            samples = [Sample(text="", tool_calls=(some[key],) if key in some else ()) for some in others]
            supported.append(_supported(measure, Sample(text="", tool_calls=(call,)), samples))
            wrong.append(labels)
        print(f"{model}: {len(calls)} of {len(accepted)} questions have one call, {len(wrong)} of several arguments")
        pools.append(_pool(f"arguments of {model}", supported, wrong, cap or cap_of_counts(list(map(len, wrong)))))
    return pools


def _calls(folder: Path, model: str) -> dict[str, ToolCall]:
    """The call of a model for each question; none where it made several or what it wrote cannot be read."""
    calls = {}
    for category in CATEGORIES:
        path = folder / "result" / model / f"gorilla_openfunctions_v1_test_{category}_result.json"
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            try:
                (call,) = row["result"] if isinstance(row["result"], list) else _written_calls(row["result"])
                ((name, arguments),) = call.items()
                arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
                calls[row["id"]] = ToolCall(name=_tool(name), arguments=arguments)
            except (ValueError, SyntaxError, AttributeError):
                continue
    return calls


def _written_calls(text: str) -> list[dict[str, dict[str, Any]]]:
    """Calls in Python's notation, "[f(a=1), g(b='x')]", by tool; a value that is no literal stays a text."""
    tree = ast.parse(text[text.index("[") : text.rindex("]") + 1], mode="eval").body
    if not isinstance(tree, ast.List) or not all(isinstance(call, ast.Call) and not call.args for call in tree.elts):
        raise ValueError("it is not a list of calls with named arguments")
    calls = [call for call in tree.elts if isinstance(call, ast.Call)]
    return [{ast.unparse(call.func): {str(k.arg): _literal(k.value) for k in call.keywords}} for call in calls]


def _literal(value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        return ast.unparse(value)


def _tool(name: str) -> str:
    return name.replace(".", "_")  # native calls cannot have a dot


def _accepted_arguments(folder: Path) -> dict[str, tuple[str, dict[str, list[Any]]]]:
    """The tool and the accepted values of each argument by question, from the errors that any model's score lists.

    Questions with objects among the accepted values are left out: these list values at every depth.
    """
    accepted = {}
    for category in CATEGORIES:
        for path in sorted(folder.glob(f"score/*/{category}_score.json")):
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                if "possible_answer" not in row:
                    continue
                ((tool, arguments),) = row["possible_answer"].items()
                if "{" not in json.dumps(list(arguments.values())):
                    accepted[row["prompt"]["id"]] = (_tool(tool), arguments)
    return accepted


def _wrong_arguments(call: ToolCall, accepted: tuple[str, dict[str, list[Any]]], measure: ItemsMeasure) -> list[int]:
    """1 for each wrong item of a call; of several accepted values that with which most items agree counts."""
    tool, values = accepted
    wrong = []
    for name, value in call.arguments.items():
        only = ToolCall(name=call.name, arguments={name: value})
        document = document_of(Sample(text="", tool_calls=(only,)), call.name)
        items = leaves(document, measure.spec, measure.judges)
        options = [read_json(json.dumps({name: option})) for option in values.get(name, ()) if tool == call.name]
        others = [OtherDocument(option, measure.judges) for option in options]
        labels = [[int(other.supports(item) is not True) for item in items] for other in others]
        wrong += min(labels, key=sum, default=[1] * len(items))
    return wrong


# -- Calibrations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """Means over calibrations, as printed.

    Attributes:
        rule: The rule.
        alpha: Its target.
        passed: Right fields that pass, as a share of all right fields.
        shown: Answers of which something passes.
        wrong: Wrong ones among the fields that pass.
        violated: Share of calibrations whose true risk is above alpha.
        infeasible: Share of calibrations that pass nothing.
    """

    rule: str
    alpha: float
    passed: float
    shown: float
    wrong: float
    violated: float
    infeasible: float


def whole_answers(pool: Pool, alpha: float, calibrations: int, seed: int = 0) -> Line:
    """Calibrate the gate of whole answers many times, by rule certified."""
    rng, error = np.random.default_rng(seed), pool.wrong
    per_answer = np.bincount(pool.items.answer, weights=pool.items.wrong == 0, minlength=pool.items.n)
    passed, shown, wrong, risks = [], [], [], []
    for _ in range(calibrations):
        drawn = rng.integers(0, pool.items.n, N)
        outcome = fit(pool.whole[drawn], error[drawn], alpha=alpha, rule="certified", delta=DELTA)
        accepted = pool.whole <= outcome.threshold if isinstance(outcome, Feasible) else np.zeros(pool.items.n, bool)
        passed.append(float(per_answer[accepted].sum() / per_answer.sum()))
        shown.append(float(accepted.mean()))
        if accepted.any():
            risks.append(float(error[accepted].mean()))
            wrong.append(1 - per_answer[accepted].sum() / pool.items.size[accepted].sum())
    return Line(
        "whole answers, certified",
        alpha,
        float(np.mean(passed)),
        float(np.mean(shown)),
        float(np.mean(wrong)) if wrong else 0.0,
        sum(risk > alpha for risk in risks) / calibrations,
        1 - len(risks) / calibrations,
    )


def lines(pool: Pool, alphas: Sequence[float], calibrations: int) -> list[Line]:
    """Return the lines of a pool: at each target whole answers, then every rule for items."""
    found = []
    for alpha in alphas:
        found.append(whole_answers(pool, alpha, calibrations))
        found += [by_item(pool.items, rule, alpha, calibrations) for rule in compared_rules("item")]
    return found


def by_item(items: AnswerItems, name: str, alpha: float, calibrations: int) -> Line:
    """Return the line of a rule for items: means over calibrations drawn with replacement from the pool."""
    rng, rule = np.random.default_rng(0), RULES[name]
    right, shown, wrong, violated = [], [], [], 0
    for _ in range(calibrations):
        some = items.take(rng.integers(0, items.n, N))
        # An answer that is drawn twice is two draws, and needs two names.
        names = [str(i) for i in some.answer.tolist()]
        result = rule.choose(some.uncertainty, some.wrong, alpha, DELTA, group=names, cap=some.cap)
        if isinstance(result, Infeasible):
            continue
        K, W = items.counts(result.threshold)
        right.append((K.sum() - W.sum()) / max(1, (items.wrong == 0).sum()))
        shown.append((K > 0).mean())
        wrong += [W.sum() / K.sum()] if K.any() else []
        violated += (rule.risk_of(K, W) or 0.0) > alpha
    return Line(
        name,
        alpha,
        float(sum(right)) / calibrations,
        float(sum(shown)) / calibrations,
        float(np.mean(wrong)) if wrong else 0.0,
        violated / calibrations,
        1 - len(right) / calibrations,
    )


def embedded_pools(questions: int, answers: Path) -> list[Pool]:
    """Return the pools of the embedded model, which is asked unless ``answers`` has its answers."""
    records, rule = records_of(questions), make_rule("token_f1")
    rows = asked(records, answers)
    named = {"all fields": rows, "fields the model can know": of_known_facts(records, rows)}
    return [json_pool(name, [_labelled(row, rule) for row in some]) for name, some in named.items()]


def smollm2_pools() -> list[Pool]:
    """Return the pools of recorded answers of SmolLM2, as JSON."""
    facts = recorded_facts()
    named = {"SmolLM2": facts, "SmolLM2, better kinds": of_better_kinds(facts)}
    return [json_pool(name, list(map(as_values, composed_records(some)))) for name, some in named.items()]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=POOLS)
    parser.add_argument("--calls", type=Path, help="folder of recorded tool calls, see recorded_calls")
    parser.add_argument("--models", nargs="+", default=CALLING, help="models whose recorded calls are gated")
    parser.add_argument("--cap", type=int, help="cap of recorded calls")
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--calibrations", type=int, default=250)
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.05, 0.1, 0.25])
    parser.add_argument("--answers", type=Path, default=Path("items-answers.jsonl"), help="answers are kept here")
    options = parser.parse_args()
    pools = embedded_pools(options.questions, options.answers) if "embedded" in options.pools else []
    pools += smollm2_pools() if "smollm2" in options.pools else []
    pools += [bank_pool(options.questions)] if "bank" in options.pools else []
    pools += recorded_calls(options.calls, options.models, options.cap) if options.calls else []
    for pool in pools:
        _print(pool, lines(pool, options.alpha, options.calibrations), options.calibrations)


def _print(pool: Pool, found: Sequence[Line], calibrations: int) -> None:
    size = pool.items.size
    print(
        f"{pool.name}: {pool.items.n} records of {size.min()} to {size.max()} fields, {pool.samples} samples; "
        f"{pool.items.wrong.mean():.1%} of the fields are wrong, {pool.wrong.mean():.1%} of the records have a wrong "
        f"one; {calibrations} calibrations on {N}, delta {DELTA:g}"
    )
    print(
        f"{'rule':40}{'alpha':>6}{'right passed':>14}{'ratio':>7}{'shown':>8}{'wrong':>8}{'violated':>10}{'nothing':>9}"
    )
    base = 0.0
    for line in found:
        base = line.passed if line.rule.startswith("whole") else base
        ratio = f"{line.passed / base:.2f}" if base >= 0.001 else "-"
        print(
            f"{line.rule:40}{line.alpha:6g}{line.passed:14.1%}{ratio:>7}{line.shown:8.1%}{line.wrong:8.1%}"
            f"{line.violated:10.1%}{line.infeasible:9.1%}"
        )


if __name__ == "__main__":
    main()
