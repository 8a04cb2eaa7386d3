"""The gateway's configuration and command line."""

from __future__ import annotations

import logging
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guardrail.__main__ import main
from guardrail.errors import UsageError
from guardrail.prompting import PromptWrapping
from guardrail.testing import make_artifact
from integrations import gateway
from integrations._gateway.config import Alias, Config, Upstream, load_config, new_key, parsed_config
from integrations.gateway import Gateway
from tests.integrations.gateway.conftest import MODEL

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "gateway.md").read_text(encoding="utf-8")
WHOLE = """\
version: 1
port: ${PORT:-8700}
keys:
  - {name: ann, sha256: KEYHASH, models: [support], max_concurrency: 8}
models:
  support:
    upstream: {url: https://models.example/v1, model: m, key: "${UPSTREAM_KEY}"}
    artifact: ARTIFACT
    abstain_message: Ask us at $$5 a call.
    on_abstain: message
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    artifact = make_artifact(MODEL, threshold=0.1).save(tmp_path / "artifact.json")
    digest = new_key("ann")[1].partition("sha256: ")[2].rstrip("}")
    path = tmp_path / "guardrail.yaml"
    path.write_text(WHOLE.replace("ARTIFACT", str(artifact)).replace("KEYHASH", digest), encoding="utf-8")
    return path


def test_a_file_with_variables(file: Path) -> None:
    config = parsed_config(file.read_text(), "x.yaml", {"UPSTREAM_KEY": "sk-1", "PORT": "9000"})
    alias = config.models["support"]
    assert (config.port, alias.abstain_message) == (9000, "Ask us at $5 a call.")
    assert alias.upstream[0].key is not None
    assert alias.upstream[0].key.get_secret_value() == "sk-1"
    assert parsed_config(file.read_text(), "x.yaml", {"UPSTREAM_KEY": "sk-1"}).port == 8700
    with pytest.raises(UsageError, match=r"x.yaml:7: the variable UPSTREAM_KEY is not set"):
        parsed_config(file.read_text(), "x.yaml", {})
    secret = file.with_name("secret")
    secret.write_text("sk-2\n", encoding="utf-8")
    from_file = parsed_config(file.read_text().replace("UPSTREAM_KEY", f"file:{secret}"), "x.yaml", {})
    assert from_file.models["support"].upstream[0].key is not None
    assert from_file.models["support"].upstream[0].key.get_secret_value() == "sk-2"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("on_abstain: message", "on_abstian: message", r"did you mean 'on_abstain'\?"),
        ("on_abstain: message", "on_abstain: shrug", "x.yaml:10: .*'message', 'error' or 'ticket'"),
        ("artifact:", "pass_through: [completions]\n    artifact:", r"x.yaml:7: .*generate no text \(audio/speech"),
        ("on_abstain: message", "on_abstain: ticket", "needs reviews"),
        ("on_abstain: message", "fallback: large", "another alias"),
        ("on_abstain: message", "model: x\n    model: y", "given twice"),
        ("version: 1", "version: 2", "version"),
        ("https://models.example", "http://models.example", "unencrypted"),
        ("https://models.example", "https://user@models.example", "without a user"),
        ("[support]", "[none]", "do not exist"),
        ("artifact:", "# artifact:", "needs an artifact"),
        ("version: 1", "version: 1\n  a: [", "cannot be read as YAML"),
        ('"${UPSTREAM_KEY}"', "${UPSTREAM_KEY}", r'quote variables: "\$\{NAME\}"'),
        ("models:\n", "modles:\n", r"modles is unknown; did you mean 'models'\?"),
        ("    upstream:", "    upstraem:", r"models.support.upstraem is unknown; did you mean 'upstream'\?"),
    ],
)
def test_faults_are_named(file: Path, old: str, new: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        parsed_config(file.read_text().replace(old, new), "x.yaml", {"UPSTREAM_KEY": "sk-secret"})
    assert "sk-secret" not in str(error.value)


def test_the_page_shows_a_configuration_that_is_valid() -> None:
    (shown,) = re.findall(r"^```yaml\n(version: .*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    config = parsed_config(shown, "docs/gateway.md", {"UPSTREAM_KEY": "k"})
    assert (config.models["support"].settings, config.models["watched"].observe.rate) == ("replace", 0.2)
    for name in ("stream_hold", "remember", "forward_key", "allow_http"):
        assert any(name in kind.model_fields for kind in (Config, Alias, Upstream))
        assert f"`{name}" in PAGE


def test_the_configurations_of_the_loop_are_valid() -> None:
    """They are typed off the page, and run by `make demo-serve`."""
    page = (DOCS / "loop.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```yaml\n(version: .*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    modes = [parsed_config(text, "docs/loop.md").models["orrin"].mode for text in shown]
    assert modes == ["observe", "guard"]


def test_other_machines_need_keys(file: Path) -> None:
    open_to_all = file.read_text().replace("version: 1", "version: 1\nhost: 0.0.0.0")
    assert parsed_config(open_to_all, "x.yaml", {"UPSTREAM_KEY": "k"}).host == "0.0.0.0"
    start, end = open_to_all.index("keys:"), open_to_all.index("models:\n")
    with pytest.raises(UsageError, match="keys are needed"):
        parsed_config(open_to_all[:start] + open_to_all[end:], "x.yaml", {"UPSTREAM_KEY": "k"})


def test_reading_the_file_again_opens_nothing_and_stops_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It still listens on the address of the start, so a file without keys would let every machine in."""
    monkeypatch.setenv("UPSTREAM_KEY", "k")
    good = file.read_text()
    file.write_text(good.replace("version: 1", "version: 1\nhost: 0.0.0.0"))
    gateway = Gateway(file)
    start, end = good.index("keys:"), good.index("models:\n")
    broken = b"\xff", b"version: 1\nmodels: &a {x: *a}\n", b"version: 2020-13-45\n"
    for content in ((good[:start] + good[end:]).encode(), *broken):
        file.write_bytes(content)
        assert not gateway.reload()
        assert len(gateway.config.keys) == 1
    file.write_text(good)
    assert gateway.reload()
    assert gateway.config.host == "0.0.0.0"


@pytest.mark.parametrize("added", ["reviews: {}/r.db", "remember: 5", "remember_bytes: 5"])
def test_what_is_read_at_the_start_only_cannot_change_while_serving(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, added: str
) -> None:
    """An operator who adds tickets and their store would read "reloaded", and each abstention would be an error."""
    monkeypatch.setenv("UPSTREAM_KEY", "k")
    content = file.read_text()
    gateway = Gateway(file)
    before = gateway.config
    file.write_text(content.replace("version: 1", f"version: 1\n{added.format(file.parent)}"))
    assert not gateway.reload()
    name = added.partition(":")[0]
    assert f"the former configuration stays: {file}: {name} is read at the start only. Restart" in caplog.text
    assert gateway.config is before
    file.write_text(content)
    assert gateway.reload()


def test_check_prints_no_secret_and_finds_a_wrong_artifact(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "sk-secret")
    probing = logging.getLogger("guardrail.probe")
    probing.setLevel(logging.NOTSET)
    assert main(["serve", "--config", str(file), "--check"]) == 0
    assert probing.isEnabledFor(logging.INFO), "the first question waits for the probe, and the log says so"
    shown = capsys.readouterr().out
    assert ("valid" in shown, "**********" in shown, "sk-secret" in shown) == (True, True, False)
    file.write_text(file.read_text().replace("model: m,", "model: other,"))
    assert main(["serve", "--config", str(file), "--check"]) == 1
    assert "'other'" in capsys.readouterr().err


def test_the_page_of_a_chat_app_starts_a_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line serves an artifact whose prompt has a date."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    (line,) = re.findall("^guardrail (serve .*)$", (DOCS / "chat.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    words = shlex.split(line)
    model = MODEL.model_copy(update={"model": words[words.index("--model") + 1]})
    (tmp_path / "chat").mkdir()
    prompt = PromptWrapping(system="You sell lamps. Today is {date}.", slots=("date",), question_slots=())
    make_artifact(model, threshold=0.1, prompt=prompt).save(tmp_path / "chat" / "artifact.json")
    assert main([*words, "--check"]) == 0


def test_the_command_for_one_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = make_artifact(MODEL, threshold=0.1).save(tmp_path / "artifact.json")
    gateways: list[Gateway] = []
    monkeypatch.setattr(gateway, "_serve", gateways.append)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    single = ["serve", "--upstream", "http://127.0.0.1:1/v1", "--model", "m"]
    assert main([*single, "--artifact", str(artifact), "--port", "0"]) == 0
    assert (list(gateways[0].aliases), gateways[0].config.port) == (["m"], 0)
    more = ["--set", "probe=off", "--set", "ignore=[top_k]", "--set", "upstream.token_limit=max_completion_tokens"]
    more += ["--set", "upstream.extra_body={repeat_penalty: 1.0}"]  # as docs/endpoints.md writes it
    assert main([*single, "--artifact", str(artifact), *more]) == 0
    alias = gateways.pop().config.models["m"]
    assert (alias.probe, alias.ignore, alias.upstream[0].token_limit) == ("off", ("top_k",), "max_completion_tokens")
    assert alias.upstream[0].extra_body == {"repeat_penalty": 1.0}
    assert main([*single, "--set", "mode=observe"]) == 0
    assert list(gateways[1].observing) == ["m"]
    queue = ["--reviews", str(tmp_path / "reviews.db"), "--set", "on_abstain=ticket"]
    assert main([*single, "--artifact", str(artifact), *queue, "--check"]) == 0
    capsys.readouterr()
    assert main([*single[:-1], "m\x9b2J", "--set", "mode=observe", "--check"]) == 0
    assert r'"m\x9b2J"' in capsys.readouterr().out, "a name cannot command a terminal"
    for wrong, why in (
        (single, "needs an artifact (--artifact FILE)"),
        (["serve"], "give --config"),
        ([*single, "--set", "mode=observe", "--host", "0.0.0.0"], "keys are needed"),
        ([*single, "--artifact", "a.json", "--set", "on_abstain=ticket"], "ticket needs reviews: PATH"),
        ([*single, "--set", "probe"], "--set needs NAME=VALUE or upstream.NAME=VALUE, got 'probe'"),
        ([*single, "--set", "probe=never"], "--set probe: models.m.probe: Input should be 'auto' or 'off'"),
        ([*single, "--set", "upstream.pon=x"], "models.m.upstream.0.pon is unknown"),
        ([*single, "--set", "settings=usual", "--set", "settings.x=1"], "settings has no settings of its own"),
        ([*single[:2], "http://far/v1", "--model", "m"], "(--set upstream.allow_http=true)"),
        ([*single, "--config", "x.yaml"], "--upstream, --model: for a gateway without --config"),
        ([*single, "--set", "mode=observe", "--port", "70000"], "--port: port: Input should be less than"),
    ):
        assert main(wrong) == 1
        said = capsys.readouterr().err
        assert why in said
        assert said.count("guardrail serve:") == 1
    assert main(["serve", "--new-key", "ann"]) == 0
    key, line = (part.strip() for part in capsys.readouterr().out.split("\n") if "gr-" in part or "sha256" in part)
    config = Config.checked(
        {
            "version": 1,
            "models": {"m": {"upstream": {"url": "https://h/v1", "model": "m"}, "mode": "observe"}},
            "keys": [{"name": "ann", "sha256": line.partition("sha256: ")[2].rstrip("}")}],
        },
        "test",
    )
    assert config.key_of(key.rpartition(" ")[2]) is not None
    assert config.key_of("gr-another") is config.key_of(None) is None


def test_a_port_in_use_is_one_line_and_lines_of_the_log_have_time_and_level(tmp_path: Path) -> None:
    config = tmp_path / "guardrail.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        upstream = "{url: https://models.example/v1, model: m, key: k}"
        alias = f"{{upstream: {upstream}, mode: observe, pass_through: [embeddings]}}"
        config.write_text(f"version: 1\nport: {port}\nmodels: {{m: {alias}}}\n", encoding="utf-8")
        command = [sys.executable, "-m", "guardrail", "serve", "--config", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    passes, last = done.stderr.splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING guardrail serve: models.m passes ", passes)
    assert (done.returncode, last.startswith(f"guardrail serve: 127.0.0.1:{port} ")) == (1, True)
    assert "in use" in last
    assert "--port" in last


def test_an_observed_plan_treats_answers_that_were_cut_off_as_a_guard_does() -> None:
    upstream = {"url": "https://models.example/v1", "model": "m", "key": "k"}
    for given, meant in (({}, "abstain"), ({"cut_off": "measure"}, "measure")):
        alias = {"upstream": upstream, "mode": "observe", "observe": {"plan": {"n": 4, **given}}}
        plan = Config.checked({"version": 1, "models": {"m": alias}}, "test").models["m"].observe.plan
        assert plan is not None
        assert plan.cut_off == meant


def test_it_serves_until_it_is_stopped_and_a_signal_reads_the_file_again(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "sk-secret")
    former = signal.getsignal(signal.SIGHUP)
    states: list[int] = []  # without a limit, bodies under way could take all memory
    file.write_text(f"{file.read_text()}max_connections: 300\n")

    async def stop_at_once(self: Any, sockets: object = None) -> None:
        signal.raise_signal(signal.SIGHUP)
        states.append(self.config.limit_concurrency)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("uvicorn.Server.main_loop", stop_at_once)
    try:
        with pytest.raises(KeyboardInterrupt):
            main(["serve", "--config", str(file), "--port", "0"])
    finally:
        signal.signal(signal.SIGHUP, former)
    assert states == [300]
    printed = capsys.readouterr().out
    assert "Serving support at http://127.0.0.1:" in printed
    assert "\nsupport: This gate stops nothing" in printed
    assert "\nsupport: Rule none, not a certificate." in printed
    assert load_config(file).models["support"].mode == "guard"


@pytest.mark.parametrize("package", ["aiohttp", "openai", "orjson"])
def test_without_its_extra_the_command_names_its_own(package: str) -> None:
    """Modules that other adapters share require some of these packages, too, and would name another extra."""
    code = (
        f"import sys; sys.modules[{package!r}] = None; from guardrail.__main__ import main; sys.exit(main(['serve']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert ".[serve]" in done.stderr
    assert "Traceback" not in done.stderr
