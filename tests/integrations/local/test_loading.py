"""Loading from folders, and the identity that an artifact binds to."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from langchain_core.messages import HumanMessage

from guardrail.errors import UsageError
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.specs import identify
from guardrail.types import SamplingPlan
from integrations._local import loading
from integrations.transformers_chat import TransformersChat, from_text
from tests.integrations.conftest import byte_tokenizer, tiny_chat, tiny_model

ROOT = Path(__file__).parents[3]
EMBEDDED = ROOT / "examples" / "tiny_model" / "orrin-1.5m"


@pytest.fixture
def orrin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The embedded model as a GGUF file."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    file = tmp_path / "orrin.gguf"
    importlib.import_module("to_gguf").write_gguf(EMBEDDED, file)
    return file


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def copied(saved: Path, to: Path) -> Path:
    return Path(shutil.copytree(saved, to))


def test_a_folder_answers_like_the_model_that_was_saved(saved: Path) -> None:
    plan = SamplingPlan(n=2, temperature=1.0, max_tokens=6)
    loaded = TransformersChat(model=str(saved))
    drawn, expected = (chat.draw_samples([[HumanMessage("hi")]], plan, seeds=[7])[0] for chat in (loaded, tiny_chat()))
    assert [sample.text for sample in drawn.samples] == [sample.text for sample in expected.samples]


def test_a_gguf_file_answers_as_the_folder_that_it_was_written_from(orrin: Path) -> None:
    folder, gguf = TransformersChat(model=str(EMBEDDED), dtype="float32"), from_text(str(orrin))
    for question in ("What is the capital of Japan?", "Which material repels water?"):
        plan = SamplingPlan(n=3, temperature=1.0, max_tokens=12, logprobs=True)
        expected, drawn = (chat.draw_samples([[HumanMessage(question)]], plan, seeds=[7])[0] for chat in (folder, gguf))
        assert [sample.text for sample in drawn.samples] == [sample.text for sample in expected.samples]
        assert drawn.primary is not None
        assert expected.primary is not None
        assert drawn.primary.logprobs == pytest.approx(expected.primary.logprobs, abs=1e-4)


def test_the_identity_of_a_gguf_file_is_its_content(orrin: Path) -> None:
    renamed, changed = orrin.with_stem("other"), orrin.with_stem("changed")
    renamed.write_bytes(orrin.read_bytes())
    content = bytearray(orrin.read_bytes())
    content[-3] ^= 64  # one weight
    changed.write_bytes(content)
    revisions = [identify(TransformersChat(model=str(path))).revision for path in (orrin, renamed, changed)]
    assert revisions[0] == revisions[1] != revisions[2]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hello there, this is a text of some length", "is not a GGUF file"),
        (b"GGUF", "requires a buffer"),  # ends after the first word
    ],
)
def test_a_file_that_is_not_a_whole_gguf_file_is_named(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=f"cannot load model '.*broken.gguf': .*({words})"):
        TransformersChat(model=str(file))


def test_a_gguf_file_that_does_not_exist_is_not_looked_up_on_a_hub() -> None:
    with pytest.raises(UsageError, match=r"'nowhere\.gguf' does not exist"):
        TransformersChat(model="nowhere.gguf")


def test_half_precision_is_loaded_as_float32_on_a_cpu_unless_asked_otherwise(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "half"
    copy.deepcopy(tiny_model()).half().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    assert TransformersChat(model=str(folder), device="cpu")._local.model.dtype is torch.float32
    assert TransformersChat(model=str(folder), device="cpu", dtype="bfloat16")._local.model.dtype is torch.bfloat16
    with pytest.raises(UsageError, match="'float99'"):
        TransformersChat(model=str(folder), dtype="float99")


def test_missing_folders_and_files_are_named(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere' does not exist"):
        TransformersChat(model=str(tmp_path / "nowhere"))
    for file, words in (("model.safetensors", "model.safetensors"), ("tokenizer.json", "tokenizer")):
        folder = copied(saved, tmp_path / f"without {file}")
        (folder / file).unlink()
        with pytest.raises(UsageError, match=f"cannot load model '.*without {file}': .*{words}"):
            TransformersChat(model=str(folder))


def test_a_model_without_a_chat_template_needs_one(saved: Path, tmp_path: Path) -> None:
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.chat_template = None
    with pytest.raises(UsageError, match="no chat template"):
        TransformersChat.from_model(tiny_model(), tokenizer)
    template = "{{ messages[-1].content }}:"
    chat = TransformersChat.from_model(tiny_model(), tokenizer, chat_template=template)
    assert chat.invoke("hi", max_tokens=3).usage_metadata["input_tokens"] == 3  # type: ignore[index]
    assert tokenizer.chat_template is None, "the caller's tokenizer was changed"


def test_identity_notices_the_dtype(saved: Path) -> None:
    full, half = (TransformersChat(model=str(saved), device="cpu", dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert identify(full).differences(identify(half)) != []
    parts = {**loading.file_parts(saved), "chat template": sha256_hex(json.dumps(full._local.tokenizer.chat_template))}
    plain = "sha256:" + sha256_hex(canonical_json(parts, compact=False, ascii_only=True))
    assert identify(full).revision == plain, "artifacts of float32 models would be refused"
    for chat in (full, half):
        chat._local = dataclasses.replace(chat._local, commit="0123abc")
    assert [identify(chat).revision for chat in (full, half)] == ["0123abc", "0123abc bfloat16"]


def test_identity_of_a_hub_commit_notices_another_chat_template(saved: Path) -> None:
    """Otherwise a guard answers under a promise that was calibrated with other prompts."""
    own = byte_tokenizer().chat_template
    chats = [TransformersChat(model=str(saved), chat_template=text) for text in (None, own, own + " ", "")]
    for chat in chats:
        chat._local = dataclasses.replace(chat._local, commit="0123abc")
    plain, same, longer, empty = (identify(chat) for chat in chats)
    assert plain.revision == same.revision == "0123abc"
    assert all(first.differences(second) for first, second in ((plain, longer), (longer, empty), (empty, plain)))


def test_identity_survives_renaming_and_notices_changes(saved: Path, tmp_path: Path) -> None:
    first = identify(TransformersChat(model=str(saved)))
    assert first.provider == "transformers"
    assert first.model == "tiny-llama"
    assert first.revision is not None
    assert first.revision.startswith("sha256:")
    renamed = identify(TransformersChat(model=str(copied(saved, tmp_path / "renamed")) + "/"))
    assert renamed.model == "renamed"
    assert first.differences(renamed) == []

    changed = copied(saved, tmp_path / "changed")
    model: Any = copy.deepcopy(tiny_model())
    model.lm_head.weight.data[0, 0] += 0.001
    model.save_pretrained(changed)
    assert first.differences(identify(TransformersChat(model=str(changed)))) != []

    template = copied(saved, tmp_path / "template")
    jinja = template / "chat_template.jinja"
    jinja.write_text(jinja.read_text() + " ")
    assert identify(TransformersChat(model=str(template))).revision != first.revision
    readme = copied(saved, tmp_path / "readme")
    (readme / "README.md").write_text("words")
    assert identify(TransformersChat(model=str(readme))).revision == first.revision


def test_files_are_hashed_once_while_they_stay_the_same(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = identify(TransformersChat(model=str(saved)))
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("hashed again"))
    assert identify(TransformersChat(model=str(saved))) == first


def test_identity_of_a_model_in_memory_is_that_of_its_tensors() -> None:
    first = identify(tiny_chat())
    assert (
        identify(TransformersChat.from_model(copy.deepcopy(tiny_model()), byte_tokenizer())).revision == first.revision
    )
    other: Any = copy.deepcopy(tiny_model())
    other.model.norm.weight.data += 0.001
    assert identify(TransformersChat.from_model(other, byte_tokenizer())).revision != first.revision


def test_tracing_sees_provider_and_name() -> None:
    params = tiny_chat()._get_ls_params()
    assert (params["ls_provider"], params["ls_model_name"]) == ("transformers", "tiny-llama")


# -- what a model brings along ----------------------------------------------------------------------------------------


def test_penalties_that_are_not_applied_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """On loading, not for every call. Neutral values and settings that each call has anyway are not worth a warning."""
    model = copy.deepcopy(tiny_model())
    model.generation_config.update(
        repetition_penalty=1.3, no_repeat_ngram_size=3, do_sample=True, temperature=0.6, top_k=5, min_length=0
    )
    with caplog.at_level(logging.WARNING, logger="guardrail"):
        chat = TransformersChat.from_model(model, byte_tokenizer(), name="strict", max_tokens=2)
        assert chat.invoke("hi").content == tiny_chat(max_tokens=2).invoke("hi").content
        chat.invoke("hi")
    assert [record.getMessage() for record in caplog.records] == [
        "model 'strict': its generation_config sets no_repeat_ngram_size=3, repetition_penalty=1.3, which is not "
        "applied."
    ]


def test_settings_at_1_are_named_where_1_is_not_neutral(caplog: pytest.LogCaptureFixture) -> None:
    """A user would not learn why the model answers unlike ``generate``. At 1 a penalty does nothing, and true is 1."""
    model = copy.deepcopy(tiny_model())
    model.generation_config.update(no_repeat_ngram_size=1, renormalize_logits=True, remove_invalid_values=False)
    model.generation_config.update(repetition_penalty=1, length_penalty=1.0, typical_p=1.0, output_logits=True)
    TransformersChat.from_model(model, byte_tokenizer(), name="strict")
    (line,) = [message for message in caplog.messages if "'strict'" in message]
    assert "sets no_repeat_ngram_size=1, renormalize_logits=True, which" in line


def test_a_compiled_model_runs_as_the_model_that_was_compiled() -> None:
    model = tiny_model()
    compiled = TransformersChat.from_model(
        torch.compile(model, backend="eager"), byte_tokenizer(), name="tiny-llama", max_tokens=12
    )
    assert compiled.invoke("hello").content == tiny_chat(max_tokens=12).invoke("hello").content
    assert compiled.guardrail_identity() == tiny_chat().guardrail_identity()
    assert compiled._local.model is model
