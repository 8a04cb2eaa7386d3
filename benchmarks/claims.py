"""Claims and sentences of a small real model: `python -m benchmarks.claims` (some minutes).

SmolLM2-135M-Instruct answers questions about well-known people in a few sentences. It is then asked, by the library's
own questions, to list the claims of its answer and to say which sentences another answer of it supports. A reply counts
if the library can read it. The same is asked with two worked examples before the question, which a guard does not do.
Replies end after 160 and 48 tokens, so that a model that repeats itself costs little; a guard allows 1,600 and 400.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from examples.demo.smollm2 import chat
from guardrail.parts import claims as claim_parts
from guardrail.parts import sentences as sentence_parts
from guardrail.types import Missing, Sample, SampleSet
from guardrail.uncertainty.selfcheck import sentences

__all__ = ["main"]

PEOPLE = (
    "Ada Lovelace", "Albert Einstein", "Marie Curie", "Isaac Newton", "Charles Darwin", "Leonardo da Vinci",
    "William Shakespeare", "Wolfgang Amadeus Mozart", "Vincent van Gogh", "Nelson Mandela", "Mahatma Gandhi",
    "Abraham Lincoln", "George Washington", "Julius Caesar", "Galileo Galilei", "Nikola Tesla", "Neil Armstrong",
    "Rosa Parks", "Jane Austen", "Mark Twain",
)  # fmt: skip
EXAMPLES = (
    ("Who was Alan Turing?", ("Alan Turing was an English mathematician.", "He was born in London and died in 1954.")),
    ("Who was Emmy Noether?", ("Emmy Noether was a German mathematician.", "She worked in Göttingen.")),
)
LISTED = (
    [("Alan Turing was English.", 1), ("Alan Turing was a mathematician.", 1), ("Alan Turing was born in London.", 2)],
    [("Emmy Noether was a German mathematician.", 1), ("Emmy Noether worked in Göttingen.", 2)],
)
JUDGED = ("He was an English mathematician born in Oxford.", "Emmy Noether was a mathematician from Germany.")
VERDICTS = ("1. Yes\n2. No", "1. Yes\n2. No")


def claim_examples() -> list[BaseMessage]:
    """Two answers with their claims."""
    shown: list[BaseMessage] = []
    for (asked, pieces), listed in zip(EXAMPLES, LISTED, strict=True):
        reply = json.dumps([{"claim": text, "sentence": number} for text, number in listed], ensure_ascii=False)
        shown += [HumanMessage(claim_parts.question(asked, pieces)), AIMessage(reply)]
    return shown


def support_examples() -> list[BaseMessage]:
    """Two answers with the verdicts on their sentences."""
    shown: list[BaseMessage] = []
    for (asked, pieces), sample, verdicts in zip(EXAMPLES, JUDGED, VERDICTS, strict=True):
        shown += [HumanMessage(sentence_parts.question(asked, pieces, sample)), AIMessage(verdicts)]
    return shown


def claims_in(asked: str, answer: str, reply: str) -> int | str:
    """Number of claims in a reply, or why the library cannot read it."""
    listed = SampleSet(question="", primary=Sample(text=reply, finish_reason="stop"))
    drawn = SampleSet(question=asked, primary=Sample(text=answer), follow_ups={claim_parts.CLAIMS.name: (listed,)})
    read = claim_parts.claims_of(drawn)
    return read.detail if isinstance(read, Missing) else len(read)


def supported_in(asked: str, pieces: Sequence[str], sample: str, reply: str) -> list[bool] | None:
    """The verdict on each sentence; None if the library cannot read the reply."""
    question = sentence_parts.question(asked, pieces, sample)
    read = SampleSet(question=question, primary=Sample(text=reply, finish_reason="stop"))
    drawn = SampleSet(
        question=asked,
        primary=Sample(text=" ".join(pieces)),
        samples=(Sample(text=sample),),
        follow_ups={sentence_parts.SUPPORTED.name: (read,)},
    )
    verdicts = [row[0] for row in sentence_parts.asked_support(drawn, pieces)]
    return None if None in verdicts else [verdict is True for verdict in verdicts]


def main() -> None:
    """Ask, count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=len(PEOPLE), help="people that are asked about")
    parser.add_argument("--show", type=int, default=0, help="replies to print")
    options = parser.parse_args()
    model, started = chat(), time.monotonic()
    claims: dict[str, list[int | str]] = {"as a guard asks": [], "with two examples": []}
    support: dict[str, list[list[bool] | None]] = {name: [] for name in claims}
    for number, person in enumerate(PEOPLE[: options.n]):
        asked = f"Who was {person}? Answer in two short sentences."
        answer = model.invoke([HumanMessage(asked)], max_tokens=60).text
        sample = model.invoke([HumanMessage(asked)], max_tokens=60, temperature=0.7, seed=number).text
        pieces = sentences(answer)
        for name, shown in (
            ("as a guard asks", ([], [])),
            ("with two examples", (claim_examples(), support_examples())),
        ):
            reply = model.invoke([*shown[0], HumanMessage(claim_parts.question(asked, pieces))], max_tokens=160).text
            claims[name].append(claims_in(asked, answer, reply))
            verdicts = model.invoke(
                [*shown[1], HumanMessage(sentence_parts.question(asked, pieces, sample))], max_tokens=48
            ).text
            support[name].append(supported_in(asked, pieces, sample, verdicts))
            if number < options.show:
                print(f"--- {name}\n{answer}\n>> {reply}\n== {claims[name][-1]}\n>> {verdicts}\n== {support[name][-1]}")
    for name in claims:
        counts = [read for read in claims[name] if isinstance(read, int)]
        why = Counter(read.split(":")[-1].strip()[:60] for read in claims[name] if isinstance(read, str))
        read = [verdicts for verdicts in support[name] if verdicts is not None]
        flat = [verdict for verdicts in read for verdict in verdicts]
        print(
            f"{name}: {len(counts)} of {len(claims[name])} lists of claims are read, {sum(counts)} claims; {dict(why)}"
        )
        print(f"{name}: {len(read)} of {len(support[name])} verdicts are read; {sum(flat)} of {len(flat)} are yes")
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
