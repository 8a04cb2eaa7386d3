"""A review queue with known answers, and scripted people who decide it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from langchain_core.messages import HumanMessage

from calibrate.reviews import ReviewedItem, ReviewPool
from guardrail.artifact import CalibrationArtifact
from guardrail.review import Content, Decision, ReviewStore
from guardrail.review.hooks import audit_sample, content_of
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Basis, Sample, Uncertainty
from guardrail.verdict import Reason, Verdict

THRESHOLD, RATE = 0.3, 0.4


def artifact_of(threshold: float | None = THRESHOLD, alpha: float = 0.15) -> CalibrationArtifact:
    """The artifact in force. Its rule has to be a rule that can be fitted again."""
    base = make_artifact(ScriptedChat(), threshold=threshold, alpha=alpha)
    return base.model_copy(update={"outcome": base.outcome.model_copy(update={"rule": "empirical"})})


ARTIFACT = artifact_of()


def verdict_of(name: str, u: float, artifact: CalibrationArtifact = ARTIFACT) -> Verdict:
    """The verdict of a guard with that artifact on a score."""
    accepted = artifact.threshold is not None and u <= artifact.threshold
    return Verdict(
        accepted=accepted,
        reason=Reason.WITHIN_THRESHOLD if accepted else Reason.ABOVE_THRESHOLD,
        uncertainty=Uncertainty(value=u, unit="nats", estimator="e"),
        threshold=artifact.threshold,
        alpha=artifact.alpha,
        outcome=artifact.outcome,
        basis=Basis.SAMPLES,
        artifact=artifact.digest,
        candidate=Sample(text=f"answer {name}"),
    )


def item(name: str, u: float, correct: bool | None, chance: float = 1.0, **changes: object) -> ReviewedItem:
    """An item of a queue with that score; without a label it is open. `changes` sets further fields."""
    reviewed_item = ReviewedItem(
        id=name,
        name=f"item {name}",
        key=name,
        question=f"question {name}?",
        group=None,
        messages=None,
        verdict=verdict_of(name, u),
        chance=chance,
        correct=correct,
        open=correct is None,
        action=None if correct is None else "approve" if correct else "reject",
        arrived=1_750_000_000.0,
    )
    return replace(reviewed_item, **changes)  # type: ignore[arg-type]


def pool_of(*items: ReviewedItem) -> ReviewPool:
    return ReviewPool(items)


TEMPLATES = {accepted: item("template", 0.0 if accepted else 1.0, True) for accepted in (True, False)}


def simulated(name: str, u: float, correct: bool, chance: float) -> ReviewedItem:
    """`item`, without validating each verdict anew."""
    template = TEMPLATES[u <= THRESHOLD]
    score = template.verdict.uncertainty.model_copy(update={"value": u})
    verdict = template.verdict.model_copy(update={"uncertainty": score})
    return replace(template, id=name, key=name, verdict=verdict, correct=correct, chance=chance)


def decide(store: ReviewStore, action: Callable[[Content], str]) -> None:
    """Scripted people: they claim what there is and decide by its content."""
    while (lease := store.claim("ada")) is not None:
        content = lease.item.content
        chosen = action(content)
        edited = content.candidate if chosen == "edit" else None
        own = "mine" if chosen == "respond" else None
        store.decide(lease, Decision(action=chosen, candidate=edited, text=own))


def fill(store: ReviewStore, n: int, seed: int = 0, artifact: CalibrationArtifact = ARTIFACT) -> None:
    """The population of `stream`, in a store, decided."""
    rng, sample = np.random.default_rng(seed), audit_sample(store, RATE, key=lambda verdict, _: str(verdict.candidate))
    right: dict[str, bool] = {}
    for i in range(n):
        u = float(rng.random())
        verdict, question = verdict_of(f"{seed}.{i}", u, artifact), f"question {seed}.{i}?"
        right[question] = bool(rng.random() >= 0.6 * u)
        if verdict.accepted:
            sample(verdict, [HumanMessage(question)])
        else:
            store.enqueue(content_of(verdict, [HumanMessage(question)]), key=f"held:{seed}.{i}")
    decide(store, lambda content: "approve" if right[content.question] else "reject")


def audit(store: ReviewStore, numbers: Iterable[int], artifact: CalibrationArtifact = ARTIFACT) -> None:
    """Queue an audit of an answer that the artifact accepted, for each number."""
    sample = audit_sample(store, 1.0)
    for i in numbers:
        name = f"{artifact.digest} {i}"
        sample(verdict_of(name, 0.1, artifact), [HumanMessage(f"question {name}?")])
