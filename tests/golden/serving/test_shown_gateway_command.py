"""Golden texts of `guardrail serve` as a command: its help, its settings, and the configurations that it refuses."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from guardrail.__main__ import main
from guardrail.errors import GuardrailError
from guardrail.prompting import PromptWrapping
from guardrail.testing import make_artifact
from integrations import gateway
from integrations._gateway import config as configuration
from integrations._gateway.config import parsed_config
from integrations._openai.pins import Pin
from integrations.gateway import Gateway
from tests.golden.serving.conversation import Words
from tests.golden.shown import same
from tests.integrations.gateway.conftest import MODEL, cascade

KINDS = (
    configuration.Config, configuration.Key, configuration.Alias, configuration.Upstream, Pin,
    configuration.DecisionConfig, configuration.CanaryConfig, configuration.Observe, configuration.RecordsConfig,
)  # fmt: skip
GUARDED: dict[str, Any] = {"upstream": {"url": "https://h/v1", "model": "m", "key": "sk-secret"}, "artifact": "a.json"}
OBSERVED: dict[str, Any] = {"upstream": GUARDED["upstream"], "mode": "observe"}


def test_settings() -> None:
    """Every setting with its default and its limits."""
    told = []
    for kind in KINDS:
        told.append(f"## {kind.__name__}")
        for name, field in kind.model_fields.items():
            limits = [
                f"pattern {limit.pattern}" if hasattr(limit, "pattern") else repr(limit)
                for limit in field.metadata
                if "Validator" not in repr(limit)
            ]
            default = "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
            told.append(f"{name}: {default}" + "".join(f", {limit}" for limit in limits))
    same("gateway/settings.txt", "\n".join(told))


def alias(**fields: Any) -> dict[str, Any]:
    """A configuration of one model that guards, or observes with ``mode``, with these fields."""
    return {"version": 1, "models": {"m": {**(OBSERVED if fields.get("mode") == "observe" else GUARDED), **fields}}}


def upstream(**fields: Any) -> dict[str, Any]:
    return alias(upstream={**GUARDED["upstream"], **fields})


def whole(**fields: Any) -> dict[str, Any]:
    return {**alias(), **fields}


def typed(*rows: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return rows


KEY = {"name": "ann", "sha256": "a" * 64}
TWO: dict[str, Any] = {"upstream": [GUARDED["upstream"]] * 2}
SCORES: dict[str, Any] = {"url": "https://h/v1", "model": "d", "question": "It is wrong.", "key": "sk-secret"}
CANARY = {"questions": "known.jsonl"}
WRONG: list[dict[str, Any]] = [
    {}, {"version": 1}, whole(version=2), whole(version="1"), whole(models={}), whole(models=[]), whole(mdels={}),
    *(alias(**{name: "x"}) for name in ("mode", "on_abstain", "finish_reason", "settings", "on_disconnect", "turns",
                                        "early_stopping", "probe", "monitor", "observe", "ignore", "remember_slots")),
    *(upstream(**{name: value}) for name, value in (
        ("url", 5), ("url", "h/v1"), ("url", "ftp://h"), ("url", "https://"), ("url", "https://u@h"),
        ("url", "https://h?x=1"), ("url", "http://h/v1"), ("model", None), ("timeout", 0), ("timeout", "soon"),
        ("max_retries", -1), ("max_reply", 0), ("token_limit", "max"), ("extra_body", 5), ("forward_key", "x"),
        ("pin", {}), ("pin", {"on_change": "x", "model": "m"}), ("keys", "k"), ("urll", "x"),
    )),
    *(alias(**fields) for fields in typed(
        {"upstream": []}, {"upstream": "https://h"}, {"artifact": None},
        {**TWO, "mode": "observe"},
        {"mode": "observe", "observe": {"records": {"path": "x"}}},
        {"scorer": "a:b", "artifact": None, "mode": "observe"}, {"scorer": "a:b", **TWO},
        {"decision": SCORES, "scorer": "a:b"}, {"decision": SCORES, "artifact": None, "mode": "observe"},
        {"decision": {**SCORES, "timeout": 0}}, {"decision": {**SCORES, "question": None}},
        {"decision": {**SCORES, "url": "http://10.0.0.1/v1"}},
        {"monitor": True}, {"monitor": True, "mode": "observe"}, {"monitor": True, **TWO},
        {"canary": CANARY, "mode": "observe"},
        {"canary": {**CANARY, "every": "59s"}}, {"canary": {**CANARY, "every": "1w"}},
        {"canary": {**CANARY, "evry": "1h"}}, {"canary": {}},
        {"fallback": "n", "on_abstain": "error"}, {"fallback": "n"}, {"fallback": "m"}, {"on_abstain": "ticket"},
        *({"pass_through": [path]} for path in ("messages", "chat/completions", "models", "responses", "Files",
                                                "/files", "files/", "a//b", "")),
        *({"pass_through": [path], "mode": "observe"} for path in ("models", "messages")),
        *({"mode": "observe", "observe": fields} for fields in (
            {"rate": 0}, {"rate": 1.5}, {"queue": 0}, {"queue_bytes": 0}, {"max_concurrency": 0}, {"plan": {"n": 0}},
            {"plan": {"n": 4, "primry": "x"}}, {"records": {"path": "x", "rate": 0}, "plan": {"n": 4}}, {"rat": 1},
            {"records": {"path": "x", "rate": 2}, "plan": {"n": 4}}, {"prompt": {"template": "no slot"}},
        )),
    )),
    *(whole(**fields) for fields in typed(
        {"host": "0.0.0.0"}, {"host": "gateway.example"}, {"port": -1}, {"port": 65536}, {"keys": [{"name": "ann"}]},
        {"keys": [{**KEY, "sha256": "A" * 64}]}, {"keys": [{**KEY, "models": ["n", "a"]}]},
        {"keys": [{**KEY, "max_concurrency": 0}]}, {"keys": [{**KEY, "requests_per_minute": 0}]},
        {"keys": [{**KEY, "model": ["m"]}]},
        *({name: 0} for name in ("max_body", "max_guarded_body", "max_values", "header_timeout", "body_timeout",
                                 "max_connections", "max_connections_per_address", "max_concurrency", "max_passing",
                                 "reply_bytes", "keep_alive", "remember_bytes")),
        *({name: -1} for name in ("stream_hold", "remember", "drain_delay", "drain")),
    )),
]  # fmt: skip
TEXTS = (
    "", "- a", "version: 1\n  a: [", "version: 1\nversion: 1", "a: {b: ${X}}",
    "version: 1\nmodels:\n  m: ${MISSING}", "a: ${file:nowhere}", "a: ${file:.}", "version: ${ONE}\nmodels: $$",
    "version: ${ONE:-2}\nmodels: {m: {}}", "version: ${NONE:-2}\nmodels: {m: {}}", "version: ${NONE:-}",
)  # fmt: skip


def test_refused_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each configuration that is refused, with the message."""
    told, words = [], Words({str(tmp_path): "FOLDER"})
    monkeypatch.chdir(tmp_path)

    def tell(what: str, read: Callable[[], object]) -> None:
        try:
            read()
        except GuardrailError as error:
            message = words.replace(str(error))
        else:
            message = "is taken"
        told.append(f"{what}\n  {message}")

    for content in WRONG:
        own = {name: value for name, value in content.items() if content.get(name) != whole().get(name)}
        if own.keys() == {"models"} and own["models"]:
            mine = own["models"]["m"]
            own = {name: value for name, value in mine.items() if value != GUARDED.get(name)}
        tell(json.dumps(own or content), partial(configuration.Config.checked, content, "x"))
    told.append("\n## Texts\n")
    (tmp_path / "latin").write_bytes(b"\xff")
    for text in (*TEXTS, "a: ${file:latin}"):
        tell(text, partial(parsed_config, text, "x.yaml", {"ONE": "1"}))
    told.append("\n## Files\n")
    for name in ("nowhere.yaml", "latin", "."):
        tell(name, partial(configuration.load_config, tmp_path / name))
    same("gateway/wrong-configurations.txt", "\n".join(told))


def test_refused_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Artifacts, scorers and canaries that do not fit, which a gateway refuses before it listens."""
    told, words = [], Words({str(tmp_path): "FOLDER"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    slots = PromptWrapping(template="{question} (asked at {clock})", slots=("clock",))
    majority = make_artifact(MODEL, n=4)
    majority = majority.model_copy(update={"plan": majority.plan.model_copy(update={"primary": "majority"})})
    artifacts: dict[str, Any] = {
        "plain": make_artifact(MODEL, threshold=0.1, n=4), "slots": make_artifact(MODEL, threshold=0.1, prompt=slots),
        "majority": majority, "cascade": cascade(),
    }  # fmt: skip
    paths = {name: str(artifact.save(tmp_path / f"{name}.json")) for name, artifact in artifacts.items()}
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    mine = {"url": "http://127.0.0.1:1/v1", "model": "m", "key": "k"}
    files = {"none": "", "text": '{"text": "?"}', "list": "[1]", "json": "{", "many": '{"question": "?"}\n' * 1001}
    for name, text in files.items():
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")

    def known(name: str, **more: Any) -> dict[str, Any]:
        return {"artifact": paths["plain"], "canary": {"questions": str(tmp_path / f"{name}.jsonl"), **more}}

    plain = {"artifact": paths["plain"]}
    rows: list[dict[str, Any]] = [
        {"artifact": str(tmp_path / "nowhere.json")}, {"artifact": str(tmp_path / "broken.json")},
        {"artifact": paths["cascade"]}, *({"artifact": paths["cascade"], "upstream": [mine] * n} for n in (2, 3)),
        {**plain, "upstream": [mine, mine]}, {**plain, "upstream": {**mine, "model": "n"}},
        {"artifact": paths["slots"]}, {"artifact": paths["slots"], "remember_slots": ["time"]},
        {**plain, "remember_slots": ["time"]}, {"artifact": paths["slots"], "mode": "observe"},
        {**plain, "scorer": "nowhere:thing"}, {**plain, "scorer": "json:thing"}, {**plain, "scorer": "json:dumps"},
        {**plain, "decision": {name: SCORES[name] for name in ("url", "model", "question")}},
        {**plain, "decision": SCORES}, {"artifact": paths["majority"], "mode": "observe"},
        {"mode": "observe", "observe": {"plan": {"n": 4, "primary": "majority"}}},
        {"mode": "observe", "observe": {"plan": {"n": 4}, "records": {"path": paths["plain"]}}},
        {"mode": "observe", "observe": {"plan": {"n": 4}, "records": {"path": str(tmp_path / "x")},
                                        "prompt": {"template": "{question} {clock}", "slots": ["clock"]}}},
        *(known(name) for name in (*files, "nowhere")),
        {**known("text"), "artifact": paths["slots"], "remember_slots": []},
    ]  # fmt: skip
    for row in rows:
        fields = {"upstream": mine, "probe": "off", **row}
        try:
            Gateway(configuration.Config.checked({"version": 1, "models": {"m": fields}}, "x"))
        except GuardrailError as error:
            message = f"{type(error).__name__}: {error}"
        else:
            message = "starts"
        told.append(words.replace(f"{json.dumps(row)}\n  {message}"))
    same("gateway/refused-at-start.txt", "\n".join(told))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of the command."""
    told, words = list[str](), Words({str(tmp_path): "FOLDER"})
    served: list[Gateway] = []
    monkeypatch.setattr(gateway, "_serve", lambda uvicorn, started: served.append(started))
    monkeypatch.setattr("secrets.token_urlsafe", lambda size: "x" * size)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    monkeypatch.setenv(gateway.WORKER, "1")
    artifact = str(make_artifact(MODEL, threshold=0.1).save(tmp_path / "artifact.json"))
    url = "http://127.0.0.1:1/v1"
    file = tmp_path / "guardrail.yaml"
    mine = f"{{url: {url}, model: m, key: sk-secret}}"
    file.write_text(
        f"version: 1\nport: 0\nstream_hold: 3\nmodels:\n  support: {{upstream: {mine}, artifact: {artifact}}}\n"
        f"  seen: {{upstream: {mine}, mode: observe}}\n", encoding="utf-8",
    )  # fmt: skip
    for place, name in (("records.jsonl", "shared"), ("records-${GUARDRAIL_WORKER}.jsonl", "own")):
        observe = f'{{plan: {{n: 4}}, records: {{path: "{tmp_path}/{place}"}}}}'
        text = f"version: 1\nmodels: {{seen: {{upstream: {mine}, mode: observe, observe: {observe}}}}}\n"
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(
        gateway, "_supervise", lambda arguments, started: gateway._print(f"{arguments.workers} processes")
    )
    single = ["--upstream", url, "--model", "m"]
    for arguments in (
        ["--config", str(file), "--check"], [*single, "--artifact", artifact, "--check"],
        [*single, "--mode", "observe", "--host", "::1", "--port", "9", "--check"], ["--new-key", "ann"],
        [], [*single, "--config", str(file)], single, ["--config", str(tmp_path / "none.yaml")], ["--model", "m"],
        [*single, "--mode", "observe", "--host", "0.0.0.0"], ["--config", str(file), "--workers", "0"],
        ["--config", str(file), "--workers", "2"], ["--config", str(tmp_path / "shared.yaml"), "--workers", "2"],
        ["--config", str(tmp_path / "own.yaml"), "--workers", "2"],
    ):  # fmt: skip
        code = main(["serve", *arguments])
        out, err = capsys.readouterr()
        command = words.replace(" ".join(arguments))
        told.append(f"$ guardrail serve {command}\n{words.replace(out + err)}exit code {code}\n")
        assert os.environ[gateway.WORKER] in ("1", "2")
    assert main(["serve", *single, "--artifact", artifact]) == 0
    gateway._announce(served[-1], 8700, "more")
    told.append(f"Announced:\n{words.replace(capsys.readouterr().out)}")
    monkeypatch.delattr(os, "setpgrp")
    assert main(["serve", "--config", str(file), "--workers", "2"]) == 1
    told.append(f"Without processes that fork:\n{words.replace(capsys.readouterr().err)}")
    parser = argparse.ArgumentParser()
    gateway.add_arguments(parser)
    told.append(parser.epilog or "")
    for action in parser._actions[1:]:
        names = f"{action.option_strings[0]} {action.metavar}, default {action.default}, {action.choices}"
        told.append(f"{names}: {action.help}")
    same("gateway/command.txt", "\n".join(told))
