"""Trust or escalate: cheap LLM judges first, simulated annotators as the score, the next judge where that is low.

    python -m examples.cascade.trust_or_escalate

The set-up of Jung, Brahman and Choi, "Trust or Escalate: LLM judges with provable guarantees for human agreement"
(ICLR 2025, arXiv 2407.18370), as a case of `Cascade`: a pair of answers is judged by three judges in the order of their
price. The score of a judge's verdict comes from simulated annotators: the judge is asked again with the examples of
each of N = 5 annotators (K = 5 pairs each), and the mean probability that these prompts give to the verdict is its
confidence. A verdict below the threshold is escalated, and after the last judge nobody decides. The promise: at most
10 % of the verdicts given differ from people's (alpha .1, delta .1).

Differences: the paper tests each judge's threshold by its own fixed sequence; here one sequence certifies all of them
together. The judges are scripted: they see how much better one answer is through noise, less for dearer judges.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from calibrate.data.questions import Question
from examples.cascade import Stage, System, fitted, report, system
from guardrail import Scorer, scorer

ALPHA = 0.1
LABELLED, FRESH = 500, 300
ANNOTATORS, SHOTS = 5, 5
JUDGES = {"mistral-7b-instruct": 0.8, "gpt-3.5-turbo": 0.5, "gpt-4-turbo": 0.2}
"""Judges in the order of their price, with the noise through which a scripted one sees a pair."""
NOBODY = "nobody"


def margin(pair: str) -> float:
    """How much better people find answer A of a pair."""
    return random.Random(f"pair {pair}").gauss(0, 1)


def preferred(pair: str) -> str:
    """The answer that people prefer."""
    return "A" if margin(pair) > 0 else "B"


def probability_of_a(judge: str, pair: str, annotator: int | None) -> float:
    """P("A") of a scripted judge, with the examples of an annotator in its prompt, or without any."""
    noise = random.Random(f"{judge} {pair}").gauss(0, JUDGES[judge])
    own = 0.0 if annotator is None else random.Random(f"{judge} {pair} {annotator}").gauss(0, 0.8 * JUDGES[judge])
    return 1 / (1 + math.exp(-3 * (margin(pair) + noise + own)))


class Judge(BaseChatModel):
    """A scripted judge: its verdict is the likelier letter."""

    guardrail_trusted: ClassVar[bool] = True
    name_of_model: str

    @property
    def _llm_type(self) -> str:
        return "judge"

    def _get_ls_params(self, stop: Any = None, **kwargs: Any) -> Any:
        return {"ls_provider": "scripted", "ls_model_name": self.name_of_model}

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        letter = "A" if probability_of_a(self.name_of_model, messages[-1].text, None) > 0.5 else "B"
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage(letter, response_metadata={"finish_reason": "stop"}))]
        )


def simulated_annotators(judge: str, ask: Callable[[str, str, int], float]) -> Scorer:
    """The mean probability of a verdict over simulated annotators.

    Args:
        judge: The judge's model.
        ask: Returns P("A") of that judge on a pair, with the examples of an annotator in the prompt.
    """

    @scorer(
        version=1,
        higher="certain",
        params={"model": judge, "annotators": ANNOTATORS, "shots": SHOTS},
        calls=ANNOTATORS,
        name="simulated_annotators",
    )
    def rate(question: str, answer: str) -> float | None:
        if answer not in ("A", "B"):
            return None
        shares = [ask(judge, question, annotator) for annotator in range(ANNOTATORS)]
        mean = sum(shares) / ANNOTATORS
        return mean if answer == "A" else 1 - mean

    return rate


def run(labelled: int = LABELLED, fresh: int = FRESH) -> System:
    """Certify the judges on pairs with people's preferences, and have them judge fresh pairs."""
    pairs = [f"pair {number}" for number in range(labelled + fresh)]
    stages = [Stage(name, Judge(name_of_model=name), simulated_annotators(name, probability_of_a)) for name in JUDGES]
    questions = [Question(id=each, question=each, references=(preferred(each),)) for each in pairs[:labelled]]
    with TemporaryDirectory() as folder:
        artifact = fitted(stages, questions, Path(folder), ALPHA)
        cascade = system(stages, artifact, "message")
        return System().ask(cascade, stages, {each: preferred(each) for each in pairs[labelled:]}, NOBODY)


if __name__ == "__main__":
    print("\n".join(report(run(), ALPHA, NOBODY)))
