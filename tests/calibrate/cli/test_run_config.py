"""Settings of `run`: YAML, flags, and the errors between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.cli.run import load_config
from guardrail.errors import UsageError
from guardrail.types import MAX_TOKENS

ROOT = Path(__file__).parents[3]


def yaml_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_override_yaml(tmp_path: Path) -> None:
    text = "questions: q.jsonl\nmodel: python:a:b\nalpha: 0.2\nstop: ['END']\nstop_token_ids: [7]\n"
    path = yaml_file(tmp_path, text)
    config = load_config(path, {"alpha": 0.05, "rule": None, "n": 5})
    assert (config.alpha, config.rule, config.n, config.stop) == (0.05, "certified", 5, ("END",))
    flags = {"questions": "q.jsonl", "model": "python:a:b", "alpha": 0.05, "n": 5, "stop": ["END"]}
    assert config == load_config(None, {**flags, "stop_token_ids": [7]})


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
    ],
)
def test_bad_settings(tmp_path: Path, text: str, fragment: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_config(yaml_file(tmp_path, text), {})
    assert fragment in str(caught.value)


def test_missing_file() -> None:
    with pytest.raises(UsageError, match="no settings file"):
        load_config("missing.yaml", {})


def test_the_longest_answer_is_256_tokens_and_the_readme_says_so() -> None:
    settings = load_config(None, {"questions": "q.jsonl", "model": "python:a:b"})
    assert settings.max_tokens == MAX_TOKENS == 256  # plans take the same constant
    assert "Answers may be 256 tokens long (`--max-tokens`)" in (ROOT / "README.md").read_text(encoding="utf-8")
