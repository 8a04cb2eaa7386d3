"""Names with parameters: how the command line writes and reads them.

A judge or similarity is "text(threshold=0.7)", a threshold rule "acrc:k_min=1,monotone=false", and a column
map "question=prompt": all are names and lists of key=value, which are read here.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from guardrail.errors import UsageError
from guardrail.items.spec import ITEMS
from guardrail.plain_json import canonical_json
from guardrail.specs import JudgeSpec

_FROM_JUDGE = re.compile(r"\s*from_judge\((?!\s*judge\s*=)(?P<judge>.*)\)\s*", flags=re.DOTALL)
"""A judge as a similarity, in short: from_judge(exact). The long form is from_judge(judge={"name": "exact", ...})."""
_NAMED = re.compile(r"(?P<name>[\w.-]+)(?:\((?P<params>.*)\))?", flags=re.DOTALL)
_BARE = re.compile(r"[^\s\"(){}\[\],]+(?: +[^\s\"(){}\[\],]+)*")


def cut(text: str, mark: str) -> list[str]:
    """Parts of a text between marks; a mark in brackets or in double quotes separates nothing."""
    parts = [""]
    depth = 0
    quoted = escaped = False
    for character in text:
        if character == mark and not depth and not quoted:
            parts.append("")
            continue
        parts[-1] += character
        if quoted:
            quoted = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            quoted = True
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth = max(0, depth - 1)
    return parts


def assignment(text: str) -> tuple[str, str]:
    """Key and value of "key=value", without white space around them; "" for a side that is missing."""
    key, _, value = (piece.strip() for piece in text.partition("="))
    return key, value


def parse_name(text: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a judge as a user writes it: "exact", "nli(model=./weights, revision=main)".

    Values are read as JSON where they are (numbers, true, "quoted"), else as texts.

    Raises:
        UsageError: The text has another form.
    """
    short = _FROM_JUDGE.fullmatch(text)
    if short is not None:
        judge, judge_params = parse_name(short["judge"])
        return "from_judge", {"judge": {"name": judge, "params": judge_params}}
    match = _NAMED.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"cannot read {text!r}. Write a name, or a name with parameters: text(threshold=0.6).")
    params: dict[str, Any] = {}
    for part in filter(str.strip, cut(match["params"] or "", ",")):
        key, value = assignment(part)
        if "=" not in part or not key.isidentifier():
            raise UsageError(f"cannot read the parameter {part.strip()!r} of {text!r}. Write name=value.")
        params[key] = _value(value)
    return match["name"], params


def parse_rule(text: str) -> tuple[str, dict[str, Any]]:
    """A threshold rule and its options from its text: a name, and after a colon the options, separated by commas.

    Values are whole numbers, numbers, true, false, none, or else text. ``delta`` may be among the options.

    Raises:
        UsageError: An option without a value or given twice. Unknown rules and options are found when it is used.
    """
    name, colon, rest = text.partition(":")
    options = [assignment(part) for part in cut(rest, ",")] if colon else []
    if not all(key and value for key, value in options) or len(dict(options)) < len(options):
        raise UsageError(f"rule {text!r} must be name:option=value,..., each option once. Write e.g. acrc:k_min=1.")
    return name, {key: _value(value) for key, value in options}


def rule_text(name: str, options: Mapping[str, Any]) -> str:
    """The text `parse_rule` reads."""
    shown = ",".join(f"{key}={_option_text(value)}" for key, value in options.items())
    return f"{name}:{shown}" if shown else name


def written(spec: JudgeSpec) -> str:
    """A judge, similarity or entailment model as `parse_name` reads it; its version is not part of it."""
    judge = spec.params.get("judge")
    if spec.name == "from_judge" and isinstance(judge, dict):
        return f"from_judge({written(JudgeSpec.model_validate(judge))})"
    params = ", ".join(f"{name}={_text(value)}" for name, value in sorted(spec.params.items()))
    return f"{spec.name}({params})" if params else spec.name


def items_flag(key: str) -> str:
    """The option of `calibrate label` and others for the scores of a key, after a space; "" for whole answers."""
    return " --items" if key == ITEMS else ""


def estimator_flags(key: str) -> str:
    """The options of `calibrate score RECORDS` that give the scores of a key.

    As a shell takes them, but for what a key does not hold: module and name of a scorer, and the model of a chat judge.
    """
    name, *rest = cut(key, ":")
    if key == ITEMS:
        return "--items"
    if name == "score":
        return f"--scorer MODULE:NAME (the scorer {rest[0]})"
    if any(part.startswith("chat(") for part in rest):
        return f"--score '{name}:chat(model=PROVIDER:MODEL)'"
    return f"--score {shlex.quote(key)}"


def _value(text: str) -> Any:
    """A number, true, false or none, a list or object as JSON or Python writes it, or else the text.

    Reads back what `_text` writes of any JSON value, and what `_option_text` writes of numbers, true, false and none.
    """
    with suppress(ValueError):
        return json.loads(f"0{text}" if text.startswith(".") else text)
    if text.startswith(("{", "[")):
        with suppress(ValueError, SyntaxError):
            return ast.literal_eval(text)  # Python's quotes, as a spec is printed
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _text(value: Any) -> str:
    """A value as `_value` reads it again; in a list or an object, what JSON cannot write becomes a text."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and _BARE.fullmatch(value) and value == _value(value):
        return value
    return canonical_json(value, compact=False, default=str)


def _option_text(value: Any) -> str:
    """A number, true, false or none of a rule as `_value` reads it again; rules have no other settings."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
