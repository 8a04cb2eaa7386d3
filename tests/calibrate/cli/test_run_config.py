"""Settings of `run`: YAML, flags, and the errors between them."""

from __future__ import annotations

import re
import shlex
from inspect import signature
from pathlib import Path

import pytest

from calibrate.cli.frame.flags import load_settings
from calibrate.cli.frame.settings import CollectSettings, RunSettings
from calibrate.cli.run import run
from calibrate.data.questions import Question
from guardrail.errors import UsageError
from guardrail.types import MAX_TOKENS

ROOT = Path(__file__).parents[3]


def yaml_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_override_yaml(tmp_path: Path) -> None:
    text = "questions: q.jsonl\nmodel: python:a:b\nalpha: 0.2\nstop: ['END']\nstop_token_ids: [7]\nprobe: off\n"
    path = yaml_file(tmp_path, text)
    config = load_settings(RunSettings, path, {"alpha": 0.05, "rule": None, "n": 5})
    assert (config.alpha, config.rule, config.n, config.stop) == (0.05, None, 5, ("END",))
    flags = {"questions": "q.jsonl", "model": "python:a:b", "alpha": 0.05, "n": 5, "stop": ["END"]}
    assert config == load_settings(RunSettings, None, flags, ["stop_token_ids=7", "probe=off"])


def test_a_system_message_may_stand_in_a_file_or_in_the_conversations(tmp_path: Path) -> None:
    """A prompt of two pages is a file of the application, and must be the same to the last letter."""
    prompt = tmp_path / "system.txt"
    prompt.write_text("Be brief.\nSay so.\n", encoding="utf-8")
    settings = load_settings(CollectSettings, None, {"system": f"@{prompt}"})
    assert settings.prompt([Question(id="a", question="a?")]).system == "Be brief.\nSay so."
    with pytest.raises(UsageError, match="the file of the system message cannot be read"):
        load_settings(CollectSettings, None, {"system": f"@{tmp_path / 'none.txt'}"})
    talks = [({"role": "system", "content": text}, {"role": "user", "content": "q?"}) for text in ("one", "two")]
    first, second = (Question(id=f"{place}", question="q?", messages=talk) for place, talk in enumerate(talks))
    assert CollectSettings().prompt([first, first]).system == "one"
    with pytest.raises(UsageError, match="'1' has the system message 'two', question '0' has 'one'"):
        CollectSettings().prompt([first, second])


def test_rare_settings_are_assigned_and_a_flag_wins(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "questions: q.jsonl\nmodel: python:a:b\nseed: 1\nn: 3\n")
    assigned = ["seed=2", "n=4", 'stop=["\\n", "Q:"]', "template=Q: {question}", "probe=off", "trust_labels=true"]
    config = load_settings(RunSettings, path, {"n": 5}, assigned)
    assert (config.seed, config.n, config.stop) == (2, 5, ("\n", "Q:"))
    assert (config.template, config.probe, config.trust_labels) == ("Q: {question}", "off", True)
    for wrong, fragment in (
        ("seed", "must be NAME=VALUE"),
        ("sead=1", "Did you mean 'seed'?"),
        ("seed=x", "seed: got"),
    ):
        with pytest.raises(UsageError) as caught:
            load_settings(CollectSettings, None, {}, [wrong])
        assert fragment in str(caught.value)


def test_the_command_that_repeats_a_run_gives_the_same_settings(tmp_path: Path) -> None:
    text = "questions: q q.jsonl\nmodel: python:a:b\nstop: ['END']\nsystem: Be brief.\nfield_judge: ['/a=numeric']\n"
    config = load_settings(RunSettings, yaml_file(tmp_path, text + "items: true\nsplits: 0\n"), {})
    words = shlex.split(config.as_flags(("questions", "model", "system", "items"), ()))
    flags: dict[str, object] = {"items": "--items" in words}
    assigned = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    for name in ("questions", "model", "system"):
        flags[name] = words[words.index(f"--{name}") + 1]
    assert load_settings(RunSettings, None, flags, assigned) == config


def test_every_setting_is_a_flag_or_has_a_line_in_the_docs() -> None:
    page = (ROOT / "docs" / "calibrating.md").read_text(encoding="utf-8")
    rare = set(RunSettings.model_fields) - signature(run).parameters.keys()
    described = {
        name for row in re.findall(r"^\|(`[^|]+)\|", page, flags=re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert rare - described == set()


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("questions: q\nmodel: m\nalhpa: 0.1\n", "no setting 'alhpa'. Did you mean 'alpha'?"),
        ("questions: q\nmodel: m\nzzz: 1\n", "Known: allow_identical_samples"),
        ("model: m\n", "questions is missing. Give --questions"),
        ("questions: q\nmodel: m\nn: many\n", "n: got 'many'"),
        ("questions: q\nmodel: m\ntest_fraction: 1.5\n", "test_fraction: got 1.5"),
        ("- a\n- b\n", "must hold settings"),
        ("a: [", "is not YAML"),
        ("a: " + "[" * 3000, "is not YAML"),
    ],
)
def test_bad_settings(tmp_path: Path, text: str, fragment: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(RunSettings, yaml_file(tmp_path, text), {})
    assert fragment in str(caught.value)


def test_missing_file() -> None:
    with pytest.raises(UsageError, match="no settings file"):
        load_settings(RunSettings, Path("missing.yaml"), {})


def test_the_longest_answer_is_256_tokens_and_the_readme_says_so() -> None:
    settings = load_settings(RunSettings, None, {"questions": "q.jsonl", "model": "python:a:b"})
    assert settings.max_tokens == MAX_TOKENS == 256  # plans take the same constant
    assert "Answers may be 256 tokens long (`--max-tokens`)" in (ROOT / "README.md").read_text(encoding="utf-8")
