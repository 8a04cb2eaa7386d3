"""The artifact for transfers: recorded requests with their intended calls, asked again, scored, labelled, fitted."""

from __future__ import annotations

import random
from pathlib import Path

from langchain_core.messages import AIMessage, HumanMessage

from calibrate.agent_steps import fit_action, split_by_action, steps_of
from calibrate.correctness import ToolCalls
from calibrate.data.collect import collect_records
from calibrate.data.questions import Question
from examples.bank_agent.bank import CONTACTS, Bank, tools_of
from examples.bank_agent.model import USUAL, Teller
from guardrail import CalibrationArtifact
from guardrail.bindings import bindings_for
from guardrail.judges import ToolCallJudge
from guardrail.prompting import PromptWrapping
from guardrail.uncertainty import make_estimator
from guardrail.uncertainty.plan import plan_for

__all__ = ["ALPHA", "SYSTEM", "calibrate"]

SYSTEM = "You are the bank's assistant. Use the tools; send money only as the customer asked."
ALPHA = 0.05
COMPARED = {"transfer": ["to", "amount"]}
"""The arguments that make two transfers the same; the memo does not count."""
REQUESTS = 600
AMBIGUOUS = ("alex.meyer", "alex.chen", "sam.oak", "sam.reed")
"""Payees who share a first name with another payee."""


def reference(k: int) -> str:
    """Return a customer's reference, in letters: without it, equal requests would be one question."""
    return "X" + "".join(chr(ord("A") + k // 26**place % 26) for place in range(3))


def recorded(n: int, seed: int = 0) -> list[Question]:
    """Return recorded requests with the intended transfer, as the customer confirmed or corrected it."""
    chance = random.Random(seed)
    ids = list(CONTACTS)
    steps = []
    for k in range(n):
        kind, payee, euros = chance.random(), chance.choice(ids), chance.randrange(5, 200)
        if kind < 0.70:
            request = f"Send {euros} euros to {CONTACTS[payee]}, please."
        elif kind < 0.90:
            payee = chance.choice(AMBIGUOUS)
            request = f"Please send {euros} euros to {CONTACTS[payee].split()[0]}."
        elif kind < 0.97:
            euros = chance.choice(USUAL)
            request = f"Pay {CONTACTS[payee]} the usual for lunch."
        else:
            payee = chance.choice(["dana.fox", "dana.fox", "carla.diaz"])  # some have another landlord now
            request = f"Send {euros} euros to my landlord."
        request += f" My reference: {reference(k)}."
        intended = {"to": payee, "amount": euros, "memo": ""}
        right = AIMessage("", tool_calls=[{"name": "transfer", "args": intended, "id": "c", "type": "tool_call"}])
        (step,) = steps_of([HumanMessage(request), right], group=str(k))
        steps.append(step.model_copy(update={"id": f"r{k}"}))
    return steps


def calibrate(folder: Path) -> CalibrationArtifact:
    """Fit the artifact, or load it if it exists."""
    path = folder / "transfers.json"
    if path.exists():
        return CalibrationArtifact.load(path)
    folder.mkdir(parents=True, exist_ok=True)
    steps = recorded(REQUESTS)
    estimator = make_estimator("primary_disagreement", judge=ToolCallJudge(arguments=COMPARED))
    plan = plan_for([estimator], n=10, bindings=bindings_for(tools_of(Bank(folder / "bank.db"))))
    collect_records(steps, Teller(), plan, folder / "recorded-answers.jsonl", prompt=PromptWrapping(system=SYSTEM))
    part = split_by_action(folder / "recorded-answers.jsonl", exempt=["balance"])["transfer"]
    artifact = fit_action(part, estimator, alpha=ALPHA, rule="certified", correctness=ToolCalls(arguments=COMPARED))
    artifact.save(path)
    return artifact
