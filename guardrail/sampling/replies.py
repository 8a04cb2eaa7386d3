"""Read replies, and refuse those that cannot be judged, stored and given out unchanged.

JSON has no NaN and no infinity, UTF-8 no half of a surrogate pair, and every reader of nested values stops at some
depth. A reply with one of these would be judged in one form and shown, stored or run in another. The same holds for
the text of a reply whose tool calls cannot be read, and for a reply that does not end as whole answers do. Such a reply
counts as missing, so nothing is measured.
"""

from __future__ import annotations

import codecs
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from json import JSONDecodeError
from typing import Any

from langchain_core.messages import AIMessage

from ..errors import BrokenOffReplyError, PromptTooLongError, UnreadableReplyError
from ..foreign_errors import READING
from ..plain_json import json_fault, spelled, text_fault
from ..types import Bindings, Missing, Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured, is_logprob

_PASSING = frozenset({401, 402, 403, 404, 407, 408, 409, 425, 429})
"""HTTP status of errors that would hit any request: keys, addresses, limits, time."""
_MISCONFIGURED = frozenset({401, 403, 404})
"""HTTP status of errors that a wrong key, model name or address causes; they last until somebody corrects it."""
_REPLY_ERRORS = frozenset(
    {"ContentFilterFinishReasonError", "LengthFinishReasonError", "ModelBehaviorError", "UnexpectedModelBehavior"}
)
"""Class names of errors without a status that SDKs and agent frameworks raise about a reply; none of them is imported.

An adapter cannot add its own: an application may wrap a framework's model without it, and a question whose failure
depends on it would then be drawn again.
"""
_TRANSPORT_ERRORS = frozenset({"APIConnectionError", "ClientConnectionError", "TransportError"})
"""Class names of errors without a status that HTTP clients (OpenAI's and Anthropic's SDK, aiohttp, httpx) raise when a
connection fails."""


def cause_of(error: Exception) -> Unmeasured:
    """The reason why a call gave no answer: an unreadable reply, a request that the server refused, or a failed call.

    Errors of code that reads replies count as unreadable replies: some integrations raise them if a filter removed the
    answer. In doubt the question is the cause, so that nothing draws it again.
    """
    if isinstance(error, PromptTooLongError):
        return Unmeasured.REJECTED
    if isinstance(error, BrokenOffReplyError):
        return Unmeasured.MODEL_FAILED
    status = _status(error)
    if status in _MISCONFIGURED or (status is None and _finds_no_server(error)):
        return Unmeasured.MISCONFIGURED
    if status is not None and not 200 <= status < 300:
        return Unmeasured.REJECTED if 400 <= status < 500 and status not in _PASSING else Unmeasured.MODEL_FAILED
    if isinstance(error, OSError) and not isinstance(error, JSONDecodeError):  # some SSL errors are also a ValueError
        return Unmeasured.MODEL_FAILED
    reading = status is not None or isinstance(error, READING)
    if reading or any(kind.__name__ in _REPLY_ERRORS for kind in type(error).__mro__):
        return Unmeasured.UNREADABLE
    return Unmeasured.MODEL_FAILED


def transport_cause(error: Exception) -> Unmeasured | None:
    """`cause_of` if a connection or a server failed; None for any other error, which may depend on the answer.

    Unlike a model's client, the code that raised it may be anybody's: an error counts as the transport's only if it has
    an HTTP status or comes from the system or an HTTP client.
    """
    transport = any(
        isinstance(cause, OSError) or _TRANSPORT_ERRORS & {kind.__name__ for kind in type(cause).__mro__}
        for cause in _causes(error)
    )
    cause = cause_of(error) if transport or _status(error) is not None else None
    return None if cause is None or cause.depends_on_question else cause


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and the errors behind it."""
    cause: BaseException | None = error
    # Causes may form a cycle, so the chain is followed so far only.
    for _ in range(10):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__  # httpcore hides the system's error ("from None")


def _finds_no_server(error: BaseException) -> bool:
    """Whether no server answers: the host is unknown or refuses connections. SDKs wrap these errors in their own."""
    return any(isinstance(cause, ConnectionRefusedError | socket.gaierror) for cause in _causes(error))


def _status(error: Exception) -> int | None:
    """HTTP status of an error, from the places in which SDKs store it; None if it has no status."""
    reply = getattr(error, "response", None)
    inner = reply.get("ResponseMetadata") if isinstance(reply, dict) else None  # botocore
    places = (error, "status_code"), (error, "code"), (reply, "status_code"), (inner, "HTTPStatusCode")
    values = [at.get(name) if isinstance(at, dict) else getattr(at, name, None) for at, name in places]
    # Some SDKs keep codes of their own in `code`; only an HTTP status says who is at fault.
    return next((int(value) for value in values if isinstance(value, int) and 100 <= value < 600), None)


def failed_calls(
    failures: Sequence[tuple[Unmeasured, str]], calls: int, answers: Iterable[Sample]
) -> tuple[Unmeasured, str] | None:
    """The problem of a set in which calls failed, and its detail; None if none failed.

    The reason is the first cause that depends on the question, if there is one. After that comes a reply of another
    model than the pinned one. A wrong configuration is the reason only if it is the cause of every failed call.

    Args:
        failures: The cause of each failed call, and the error.
        calls: Number of calls.
        answers: The answers of the other calls; a refusal or an empty answer is a cause, too.
    """
    if not failures:
        return None
    causes = [cause for cause, _ in failures]
    of_answers = [
        Unmeasured.REFUSED if answer.refusal else Unmeasured.EMPTY_ANSWER
        for answer in answers
        if answer.refusal or not answer.comparable
    ]
    reason = next((cause for cause in (*causes, *of_answers) if cause.depends_on_question), Unmeasured.MODEL_FAILED)
    if reason is Unmeasured.MODEL_FAILED and Unmeasured.MODEL_CHANGED in causes:
        reason = Unmeasured.MODEL_CHANGED
    elif reason is Unmeasured.MODEL_FAILED and set(causes) == {Unmeasured.MISCONFIGURED}:
        reason = Unmeasured.MISCONFIGURED
    return reason, f"{len(failures)} of {calls} calls failed, the first with {failures[0][1]}"


def refused_samples(samples: Sequence[Sample]) -> tuple[Unmeasured, str] | None:
    """The problem of a set with samples that are refusals, and its detail; None without."""
    refused = sum(sample.refusal for sample in samples)
    return (
        (Unmeasured.REFUSED, f"{refused} of {len(samples)} samples are refusals or were filtered") if refused else None
    )


def only_readable(drawn: SampleSet) -> SampleSet:
    """The set without the replies that cannot be judged and given out unchanged; its ``problem`` says how many."""
    primary, samples = drawn.primary, drawn.samples
    replies = [(place, reply) for place, reply in enumerate((primary, *samples)) if reply is not None]
    faulty = {place: (reply, fault) for place, reply in replies if (fault := _fault_of(reply)) is not None}
    if not faulty:
        return drawn
    first = next(fault for _, fault in faulty.values())
    detail = f"{len(faulty)} of {len(replies)} replies are unreadable: {first}"
    of_the_server = all(_letters(reply.finish_reason or "") in _BROKEN_OFF for reply, _ in faulty.values())
    kept = tuple(sample for place, sample in enumerate(samples, start=1) if place not in faulty)
    problem = drawn.problem or Unmeasured.MODEL_FAILED if of_the_server else None
    return _unread(drawn, detail, problem, primary=None if 0 in faulty else primary, samples=kept)


def only_storable(drawn: SampleSet) -> SampleSet:
    """The set without a primary answer that a LangGraph state cannot hold; its ``problem`` says so.

    The samples stay unchanged: they are only measured, and shown as texts.
    """
    try:
        if drawn.primary is not None:
            refuse_unstorable(drawn.primary)
    except UnreadableReplyError as error:
        return _unread(drawn, str(error), primary=None)
    return drawn


def only_offered(drawn: SampleSet, bindings: Bindings | None) -> SampleSet:
    """The set without a primary answer that calls a tool which no call offered; its ``problem`` says so.

    The name of such a tool is the model's word, which no verdict may quote. A sample may call such a tool: it is only
    compared.
    """
    offered = () if bindings is None else bindings.tool_names
    calls = () if drawn.primary is None else drawn.primary.tool_calls
    if all(call.name in offered for call in calls):
        return drawn
    tools = f"the tools are {', '.join(offered)}" if offered else "no tool was bound"
    detail = f"the answer calls a tool that was not offered: {tools}"
    return _unread(drawn, detail, primary=None, not_offered=drawn.primary)


def _unread(drawn: SampleSet, detail: str, problem: Unmeasured | None = None, **changes: Any) -> SampleSet:
    """The set with a further fault; a failure of the transport in the same set does not hide an unreadable reply."""
    before = drawn.problem
    unreadable = before if before is not None and before.depends_on_question else Unmeasured.UNREADABLE
    whole = detail if before is None else f"{drawn.problem_detail}; {detail}"
    return drawn.model_copy(update={"problem": problem or unreadable, "problem_detail": whole, **changes})


def only_ended(drawn: SampleSet, plan: SamplingPlan) -> SampleSet:
    """The set; its ``problem`` says if no reply tells whether the answer is whole.

    An answer is whole if its server says so (`is_whole`): servers and proxies that lose the end of an answer lose the
    reason of the end as well. With ``cut_off="measure"`` a part is an answer, so nothing needs to be known. Of options
    the likeliest is the answer, and nothing was written.
    """
    written = drawn.samples if plan.primary == "majority" else (drawn.primary,)
    unknown = any(
        sample is not None and sample.comparable and not sample.refusal and sample.finish_reason is None
        for sample in written
    )
    if (
        not unknown
        or plan.cut_off == "measure"
        or drawn.problem is not None
        or (plan.options is not None and not plan.n)
    ):
        return drawn
    return drawn.model_copy(update={"problem": Unmeasured.UNREADABLE, "problem_detail": _NO_END})


_NO_END = (
    "the reply does not say why it ended (no finish_reason or the like), so it may be a part of an answer. If this "
    'model never says it, calibrate with --set cut_off=measure (cut_off="measure"), where a part is an answer, too'
)


def refuse_unstorable(sample: Sample) -> None:
    """Refuse a readable reply that a LangGraph state cannot hold.

    Raises:
        UnreadableReplyError: A call has an integer outside `PACKED`.
    """
    for call in sample.tool_calls:
        fault = json_fault(call.arguments, packed=True)
        if fault is not None:
            raise UnreadableReplyError(f"a tool call holds {fault}")


def _fault(text: str, calls: Iterable[ToolCall], end: str | None, *, refusal: bool) -> str | None:
    """The reason why an answer cannot be given out as judged, or may not be whole; it quotes no word of the model."""
    if (fault := text_fault(text)) is not None:
        return f"the answer holds {fault}"
    calls = tuple(calls)
    for call in calls:
        if (fault := json_fault([call.name, call.arguments])) is not None:
            return f"a tool call holds {fault}"
    return None if refusal else _end_fault(end, bool(calls))


def _fault_of(sample: Sample) -> str | None:
    return _fault(sample.text, sample.tool_calls, sample.finish_reason, refusal=sample.refusal)


# -- The tokens that spell a reply's text: end tokens and stop strings come after them -------------------------------
# Endpoints list different tokens: those of the text, and some also the end token, a stop string, or reasoning that the
# text leaves out. Each has its own way to write a token that is not a whole character.

BROKEN = "\ufffd"
"""The text of a token that is a part of a character, if its bytes are not given."""

Kept = tuple[tuple[str, ...], tuple[str, ...] | None]
"""Tokens, and their bytes in hex if any token needs them."""


def text_tokens(text: str, tokens: Sequence[str], token_bytes: Sequence[str] | None) -> Kept | None:
    """The leading tokens that spell a text; None if the tokens spell another text.

    Tokens after the text are dropped, white space among them unless the text ends in it. If the text ends within a
    token (a stop string began there), that token is kept and cut to the text. White space may differ, since servers
    strip texts and drop the space that begins a token, and so may replacement characters, which stand for parts of one
    character. A text of white space has no tokens.

    Args:
        text: The text from the server, not stripped.
        tokens: The tokens that the server listed.
        token_bytes: Their bytes in hex, if a token is not whole characters.
    """
    count = _exactly(text, pieces := _pieces(tokens, token_bytes)) if text.strip() else 0
    if count is not None:
        return tuple(tokens[:count]), None if token_bytes is None else tuple(token_bytes[:count])
    spelled_by = _apart_from_space("".join(text.split()), pieces)
    if spelled_by is None:
        return None
    count, cut = spelled_by
    leading, raw = list(tokens[:count]), None if token_bytes is None else list(token_bytes[:count])
    # A token that is part of a character has no text to cut; it stays whole.
    if cut and (raw is None or bytes.fromhex(raw[-1]) == pieces[count - 1][0].encode()):
        leading[-1] = pieces[count - 1][0][:-cut]
        if raw is not None:
            raw[-1] = leading[-1].encode().hex()
    return tuple(leading), None if raw is None else tuple(raw)


def _pieces(tokens: Sequence[str], token_bytes: Sequence[str] | None) -> list[tuple[str, bool]]:
    """The characters that each token completes, and whether it leaves one incomplete."""
    if token_bytes is None:
        return [(token, False) for token in tokens]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [(decoder.decode(bytes.fromhex(raw)), bool(decoder.getstate()[0])) for raw in token_bytes]


def _exactly(text: str, pieces: Sequence[tuple[str, bool]]) -> int | None:
    """The number of pieces that spell the text exactly; an incomplete character is written as BROKEN."""
    whole, length, exact = "".join(piece for piece, _ in pieces), 0, None
    for count, (piece, pending) in enumerate(pieces, start=1):
        length += len(piece)
        adds = piece or pending  # a token of no bytes at the end is an end token
        if adds and length + pending == len(text) and whole[:length] + BROKEN * pending == text:
            exact = count
    return exact


def _apart_from_space(letters: str, pieces: Sequence[tuple[str, bool]]) -> tuple[int, int] | None:
    """The number of pieces that spell the letters, white space aside, and of characters of the last one beyond them.

    A replacement character stands for a character that is not ASCII, or for a further part of the previous character.
    So after a piece several numbers of letters may have been spelled: bit i of ``counts`` says that i is one of them.
    """
    # Integers as sets of bits: all positions advance with one shift, however ambiguous the text is.
    places: dict[str, int] = {}
    for place, letter in enumerate(letters):
        places[letter] = places.get(letter, 0) | 1 << place
    wide = sum(at for letter, at in places.items() if not letter.isascii())
    counts, whole, last = 1, 1 << len(letters), None
    for place, (piece, pending) in enumerate(pieces):
        complete = bool(counts & whole)
        spelled = piece + BROKEN * (pending and place == len(pieces) - 1)
        for at, letter in enumerate(spelled):
            if letter.isspace():
                continue
            onwards = (counts & (wide if letter == BROKEN else places.get(letter, 0))) << 1
            if letter == BROKEN:  # or another part of the character before
                onwards |= counts & (wide << 1)
            if not onwards:
                within = not complete and counts & whole
                return (place + 1, len(spelled) - at) if within else None if last is None else (last, 0)
            counts = onwards
        if spelled.strip() and counts & whole:
            last = place + 1
    return None if last is None else (last, 0)


_ENDED = ("finish_reason", "stop_reason", "stopReason", "done_reason", "finishReason", "completionReason")
"""Keys under which LangChain's integrations store the reason why an answer ended: OpenAI, Gemini, Mistral, Groq and
Cohere; Anthropic; Bedrock Converse; Ollama; the last two are those of Google's and Amazon's own replies."""
_WHOLE = frozenset({
    "stop",  # OpenAI, Gemini, Mistral, Groq, Ollama, vLLM, llama.cpp
    "endturn", "stopsequence",  # Anthropic, Bedrock; the second also Cohere, Text Generation Inference and watsonx
    "complete", "completed",  # Cohere; status of OpenAI's Responses API
    "eos", "eostoken",  # Together; Text Generation Inference, watsonx
    "finish", "finished", "stopcriteriamet",  # Titan
})  # fmt: skip
"""Finish reasons of a whole answer; letters only, as in `_CUT`. Any other reason, known or not, is not one of them:
"pause_turn" (Anthropic), and those of `_BROKEN_OFF`."""
_BROKEN_OFF = frozenset({"error", "abort", "insufficientsystemresource"})
"""Finish reasons of a server that failed (OpenRouter, Mistral; vLLM; DeepSeek); letters only, as in `_CUT`. Under load
they take the place of an HTTP status, so they say nothing about the question."""
_CALLED = frozenset({"functioncall", "toolcall", "toolcalls", "tooluse"})
"""Finish reasons of a whole answer that has tool calls."""
_REFUSED = frozenset({
    "content_filter", "refusal",  # OpenAI; Anthropic
    "blocklist", "model_armor", "prohibited_content", "recitation", "safety", "spii",  # Gemini
    "content_filtered", "guardrail_intervened",  # Bedrock
    "error_toxic",  # Cohere
})  # fmt: skip
"""Finish reasons of a model or server that refused, or removed the answer."""
_CUT = frozenset({
    "incomplete", "length", "maxlength", "maxnewtokens", "maxoutputtokens", "maxtokens", "truncated",
    "contextlengthexceeded", "contextwindowexceeded", "modelcontextwindowexceeded", "modellength",  # of the model
    "timelimit", "tokenlimit",  # watsonx
    "errorlimit",  # Cohere
})  # fmt: skip
"""Finish reasons of a partial answer; letters only: providers write "max_tokens", "MAX_TOKENS", "maxTokens"."""


def end_of(message: AIMessage) -> str | None:
    """The reason why an answer ended, in the server's words; None if none is stated.

    Of several, one of a partial answer comes first.
    """
    ended = _ended(message.response_metadata)
    return next(filter(is_cut, ended), next(iter(ended), None))


def is_cut(reason: str | None) -> bool:
    """Whether a finish reason says that the answer ended because it became too long."""
    return reason is not None and _letters(reason) in _CUT


def is_whole(reason: str | None, *, calls: bool) -> bool:
    """Whether a finish reason says that the answer is whole.

    Args:
        reason: The reason; None if none is stated.
        calls: Whether the answer has tool calls: a model that ended to call a tool has made a call.
    """
    return reason is not None and (_letters(reason) in _WHOLE or (calls and _letters(reason) in _CALLED))


_THOUGHT = "<think>"
_LONGEST_REASON = 60
"""Characters of a finish reason that are quoted."""


def _end_fault(reason: str | None, calls: bool) -> str | None:
    """The fault of a stated end: neither the end of a whole answer nor that of an answer that became too long."""
    if reason is None or is_cut(reason) or is_whole(reason, calls=calls):
        return None
    lost = ", and has no tool call that can be read" if _letters(reason) in _CALLED else ""
    return f"the answer ended with finish_reason {spelled(reason[:_LONGEST_REASON])!r}{lost}, so it may not be whole"


def part_of_an_answer(drawn: SampleSet, plan: SamplingPlan) -> Missing | None:
    """The reason not to measure a primary answer that was cut off; None if it is whole, or if a part is an answer."""
    if plan.cut_off == "measure" or drawn.primary is None or not is_cut(drawn.primary.finish_reason):
        return None
    return Missing(
        Unmeasured.CUT_OFF,
        f"the answer was cut off at max_tokens = {plan.max_tokens}; calibrate with a larger one, or with "
        'cut_off="measure" if a part is an answer, too',
    )


def _ended(metadata: Mapping[str, Any]) -> list[str]:
    """The reasons why an answer ended, in the server's words, from each place of the metadata that states one."""
    partly = metadata.get("incomplete_details")  # OpenAI's Responses API, which may leave the reason out
    partly_reason = partly.get("reason") if partly and isinstance(partly, Mapping) else None
    status = metadata.get("status")
    reasons = [stated(metadata.get(name)) for name in _ENDED]
    reasons.append(stated(partly_reason) or ("incomplete" if status == "incomplete" else None))
    # Other providers have a status beside the reason, e.g. that of HTTP.
    return [reason for reason in reasons if reason is not None] or [*filter(None, [stated(status)])]


def stated(reason: Any) -> str | None:
    """A finish reason as a text; None if nothing is stated: null, or a text without a letter, digit or mark."""
    return None if reason is None else str(reason).strip() or None


@lru_cache(maxsize=64)  # a server has few reasons, and each answer of each question is asked about several times
def _letters(reason: str) -> str:
    """A reason in the spelling of `_WHOLE` and `_CUT`; any mark but those that join words makes another reason."""
    return re.sub(r"[\s_-]", "", _folded(reason))


def _folded(reason: str) -> str:
    """A reason in one spelling: "SAFETY", and "FinishReason.SAFETY" as Python writes a member of an enum, are equal."""
    return re.sub(r"^(?:finish|stop|done|completion)_?reason\.", "", reason.lower())


def is_refusal(reason: str | None) -> bool:
    """Whether a finish reason says that the model or its server refused to answer."""
    return reason is not None and _folded(reason) in _REFUSED


def _refused(message: AIMessage) -> bool:
    if message.additional_kwargs.get("refusal") or any(map(is_refusal, _ended(message.response_metadata))):
        return True
    blocks = message.content if isinstance(message.content, list) else []
    return any(isinstance(block, dict) and block.get("type") == "refusal" for block in blocks)


def read_reply(message: AIMessage) -> Sample:
    """A `Sample` from a chat model's message.

    Log-probabilities are read in OpenAI's form (``response_metadata["logprobs"]["content"]``, or for Ollama the list
    itself). A list that is incomplete, holds a placeholder (`guardrail.types.is_logprob`: NaN, -9999.0), or belongs to
    another text counts as not measured.
    Tokens after the text (end tokens, stop strings) are dropped. The tokens of tool calls are not compared with
    anything: the text that the model wrote for a call is not known.

    Raises:
        UnreadableReplyError: The reply cannot be judged and given out unchanged; see `guardrail.sampling.replies`. Or
            the stated reason of its end is not that of a whole answer (`is_whole`), nor that of a too long answer;
            `BrokenOffReplyError` if it says that the server failed.
    """
    # Content blocks hold thinking, too; `text` is what the user sees.
    text = without_thought(message.content if isinstance(message.content, str) else str(message.text))
    for bad in message.invalid_tool_calls:
        raise UnreadableReplyError(
            f"a tool call is not one of a function with a JSON object ({len(str(bad.get('args')))} characters)"
        )
    if message.additional_kwargs.get("function_call") and not message.tool_calls:
        raise UnreadableReplyError("a function call is in OpenAI's older form, which is not read")
    calls = tuple(ToolCall(name=call["name"], arguments=call["args"]) for call in message.tool_calls)
    end, refusal = end_of(message), _refused(message)
    if (fault := _fault(text, calls, end, refusal=refusal)) is not None:
        raise (BrokenOffReplyError if _letters(end or "") in _BROKEN_OFF else UnreadableReplyError)(fault)
    logprobs = message.response_metadata.get("logprobs")
    logprobs = {"content": logprobs} if isinstance(logprobs, list) else logprobs
    fields: dict[str, Any] = {} if logprobs is None else _measured(_without_end(logprobs))
    if not calls:  # the tokens of a call spell the model's own notation, which no reply contains
        fields = _of_text(text, fields)
    return Sample(text=text.strip(), tool_calls=calls, finish_reason=end, refusal=refusal, **fields)


def without_thought(text: str) -> str:
    """The answer after a thought that a server left in the text, as ``<think>...</think>`` before it.

    A thought that does not end leaves no answer.
    """
    if not text.lstrip().startswith(_THOUGHT):
        return text
    return text.partition("</think>")[2].lstrip()


def _of_text(text: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of the tokens that spell the text; empty if the tokens spell another text."""
    kept = text_tokens(text, fields["tokens"], fields["token_bytes"]) if fields else None
    if kept is None:
        return {}
    tokens, token_bytes = kept
    if token_bytes == tuple(token.encode().hex() for token in tokens):  # those that needed bytes were dropped
        token_bytes = None
    return {"tokens": tokens, "logprobs": fields["logprobs"][: len(tokens)], "token_bytes": token_bytes}


def _measured(listed: Any) -> dict[str, Any]:
    """Tokens, log-probabilities and bytes as fields of a `Sample`; empty if they were not measured."""
    tokens, logprobs = _token_logprobs(listed)
    if tokens is None:
        return {}
    return {"tokens": tokens, "logprobs": logprobs, "token_bytes": _token_bytes(listed["content"], tokens)}


def _without_end(listed: Any) -> Any:
    """Log-probabilities without the end of the answer, which llama-server lists as a last token of no bytes."""
    try:
        *rest, last = listed["content"]
        return {"content": rest} if last["token"] == "" and not last.get("bytes") else listed
    except (AttributeError, KeyError, TypeError, ValueError):
        return listed


def _token_logprobs(listed: Any) -> tuple[tuple[str, ...] | None, tuple[float, ...] | None]:
    try:
        content = listed["content"]
        tokens = tuple(str(item["token"]) for item in content)
        if any(isinstance(item["logprob"], bool) for item in content):  # which counts as 0 or 1
            return None, None
        logprobs = tuple(float(item["logprob"]) for item in content)
    except (KeyError, TypeError, ValueError):
        return None, None
    # One value that is none makes the sum of the answer meaningless, so all count as missing.
    return (tokens, tuple(min(value, 0.0) for value in logprobs)) if all(map(is_logprob, logprobs)) else (None, None)


def _token_bytes(content: Sequence[Any], tokens: Sequence[str]) -> tuple[str, ...] | None:
    """Bytes of the tokens in hex, from OpenAI's ``bytes``; None if the tokens' own text has the same bytes."""
    try:
        listed = [item.get("bytes") for item in content]
        if not any(listed):  # the server gave none; some SDKs write empty lists then
            return None
        raw = [
            token.encode() if listing is None else bytes(list(listing))
            for listing, token in zip(listed, tokens, strict=True)
        ]
        if all(each == token.encode() for each, token in zip(raw, tokens, strict=True)):
            return None
    except (AttributeError, TypeError, ValueError):  # not a list of bytes: the tokens' text must do
        return None
    return tuple(each.hex() for each in raw)
