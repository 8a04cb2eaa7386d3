"""The guard in the LiteLLM proxy: a `CustomGuardrail` that judges before anything is generated for the client.

    # guard.py, in the folder of config.yaml
    from integrations.litellm_proxy import CalibratedGuardrail

    # config.yaml
    guardrails:
      - guardrail_name: calibrated
        litellm_params:
          {guardrail: guard.CalibratedGuardrail, mode: pre_call, default_on: true, artifact: artifact.json}

A guardrail that runs after the call sees one answer and no samples, and a stream has been sent by then. So this
guardrail runs before the call: it draws the samples through the proxy's router, judges, and gives the judged candidate
to the proxy as the response. The proxy makes no further call, and streams nothing before the verdict.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages, convert_to_openai_messages

from guardrail import AbstainedError, CalibrationArtifact, UnmeasuredError
from guardrail.bindings import bindings_for
from guardrail.call_settings import SettingRole, register_settings, setting_names
from guardrail.errors import ArtifactError, UsageError, require
from guardrail.guard.abstention import OnAbstain
from guardrail.specs import ModelIdentity
from guardrail.verdict import Verdict

from ._agents.framework_guard import FrameworkGuard
from ._frameworks.chat import FrameworkChat, guard_settings, is_reviewed
from ._openai.replies import choices_of, message_of, usage_of
from ._openai.requests import normal_tool_choice

if TYPE_CHECKING:

    class CustomGuardrail:
        """The part of LiteLLM's class that is used here, for type checkers: LiteLLM needs a separate environment."""

        default_on: bool

        def __init__(self, **_: Any) -> None: ...

        def should_run_guardrail(self, data: Any, event_type: Any) -> bool: ...

        def _event_hook_is_event_type(self, event_type: Any) -> bool: ...

        def add_standard_logging_guardrail_information_to_request_data(self, **_: Any) -> None: ...

        async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> Any: ...

else:
    CustomGuardrail = require("litellm.integrations.custom_guardrail", extra="litellm").CustomGuardrail

__all__ = ["CalibratedGuardrail", "LiteLLMChat"]

Complete = Callable[..., Awaitable[Any]]
RAW = "litellm_message"
JUDGED = frozenset({"completion", "acompletion"})
PASSED = frozenset(
    {
        "embedding",
        "aembedding",
        "embeddings",
        "moderation",
        "amoderation",
        "rerank",
        "arerank",
        "transcription",
        "atranscription",
        "audio_transcription",
        "image_generation",
        "aimage_generation",
        "speech",
        "aspeech",
        "call_mcp_tool",
    }
)
"""Kinds of calls whose results are not texts of a language model."""
register_settings(
    (SettingRole.BINDING, "tools tool_choice response_format"),
    (SettingRole.TRANSPORT, "guardrails litellm_metadata metadata prompt_cache_key safety_identifier service_tier"),
    (SettingRole.TRANSPORT, "store stream stream_options tags timeout user"),
    allowed_in="litellm",
)
PLAIN = setting_names(allowed_in="litellm") | {"messages", "model"}
"""Fields that a client may send: any other field would change how the answer is drawn."""
HEADERS = "guardrail_headers"
NO_CACHE = {"no-cache": True, "no-store": True}
_sampling: ContextVar[bool] = ContextVar("guardrail_litellm_sampling", default=False)


class _Headers(dict[str, str]):
    """Headers of this guardrail; metadata of a client never has this type."""


class LiteLLMChat(FrameworkChat):
    """A model of the proxy's ``model_list`` as a LangChain chat model, which the guard calls.

    Its identity is that of an OpenAI-compatible endpoint with this model, because the proxy is such an endpoint:
    calibrate through the proxy with ``openai-compatible:NAME@http://HOST:4000/v1`` before the guardrail is switched on.
    """

    name_of_model: str
    """Name in the proxy's ``model_list``, or any model name LiteLLM knows."""
    complete: Any = None
    """Makes a call; default: the proxy's router, or ``litellm.acompletion`` without a proxy."""

    @property
    def _llm_type(self) -> str:
        return "litellm"

    def guardrail_identity(self) -> ModelIdentity:
        """An OpenAI-compatible endpoint that serves this model."""
        return ModelIdentity(provider="openai-compatible", model=self.name_of_model)

    async def _answer(self, messages: list[BaseMessage], stop: list[str] | None, call: Mapping[str, Any]) -> AIMessage:
        listed = [_raw(message) for message in messages]
        settings = {name: value for name, value in call.items() if value is not None}
        if "tool_choice" in settings:
            names = [tool["function"]["name"] for tool in settings.get("tools") or ()]
            settings["tool_choice"] = normal_tool_choice(settings["tool_choice"], names)
        if stop:
            settings["stop"] = list(stop)
        token = _sampling.set(True)
        router = _router()
        complete: Complete = self.complete or (
            require("litellm", extra="litellm").acompletion if router is None else router.acompletion
        )
        if self.complete is None and router is not None:
            settings["disable_fallbacks"] = True  # a sample of another model would be judged as a sample of this model
        try:
            response = await complete(model=self.name_of_model, messages=listed, cache=dict(NO_CACHE), **settings)
        finally:
            _sampling.reset(token)
        reply: dict[str, Any] = response.model_dump() if hasattr(response, "model_dump") else dict(response)
        choice = choices_of(reply, max_tokens=settings.get("max_tokens"))[0]
        message = message_of(choice, reply, usage_of(reply))
        if message.invalid_tool_calls:
            raise ValueError(f"a tool call has no readable arguments: {message.invalid_tool_calls[0]['args']!r:.80}")
        return message


def _router() -> Any:
    """The proxy's router; None without a proxy."""
    return getattr(sys.modules.get("litellm.proxy.proxy_server"), "llm_router", None)


def _raw(message: BaseMessage) -> dict[str, Any]:
    raw = message.additional_kwargs.get(RAW)
    converted: Any = convert_to_openai_messages([message])[0] if raw is None else raw
    return dict(converted)


def _messages(listed: Sequence[Mapping[str, Any]]) -> list[BaseMessage]:
    """A client's messages, each with its dict of the request."""
    messages = convert_to_messages([dict(message) for message in listed])
    for message, raw in zip(messages, listed, strict=True):
        message.additional_kwargs[RAW] = dict(raw)
    return messages


class CalibratedGuardrail(CustomGuardrail):
    """Answers chat completions only if the calibrated gate accepts.

    Mode must be ``pre_call``. With ``default_on: true`` no client can opt out.

    The client gets the judged candidate as an ordinary response (or stream), its usage counting all samples, so the
    proxy logs and charges the whole cost once. The verdict is in the headers ``x-guardrail-accepted``,
    ``x-guardrail-abstained`` (whether the answer is the text of an abstention), ``x-guardrail-reason``,
    ``x-guardrail-uncertainty``, ``x-guardrail-threshold`` and ``x-guardrail-artifact``, and in the proxy's guardrail
    log. The samples bypass the proxy's cache.

    Args:
        artifact: Path of the artifact for every guarded model, or a mapping of model names to paths.
        on_abstain: "message" answers with ``abstain_message`` and HTTP 200; "raise" with HTTP 400 (too uncertain) or
            503 (the model or its server failed); or a Runnable or handler, as for `Guardrail`, from a subclass.
        other_models: Models without an artifact: "refuse" or "pass" their calls. An alias of a guarded model is judged
            as that model; any other way to one of its deployments (its id, a comma list, a fallback, a wildcard) is
            refused, where the guardrail is on by default.
        judge: The judge object, for artifacts whose judge cannot be made by name; or a mapping of names to such judges.
            From a subclass.
        client_settings: "refuse" answers HTTP 400 to clients that send a temperature or the like; "replace" drops it.
            Calls use the artifact's settings either way.
        complete: Makes a call; for tests. Default: the proxy's router.
        guard_options: Further settings of `Guardrail`: abstain_message, probe, max_concurrency, ...
        **litellm_params: LiteLLM's parameters of every guardrail.

    Raises:
        UsageError: A mode other than ``pre_call``, or ``on_abstain="review"``: a request cannot wait for a person.
        ArtifactError: An artifact cannot be read.
    """

    def __init__(
        self,
        *,
        artifact: CalibrationArtifact | str | Path | Mapping[str, CalibrationArtifact | str | Path],
        on_abstain: OnAbstain = "message",
        other_models: Literal["refuse", "pass"] = "refuse",
        judge: Any = None,
        client_settings: Literal["refuse", "replace"] = "refuse",
        complete: Complete | None = None,
        guard_options: Mapping[str, Any] | None = None,
        **litellm_params: Any,
    ) -> None:

        mode = litellm_params.get("event_hook")
        if str(getattr(mode, "value", mode)) != "pre_call":
            raise UsageError(
                f"mode must be pre_call, got {mode!r}: later hooks see one answer, or a stream that was sent."
            )
        if is_reviewed(on_abstain):
            raise UsageError(
                f"on_abstain={on_abstain!r} needs a run that can wait for a person; a request to a proxy cannot. Give "
                '"message", "raise", or a handler such as guardrail.review.ticket from a subclass.'
            )
        super().__init__(**litellm_params)
        if isinstance(artifact, Mapping):
            artifacts = {name: _loaded(source) for name, source in artifact.items()}
        else:
            single = _loaded(artifact)
            artifacts = {single.model.model: single}
        self._gates = {
            name: FrameworkGuard(
                LiteLLMChat(name_of_model=name, complete=complete),
                calibrated,
                on_abstain=on_abstain,
                judge=judge,
                verdicts=None,
                guard_options=guard_settings(guard_options),
            )
            for name, calibrated in artifacts.items()
        }
        self._other_models = other_models
        self._client_settings = client_settings

    def should_run_guardrail(self, data: Any, event_type: Any) -> bool:
        """Always for chat completions if it is on by default: a client cannot switch it off."""
        if self.default_on:
            return bool(self._event_hook_is_event_type(event_type))
        return bool(super().should_run_guardrail(data, event_type))

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> Any:
        """Judge the request and give the proxy the response.

        Returns:
            The request with ``mock_response`` set, which LiteLLM returns or streams instead of calling a model.
        """
        if _sampling.get() or str(call_type) in PASSED:
            return data
        named = str(data.get("model"))
        gate = self._gates.get(named) or self._gates.get(_aliased(named))
        if gate is None and self._other_models == "pass":
            return data  # `async_pre_call_deployment_hook` refuses it if the router sends it to a guarded model
        if gate is None or str(call_type) not in JUDGED:
            why = "this model has no artifact" if gate is None else f"calls of type {call_type!r} cannot be judged"
            raise _http(400, f"{why}; only /chat/completions of {sorted(self._gates)} are guarded", "guardrail_refused")
        try:
            self._check_settings(data)
            bindings = bindings_for(
                data.get("tools") or (),
                tool_choice=data.get("tool_choice"),
                response_format=data.get("response_format"),
            )
            started = time.time()
            answer = await gate.ask(_messages(data["messages"]), bindings, parsed=bindings.response_format is not None)
        except AbstainedError as error:
            self._log(data, error.verdict)
            status = 503 if isinstance(error, UnmeasuredError) else 400
            raise _http(status, error.message, f"guardrail_{error.verdict.reason.value}") from error
        except (ArtifactError, UsageError) as error:
            raise _http(400, str(error), "guardrail_mismatch") from error
        assert answer.verdict is not None, "one artifact judges everything"
        self._log(data, answer.verdict, started, abstained=answer.abstained)
        data["mock_response"] = _response(answer.message, str(data["model"]))
        data["cache"] = dict(NO_CACHE)
        return data

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> Any:
        """Refuse a call that is about to reach a guarded model's deployment without having been judged.

        The router reaches a deployment in many ways: aliases, ids of deployments, lists of models, fallbacks,
        wildcards, groups. This hook runs after all of them, before each call of a deployment.
        """
        kind = str(getattr(call_type, "value", call_type))
        judged = isinstance(kwargs.get("mock_response"), require("litellm", extra="litellm").ModelResponse)
        if self.default_on and not (judged or _sampling.get() or kind in PASSED) and self._serves(kwargs):
            raise _http(
                400,
                f"this request would reach a guarded model without a verdict; ask for one of {sorted(self._gates)} by "
                "its name, and keep guarded models out of lists and fallbacks of others",
                "guardrail_refused",
            )
        return await super().async_pre_call_deployment_hook(kwargs, call_type)

    def _serves(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether a call's deployment belongs to a guarded model."""
        router = _router()
        metadata = kwargs.get("metadata") or kwargs.get("litellm_metadata") or {}
        deployment_id = (kwargs.get("model_info") or metadata.get("model_info") or {}).get("id")
        if router is None or deployment_id is None:
            return False
        deployment = router.get_deployment(model_id=deployment_id)
        if deployment is None:
            return False
        wild = "*" in str(deployment.litellm_params.model)  # this deployment serves many models under one id
        listed = [entry for name in self._gates for entry in router.get_model_list(model_name=name) or ()]
        return any(
            entry["model_info"]["id"] == deployment_id
            and (not wild or entry["litellm_params"]["model"] == kwargs.get("model"))
            for entry in listed
        )

    async def async_post_call_response_headers_hook(
        self, data: dict[str, Any], user_api_key_dict: Any, response: Any, **_: Any
    ) -> dict[str, str] | None:
        """The verdict as headers, without any text of an answer."""
        headers = (data.get("metadata") or {}).get(HEADERS)
        return dict(headers) if isinstance(headers, _Headers) else None

    def _check_settings(self, data: dict[str, Any]) -> None:
        """Refuse a client's sampling settings, or take them out of the request."""
        body = (data.get("proxy_server_request") or {}).get("body")
        sent = body if isinstance(body, Mapping) else {k: v for k, v in data.items() if k in _openai_params()}
        wrong = {name: value for name, value in sent.items() if value is not None and name not in PLAIN}
        if wrong.get("n") == 1:
            del wrong["n"]
        if wrong and (self._client_settings == "refuse" or "n" in wrong):
            shown = ", ".join(f"{name}={str(wrong[name])[:40]}" for name in sorted(wrong))
            raise UsageError(
                f"{shown} would change how the answer is drawn; the guardrail's artifact fixes that. Leave it out."
            )
        for name in wrong:
            data.pop(name, None)

    def _log(
        self, data: dict[str, Any], verdict: Verdict, started: float | None = None, *, abstained: bool = True
    ) -> None:
        headers = {
            "x-guardrail-accepted": str(verdict.accepted).lower(),
            "x-guardrail-abstained": str(abstained).lower(),
            "x-guardrail-reason": verdict.reason.value,
            "x-guardrail-uncertainty": "" if verdict.uncertainty.value is None else f"{verdict.uncertainty.value:.6g}",
            "x-guardrail-threshold": "" if verdict.threshold is None else f"{verdict.threshold:.6g}",
            "x-guardrail-artifact": verdict.artifact,
        }
        data["metadata"] = {**(data.get("metadata") or {}), HEADERS: _Headers(headers)}
        self.add_standard_logging_guardrail_information_to_request_data(
            guardrail_json_response=headers,
            request_data=data,
            guardrail_status="success" if verdict.accepted else "guardrail_intervened",
            start_time=started,
            guardrail_provider="acrc-guardrail",
        )


def _aliased(name: str) -> str:
    """The name in the router's ``model_list`` that a name stands for."""
    alias = (getattr(_router(), "model_group_alias", None) or {}).get(name, name)
    return str(alias.get("model", name) if isinstance(alias, Mapping) else alias)


def _loaded(artifact: CalibrationArtifact | str | Path) -> CalibrationArtifact:
    loaded = artifact if isinstance(artifact, CalibrationArtifact) else CalibrationArtifact.load(artifact)
    return loaded.refuse_segments("the proxy")


def _openai_params() -> frozenset[str]:
    return frozenset(require("litellm", extra="litellm").OPENAI_CHAT_COMPLETION_PARAMS)


def _response(message: AIMessage, model: str) -> Any:
    """A guard's message as LiteLLM's response."""
    types = require("litellm.types.utils", extra="litellm")
    calls = [
        {
            "id": str(call["id"]),
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["args"], ensure_ascii=False)},
        }
        for call in message.tool_calls
    ]
    usage = message.usage_metadata
    text = str(message.text)
    reply = types.Message(content=text if text or not calls else None, role="assistant", tool_calls=calls or None)
    return types.ModelResponse(
        id=f"chatcmpl-{uuid4().hex}",
        created=int(time.time()),
        model=model,
        choices=[types.Choices(index=0, message=reply, finish_reason="tool_calls" if calls else "stop")],
        usage=types.Usage(
            prompt_tokens=usage["input_tokens"] if usage else 0,
            completion_tokens=usage["output_tokens"] if usage else 0,
            total_tokens=usage["total_tokens"] if usage else 0,
        ),
    )


def _http(status: int, message: str, kind: str) -> Exception:
    """An error that the proxy answers with this status."""
    error: Exception = require("fastapi", extra="litellm").HTTPException(
        status_code=status, detail={"error": {"message": message, "type": kind}}
    )
    return error
