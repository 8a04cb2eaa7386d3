"""The two promises: their words, where their figures come from, and that no gate on average says "at most"."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.evaluation.planning import labels_needed
from calibrate.fitting import fit
from calibrate.report.assessment import next_steps, standing, verdict_text
from calibrate.report.facts import facts
from guardrail import Guardrail
from guardrail.artifact import (
    CalibrationArtifact,
    CalibrationScores,
    CascadeOutcome,
    Made,
    RouterArtifact,
    Spent,
    StageShare,
)
from guardrail.bindings import bindings_for
from guardrail.describe import (
    answer_if,
    caveats,
    describe,
    guarantee,
    promises,
    stops_nothing,
    summary,
    together,
    warning,
)
from guardrail.doctor import examine
from guardrail.errors import UsageError
from guardrail.explain import next_step
from guardrail.judges import ToolCallJudge
from guardrail.monitor import Alarm
from guardrail.notebook import sure
from guardrail.outcome import Feasible, Outcome, Scope
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.uncertainty import make_estimator
from integrations._gateway.answers import SHOWN
from integrations.telemetry import INSTRUMENTS

MODEL = ScriptedChat(script={"sure?": ["Paris"], "unsure?": ["Rome", "Oslo", "Bern", "Riga", "Lima", "Kiel"]})


def artifact(outcome: Outcome, **more: Any) -> CalibrationArtifact:
    """An artifact of 200 questions: the 100 most certain have 8 errors, the others 50."""
    scores = CalibrationScores(uncertainty=tuple(U), error=tuple(E))
    fields = {"outcome": outcome, "calibration": scores, **more}
    return make_artifact(MODEL).model_copy(update=fields)


U = [i / 100 for i in range(200)]
E = [int(i % 12 == 5) if i < 100 else i % 2 for i in range(200)]
ACRC = fit(U, E, alpha=0.1, rule="acrc")
CERTIFIED = fit(U, E, alpha=0.2, rule="certified")
NONE = fit(U, E, alpha=0.02, rule="certified")


def test_the_line_of_a_promise() -> None:
    """Nobody may read "at most" where only an average is aimed at. 100 of 200 are answered, 8 of them wrongly."""
    wrong = "8 % of these answers were wrong at calibration (95 % interval 3.5 % to 15.2 %)."
    shown = f"It answers 50 % of all questions; {wrong}"
    at = {"n_accepted": 100, "n_errors": 8, "interval": (0.0352, 0.1516)}
    average, certain = ACRC.model_copy(update=at), CERTIFIED.model_copy(update=at)
    assert promises(artifact(average)) == (
        "Rule acrc, on average over calibrations, not a certificate: about 40 % of such gates end above 10 % wrong. "
        f"{shown}",
    )
    assert promises(artifact(certain)) == (
        f"Rule certified, a certificate: at most 20 % of the answers given are wrong, with 90 % confidence. {shown}",
    )
    assert promises(artifact(NONE)) == (
        "Rule certified found no threshold for 2 % wrong answers on 200 labels, so nothing is answered.",
    )
    everything = artifact(average.model_copy(update={"n_accepted": 200}))
    assert promises(everything)[0].startswith("Rule acrc, on average over calibrations, not a certificate. It answers")
    assert promises(artifact(average.model_copy(update={"rule": "lec"})))[0] == f"Rule lec, not a certificate. {shown}"


def test_the_line_of_a_gate_on_tool_calls_speaks_of_calls() -> None:
    """Who reads "answers 20 % of questions" about a transfer does not know what was counted."""
    judged = make_estimator("primary_disagreement", judge=ToolCallJudge()).spec
    certain = artifact(CERTIFIED, estimator=judged)
    assert promises(certain)[0].startswith(
        "Rule certified, a certificate: at most 20 % of the calls let through are wrong, with 90 % confidence. It lets "
        "59.5 % of all calls through; "
    )
    assert promises(artifact(NONE, estimator=judged))[0].endswith("so nothing is let through.")
    assert answer_if(certain).startswith("let a call through if primary_disagreement <= ")


def transfer(to: str) -> str:
    """Send money."""
    return to


PARTS = ("plan for the score", "judge")
"""Findings about what is drawn and compared: there an answer is any reply of the model."""


@pytest.mark.parametrize("outcome", [CERTIFIED, ACRC, NONE], ids=["certified", "acrc", "none"])
def test_all_that_is_said_about_a_gate_on_calls_speaks_of_calls(outcome: Outcome, tmp_path: Path) -> None:
    """Terminal, report, doctor, notebook: in none of them a transfer is an answer to a question."""
    judged = make_estimator("primary_disagreement", judge=ToolCallJudge()).spec
    own = artifact(outcome, estimator=judged)
    own.save(tmp_path / "transfers.json")
    call = {"name": "transfer", "args": {"to": "bob"}, "id": "1", "type": "tool_call"}
    sending: Any = AIMessage("", tool_calls=[call])
    model = ScriptedChat(script={"sure?": [sending], "unsure?": [sending, "No.", "Yes."]})
    fitted = outcome.model_copy(update={"threshold": 0.1})
    plain = make_artifact(model, n=4, bindings=bindings_for([transfer])).model_copy(update={"outcome": fitted})
    verdicts = [Guardrail(model=model, artifact=plain).assess(question) for question in ("sure?", "unsure?")]
    said = [
        describe(own),
        *summary(own, labels_needed(own)),
        *caveats(own),
        *(f"{name}: {value}" for name, value in facts(own)),
        *verdict_text(own).warnings,
        *next_steps(own),
        standing(own).title,
        *(f"{f.check}: {f.detail} {f.fix}" for f in examine(str(tmp_path / "transfers.json")) if f.check not in PARTS),
        *(f"{verdict.detail} {verdict.guarantee} {next_step(verdict)}" for verdict in verdicts),
    ]
    of_the_model = re.compile(r"1 greedy answer|template '\{question\}'")
    wrong = [line for line in said if re.search("answer|question", of_the_model.sub("", line))]
    assert not wrong, "\n".join(wrong)


def test_an_artifact_takes_the_figures_from_its_fields() -> None:
    assert (ACRC.certifies, CERTIFIED.certifies) == (False, True)
    own = artifact(ACRC)
    assert promises(own)[0].startswith("Rule acrc, on average")
    assert describe(own).splitlines()[:-1] == [repr(own), f"Threshold in use: {answer_if(own)}.", *promises(own)]
    assert describe(own).splitlines()[-1].startswith("Not covered: ")
    assert "with 90 % confidence" in promises(artifact(CERTIFIED))[0]


def test_all_fits_share_their_confidence_and_a_scope_counts_all_questions() -> None:
    spent = Spent(fits=2, delta=0.2)
    assert "with 80 % confidence" in promises(artifact(CERTIFIED, spent=spent))[0]
    cut = max(U)
    scope = Scope(score="x", share=0.5, cut=cut, n_asked=1_000, n_pool=1_000, n_within=500, n=200)
    assert isinstance(CERTIFIED, Feasible)
    assert CERTIFIED.n_accepted == 119  # of 200, so 59.5 % of the half within the scope
    assert "answers 29.8 % of all questions" in promises(artifact(CERTIFIED.model_copy(update={"scope": scope})))[0]


@pytest.mark.parametrize("question", ["sure?", "unsure?"])
def test_only_a_certificate_is_stated_without_on_average(question: str) -> None:
    """Every text of a verdict: its detail, its guarantee, and the three forms in which people read it."""

    def shown(outcome: Outcome) -> str:
        calibrated = make_artifact(MODEL, n=4).model_copy(update={"outcome": outcome})
        verdict = Guardrail(model=MODEL, artifact=calibrated).assess(question)
        forms = (verdict.explain(), verdict._repr_html_(), str(verdict.to_metadata()))
        return " ".join((verdict.detail, verdict.guarantee, *forms))

    at = {"threshold": 0.5}
    average, certain = shown(ACRC.model_copy(update=at)), shown(CERTIFIED.model_copy(update=at))
    assert "error on average" in average
    assert "at most" not in average
    assert "error on average" not in certain


def test_a_gate_that_stops_nothing_says_so() -> None:
    everything = fit(U[:100], E[:100], alpha=0.3, rule="certified")
    scores = CalibrationScores(uncertainty=tuple(U[:100]), error=tuple(E[:100]))
    open_gate = artifact(everything, calibration=scores)
    assert stops_nothing(open_gate)
    assert warning(open_gate) == (
        "This gate stops nothing: its threshold accepts each of the 100 calibration questions, and 8 % of their "
        "answers were wrong."
    )
    assert "This gate stops nothing" in describe(open_gate)
    assert warning(artifact(ACRC)) is None  # it holds some back
    scope = Scope(score="x", share=0.5, cut=2.0, n_asked=9, n_pool=9, n_within=5, n=5)
    left_out = artifact(everything.model_copy(update={"scope": scope}), calibration=scores)
    assert not stops_nothing(left_out)  # those above the cut
    assert not stops_nothing(artifact(NONE))


@pytest.mark.parametrize("rule", ["empirical", "mine"])
def test_a_promise_on_average_is_stated_without_at_most_on_every_page(rule: str, tmp_path: Path) -> None:
    """A rule that certifies nothing, also one of a user, is never read as a bound."""
    stored = ACRC.model_copy(update={"rule": rule, "threshold": 0.5})
    path = artifact(stored, made=Made(at=datetime.now(UTC).isoformat(), packages={})).save(tmp_path / "artifact.json")
    loaded = CalibrationArtifact.load(path)
    verdict = Guardrail(model=MODEL, artifact=make_artifact(MODEL, n=4).model_copy(update={"outcome": stored})).assess(
        "sure?"
    )
    findings = [finding.detail for finding in examine(str(path))]
    pages = {
        "verdict": f"{verdict.explain()} {verdict._repr_html_()} {verdict.to_metadata()}",
        "artifact": describe(loaded),
        "report": CliRunner().invoke(app, ["report", str(path)]).output,
        "doctor": " ".join(findings),
        "page": " ".join(summary(loaded)),
    }
    for page, text in pages.items():
        words = " ".join(text.replace("\u2502", " ").split()).lower()
        # The certificate beside it, an uncertainty of at most the threshold: those are no promises of this rule.
        assert "at most" not in words, page
    assert any("on average" in finding for finding in findings)


def test_the_sentence_of_a_promise_is_written_from_rule_alpha_and_delta() -> None:
    assert guarantee(CERTIFIED) == (
        "With probability at least 90 % over calibrations the error rate among accepted answers is at most 0.2, in "
        "finite samples, if questions are independent draws from the same source."
    )
    assert guarantee(ACRC).startswith("Asymptotic and on average over calibrations")
    assert "share of all questions, not of the accepted ones" in guarantee(
        ACRC.model_copy(update={"rule": "crc_joint"})
    )
    assert guarantee(make_artifact(MODEL).outcome) == "None: nothing was calibrated."
    shares = (StageShare(threshold=0.5, n_accepted=1, n_errors=0),) * 2
    fields: dict[str, Any] = {"alpha": 0.1, "delta": 0.1, "n": 9, "stages": shares, "interval": None}
    assert "the system's answers is at most 0.1" in guarantee(CascadeOutcome(rule="certified", **fields))
    assert guarantee(CascadeOutcome(rule="mine", **fields)).startswith("Not a certificate")


def test_no_confidence_is_invented_for_a_rule_that_states_none() -> None:
    """A certificate of a rule of one's own, stored without its delta, must not read "90 %" or "100 %"."""
    without = CERTIFIED.model_copy(update={"delta": None})
    for words in (lambda: guarantee(without), lambda: promises(artifact(without))):
        with pytest.raises(UsageError, match="rule 'certified' states no delta, so its promise has no confidence"):
            words()


def test_a_router_promises_nothing_together_unless_every_threshold_is_a_certificate() -> None:
    """The rule of the paper has no confidence; "all thresholds hold with 100 % confidence" would be an invention."""

    def words(*outcomes: Outcome) -> str:
        parts = {str(number): artifact(outcome) for number, outcome in enumerate(outcomes)}
        return together(RouterArtifact(artifacts=parts))

    assert words(CERTIFIED, CERTIFIED).startswith("All 2 thresholds hold at once")
    for average in (words(ACRC, ACRC), words(CERTIFIED, ACRC)):
        assert average == "Not every threshold is a certificate, so nothing is promised about all of them at once."


def test_no_help_text_header_or_alarm_promises_at_most_for_every_rule() -> None:
    """Texts that are the same for all rules: they may not state a certificate."""
    described = [description for _, _, description, _, _ in INSTRUMENTS.values()]
    risk = Alarm(monitor="risk", at=3, wealth=20.0, delta=0.1, alpha=0.1, estimate=(0.3, 0.2, 0.4))
    alarms = [risk.detail, *(Alarm(monitor=kind, at=3, wealth=20.0, delta=0.1).detail for kind in ("drift", "canary"))]
    assert len(described) == 5
    assert not [text for text in (*described, *alarms, *SHOWN) if "at most" in text]


@pytest.mark.parametrize(
    ("delta", "text"),
    [(0.1, "90 %"), (0.0151982, "98.5 %"), (0.001, "99.9 %"), (1e-4, "99.99 %"), (4e-5, "99.996 %"), (0.5, "50 %")],
)
def test_a_confidence_is_rounded_and_never_whole(delta: float, text: str) -> None:
    assert sure(delta) == text
