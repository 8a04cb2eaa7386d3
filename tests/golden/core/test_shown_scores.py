"""The score of every estimator on the same sets of samples, its reason where there is none, and what it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guardrail import Scorer, UsageError, scorer
from guardrail.guard.early_stopping import decide_after_first, decide_early, range_of, wave_ends
from guardrail.judges import BatchJudge, EntailmentScores, Judge, JudgeSpec, from_judge, make_judge, make_similarity
from guardrail.judges.base import Item
from guardrail.parts.measure import parts_estimator, parts_measure
from guardrail.parts.sentences import sentence_spec
from guardrail.plain_json import sha256_hex
from guardrail.types import OptionScores, Sample, SampleSet, SamplingPlan, ToolCall, Uncertainty, Unmeasured
from guardrail.uncertainty import (
    Clusters,
    Estimator,
    Evidence,
    cluster,
    from_spec,
    list_estimators,
    make_estimator,
    measure,
    measure_all,
    measure_many,
    measure_stream,
    plan_for,
    similarity_matrix,
    tie_break,
    unmet_needs,
)
from guardrail.uncertainty.ensemble import EnsembleParams, Member, Training, ensemble
from guardrail.uncertainty.registry import advice
from guardrail.uncertainty.selfcheck import sentences, stated_confidence, support_question
from guardrail.uncertainty.two_stage import TwoStageParams, two_stage
from tests.golden.core.rendering import error_of, json_lines, listed, number
from tests.golden.shown import same

# -- The sets: each with four samples, and log-probabilities that differ from token to token ---------------------------


def spoken(text: str, step: float = 0.1) -> Sample:
    """A sample whose words are tokens; the k-th has the log-probability -k step, and every third token is certain."""
    words = text.split(" ")
    tokens = tuple(word if place == 0 else f" {word}" for place, word in enumerate(words))
    logprobs = tuple(0.0 if place % 3 == 2 else -step * (place + 1) for place in range(len(tokens)))
    return Sample(text=text, tokens=tokens, logprobs=logprobs)


def drawn(question: str, primary: str | Sample | None, samples: Sequence[str | Sample], **more: Any) -> SampleSet:
    own = spoken(primary, 0.2) if isinstance(primary, str) else primary
    read = tuple(
        spoken(text, 0.1 * (place + 1)) if isinstance(text, str) else text for place, text in enumerate(samples)
    )
    return SampleSet(question=question, primary=own, samples=read, **more)


def call(name: str, **arguments: Any) -> Sample:
    return Sample(text="", tool_calls=(ToolCall(name=name, arguments=arguments),))


BYTES = Sample(  # one emoji, in the bytes of two tokens
    text="Tokyo \U0001f5fc!",
    tokens=("Tokyo", " \ufffd", "\ufffd", "!"),
    logprobs=(-0.5, -0.25, -0.125, -1.0),
    token_bytes=("546f6b796f", "20f09f", "97bc", "21"),
)
OPTIONS = OptionScores(labels=("A", "B", "C"), loglikelihoods=(-0.25, -2.0, -3.5))
CAPITAL, COUNT, FAUST = "What is the capital of France?", "How many moons has Mars?", "Who wrote Faust?"
LONG = "Goethe wrote Faust. He worked on it for sixty years. Dr. Faust is a scholar!"


def replied(**replies: Sequence[str]) -> dict[str, tuple[SampleSet, ...]]:
    return {name: tuple(SampleSet(question="", primary=Sample(text=text)) for text in texts)
            for name, texts in replies.items()}  # fmt: skip


def supported(primary: str, samples: Sequence[str], words: Sequence[str]) -> dict[str, tuple[SampleSet, ...]]:
    asked = dict.fromkeys(support_question(FAUST, part, text) for part in sentences(primary) for text in samples)
    replies = (words[place % len(words)] for place in range(len(asked)))
    return {"selfcheck_prompt": tuple(
        SampleSet(question=text, primary=Sample(text=reply)) for text, reply in zip(asked, replies, strict=True)
    )}  # fmt: skip


TRUE = SampleSet(
    question="", primary=Sample(text="A"), options=OptionScores(labels=("A", "B"), loglikelihoods=(-0.1, -2.4))
)
ASKED = {"p_true": (TRUE,), **replied(verbalised=["85 %"])}
CONTEXTS = ["Goethe wrote it.", "Goethe wrote it.", "It is by Marlowe.", "Goethe, in sixty years."]

SETS: dict[str, SampleSet] = {
    "agree": drawn(CAPITAL, "Paris", ["Paris", "It is Paris.", "paris", "The capital is Paris."]),
    "three to one": drawn(CAPITAL, "Paris", ["Paris", "Lyon", "Paris", "Paris"], options=OPTIONS),
    "tie": drawn(CAPITAL, "Lyon", ["Paris", "Lyon", "Lyon", "Paris"], follow_ups=ASKED),
    "all differ": drawn(CAPITAL, "Nice", ["Paris", "Lyon", "Metz", "Lille"], options=OPTIONS),
    "numbers": drawn(COUNT, "2", ["2", "two", "2.0", "3"], follow_ups=replied(verbalised=["1"])),
    "sentences": drawn(
        FAUST, LONG, CONTEXTS, follow_ups={**supported(LONG, CONTEXTS, ["Yes.", "no", "Yes, it is"]), **ASKED}
    ),
    "refusals": drawn(CAPITAL, "Paris", ["I don't know.", "I do not know", "Paris", "Sorry, I cannot say."]),
    "echo": drawn(CAPITAL, "The capital of France.", ["Paris", "France", "The capital", "It is France"]),
    "letters": drawn("Tower?", BYTES, ["Tokyo \u5854", "\u6771\u4eac", "Tokyo \u5854", "\u6771\u4eac\u3002"]),
    "json": drawn(
        "City?",
        '{"city": "Rome", "n": 1}',
        ['{"n": 1.0, "city": "Rome"}', '{"city": "Rome"}', '{"city": "Lyon", "n": 1}', "Rome"],
    ),
    "calls": drawn(
        "Pay",
        call("pay", to="bob", amount=5),
        [*(call("pay", to="bob", amount=amount) for amount in (5, 5.0, 6)), call("ask", to="bob")],
    ),
    "short tokens": drawn(
        CAPITAL, Sample(text="Paris", tokens=("Lyon",), logprobs=(-0.5,)),
        [Sample(text="Paris", tokens=("Pa", "ri"), logprobs=(-0.5, -0.5))] * 4,
    ),
    "no tokens": drawn(CAPITAL, Sample(text="Paris"), [Sample(text="Paris")] * 4),
    "empty tokens": drawn(
        CAPITAL, Sample(text="Paris", tokens=(), logprobs=()), [Sample(text="Paris", tokens=(), logprobs=())] * 4
    ),
    "empty sample": drawn(CAPITAL, "Paris", ["Paris", "Paris", Sample(text=" \u200b "), "Paris"]),
    "three samples": drawn(CAPITAL, "Paris", ["Paris", "Paris", "Lyon"]),
    "empty answer": drawn(CAPITAL, Sample(text=""), ["Paris"] * 4),
    "no answer": drawn(CAPITAL, None, ["Paris"] * 4),
    "refused": drawn(CAPITAL, Sample(text="No.", refusal=True), ["Paris"] * 4),
    "cut off": drawn(CAPITAL, Sample(text="Par", finish_reason="length"), ["Paris"] * 4),
    "failed": drawn(
        CAPITAL, "Paris", [], problem=Unmeasured.MODEL_FAILED, problem_detail="4 of 5 calls failed, the first with X"
    ),
}  # fmt: skip
PLAN = SamplingPlan(
    n=4,
    logprobs=True,
    options=("A", "B", "C"),
    follow_ups=("p_true", "selfcheck_prompt", "verbalised"),
    cut_off="abstain",
    max_tokens=8,
)


class Contradicts:
    """An entailment model that counts letters: enough to have different scores for different pairs."""

    spec = JudgeSpec(name="letters", version=1, params={"labels": 3})

    def entailment_batch(self, items: Sequence[Item]) -> list[EntailmentScores | None]:
        shares = [len(set(a) & set(b)) / len(set(a) | set(b)) for _, a, b in items]
        return [EntailmentScores(share / 2, 0.5, (1 - share) / 2) for share in shares]


def told(score: Uncertainty) -> str:
    if score.value is None:
        assert score.reason is not None
        return f"{score.reason.value}: {score.detail}"
    more = "".join(f", {name}" for name in ("is_bound",) if getattr(score, name))
    more += "" if score.first is None else f", first {number(score.first)}"
    return f"{number(score.value)}{more}{f' ({score.detail})' if score.detail else ''}"


def table(estimator: Estimator, sets: dict[str, SampleSet] = SETS, plan: SamplingPlan = PLAN) -> str:
    return "\n".join(f"  {name:<16}{told(measure(each, estimator, plan))}" for name, each in sets.items())


def facts(estimator: Estimator) -> str:
    needs = [name for name in estimator.needs.__dataclass_fields__ if getattr(estimator.needs, name)]
    asked = estimator.needs.follow_up
    lines = [
        f"{estimator.name} {estimator.version}, {estimator.unit}; needs {', '.join(needs)}; at least "
        f"{estimator.fewest} samples; reads the answer: {estimator.reads_answer}; slow: {estimator.is_slow}; "
        f"bounds: {estimator.bounds is not None}"
    ]
    if asked is not None:
        lines.append(
            f"asks {asked.name}: options {asked.options}, at most {asked.max_tokens} tokens, reads {asked.reads}"
        )
    spec = {
        name: value for name, value in estimator.spec.model_dump().items() if value and name not in ("name", "unit")
    }
    return "\n".join([*lines, f"spec {json_lines(spec)}"])


def default(name: str) -> Estimator:
    return make_estimator(name, entailment=Contradicts() if name == "selfcheck_nli" else None)


def test_every_estimator_on_every_set() -> None:
    estimators = [default(name) for name in list_estimators()]
    together = list(measure_stream(SETS.values(), estimators, PLAN))
    blocks = []
    for place, estimator in enumerate(estimators):
        alone = [measure(each, estimator, PLAN) for each in SETS.values()]
        assert [scores[place] for scores in together] == alone, "one judging pass gives the scores of many"
        blocks.append(f"{facts(estimator)}\n{table(estimator)}")
    same("core/scores.txt", "\n\n".join([*blocks, *advice()]))


class Opinion:
    """A judge with scripted answers, for what an estimator makes of odd ones."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.spec = JudgeSpec(name="opinion", version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[Any]:
        if isinstance(self.answers[0], Exception):
            raise self.answers[0]
        answers = [self.answers[place % len(self.answers)] for place in range(len(pairs))]
        return answers[:-1] if self.answers[-1] == "too few" else answers


class Rating(Opinion):
    """A similarity with scripted ratings."""

    similarity = Opinion.equivalent


class Scored(Opinion):
    """An entailment model with scripted scores."""

    def entailment_batch(self, items: Sequence[Item]) -> list[Any]:
        return self.equivalent("", [item[1:] for item in items])


def test_options_of_estimators() -> None:
    chosen: dict[str, Estimator] = {
        "greedy clusters": make_estimator("discrete_semantic_entropy", clustering="greedy"),
        "exact": make_estimator("discrete_semantic_entropy", judge=make_judge("exact")),
        "numeric": make_estimator("num_sets", judge=make_judge("numeric")),
        "json": make_estimator("self_consistency", judge=make_judge("json")),
        "f1 of 0.9": make_estimator("primary_disagreement", judge=make_judge("token_f1", threshold=0.9)),
        "rouge_l": make_estimator("degree", similarity=make_similarity("rouge_l")),
        "jaccard": make_estimator("lexical_similarity", similarity=make_similarity("jaccard")),
        "judge as similarity": make_estimator("eigenvalue", similarity=from_judge(make_judge("exact"))),
        "eccentricity of clusters": make_estimator("eccentricity", similarity=from_judge(make_judge("numeric"))),
    }
    few = {name: each for name, each in SETS.items() if len(each.samples) == 4 and each.problem is None}
    same(
        "core/scores_of_options.txt",
        "\n\n".join(f"{name}: {facts(each)}\n{table(each, few)}" for name, each in chosen.items()),
    )


def test_what_odd_judges_leave_unmeasured() -> None:
    one = {"all differ": SETS["all differ"]}

    def judged(*answers: Any) -> Estimator:
        return make_estimator("discrete_semantic_entropy", judge=Opinion(*answers))

    def rated(*answers: Any) -> Estimator:
        return make_estimator("degree", similarity=Rating(*answers))

    def entailed(*answers: Any) -> Estimator:
        return make_estimator("selfcheck_nli", entailment=Scored(*answers))

    odd: dict[str, Estimator] = {
        "judge: yes and no": judged(True, False),
        "judge: None": judged(True, None),
        "judge: a text": judged("yes"),
        "judge: a number": judged(1),
        "judge: too few": judged(True, "too few"),
        "judge: an error": judged(RuntimeError("quotes Paris")),
        "judge: an error of ours": judged(UsageError("the judge needs a key")),
        "similarity: numbers": rated(0.25, 1.0, 0),
        "similarity: None": rated(None),
        "similarity: above 1": rated(1.5),
        "similarity: not a number": rated(float("nan")),
        "similarity: a text": rated("much"),
        "entailment: scores": entailed(EntailmentScores(0.2, 0.7, 0.1), EntailmentScores(0.05, 0.0, 0.95)),
        "entailment: two labels": entailed(EntailmentScores(0.9)),
        "entailment: above 1": entailed(EntailmentScores(0.9, 0.0, 1.5)),
        "entailment: all neutral": entailed(EntailmentScores(0.0, 1.0, 0.0)),
        "entailment: None": entailed(None),
        "entailment: a number": entailed(0.5),
        "without an entailment model": make_estimator("selfcheck_nli"),
    }
    same("core/scores_of_odd_judges.txt", "\n".join(f"{name}\n{table(each, one)}" for name, each in odd.items()))


# -- Scores that are made of others ------------------------------------------------------------------------------------


def combined_of(*names: str) -> Estimator:
    members = [default(name) for name in names]
    parts = [Member(spec=each.spec, mean=0.5, scale=2.0, weight=0.25 * (i + 1)) for i, each in enumerate(members)]
    training = Training.of(["q1", CAPITAL])
    return ensemble(EnsembleParams(intercept=-1.5, members=tuple(parts), training=training), members)


def staged(cheap: str = "sequence_nll", second: str = "primary_disagreement") -> Estimator:
    first, then = default(cheap), default(second)
    params = TwoStageParams(
        weight=0.5,
        scale=tuple(place / 100 for place in range(300)),
        cheap=first.spec,
        second=then.spec,
        training=Training.of(["q1"]),
    )
    return two_stage(params, first, then)


def test_scores_made_of_others() -> None:
    entropy, nll, votes = (default(n) for n in ("discrete_semantic_entropy", "sequence_nll", "primary_disagreement"))
    made = {
        "ensemble": combined_of("discrete_semantic_entropy", "perplexity", "degree"),
        "ensemble of two that ask": combined_of("p_true", "verbalised"),
        "ties of votes by the likelihood": tie_break(votes, nll),
        "ties within .5": tie_break(entropy, nll, resolution=0.5),
        "ties of a millionth": tie_break(nll, votes, resolution=1e-7),
        "two stages": staged(),
        "two stages, graded": staged("answer_word_nll", "graded_disagreement"),
    }
    blocks = []
    for name, each in made.items():
        spec = each.spec.model_dump(mode="json")
        if "scale" in spec["params"]:
            spec["params"]["scale"] = f"{len(spec['params']['scale'])} scores"
        remade = from_spec(each.spec)
        assert remade.spec == each.spec
        reads = {need: unmet_needs(remade, SamplingPlan(n=0)) for need in ("a plan without samples",)}
        facts_of = facts(each).split("\nspec")[0]
        blocks.append(f"{name}: {facts_of}\n{json_lines(spec)}\n{json_lines(reads)}\n{table(each)}")
    same("core/scores_of_several.txt", "\n\n".join(blocks))


def rating(reply: Any, **settings: Any) -> Scorer:
    settings = {"version": 1, "higher": "certain", "name": "rating", **settings}

    @scorer(**settings)
    def rate(question: str, answer: str) -> Any:
        return reply

    return rate


def test_estimators_of_scorers(tmp_path: Path) -> None:
    trained = tmp_path / "trained.jsonl"
    trained.write_text(
        '{"id": "q1", "question": "Why?", "group": "g"}\n\n{"question": "A or B?", "options": {"A": "x"}}\n'
    )
    (tmp_path / "questions.txt").write_text("q2\n  Why not?  \n")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "torn.jsonl").write_text('{"id": ')
    rows = []
    for name, own in {
        "certain": rating(0.75),
        "uncertain": rating(0.75, higher="uncertain"),
        "certain in nats": rating(3.5, unit="nats"),
        "with parameters": rating(0.5, version=3, params={"model": "m", "k": [1, 2]}, timeout=2.5, calls=0),
        "trained": rating(0.5, trained_on=trained),
        "trained on texts": rating(0.5, trained_on=tmp_path / "questions.txt"),
        "trained on a list": rating(0.5, trained_on=["q3", {"id": "q4"}]),
    }.items():
        reply = SampleSet(question=own.digest, primary=Sample(text=repr(own("", ""))))
        set_of = SETS["agree"].model_copy(update={"follow_ups": {own.follow_up: (reply,)}})
        other = SETS["agree"].model_copy(
            update={"follow_ups": {own.follow_up: (reply.model_copy(update={"question": "another"}),)}}
        )
        estimator = own.estimator
        rows.append(
            f"{name}: {facts(estimator)}\ndigest {own.digest}, calls {own.calls}\n"
            + table(estimator, {"rated": set_of, "rated by another": other, "not rated": SETS["agree"]})
            + f"\n  unmet: {unmet_needs(estimator, SamplingPlan(n=0))}"
        )
    path = str(tmp_path)
    wrong = {
        "a name with a dash": lambda: rating(1, name="my-score"),
        "version 0": lambda: rating(1, version=0),
        "higher": lambda: rating(1, higher="better"),
        "timeout 0": lambda: rating(1, timeout=0),
        "timeout of infinity": lambda: rating(1, timeout=float("inf")),
        "params": lambda: rating(1, params={"when": object()}),
        "another parameter": lambda: scorer(version=1, higher="certain", name="other")(lambda question, temperature: 1),
        "no parameter": lambda: scorer(version=1, higher="certain", name="none")(lambda: 1),
        "any parameters": lambda: scorer(version=1, higher="certain", name="any")(lambda *args, **more: 1),
        "no training question": lambda: rating(1, trained_on=[]),
        "empty training file": lambda: rating(1, trained_on=f"{tmp_path}/empty.txt"),
        "torn training file": lambda: rating(1, trained_on=tmp_path / "torn.jsonl"),
        "no training file": lambda: rating(1, trained_on=tmp_path / "missing.txt"),
        "another version": lambda: rating(1).serving(rating(1, version=2).estimator.spec),
        "another direction": lambda: rating(1).serving(rating(1, higher="uncertain").estimator.spec),
    }
    refusals = [(name, error_of(call).replace(path, "FOLDER")) for name, call in wrong.items()]
    text = "\n\n".join(rows) + "\n\n" + listed(refusals)
    same("core/scorers.txt", _without_addresses(text))


def _without_addresses(text: str) -> str:
    import re

    return re.sub(r" at 0x[0-9a-f]+", " at ADDRESS", text)


def test_stated_confidences() -> None:
    replies = [
        "85", "85 %", "85%", "85/100", "85 / 100.", "0.85", ".85", "1", "1%", "1.0", "0", "0.0", "100", "101", "1000",
        "Confidence: 90", "my confidence is 90 percent", "probability = 0.4", "about 90", "90 or 80", "", "-5", "5.5",
        "99.5 %",
    ]  # fmt: skip
    rows = ((repr(reply), str(stated_confidence(reply))) for reply in replies)
    pieces = ((repr(text), repr(sentences(text))) for text in (
        "", "One", "One. Two? Three!", "J. Smith met Dr. Who. He left.", "In the U.S. it rains.\nHere not",
        "e.g. this. That",
        "\u4e00\u3002\u4e8c\uff1f \u4e09", 'He said "No." Then left.', "3.5 km. 4 km...  5", "Vs. him\nand etc.\nend",
        "(Fig. 2) A.",
    ))  # fmt: skip
    same("core/confidences_and_sentences.txt", f"{listed(rows)}\n\n{listed(pieces)}")


# -- Scores of a part of the samples -----------------------------------------------------------------------------------


def test_bounds_of_the_first_samples() -> None:
    chosen: dict[str, Estimator] = {
        **{name: default(name) for name in list_estimators() if default(name).bounds is not None},
        "entropy of exact answers": make_estimator("discrete_semantic_entropy", judge=make_judge("exact")),
        "greedy entropy": make_estimator("discrete_semantic_entropy", judge=make_judge("exact"), clustering="greedy"),
        "entropy of a judge that states nothing": make_estimator("discrete_semantic_entropy", judge=Opinion(False)),
        "votes of a judge that fails": make_estimator("primary_disagreement", judge=Opinion(None)),
        "a similarity that states nothing": make_estimator("degree", similarity=Rating(0.5)),
        "no bounds": default("eigenvalue"),
    }
    blocks = []
    for name, estimator in chosen.items():
        rows = []
        for title in ("agree", "three to one", "all differ", "refusals", "no tokens", "empty sample"):
            whole = SETS[title].model_copy(update={"options": None})
            for m in (2, 3):
                part = whole.model_copy(update={"samples": whole.samples[:m]})
                ends = range_of(part, estimator, 6)
                low_high = (
                    told(ends) if isinstance(ends, Uncertainty)
                    else "nothing is known" if ends is None
                    else " to ".join(number(max(0.0, end)) for end in ends)
                )  # fmt: skip
                verdicts = []
                for threshold in (0.2, 0.9):
                    settled = decide_early(part, estimator, 6, threshold)
                    verdicts.append(f"{threshold:g}: {'open' if settled is None else told(settled)}")
                rows.append(f"  {title}, {m} of 6: {low_high}\n    at " + "\n    at ".join(verdicts))
        blocks.append("\n".join([name, *rows]))
    failed = SETS["failed"]
    one = SETS["agree"].model_copy(update={"samples": SETS["agree"].samples[:1]})
    early = [
        ("failed", told(decide_early(failed, default("degree"), 4, 0.5) or pytest.fail("settled"))),
        ("one sample", told(decide_early(one, default("degree"), 4, 0.5) or pytest.fail("settled"))),
    ]
    waves = [(f"{n} samples", repr(wave_ends(n))) for n in range(13)] + [("10 from 5", repr(wave_ends(10, 5)))]
    first = []
    for name in ("agree", "sentences", "echo", "no tokens", "failed"):
        for threshold in (0.01, 0.4, 1.2):
            settled = decide_after_first(SETS[name], staged(), PLAN.model_copy(update={"options": None}), threshold)
            first.append((f"{name} at {threshold:g}", "open" if settled is None else told(settled)))
    same("core/early_scores.txt", "\n\n".join([*blocks, listed(early), listed(waves), listed(first)]))


def test_adaptive_plans_measure_the_first_samples() -> None:
    plan = SamplingPlan(n=4, unanimous_at=2, logprobs=True)
    estimators = [default(name) for name in ("discrete_semantic_entropy", "sequence_nll", "degree", "semantic_entropy")]
    names = ("agree", "three to one", "tie", "numbers", "refusals", "empty sample", "three samples", "failed")
    scores = list(measure_stream([SETS[name] for name in names], estimators, plan, adaptive=True))
    together = combined_of("discrete_semantic_entropy", "perplexity")
    of_all = list(measure_stream([SETS[name] for name in names], [together], plan, adaptive=True))
    rows = [
        f"{name}\n" + "\n".join(f"  {score.estimator}: {told(score)}" for score in (*own, *combined))
        for name, own, combined in zip(names, scores, of_all, strict=True)
    ]
    same("core/adaptive_scores.txt", "\n".join(rows))


# -- Plans and refusals ------------------------------------------------------------------------------------------------


def test_plans_for_estimators() -> None:
    asked: dict[str, Any] = {
        "entropy": lambda: plan_for([default("semantic_entropy")]),
        "likelihood": lambda: plan_for([default("sequence_nll")], stop=["\n"], seed=None, max_tokens=9),
        "options": lambda: plan_for([default("max_softmax")], options=("A", "B")),
        "options that nobody reads": lambda: plan_for([default("degree")], options=("A", "B")),
        "all": lambda: plan_for([default(name) for name in list_estimators()], options=("A", "B"), n=5),
        "an ensemble": lambda: plan_for([combined_of("p_true", "verbalised", "degree")]),
        "three calls": lambda: plan_for([default("graded_disagreement")], calls=3),
        "one call": lambda: plan_for([default("sequence_nll")], calls=1.0),
        "two stages": lambda: plan_for([staged()], calls=1.4),
        "sampled": lambda: plan_for(
            [default("degree")], temperature=1, top_p=1, primary="sampled", cut_off="measure", stop_token_ids=[7]
        ),
        "no estimator": lambda: plan_for([]),
        "options missing": lambda: plan_for([default("max_softmax"), default("predictive_entropy")]),
        "too few calls": lambda: plan_for([default("degree")], calls=1),
        "unknown calls": lambda: plan_for([default("degree")], calls=4),
        "one sample": lambda: plan_for([default("degree")], n=1),
        "one sample for votes": lambda: plan_for([default("primary_disagreement")], n=1),
        "no sample": lambda: plan_for([default("degree")], n=0),
    }  # fmt: skip
    rows = []
    for name, make in asked.items():
        try:
            rows.append((name, json_lines(make().model_dump(exclude_defaults=True))))
        except UsageError as error:
            rows.append((name, f"UsageError: {error}"))
    unmet = [
        (f"{name} with {title}", json_lines(unmet_needs(make_estimator(name), plan)))
        for title, plan in {
            "no samples": SamplingPlan(n=0),
            "one sample": SamplingPlan(n=1),
            "options alone": SamplingPlan(n=0, options=("A", "B")),
        }.items()
        for name in list_estimators()
    ]
    same("core/plans.txt", f"{listed(rows)}\n\n{listed(unmet)}")


def test_refused_estimators() -> None:
    entropy, nll = default("discrete_semantic_entropy"), default("sequence_nll")
    exact: Judge = make_judge("exact")
    own = rating(0.5)
    spec = entropy.spec
    wrong: dict[str, Any] = {
        "unknown": lambda: make_estimator("entropie"),
        "as commands write it": lambda: make_estimator("degree:exact"),
        "a similarity": lambda: make_estimator("num_sets", similarity=make_similarity("rouge_l")),
        "an entailment model": lambda: make_estimator("num_sets", entailment=Contradicts()),
        "a judge": lambda: make_estimator("degree", judge=exact),
        "a judge where none is": lambda: make_estimator("sequence_nll", judge=exact),
        "imported scores": lambda: from_spec(spec.model_copy(update={"name": "imported:mine"})),
        "a scorer that is missing": lambda: from_spec(own.estimator.spec),
        "a scorer that is not asked": lambda: from_spec(spec, scorer=own),
        "a scorer that no member is": lambda: from_spec(combined_of("degree").spec, scorer=own),
        "of another library": lambda: from_spec(spec.model_copy(update={"name": "later"})),
        "another version": lambda: from_spec(spec.model_copy(update={"version": 9})),
        "another judge": lambda: from_spec(spec, judge=exact),
        "a judge without a name": lambda: from_spec(make_estimator("num_sets", judge=Opinion(True)).spec),
        "a similarity without a name": lambda: from_spec(make_estimator("degree", similarity=Rating(1)).spec),
        "an entailment model without a name": lambda: from_spec(default("selfcheck_nli").spec),
        "an ensemble with a wrong field": lambda: from_spec(
            combined_of("degree").spec.model_copy(update={"params": {"intercept": 0, "members": []}})
        ),
        "an ensemble of ensembles": lambda: EnsembleParams(
            intercept=0,
            members=(Member(spec=combined_of("degree").spec, mean=0, scale=1, weight=1),),
            training=Training(ids=(), questions=()),
        ),
        "ties with a resolution of 0": lambda: tie_break(entropy, nll, resolution=0),
        "ties with an infinite resolution": lambda: tie_break(entropy, nll, resolution=float("inf")),
        "ties of an ensemble": lambda: tie_break(combined_of("degree"), nll),
        "ties by two scorers": lambda: tie_break(own.estimator, rating(0.5, name="second").estimator),
        "ties by itself": lambda: tie_break(nll, nll),
        "a spec of ties with a wrong field": lambda: from_spec(
            tie_break(entropy, nll).spec.model_copy(update={"params": {"resolution": -1}})
        ),
        "a spec of ties of another version": lambda: from_spec(
            tie_break(entropy, nll).spec.model_copy(update={"version": 7})
        ),
        "a first stage that samples": lambda: staged("degree"),
        "a first stage that asks": lambda: staged("verbalised"),
        "a second stage without the answer": lambda: staged("sequence_nll", "degree"),
        "a second stage in nats": lambda: staged("sequence_nll", "discrete_semantic_entropy"),
        "a spec of two stages": lambda: from_spec(
            staged().spec.model_copy(update={"params": {**staged().spec.params, "weight": 11}})
        ),
        "a scale that falls": lambda: TwoStageParams.model_validate(
            {**staged().spec.params, "scale": [1.0] * 299 + [0.5]}
        ),
        "parts by an ensemble": lambda: parts_estimator(parts_measure(sentence_spec(3))).score(Evidence(SETS["agree"])),
    }
    not_measured = [
        (each.name, told(each.score(Evidence(SETS["agree"]))))
        for each in (combined_of("degree"), tie_break(entropy, nll), staged(), *map(default, list_estimators()))
    ]
    hashes = json_lines(Training.of([CAPITAL, "q1"]))
    same(
        "core/refused_estimators.txt",
        f"{listed((name, _without_addresses(error_of(make))) for name, make in wrong.items())}\n\n"
        f"{listed(not_measured)}\n\n{hashes}\n{sha256_hex('a text', 12)}",
    )


# -- Reasons that need odd evidence ------------------------------------------------------------------------------------


def test_reasons_of_odd_replies_and_tokens() -> None:
    def asked(name: str, *texts: str, **more: Any) -> SampleSet:
        questions = list(dict.fromkeys(support_question(FAUST, "It is so.", text) for text in ("one", "two")))
        replies = tuple(
            SampleSet(question=question, primary=Sample(text=text), **more)
            for question, text in zip(questions, texts, strict=False)
        )
        return drawn(FAUST, "It is so.", ["one", "two"], follow_ups={name: replies})

    def tokens_of(text: str, *tokens: str, raw: Sequence[str] | None = None, each: float = -0.5) -> SampleSet:
        sample = Sample(
            text=text,
            tokens=tokens,
            logprobs=(each,) * len(tokens),
            token_bytes=None if raw is None else tuple(raw),
        )
        return drawn("Where?", sample, [sample, sample])

    many = " ".join(f"Sentence {place} is so." for place in range(101))
    two = SampleSet(
        question="", primary=Sample(text="x"), options=OptionScores(labels=("B", "C"), loglikelihoods=(0, 0))
    )
    sets: list[tuple[str, str, SampleSet]] = [
        ("selfcheck_prompt", "yes and no", asked("selfcheck_prompt", "Yes.", "No")),
        ("selfcheck_prompt", "odd words", asked("selfcheck_prompt", "Yes", "not sure")),
        ("selfcheck_prompt", "a reply missing", asked("selfcheck_prompt", "Yes")),
        (
            "selfcheck_prompt",
            "failed",
            asked("selfcheck_prompt", "Yes", "x", problem=Unmeasured.REJECTED, problem_detail="no"),
        ),
        ("selfcheck_prompt", "too many", drawn(FAUST, many, ["one", "two"])),
        ("p_true", "other options", drawn(FAUST, "x", ["a", "b"], follow_ups={"p_true": (two,)})),
        ("p_true", "no options", drawn(FAUST, "x", ["a", "b"], follow_ups=replied(p_true=["A"]))),
        ("verbalised", "words", drawn(FAUST, "x", ["a", "b"], follow_ups=replied(verbalised=["very sure"]))),
        (
            "verbalised",
            "no reply",
            drawn(FAUST, "x", [], follow_ups={"verbalised": (SampleSet(question="", primary=None),)}),
        ),
        ("selfcheck_ngram", "no words", drawn(FAUST, "!!!", ["a", "b"])),
        ("answer_word_nll", "bytes that are none", tokens_of("Rome", "Rome", raw=["zz"])),
        (
            "answer_word_nll",
            "one letter in two tokens",
            tokens_of("\u65e5 x", "\ufffd", "\ufffd", " x", raw=["e697", "a5", "2078"]),
        ),
        (
            "token_sar",
            "one letter in two tokens",
            tokens_of("\u65e5 x", "\ufffd", "\ufffd", " x", raw=["e697", "a5", "2078"]),
        ),
        ("token_sar", "tokens without text", tokens_of("Rome now", " ", "", "Rome", "", " now", "", "\n")),
        ("answer_word_nll", "tokens without text", tokens_of("Rome now", " ", "", "Rome", "", " now", "", "\n")),
        ("answer_word_nll", "no words of its own", tokens_of("No.", "No", ".")),
        ("answer_word_nll", "too large", tokens_of("Rome Oslo", "Rome", " Oslo", each=-1.7e308)),
        ("sentence_sar", "very unlikely", tokens_of("Rome Oslo", "Rome", " Oslo", each=-900.0)),
        ("semantic_entropy", "very unlikely", tokens_of("Rome Oslo", "Rome", " Oslo", each=-900.0)),
    ]
    plan = PLAN.model_copy(update={"n": 2, "options": None})
    rows = [f"{name}, {title}: {told(measure(each, default(name), plan))}" for name, title, each in sets]
    alike = make_estimator("token_sar", similarity=from_judge(make_judge("exact")))
    rows.append(f"token_sar, nothing matters: {told(measure(tokens_of('The Rome', 'The', ' Rome'), alike, plan))}")
    bound = range_of(sets[-1][2], default("semantic_entropy"), 5)
    rows.append(f"bounds of what is very unlikely: {bound}")
    nothing = Evidence(SampleSet(question="", primary=None))
    rows += [f"{name}, no evidence: {told(default(name).score(nothing))}" for name in list_estimators()]
    clusters = Clusters(assignment=(0, 0))
    more = {
        "lexical_similarity": Evidence(SETS["agree"], matrix=np.eye(1)),
        "graded_disagreement": Evidence(SETS["agree"], clusters=clusters, primary_cluster=0),
        "primary_disagreement": Evidence(SETS["agree"], clusters=clusters),
        "selfcheck_nli": Evidence(SETS["agree"], contradiction=np.zeros((0, 2))),
    }
    rows += [f"{name}, part of it: {told(default(name).score(evidence))}" for name, evidence in more.items()]
    wrong: dict[str, Any] = {"nan": float("nan"), "inf": float("inf"), "below 0": -1e-12, "negative": -0.5}
    entropy = default("num_sets")
    rows += [
        f"{title}: {told(replace(entropy, formula=partial(_constant, v)).score(nothing))}" for title, v in wrong.items()
    ]
    rows.append(f"an error: {told(replace(entropy, formula=lambda evidence: 1 / 0).score(nothing))}")
    same("core/odd_evidence.txt", "\n".join(rows))


def _constant(value: float, evidence: Evidence) -> float:
    return value


class Batches(BatchJudge):
    """A judge of equal first letters that fails on a pair, and lists the batches it gets."""

    spec = JudgeSpec(name="batches", version=1, params={})

    def __init__(self) -> None:
        self.batches: list[int] = []

    def equivalent_batch(self, items: Sequence[Item]) -> list[bool | None]:
        self.batches.append(len(items))
        if any("boom" in a + b for _, a, b in items):
            raise RuntimeError("boom")
        return [a[:1] == b[:1] for _, a, b in items]


def test_many_sets_in_one_pass() -> None:
    judge = Batches()
    entropy = make_estimator("discrete_semantic_entropy", judge=judge)
    plan = SamplingPlan(n=3)
    sets = [
        drawn("q", "x", words) for words in (["a", "b", "ab"], ["a", "boom", "c"], ["a", "b", "ab"], ["c", "d", "e"])
    ]
    scores = measure_many([*sets, drawn("other?", "x", ["a", "b", "c"])], [entropy], plan)
    rows = [f"{told(own[0])}" for own in scores] + [f"batches {judge.batches}"]
    greedy = make_estimator("discrete_semantic_entropy", judge=Batches(), clustering="greedy")
    rows += [f"greedy {told(measure_all(each, [greedy], plan)[0])}" for each in sets]
    judge.batches.clear()
    many = list(measure_stream([drawn(f"q{place}", "x", ["a", "b", "c"]) for place in range(130)], [entropy], plan))
    rows.append(f"{len(many)} sets in batches of {judge.batches}")
    pairs = [
        cluster("q", ["a", "b", "a c"], Opinion(None)),
        cluster("q", ["a", "b"], Opinion(None), "greedy"),
        cluster("q", [], Opinion(True)),
        cluster("q", ["a", "b", "c"], Opinion(True, False), "greedy"),
        cluster("q", ["a", "b", "a"], Opinion(True)),
    ]
    rows += [f"{each and (each.assignment, each.sizes, each.judged_pairs)}" for each in pairs]
    for rating_of in (None, 0.25):
        matrix = similarity_matrix("q", ["b", "a", "a"], Rating(rating_of))
        rows.append(f"{None if matrix is None else matrix.tolist()}")
    same("core/judging_passes.txt", "\n".join(rows))
