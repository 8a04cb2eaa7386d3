"""The models that clients ask for: their artifacts and guards, and the replies made of a guard's results."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage
from pydantic import SecretStr

from guardrail import AbstainedError, CalibrationArtifact, Cascade, Guardrail, Router
from guardrail.artifact import Artifact, CascadeArtifact, RouterArtifact, load_artifact
from guardrail.describe import promises, warning
from guardrail.errors import ArtifactError, ArtifactMismatchError, TurnsMismatchError, UsageError
from guardrail.foreign_errors import IN_FULL
from guardrail.guard.abstention import ABSTAINED
from guardrail.guard.messages import with_verdict
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.sampling.draws import Draws
from guardrail.sampling.models import import_named
from guardrail.types import SamplingPlan
from guardrail.uncertainty.scorer import load_scorer
from guardrail.verdict import Reason

from .._openai.clients import EndpointState
from .._openai.lru import LRU
from .._openai.pins import Change, ModelChangedError
from ..openai_chat import OpenAICompatibleChat
from .admission import may_use
from .answers import GuardReply, all_or_nothing, failure, is_settled
from .canary import Canary
from .config import Alias, Key, Upstream
from .errors import ApiError
from .forwarding import Forwarding, Mask
from .health import Health
from .metrics import Metrics
from .requests import Asked

ALIAS = "gateway_model"
"""Metadata of a ticket: the model that the client asked for. A key reads the tickets of its models."""
SECRET = 16
"""Bytes from which a key is masked in every reply: a shorter one is a placeholder such as EMPTY, a word of answers."""
CREDENTIALS = 256
"""Number of upstream keys for which guards are kept; each guard has its connections and its probe."""
log = logging.getLogger("guardrail")
_asked: ContextVar[Asked] = ContextVar("guardrail_gateway_asked")
"""What is answered here; every question runs in a task, so in its own context."""


class ServedAlias:
    """One alias of the configuration; ``aliases`` are all of them, for a fallback.

    Raises:
        ArtifactError: The artifact cannot be read, or does not fit the upstream.
        UsageError: The kind of the artifact does not fit the alias.
    """

    def __init__(
        self,
        name: str,
        config: Alias,
        aliases: Mapping[str, ServedAlias],
        draws: Draws,
        store: Any,
        metrics: Metrics,
        health: Health,
    ) -> None:
        self.name, self.config, self._aliases, self._draws, self._store = name, config, aliases, draws, store
        self.metrics, self._health = metrics, health
        self._observers = metrics.observers(mode=config.mode, model=name)
        self.upstream = config.upstream[0]
        """The endpoint; the first one of a cascade."""
        self._endpoints = {upstream.url: EndpointState() for upstream in config.upstream}
        self.forwarding = Forwarding(name, self.upstream, self._endpoints[self.upstream.url], health)
        self.artifact = _artifact_of(name, config)
        self._stages = () if self.artifact is None else self.artifact.gates
        self.single = self._stages[0] if self._stages else None
        """The artifact; of a cascade or router the first one; None without one."""
        # The operator's file names the scorer, never a request: importing runs code.
        self._using = {} if config.scorer is None else {"scorer": load_scorer(config.scorer)}
        self._route = None if config.route is None else import_named(config.route, f"models.{name}.route")
        self._own_chat = self.chat(self.upstream, None)
        self._guards: LRU[Guardrail | Cascade | Router] = LRU(CREDENTIALS)
        self._watches: dict[str, dict[str, Any]] = {}
        self.canary: Canary | None = None
        if config.canary is not None:
            assert isinstance(self.artifact, CalibrationArtifact), "checked in the configuration"
            self.canary = Canary(name, config.canary, self.artifact, self._unobserved, store, metrics)

    # -- what it serves ------------------------------------------------------------------------------------------------

    @property
    def guarded(self) -> bool:
        """Whether every answer needs a verdict before it passes."""
        return self.config.mode == "guard"

    @property
    def down(self) -> str | None:
        """Time from which an upstream that had replied no longer does; None if all do, or never did."""
        return next(filter(None, (endpoint.down_since for endpoint in self._endpoints.values())), None)

    @property
    def plan(self) -> SamplingPlan | None:
        """The plan of the samples; None for an alias that passes everything through and measures nothing."""
        return self.config.observe.plan if self.single is None else self.single.plan

    @property
    def promises(self) -> tuple[str, ...]:
        """The promise of the artifact, after a warning if the gate stops nothing; none without a gate."""
        if self.artifact is None or not self.guarded:
            return ()
        return tuple(filter(None, (warning(self.artifact), *promises(self.artifact))))

    @property
    def described(self) -> str:
        """The mode, the artifact and its promises, for a line in the log."""
        digest = () if self.artifact is None else (f"artifact {self.artifact.digest:.14}",)
        return ", ".join((self.config.mode, *digest, *self.promises))

    def is_same(self, other: ServedAlias) -> bool:
        """Whether another alias would answer in the same way; never with a fallback, which may have changed."""
        mine, theirs = (
            (alias.config, alias.artifact and alias.artifact.digest, alias.canary and alias.canary.name)
            for alias in (self, other)
        )
        return mine == theirs and self.config.fallback is None

    def check_routes(self, keys: Sequence[Key]) -> None:
        """Refuse a router if nothing names the group of some client's questions.

        Raises:
            UsageError: Naming what is missing.
        """
        if self.config.route is not None or not isinstance(self.artifact, RouterArtifact):
            return
        nameless = [key.name for key in keys if key.route is None and may_use(key, self.name)]
        if nameless or not keys:
            whose = f"the keys {', '.join(nameless)} name none" if nameless else "there are no keys that name one"
            raise UsageError(
                f"models.{self.name}: the artifact is a router with a threshold for each group, and {whose}. Give "
                "every key a route, or the model `route: MODULE:NAME`, a function of the messages."
            )

    # -- its upstreams -------------------------------------------------------------------------------------------------

    def mask(self, credential: str | None, status: int = 200) -> Mask:
        """Hides the key with which a request was sent upstream, should the reply quote it.

        A client's own key is hidden in errors of the upstream alone, and so is a short one.
        """
        mine = [upstream.secret for upstream in self.config.upstream] if credential is None else [credential]
        hidden = [key for key in mine if status >= 400 or (not self.upstream.forward_key and len(key) >= SECRET)]
        fallback = () if self.config.fallback is None else self._aliases[self.config.fallback].mask(None).keys
        return Mask([*(key.encode() for key in hidden), *fallback])

    def chat(self, upstream: Upstream, credential: str | None) -> OpenAICompatibleChat:
        """An upstream as a chat model."""
        stage = self.config.upstream.index(upstream)
        calibrated = self._stages[stage].model if self._stages else None
        bound = calibrated is not None and calibrated.provider == OpenAICompatibleChat.PROVIDER
        same = Upstream.model_fields.keys() & OpenAICompatibleChat.model_fields.keys()
        chat = OpenAICompatibleChat(
            base_url=upstream.url,
            api_key=upstream.key if credential is None else SecretStr(credential),
            system_fingerprint=calibrated.revision if calibrated is not None and bound else None,
            report_change=self._changed,
            **{name: getattr(upstream, name) for name in same},
        )
        chat._state = self._endpoints[upstream.url]
        return chat

    def _changed(self, change: Change, new: bool) -> None:
        """Count a reply of another model than the pinned one, and report a new value once."""
        self.metrics.count("upstream_changed", self.name, change.field)
        if new:
            text = f"the upstream's {change.text}. Calibrate again on the model that answers now, or correct the pin"
            self._health.warn(self.name, f"model_changed:{change.field}:{change.seen}", text, again=math.inf)

    def check_served(self, reply: Mapping[str, Any]) -> bool:
        """Whether a reply that was served comes from another model than the pinned one, and must not be measured."""
        try:
            self._own_chat.check_model(reply)
        except ModelChangedError:
            return True
        return False

    # -- its guards ----------------------------------------------------------------------------------------------------

    def guard(self, credential: str | None) -> Guardrail | Cascade | Router:
        """The guard that calls the upstream with this key; None for the key in the configuration."""
        return self._guards.get(credential, partial(self._new_guard, credential))

    def _new_guard(self, credential: str | None) -> Guardrail | Cascade | Router:
        config = self.config
        chats = [self.chat(upstream, credential) for upstream in config.upstream]
        # What one credential or upstream has drawn belongs to no other. The name of the alias does not count: under
        # another one of the same upstream and artifact, a question that was held back would be drawn again.
        upstreams = [(one.url, one.model, canonical_json(one.extra_body)) for one in config.upstream]
        draws = self._draws.scoped(sha256_hex(repr((credential, upstreams)).encode(), 16))
        of_stage = {"probe": config.probe, "remember": draws}
        common = {"abstain_message": config.abstain_message, "on_abstain": self._on_abstain()}
        if isinstance(self.artifact, CascadeArtifact):
            stages = [of_stage for _ in chats]
            return Cascade(chats, artifact=self.artifact, stage_settings=stages, on_verdict=self._observers, **common)
        settings = {**of_stage, **common, "using": self._using}
        if isinstance(self.artifact, RouterArtifact):
            return Router.of(chats[0], self.artifact, key=self._route_of, settings=self._watch, **settings)
        return Guardrail(model=chats[0], artifact=self.artifact, **settings, **self._watch(self.single))

    def _route_of(self, messages: Any) -> str | None:
        """The group of a question: that of the client's key, or what the operator's function says."""
        route = _asked.get().question.route
        return route if route is not None or self._route is None else self._route(messages)

    def _on_abstain(self) -> Any:
        config = self.config
        if config.fallback is not None:
            other = self._aliases[config.fallback]
            return other.guard(None) if other.guarded else other.chat(other.upstream, None)
        if config.on_abstain == "ticket":
            from guardrail.review.hooks import ticket

            # A fallback writes tickets under the alias that the client asked for. While draws are remembered, a
            # repetition of a request gets the same ticket.
            return ticket(
                self._store,
                metadata=lambda *_: {ALIAS: _asked.get().question.model},
                key=lambda *_: self._draws.add(f"ticket of {self.name}: {_asked.get().digest}", uuid4().hex),
            )
        return "raise" if config.on_abstain == "error" else "message"

    def _watch(self, artifact: CalibrationArtifact | None) -> dict[str, Any]:
        """The settings by which a monitor sees the verdicts by one artifact, and holds answers back."""
        if not self.config.monitor or artifact is None or not artifact.calibration.of_answers:
            return {"on_verdict": self._observers}
        if artifact.digest not in self._watches:
            from guardrail.review.monitors import Monitors

            name = f"{self.name}-{artifact.digest[:12]}"
            monitors = Monitors(self._store)
            names = [name] if self.canary is None else [name, self.canary.name]
            watching = [monitors.switch(names=names), *self._observers, monitors.drift(name, artifact).watch]
            self._watches[artifact.digest] = {"on_verdict": watching}
        return self._watches[artifact.digest]

    def _unobserved(self) -> Guardrail:
        """A guard for the canary: every question is drawn anew, and nobody observes the verdicts."""
        guard = self.guard(None)
        assert isinstance(guard, Guardrail), "checked in the configuration"
        settings = {"probe": self.config.probe, "using": self._using}
        return Guardrail(model=guard.model, artifact=guard.artifact, remember=0, **settings)

    # -- answers -------------------------------------------------------------------------------------------------------

    async def answer(self, asked: Asked) -> GuardReply | ApiError:
        """The guard's answer to a question."""
        config = self.config
        message: AIMessage
        _asked.set(asked)
        try:
            message = await self.guard(asked.question.credential).ainvoke(list(asked.messages), **asked.call)
        except AbstainedError as error:  # under "message", too, if the caller would take a text for an answer
            if config.on_abstain == "error":
                return failure(error.verdict.to_metadata(), error.message, self.down)
            metadata = {ABSTAINED: True, "review": {"ticket": error.ticket}}
            message = with_verdict(AIMessage(error.message, response_metadata=metadata), error.verdict)
        except (ArtifactError, UsageError) as error:
            return self._not_as_calibrated(error)
        except Exception as error:  # a fallback is any chat model, and may raise anything
            if config.fallback is None:
                raise
            log.warning("guardrail serve: %s failed with %s", self.name, type(error).__name__)
            log.debug("guardrail serve: %s", self.name, exc_info=error)
            failed = "The model that takes over after an abstention failed."
            return ApiError(502, failed, "fallback_failed")
        verdict = message.response_metadata["guardrail"]
        answer = GuardReply(message, verdict, shape=config.finish_reason)
        if answer.verdict.passes:
            return all_or_nothing(answer) if asked.whole else answer
        if not answer.abstained:
            return replace(answer, fallback=config.fallback)
        if answer.ticket is None and answer.verdict.reason is Reason.UNMEASURED and not is_settled(verdict):
            return failure(verdict, str(message.text), self.down)  # an outage, after which clients try again
        return answer

    def _not_as_calibrated(self, error: Exception) -> ApiError:
        """The error for a prompt that the artifact does not promise anything about."""
        if isinstance(error, TurnsMismatchError):
            way_out = "The operator may calibrate with other_turns=mark, which gives answers out without the promise."
            return ApiError(400, f"{error.fault} {way_out}", "not_as_calibrated", "messages")
        # The error quotes the calibrated prompt, which is the operator's.
        public = error.public if isinstance(error, ArtifactMismatchError) else ""
        shown = "; ".join(filter(None, (public.removesuffix("."), type(error).__name__, IN_FULL)))
        what = f"a request does not fit the calibration ({shown}: guardrail -v serve)"
        self._health.warn(self.name, "not_as_calibrated", what)
        log.debug("guardrail serve: %s", self.name, exc_info=error)
        form = public or "The system prompt, or the text around the question, is not as it was calibrated."
        return ApiError(400, f"{form} Send 'messages' in the calibrated form.", "not_as_calibrated", "messages")


def _artifact_of(name: str, config: Alias) -> Artifact | None:
    """The artifact of an alias.

    Raises:
        UsageError: Its kind does not fit the alias.
    """
    if (path := config.artifact) is None:
        return None
    if len(config.upstream) > 1:
        return CascadeArtifact.load(path)
    loaded = load_artifact(path)
    if isinstance(loaded, CascadeArtifact):
        return CalibrationArtifact.load(path)  # refuses it, and says why
    if isinstance(loaded, RouterArtifact) and (config.mode == "observe" or config.canary is not None):
        what = "mode: observe measures" if config.mode == "observe" else "a canary asks"
        raise UsageError(
            f"models.{name}: {what} behind one artifact, and {path} is a router of {len(loaded.artifacts)}. Give the "
            "artifact of one group."
        )
    return loaded
