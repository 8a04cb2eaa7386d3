"""A verdict as a person sees it."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from guardrail import Guardrail, Meaning, Verdict
from guardrail.explain import as_html, as_text
from guardrail.plain_json import visible
from guardrail.testing import ScriptedChat, make_artifact

EVIL = "<script>alert(1)</script> ```\n# [x](javascript:y) \x1b[31m"
MODEL = ScriptedChat(
    script={
        "sure": ["Paris", "Paris", "paris."],
        "unsure": ["Rome", "Oslo", "Bern", "Riga", "Oslo"],
        "evil": [EVIL, EVIL, "other", "third"],
        "down": ["x", TimeoutError("late")],
    }
)


def verdict(question: str, threshold: float | None = 0.5) -> Verdict:
    artifact = make_artifact(MODEL, threshold=threshold)
    return Guardrail(model=MODEL, artifact=artifact).assess(question)


def test_meanings_are_the_clusters_the_score_was_computed_from() -> None:
    # samples: Oslo Bern Riga Oslo | Oslo Bern Riga Oslo | Oslo Bern
    assert verdict("unsure").meanings == (
        Meaning(text="Oslo", size=5, share=0.5),
        Meaning(text="Bern", size=3, share=0.3),
        Meaning(text="Riga", size=2, share=0.2),
    )
    assert [meaning.size for meaning in verdict("sure").meanings] == [10]
    assert verdict("down").meanings == ()


def test_text_has_all_the_evidence() -> None:
    shown = verdict("unsure")
    text = as_text(shown)
    assert shown.explain() == text
    for part in (
        "HELD BACK", "above_threshold", "Rome  (held back)", "10 samples, 3 meanings", "50% ########........ Oslo (5)",
        "threshold 0.5 nats", "alpha = 0.1", "11 calls", "Hand the question to a person", shown.artifact, "10. Bern",
    ):  # fmt: skip
        assert part in text, part
    # -.5 ln .5 - .3 ln .3 - .2 ln .2
    assert "discrete_semantic_entropy 1.03 nats" in text


def test_what_an_exception_says_cannot_command_a_terminal() -> None:
    evil = "\x1b[2J\x1b]0;owned\x07 \u202etxt.exe\nACCEPTED"
    model = ScriptedChat(script={"q": ["x", TimeoutError(evil)]})
    artifact = make_artifact(model)
    outcome = artifact.outcome.model_copy(update={"rule": f"mine{evil}"})
    artifact = artifact.model_copy(update={"outcome": outcome})
    result = Guardrail(model=model, artifact=artifact).assess("q")
    assert visible(evil) in result.detail
    for shown in (as_text(result), as_html(result)):
        assert all(line.isprintable() for line in shown.splitlines())
        assert "ACCEPTED" not in shown.splitlines()
        assert shown.count("\\x1b]0;owned\\x07 \\u202etxt.exe\\nACCEPTED") == 3  # headline, score and guarantee


@pytest.mark.parametrize("question", ["sure", "unsure", "evil", "down"])
@pytest.mark.parametrize("threshold", [None, 0.5, 2.0])
def test_every_verdict_can_be_shown(question: str, threshold: float | None) -> None:
    shown = verdict(question, threshold)
    assert all(line.isprintable() for line in as_text(shown).splitlines())
    assert shown._repr_html_() == as_html(shown)


def test_nothing_a_model_wrote_is_markup() -> None:
    class Tags(HTMLParser):
        seen: frozenset[str] = frozenset()

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.seen |= {tag}

    parser = Tags()
    parser.feed(as_html(verdict("evil")))
    assert parser.seen == {"pre"}


def test_an_answer_that_agrees_with_no_sample_says_so() -> None:
    """The score reads the samples alone and is 0, so the gate accepts; the verdict says what it did not see."""
    year = "In which year did the mill open?"
    samples = ["1724", "The mill opened in 1724.", "1724"]
    model = ScriptedChat(script={year: ["The mill opened in 1887.", *samples], "same": ["1724.", *samples]})

    def accepted(question: str, name: str, threshold: float = 0.5) -> str:
        guard = Guardrail(model=model, artifact=make_artifact(model, estimator=name, threshold=threshold))
        shown = guard.assess(question)
        assert shown.accepted
        assert shown.detail in shown.explain()
        return shown.detail

    unread = "The answer agrees with none of the 10 samples, and discrete_semantic_entropy compares the samples alone."
    assert unread in accepted(year, "discrete_semantic_entropy")
    assert "agrees with none of the 10 samples, and degree compares the samples alone." in accepted(year, "degree")
    assert "The answer agrees with none of the 10 samples." in accepted(year, "primary_disagreement", 1.0)
    assert "agrees with none" not in accepted("same", "discrete_semantic_entropy")
