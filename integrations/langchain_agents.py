"""`GuardrailMiddleware`: an agent built by LangChain's ``create_agent`` that acts only when its gates accept.

    agent = create_agent(model, tools=[balance, transfer_funds], system_prompt=..., checkpointer=...,
        middleware=[GuardrailMiddleware(artifact="answers.json", tools={"transfer_funds": "transfers.json"},
                                        exempt=["balance"], on_abstain="review")])

How it works, in the order of a step:

1. ``wrap_model_call`` puts an `AgentModel` in the place of the agent's model. It draws the artifact's samples
   with the messages, system prompt, tools and settings of the request, and judges the message.
2. A message that is held for a person is frozen in the state (`_agents.held`), packed, because
   streams show the state. The conversation shows a placeholder.
3. ``after_model``, another node, interrupts with the frozen candidate. A resumed run draws nothing again.
4. The decided message goes out through ``wrap_model_call``, so that other middleware sees it like a model's.
5. ``wrap_tool_call`` runs a gated call only if this very call was accepted or approved.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal, NotRequired, cast
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import BaseTool
from typing_extensions import Unpack

from guardrail.artifact import CalibrationArtifact, RouterArtifact
from guardrail.errors import UsageError, require
from guardrail.guard.abstention import worded
from guardrail.sampling.effects import Effect, Steps, arun, run
from guardrail.types import Bindings

from ._agents.agent_model import AgentModel, CallResult, HeldBack
from ._agents.calls import is_of_call, same_call
from ._agents.decisions import edit_note, released
from ._agents.gates import AgentGate
from ._agents.held import MessageNote, ToolCallOrder, pack, unpack
from ._agents.langchain_requests import (
    Offered,
    OfferRecorder,
    decided_response,
    has_checkpointer,
    name_of,
    step_of,
)
from ._agents.options import ArtifactLike, GateOptions
from ._agents.unsure import VERDICTS, CallCheck
from ._agents.verdicts import MOST_IN_MEMORY, VerdictStore
from ._openai.lru import LRU
from .langgraph_review import ask

require("langgraph", extra="agents")
require("langchain.agents", extra="agents")

from langchain.agents import create_agent  # noqa: E402
from langchain.agents.middleware.types import (  # noqa: E402
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    PrivateStateAttr,
    ToolCallRequest,
    hook_config,
)
from langgraph.channels import UntrackedValue  # noqa: E402
from langgraph.types import Command, TracePolicy, omit_payload  # noqa: E402

__all__ = ["GuardrailMiddleware", "GuardrailState", "agent_bindings", "unsure"]

log = logging.getLogger("guardrail")


class GuardrailState(AgentState[Any]):
    """State of a guarded agent: one more key, in no input and no output."""

    guardrail: NotRequired[Annotated[str | None, PrivateStateAttr]]
    """Note about the last message, packed; see `integrations._agents.held`."""
    guardrail_decided: NotRequired[Annotated[bool, UntrackedValue, PrivateStateAttr]]
    """True if a person has decided in this very run; never stored."""


class GuardrailMiddleware(AgentMiddleware[Any, Any, Any]):
    """Gates an agent's final answers and tool calls, each by its own calibrated artifact.

    The message with its tool calls is one candidate. Parallel calls are judged together and by the strictest rule: the
    message goes out only if the artifact of every gated call in it accepts; otherwise all its gated calls are held
    together. A message with text and calls is judged by its calls; the text goes out, or is held, with them.

    The agent's model must be the calibrated one, with the same system prompt and tools (in any order); every call
    checks this. No check can tell whether conversations and tool results are like those of calibration.

    List one in an agent, and list it last: a call that other middleware changes is not run, wherever it stands, and
    middleware after this one can still put another tool in the place of the judged call's. ``HumanInTheLoopMiddleware``
    may stand before or after it, and both are asked; edits of its ``per_call`` mode are not run.

    Args:
        artifact: Judges final answers (and structured output): an artifact or its file. None lets answers pass;
            "collect" stands for none yet. With ``key`` the artifact of a router (`calibrate fit --by group`).
        **options: See `GateOptions`. "review" needs a checkpointer. A message of another model than the guarded one,
            such as ``ModelFallbackMiddleware``'s, is treated like one that could not be measured.

    Raises:
        UsageError: Nothing is gated, or a tool is gated and exempt at once; or a tool collects where no person decides.
        ArtifactError: An artifact cannot be read, or they were not collected together.
    """

    state_schema = GuardrailState
    trace_policy = TracePolicy(process_inputs=omit_payload, process_outputs=omit_payload)

    def __init__(
        self,
        artifact: ArtifactLike | RouterArtifact | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__()
        self.tools = []
        self._gate = AgentGate(artifact, options)

    # -- the model call ----------------------------------------------------------------------------------------------

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Draw and judge in place of the model, or give out what a person has decided."""
        return run(self._model_call(request, handler))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """`wrap_model_call` without blocking the event loop."""
        return await arun(self._model_call(request, handler))

    def _model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]
    ) -> Steps[ModelResponse[Any] | ExtendedModelResponse[Any]]:
        """Either way of the model call; the handler is sync in one and async in the other."""
        note = _decided(request.state)
        if note is None:
            response, note = yield from self._judge(request, handler)
        else:
            response, note = self._give_out(request, note)
        return ExtendedModelResponse(model_response=response, command=Command(update={"guardrail": pack(note)}))

    def _judge(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]
    ) -> Steps[tuple[ModelResponse[Any], MessageNote]]:
        """The response of a gated model in place of the agent's, and the note about it."""
        if self._gate.reviewed and not has_checkpointer():
            raise UsageError(
                'on_abstain="review" and tools={NAME: "collect"} hold messages for a person, and this agent has no '
                "checkpointer to keep them. Give it one: create_agent(..., checkpointer=InMemorySaver()), or "
                'SqliteSaver to survive a restart. Without a person: on_abstain="message".'
            )
        step = step_of(request)
        result = CallResult()
        model = AgentModel(gate=self._gate.admit(step), step=step, result=result, profile=step.model.profile)
        call = partial(handler, request.override(model=model))
        response: ModelResponse[Any] = ModelResponse(result=[])
        try:
            response = yield Effect(call, call)
        except HeldBack:
            assert result.held, "it is raised for a held message"
        message = next((answer for answer in response.result if isinstance(answer, AIMessage)), None)
        if not result.held and message is not None and not result.judged(message):
            response = ModelResponse(result=[(yield from model.judge_other_steps(message))])
        if result.held and result.message is not None:  # also where middleware took the signal for a failure
            response = ModelResponse(result=[result.message])
        return response, result.note

    def _give_out(self, request: ModelRequest[Any], note: MessageNote) -> tuple[ModelResponse[Any], MessageNote]:
        """The decided message, which other middleware sees like a model's; no model is called."""
        assert note.held is not None, "a decision is about a held message"
        refusal = partial(worded, self._gate.options["abstain_message"])
        message, orders = released(note.held, cast(Any, note.decisions), refusal)
        decided = message.to_message().model_copy(update={"id": f"guardrail-{uuid4()}"})
        return decided_response(request.response_format, decided), MessageNote(orders=orders)

    # -- the person --------------------------------------------------------------------------------------------------

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """A new turn: drop a message of an earlier one that was held, or decided and not given out."""
        note = unpack(state.get("guardrail"))
        return None if note is None or note.held is None else {"guardrail": None}

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """`before_agent` for async agents."""
        return self.before_agent(state, runtime)

    @hook_config(can_jump_to=["model"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Ask about a held-back message; the decided message goes out through the model node."""
        note = unpack(state.get("guardrail"))
        if note is None or note.held is None or note.decisions:
            return None
        decisions: Any = tuple(ask(note.held))
        decided = note.model_copy(update={"decisions": decisions, "asked": _last_question(state)})
        update: dict[str, Any] = {"guardrail": pack(decided), "guardrail_decided": True, "jump_to": "model"}
        if any(message.id == note.placeholder for message in state["messages"]):  # an application may have removed it
            update["messages"] = [RemoveMessage(id=str(note.placeholder))]
        return update

    @hook_config(can_jump_to=["model"])
    async def aafter_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """`after_model` for async agents. Traceloop's instrumentation would put LangChain's own hook in its place."""
        return self.after_model(state, runtime)

    # -- the tools ---------------------------------------------------------------------------------------------------

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Run the call if this very call may run; otherwise tell the model why not."""
        return run(self._tool_call(request, handler))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """`wrap_tool_call` without blocking the event loop."""
        return await arun(self._tool_call(request, handler))

    def _tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]
    ) -> Steps[ToolMessage | Command[Any]]:
        """Either way of the tool call; the handler is sync in one and async in the other."""
        order = _order_of(request, self._gate.artifacts.exempt)
        if isinstance(order, ToolMessage):
            return order
        with _once(request, order) as first:
            if not first:
                name = request.tool_call["name"]
                why = f"Another run of this conversation took up this call of {name}, so it was not run again."
                return _answer_for(request, why)
            call = partial(handler, _edited(request, order))
            result: ToolMessage | Command[Any] = yield Effect(call, call)
        if order.decision != "edit":
            return result
        return _with_edit_note(result, edit_note(order.args), request.tool_call["id"])


def _decided(state: Mapping[str, Any]) -> MessageNote | None:
    """The note about a message that a person has decided in this turn and that did not go out yet, if any.

    Usually a new turn drops the note of an earlier one; other middleware may jump over that hook. So in another run
    than that of the decision (which went on after an error) the last question must be the same.
    """
    note = unpack(state.get("guardrail"))
    if note is None or not note.decisions:
        return None
    return note if state.get("guardrail_decided") or note.asked == _last_question(state) else None


def _last_question(state: Mapping[str, Any]) -> str | None:
    """Id of the last human message."""
    return next((message.id for message in reversed(state["messages"]) if message.type == "human"), None)


# -- the tool node: whether this very call may run, with which arguments, and the text the model reads -----------------


def _order_of(request: ToolCallRequest, exempt: Collection[str]) -> ToolCallOrder | ToolMessage:
    """The order about a call, or the message that takes the place of its result."""
    call = cast("Mapping[str, Any]", request.tool_call)
    if request.tool is not None:
        call = {**call, "name": request.tool.name}  # the tool that would run
    judged = _call_in(request.state["messages"], call["id"]) or call
    if judged["name"] in exempt and call["name"] in exempt:
        return ToolCallOrder(digest="", decision="exempt")
    name = call["name"]
    note = unpack(request.state.get("guardrail"))
    order = None if note is None or note.held is not None else note.orders.get(str(call["id"]))
    if order is None or not is_of_call(order.digest, judged["name"], judged["args"]):
        why = "no gate has judged it. It was changed after it was judged, or did not come from the guarded model."
        return _answer_for(request, f"The call of {name} was not run: {why}", name)
    if not same_call(call, judged):
        if same_call(call, _policy_edit(request)):  # a person's edit, made after any decision in this order
            return ToolCallOrder(digest=order.digest, decision="approve")
        why = "other middleware changed it after it was judged."
        return _answer_for(request, f"The call of {name} was not run: {why}", name)
    if order.decision in ("reject", "respond"):
        return _answer_for(request, str(order.message), name, "error" if order.decision == "reject" else "success")
    return order


_taken_up: LRU[Lock] = LRU(MOST_IN_MEMORY)
"""Locks of decided calls by id; a call that runs or has run in this process holds its own."""


@contextmanager
def _once(request: ToolCallRequest, order: ToolCallOrder) -> Iterator[bool]:
    """Yield True if this run carries a person's decision out: of two that are resumed at once, the first does.

    LangGraph has no lease on a thread, and another process is not seen. A tool that failed may run again.
    """
    decided = order.decision in ("approve", "edit")
    lock = _taken_up.get(str(request.tool_call["id"]), Lock) if decided else Lock()
    first = lock.acquire(blocking=False)
    try:
        yield first
    except BaseException:
        if first:
            lock.release()
        raise


def _edited(request: ToolCallRequest, order: ToolCallOrder) -> ToolCallRequest:
    """The request, with a person's edit of the call if there is one, to a tool that runs this very call only."""
    if order.decision == "exempt":
        return request
    call: Any = request.tool_call if order.args is None else {**request.tool_call, "args": order.args}
    if request.tool is None:  # the model made the name up, or middleware brings the tool
        return request.override(tool_call=call)
    return request.override(tool_call=call, tool=_only(request.tool, call, _policy_edit(request)))


def _only(tool: BaseTool, call: Mapping[str, Any], edit: Mapping[str, Any]) -> BaseTool:
    """A copy of a tool that runs one call, or a person's edit of it, and no change by middleware after the guard."""
    only = tool.model_copy()
    schema = tool.args_schema
    offered = schema.get("properties", {}) if isinstance(schema, dict) else tool.args

    def refusal(received: Any) -> ToolMessage | None:
        # ToolNode adds arguments that no model sees: state, store, runtime.
        args = {name: value for name, value in received["args"].items() if name in call["args"] or name in offered}
        would_run = {"name": received["name"], "args": args}
        if same_call(would_run, call) or same_call(would_run, edit):
            return None
        why = (
            f"The call of {call['name']} was not run: middleware listed after GuardrailMiddleware changed it after it "
            "was judged. List GuardrailMiddleware last."
        )
        log.error("guardrail: %s", why)
        return ToolMessage(why, name=call["name"], tool_call_id=call["id"], status="error")

    def invoke(received: Any, config: Any = None, **kwargs: Any) -> Any:
        return refusal(received) or tool.invoke(received, config, **kwargs)

    async def ainvoke(received: Any, config: Any = None, **kwargs: Any) -> Any:
        return refusal(received) or await tool.ainvoke(received, config, **kwargs)

    vars(only).update(invoke=invoke, ainvoke=ainvoke)
    return only


def _with_edit_note(result: ToolMessage | Command[Any], note: str, call_id: Any) -> ToolMessage | Command[Any]:
    """The result of a call that a person changed, preceded by a note about it."""
    if isinstance(result, ToolMessage):
        return _noted(result, note)
    update = result.update
    if isinstance(update, Mapping):
        return replace(result, update={key: _among(value, note, call_id) for key, value in update.items()})
    if isinstance(update, list | tuple):
        return replace(result, update=[(key, _among(value, note, call_id)) for key, value in update])
    return result


def _among(values: Any, note: str, call_id: Any) -> Any:
    """Messages of a tool's command, with the note in the message that answers the call."""
    if not isinstance(values, list | tuple):
        return values
    return [
        _noted(message, note) if isinstance(message, ToolMessage) and message.tool_call_id == call_id else message
        for message in values
    ]


def _noted(result: ToolMessage, note: str) -> ToolMessage:
    content: Any = result.content
    text = f"{note}\n{content}" if isinstance(content, str) else [{"type": "text", "text": f"{note}\n"}, *content]
    return result.model_copy(update={"content": text})


def _call_in(messages: Sequence[BaseMessage], call_id: Any) -> Mapping[str, Any] | None:
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            return next((cast("Mapping[str, Any]", c) for c in message.tool_calls if c["id"] == call_id), None)
    return None


def _policy_edit(request: ToolCallRequest) -> Mapping[str, Any]:
    """A person's edit of the call in ``HumanInTheLoopMiddleware`` (batched); empty without one."""
    edits = request.state.get("hitl_edited_tool_calls") or {}
    return cast("Mapping[str, Any]", edits.get(request.tool_call["id"], {}))


def _answer_for(
    request: ToolCallRequest, text: str, name: str | None = None, status: Literal["success", "error"] = "error"
) -> ToolMessage:
    """The message in place of a call's result."""
    call = request.tool_call
    return ToolMessage(text, name=name or call["name"], tool_call_id=str(call["id"]), status=status)


def agent_bindings(model: BaseChatModel, tools: Sequence[Any] = (), **agent: Any) -> Bindings:
    """An agent's tools and response format as calibration needs them (``tools.json`` of ``calibrate collect``).

    LangChain decides by the model how it asks for a ``response_format``: as a tool, or of the provider.

    Args:
        model: The agent's model. It is not called.
        tools: The agent's tools.
        **agent: Further arguments of ``create_agent`` that change what the model is offered: ``response_format``, and
            ``middleware`` that brings tools (not `GuardrailMiddleware`).
    """
    recorder = OfferRecorder(model_name=name_of(model), profile=model.profile)
    try:
        create_agent(recorder, list(tools), **agent).invoke({"messages": [HumanMessage("?")]})
    except Offered as offered:
        return cast(Bindings, offered.args[0])
    raise UsageError("this agent called no model. Leave out middleware that answers in its place.")


def unsure(
    artifact: CalibrationArtifact | str | Path,
    model: BaseChatModel,
    *,
    verdicts: VerdictStore | str | Path = VERDICTS,
    **guard_options: Any,
) -> Callable[[ToolCallRequest], bool]:
    """For ``when`` of LangChain's ``HumanInTheLoopMiddleware``: a person is asked unless the gate accepts the call.

        HumanInTheLoopMiddleware(interrupt_on={"refund": {
            "when": unsure("refund.json", model), "allowed_decisions": ["approve", "reject"]}})

    The agent has drawn the message already. The predicate draws the artifact's samples for the same conversation and
    judges the message once. The verdict is kept in a file for each call, because LangChain asks again on resume, and
    would run a rejected call on another answer. A call that cannot be measured, or was changed since, is asked about.

    Not covered, unlike `GuardrailMiddleware`: streams show the message before the verdict; a message that the
    calibrated model did not write is judged as if it had; tools, prompt and settings of the agent are not compared with
    those of the calibration. In an async agent the event loop waits while samples are drawn.

    Args:
        artifact: Judges messages that call the tool: an artifact or its file.
        model: The agent's model.
        verdicts: File of the verdicts, or a store. Every process that resumes the agent needs the same one.
        **guard_options: Further settings of `Guardrail`.

    Raises:
        UsageError: The artifact answers with a vote, or its prompt has slots.
        ArtifactError: The artifact was made for another model.
    """
    check = CallCheck(model, artifact, verdicts, guard_options)
    return lambda request: run(check.steps(request.state["messages"], cast("Mapping[str, Any]", request.tool_call)))
