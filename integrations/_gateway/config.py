"""The gateway's configuration: a strict YAML file, in which ``${NAME}`` stands for a variable of the environment."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, model_validator

from guardrail.errors import UsageError, require
from guardrail.guard.abstention import ABSTENTION
from guardrail.prompting import PromptWrapping
from guardrail.types import Frozen, Probing, SamplingPlan

from .._openai.pins import Pin

FieldPath = tuple[str | int, ...]
"""Place of a field in the configuration."""
_PATH = re.compile(r"[a-z0-9_-]+(/[a-z0-9_-]+)*")


PASSABLE = frozenset({
    "audio/speech", "embeddings", "files", "images", "messages/count_tokens", "moderations", "rerank",
    "responses/input_tokens", "score", "tokenize", "uploads", "vector_stores",
})  # fmt: skip
"""Paths that generate no text, so that they may pass beside a gate. Any other may be a way around it."""


def _may_pass(path: str, *, guarded: bool) -> bool:
    """Whether the configuration may name a path; "models" is the gateway's own."""
    if guarded:
        return path in PASSABLE
    return bool(_PATH.fullmatch(path)) and path.partition("/")[0] != "models" and path != "messages"


def is_loopback(host: str) -> bool:
    """Whether a host name or an address is this machine's own."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Upstream(Frozen):
    """An OpenAI-compatible endpoint. Only the configuration gives its address, never a request."""

    url: str
    """Root of the API, e.g. https://api.example.com/v1. ``http:`` only to this machine, unless ``allow_http``."""
    model: str
    """Name of the model there."""
    key: SecretStr | None = None
    """Key of the API; default: OPENAI_API_KEY of the environment."""
    allow_http: bool = False
    """Allow ``http:`` to other machines, where the network is trusted."""
    forward_key: bool = False
    """Send the client's bearer token upstream instead; the gateway's own key is then in ``x-guardrail-key``."""
    timeout: float = Field(default=120.0, gt=0)
    """Seconds for one question with all its samples."""
    max_retries: int = Field(default=2, ge=0)
    """Retries of one failed call, within ``timeout``."""
    max_reply: int = Field(default=8 * 2**20, ge=1)
    """Bytes of one reply; a guarded question with a longer reply is not measured. Observed replies have no limit."""
    token_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Field in which the token limit is sent; reasoning models of OpenAI need ``max_completion_tokens``."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every call."""
    pin: Pin | None = None
    """Model and ``system_fingerprint`` that its replies must name."""

    @property
    def secret(self) -> str:
        """The text of the key, or an empty string."""
        return os.environ.get("OPENAI_API_KEY", "") if self.key is None else self.key.get_secret_value()

    @property
    def hint(self) -> str:
        """The question to ask where the API does not know the path of a request."""
        return "" if self.url.rstrip("/").endswith("/v1") else "; does its url end in /v1?"

    @model_validator(mode="after")
    def _safe_address(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ValueError("url must be http(s)://HOST[:PORT]/PATH without a user or query, e.g. https://HOST/v1")
        if parts.scheme == "http" and not (self.allow_http or is_loopback(parts.hostname)):
            raise ValueError(
                f"http to {parts.hostname} would send the key unencrypted. Use https, or set allow_http: true "
                "(--set upstream.allow_http=true)"
            )
        return self


class RecordsConfig(Frozen):
    """Record file that an observing alias appends to, for `calibrate`."""

    path: Path
    """The file; made if it does not exist. It holds questions and answers."""
    rate: float = Field(default=1.0, gt=0, le=1)
    """Probability with which a measured request is recorded, chosen by hash before it is measured."""


class Observe(Frozen):
    """Settings of an observing alias."""

    rate: float = Field(default=1.0, gt=0, le=1)
    """Probability with which a request is measured, chosen by a hash that does not depend on its content."""
    plan: SamplingPlan | None = None
    """Plan of the samples, without an artifact. Its primary answer has the settings of the application's requests, e.g.
    ``{n: 10, primary: sampled, temperature: 1, top_p: 1}`` for clients that send no temperature."""
    prompt: PromptWrapping = PromptWrapping()
    """Prompt in which the application wraps a question, without an artifact."""
    records: RecordsConfig | None = None
    """File for measured sample sets, for `calibrate`; None writes none."""
    queue: int = Field(default=1000, ge=1)
    """Answers that wait to be measured; later ones are dropped and counted."""
    max_concurrency: int = Field(default=4, ge=1)
    """Answers that are measured at once."""


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _seconds(value: Any) -> Any:
    match = re.fullmatch(r"(\d+)([smhd])", value) if isinstance(value, str) else None
    return value if match is None else int(match[1]) * _UNITS[match[2]]


class CanaryConfig(Frozen):
    """Known questions that the gateway asks by itself."""

    questions: Path
    """A line of JSON for each, with ``question`` (and ``options`` where the artifact has them)."""
    every: Annotated[float, BeforeValidator(_seconds), Field(ge=60)] = 3600.0
    """Seconds between two rounds, or a text such as 30m, 1h, 1d."""


class Alias(Frozen):
    """A model name that clients ask for."""

    upstream: Annotated[tuple[Upstream, ...], BeforeValidator(lambda v: v if isinstance(v, list | tuple) else [v])]
    """The endpoint; for a cascade's artifact a list, one a stage."""
    artifact: Path | None = None
    """The calibration artifact. Without one, the alias can only observe."""
    scorer: str | None = None
    """MODULE:NAME of the scorer, for an artifact that was calibrated with one; imported when the gateway starts."""
    mode: Literal["guard", "observe"] = "guard"
    """"guard" answers only if the gate accepts; "observe" passes everything through and measures behind it."""
    on_abstain: Literal["message", "error", "ticket"] = "message"
    """A text, an HTTP error, or a ticket under which a person decides (needs ``reviews``)."""
    fallback: str | None = None
    """Alias that answers instead of an abstention. The promise does not cover its answers."""
    abstain_message: str = ABSTENTION
    """Text of an abstention; see `Guardrail`."""
    finish_reason: Literal["content_filter", "stop"] = "content_filter"
    """Finish reason of an abstention's text, and of a fallback's answer that no gate judged. "stop" is for chat pages
    that hide filtered messages; programs then read ``guardrail.handoff``."""
    settings: Literal["usual", "replace", "refuse"] = "usual"
    """Treatment of a client's sampling settings that differ from the calibrated ones. "usual" replaces those that
    clients send by habit (temperature, top_p, seed and a longer max_tokens) and refuses others; "replace" replaces all.
    Replies name what was replaced (``x-guardrail-replaced``)."""
    ignore: tuple[str, ...] = ()
    """Unknown fields of requests to accept and leave out."""
    route: str | None = None
    """MODULE:NAME of a function of the messages that names the group of a question, for a router's artifact; imported
    when the gateway starts. The ``route`` of the client's key comes first. No request names one: it would choose its
    threshold."""
    probe: Probing = "auto"
    """See `Guardrail`."""
    monitor: bool = False
    """Watch the scores for drift, and hold answers back after an alarm. All processes on ``reviews`` share the monitor,
    which belongs to the artifact: ``guardrail monitor`` shows it under NAME-DIGEST."""
    canary: CanaryConfig | None = None
    """Known questions, compared with their own first rounds; see `CanaryMonitor`. With ``monitor`` its alarm holds
    answers back, too."""
    observe: Observe = Observe()
    """For ``mode: observe``."""
    pass_through: tuple[str, ...] = ()
    """Further paths below /v1 that pass to the upstream **without a verdict**, with what is below them: of a guarded
    model those of `PASSABLE`, which generate no text; with ``mode: observe`` any, for what the upstream has stored."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        observes, several, alone = self.mode == "observe", len(self.upstream) > 1, self.artifact is None
        unplanned = self.observe.records is not None and self.observe.plan is None
        scored, asked = self.scorer is not None, self.canary is not None
        replaced = self.fallback is not None and self.on_abstain != "message"
        wrong = [path for path in self.pass_through if not _may_pass(path, guarded=not observes)]
        listed = ", ".join(sorted(PASSABLE))
        rules = (
            (not self.upstream, "upstream must name at least one endpoint"),
            (alone and not observes, "a guarded model needs an artifact (--artifact FILE). mode: observe collects the "
             "data for one"),
            (observes and several, "a cascade cannot observe: a served answer is one model's. Give one upstream"),
            (observes and alone and unplanned, "to collect records without an artifact, observe.plan must say how "
             "samples are drawn"),
            (scored and (alone or several), "scorer belongs to the artifact of one guarded or observed model. Leave it "
             "out"),
            (self.monitor and (observes or several), "monitor watches a guarded model with one upstream. Leave it out"),
            (asked and (observes or several), "canary asks a guarded model with one upstream. Leave it out"),
            (self.route is not None and (alone or several), "route belongs to the router of one model. Leave it "
             "out"),
            (replaced, "fallback takes the place of on_abstain. Leave one of them out"),
            (bool(wrong), f"pass_through of a guarded model must name paths that generate no text ({listed}), got "
             f"{wrong}. For others give a model of its own with mode: observe"),
        )  # fmt: skip
        for broken, rule in rules:
            if broken:
                raise ValueError(rule)
        return self


class Key(Frozen):
    """A client's key."""

    name: str
    """Name of the client."""
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """SHA-256 of the key, in hex (`guardrail serve --new-key NAME`)."""
    models: tuple[str, ...] | None = None
    """Aliases it may use; None for all."""
    route: str | None = None
    """Group of its questions, for a router's artifact."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Questions of this key under way at once; None for no limit beside that of the gateway."""
    upstream_key: SecretStr | None = None
    """Key that is sent upstream for this client."""


class Config(Frozen):
    """The whole configuration."""

    version: Literal[1]
    """Version of this layout."""
    models: dict[str, Alias] = Field(min_length=1)
    """Model names of clients."""
    host: str = "127.0.0.1"
    """Address to listen on. Any address other than this machine's loopback needs ``keys``."""
    port: int = Field(default=8700, ge=0, le=65535)
    """Port; 0 for any free port."""
    keys: tuple[Key, ...] = ()
    """Keys of clients. Without keys, every program on this machine may ask."""
    allowed_hosts: tuple[str, ...] = ()
    """Further host names by which clients without keys may reach the gateway."""
    reviews: SecretStr | None = None
    """Review store (SQLite path or postgresql:// URL) for tickets, monitors and remembered draws. Several processes
    on one store answer as one."""
    max_body: int = Field(default=10 * 2**20, ge=1)
    """Bytes of a request."""
    max_guarded_body: int = Field(default=2**20, ge=1)
    """Bytes of a request to a model that guards: its whole text is compared, which keeps other clients waiting."""
    max_values: int = Field(default=50_000, ge=1)
    """JSON values of a request: reading more of them would keep other clients waiting. Paths of ``pass_through`` take
    eight times as many, for lists of tokens."""
    max_connections: int = Field(default=2000, ge=1)
    """Open connections, idle ones included, from which on requests get 503. A proxy in front limits each client's."""
    max_concurrency: int = Field(default=64, ge=1)
    """Questions of all clients that are measured at once."""
    max_lag: float = Field(default=0.05, gt=0)
    """Seconds by which the process may run late before fewer questions are let in (others get 503): a question takes
    about ten such turns."""
    stream_hold: float = Field(default=10.0, ge=0)
    """Seconds for which a stream's status waits for the verdict; after that the stream begins, with keep-alives."""
    remember: float = Field(default=600.0, ge=0)
    """Seconds for which draws and verdicts are remembered: the same prompt gets the same verdict."""
    remember_bytes: int = Field(default=256 * 2**20, ge=1)
    """Bytes of draws and verdicts that each process remembers; the oldest make room, and a metric counts them."""
    drain: float = Field(default=30.0, ge=0)
    """Seconds for which requests and observed answers may finish after a signal to stop."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not is_loopback(self.host) and not self.keys:
            raise ValueError(
                f"host {self.host} can be reached from other machines, so keys are needed. Make one with "
                "`guardrail serve --new-key NAME`, or use host: 127.0.0.1"
            )
        for name, alias in self.models.items():
            if alias.fallback is not None and (alias.fallback == name or alias.fallback not in self.models):
                raise ValueError(f"models.{name}.fallback must be another alias, got {alias.fallback!r}")
            kept = {
                "monitor": alias.monitor,
                "canary": alias.canary,
                "on_abstain: ticket": alias.on_abstain == "ticket",
            }
            setting = next((setting for setting, wanted in kept.items() if wanted), None)
            if setting and self.reviews is None:
                raise ValueError(f"models.{name}: {setting} needs reviews: PATH of the review store, in the file")
        for key in self.keys:
            missing = sorted(set(key.models or ()) - self.models.keys())
            if missing:
                raise ValueError(f"keys: {key.name} names models that do not exist: {', '.join(missing)}")
        return self

    @classmethod
    def checked(cls, content: Mapping[str, Any], name: str, places: Mapping[FieldPath, str] | None = None) -> Self:
        """The configuration of a mapping.

        Args:
            content: The fields.
            name: Name of the file, in messages.
            places: Where fields come from (a line of it, a flag), by their path.

        Raises:
            UsageError: A field is wrong; the message names it and its place.
        """
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise UsageError(
                _first_fault(error, {(): name, **(places or {})})
            ) from None  # pydantic's text would quote keys

    def key_of(self, text: str | None) -> Key | None:
        """The key with this text; None if it is unknown. Compares with every hash, each in constant time."""
        digest = hashlib.sha256((text or "").encode("utf-8", "surrogatepass")).hexdigest()
        matching = [key for key in self.keys if hmac.compare_digest(digest, key.sha256)]
        return matching[-1] if matching else None


def new_key(name: str) -> tuple[str, str]:
    """A fresh key of 256 random bits, and the line of the configuration that admits it."""
    key = f"gr-{secrets.token_urlsafe(32)}"
    return key, f"  - {{name: {name}, sha256: {hashlib.sha256(key.encode()).hexdigest()}}}"


# -- reading ----------------------------------------------------------------------------------------------------------

_VARIABLE = re.compile(r"\$(?:\$|\{(?P<what>[^}]*)\})")


def load_config(path: str | Path) -> Config:
    """Read a configuration file.

    Raises:
        UsageError: The file cannot be read, is not a configuration, or names an unset variable (with its line).
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({getattr(error, 'strerror', error)}).") from error
    return parsed_config(text, str(path))


def parsed_config(text: str, name: str = "configuration", environment: Mapping[str, str] | None = None) -> Config:
    """`load_config` of a YAML text; ``name`` is that of the file in messages."""
    yaml = require("yaml", extra="serve")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        places: dict[FieldPath, str] = {}
        _fill(node, os.environ if environment is None else environment, name, places)
        content = None if node is None else yaml.SafeLoader("").construct_document(node)
    except UsageError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        quote = ' Within { } and [ ] quote variables: "${NAME}".' if "${" in text else ""
        raise UsageError(f"{name}: cannot be read as YAML ({' '.join(str(error).split())}).{quote}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{name}: must hold version: 1 and models:, got {type(content).__name__}.")
    return Config.checked(content, name, places)


def _fill(
    node: Any,
    variables: Mapping[str, str],
    name: str,
    places: dict[FieldPath, str],
    path: FieldPath = (),
) -> None:
    """Put variables into the values of a YAML tree, never into its keys, and note the line of each value.

    Raises:
        UsageError: A key is given twice.
    """
    if node is None:
        return
    where = f"{name}:{node.start_mark.line + 1}"
    names: set[str] = set()
    if path:
        places[path] = where
    if isinstance(node.value, str):
        if node.tag.endswith(":str"):
            node.value = _VARIABLE.sub(lambda match: _value(match["what"], variables, where), node.value)
        return
    for number, part in enumerate(node.value):
        key, value = part if isinstance(part, tuple) else (None, part)
        if key is not None and isinstance(key.value, str):
            if key.value in names:
                raise UsageError(f"{name}:{key.start_mark.line + 1}: {key.value!r} is given twice. Give it once.")
            names.add(key.value)
        _fill(value, variables, name, places, (*path, number if key is None else str(key.value)))


def _value(reference: str | None, variables: Mapping[str, str], where: str) -> str:
    if reference is None:
        return "$"
    if reference.startswith("file:"):
        try:
            return Path(reference.removeprefix("file:")).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", "not a text in UTF-8")
            raise UsageError(f"{where}: the file of ${{{reference}}} cannot be read ({why}).") from error
    variable, has_default, default = reference.partition(":-")
    if variable not in variables and not has_default:
        raise UsageError(
            f"{where}: the variable {variable} is not set. Set it, or write ${{{variable}:-DEFAULT}} (and $$ for a $)."
        )
    return variables.get(variable, default)


def _first_fault(error: ValidationError, places: Mapping[FieldPath, str]) -> str:
    faults = error.errors(include_input=False, include_url=False)
    # A misspelt name comes before the required name that is missing for it.
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    loc = first["loc"]
    line = next(places[loc[:end]] for end in range(len(loc), -1, -1) if loc[:end] in places)
    where = f"{line}: {'.'.join(map(str, loc))}"
    if first["type"] != "extra_forbidden":
        rule = first["msg"].removeprefix("Value error, ")
        return f"{where}: {rule}." if loc else f"{where}{rule}."
    kinds = (Config, Alias, CanaryConfig, Upstream, Pin, Key, Observe, RecordsConfig)
    unknown = str(loc[-1])  # which may be a field of another section
    fields = sorted({name for kind in kinds for name in kind.model_fields} - {unknown})
    near = get_close_matches(unknown, fields, n=1)
    return f"{where} is unknown{f'; did you mean {near[0]!r}?' if near else '.'}"
