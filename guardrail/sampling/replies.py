"""Reads replies, and refuses those that cannot be judged, stored and given out as they are.

JSON has no NaN and no infinity, UTF-8 no half of a surrogate pair, and every reader of nested values stops at some
depth. A reply with one of these would be shown, stored or run as something else than what was judged. So would the text
of a reply whose tool calls cannot be read. Such a reply counts as missing, so nothing is measured.
"""

from __future__ import annotations

import codecs
import math
import socket
from collections.abc import Iterable, Mapping, Sequence
from json import JSONDecodeError
from typing import Any

from langchain_core.messages import AIMessage

from ..errors import READING, PromptTooLongError, UnreadableReplyError
from ..plain_json import json_fault, spelled, text_fault
from ..types import Missing, Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured

__all__ = [
    "cause_of",
    "cut_off",
    "failed_calls",
    "is_cut",
    "only_readable",
    "only_storable",
    "part_of_an_answer",
    "read_reply",
    "refuse_unreadable",
    "refuse_unstorable",
    "text_tokens",
]


_PASSING = frozenset({401, 402, 403, 404, 407, 408, 409, 425, 429})
"""HTTP status of errors that would hit any request: keys, addresses, limits, time."""
_MISCONFIGURED = frozenset({401, 403, 404})
"""HTTP status of errors that a wrong key, model name or address causes; they last until somebody corrects it."""
_WORDLESS = frozenset({
    "ContentFilterFinishReasonError", "LengthFinishReasonError",  # openai
    "ModelBehaviorError", "UnexpectedModelBehavior",  # OpenAI Agents SDK; pydantic-ai
})  # fmt: skip
"""Errors without a status that SDKs raise about what a model said."""


def cause_of(error: Exception) -> Unmeasured:
    """Why a call gave no answer: an unreadable reply, a request that the server refused, or else a failed call.

    Errors of code that reads replies count as unreadable ones: some integrations raise them where a filter took the
    answer away. In doubt the question is the cause, so that nothing draws it again.
    """
    if isinstance(error, PromptTooLongError):
        return Unmeasured.REJECTED
    status = _status(error)
    if status in _MISCONFIGURED or (status is None and _finds_no_server(error)):
        return Unmeasured.MISCONFIGURED
    if status is not None and not 200 <= status < 300:
        return Unmeasured.REJECTED if 400 <= status < 500 and status not in _PASSING else Unmeasured.MODEL_FAILED
    if isinstance(error, OSError) and not isinstance(error, JSONDecodeError):  # some SSL errors are also a ValueError
        return Unmeasured.MODEL_FAILED
    reading = status is not None or isinstance(error, READING)
    if reading or any(kind.__name__ in _WORDLESS for kind in type(error).__mro__):
        return Unmeasured.UNREADABLE
    return Unmeasured.MODEL_FAILED


def _finds_no_server(error: BaseException) -> bool:
    """Whether nothing answers at the address: no such host, or nobody listens there. SDKs wrap these errors."""
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            return False
        if isinstance(seen, ConnectionRefusedError | socket.gaierror):
            return True
        seen = seen.__cause__ or seen.__context__  # httpcore hides the system's error ("from None")
    return False


def _status(error: Exception) -> int | None:
    """HTTP status of an error, where SDKs keep it; None if there is none."""
    reply = getattr(error, "response", None)
    inner = reply.get("ResponseMetadata") if isinstance(reply, dict) else None  # botocore
    places = (error, "status_code"), (error, "code"), (reply, "status_code"), (inner, "HTTPStatusCode")
    found = [at.get(name) if isinstance(at, dict) else getattr(at, name, None) for at, name in places]
    return next((int(one) for one in found if isinstance(one, int) and 100 <= one < 600), None)


def failed_calls(causes: Iterable[Unmeasured], answers: Iterable[Sample]) -> Unmeasured:
    """The reason of a set in which calls failed: one that depends on the question, if any took part.

    A wrong configuration is the reason only where it is that of every failed call.

    Args:
        causes: Why calls failed.
        answers: What the other calls gave; a refusal or an empty one is a cause, too.
    """
    said = [
        Unmeasured.REFUSED if one.refusal else Unmeasured.EMPTY_ANSWER
        for one in answers
        if one.refusal or not one.comparable
    ]
    given = list(causes)
    found = next((one for one in (*given, *said) if one.depends_on_question), None)
    if found is None and given and all(one is Unmeasured.MISCONFIGURED for one in given):
        return Unmeasured.MISCONFIGURED
    return found or Unmeasured.MODEL_FAILED


def refuse_unreadable(message: AIMessage, text: str) -> None:
    """Refuse a reply that cannot be judged and given out as it is.

    Args:
        message: The reply.
        text: Its text.

    Raises:
        UnreadableReplyError: Broken text, arguments that are not plain JSON, or a tool call that could not be parsed.
    """
    for bad in message.invalid_tool_calls:
        raise UnreadableReplyError(
            f"a call of the tool {spelled(str(bad.get('name')))!r} has arguments that are not a JSON object "
            f"({len(str(bad.get('args')))} characters)"
        )
    _refuse(text, ((call["name"], call["args"]) for call in message.tool_calls))


def only_readable(drawn: SampleSet) -> SampleSet:
    """The set without replies that cannot be judged and given out as they are; its ``problem`` says how many."""
    primary_fault = None if drawn.primary is None else _fault(drawn.primary)
    found = [_fault(sample) for sample in drawn.samples]
    faults = [fault for fault in (primary_fault, *found) if fault is not None]
    if not faults:
        return drawn
    detail = f"{len(faults)} of {len(drawn.samples) + (drawn.primary is not None)} replies are unreadable: {faults[0]}"
    problem = _unreadable(drawn)
    found_out = detail if drawn.problem is None else f"{drawn.problem_detail}; {detail}"
    return drawn.model_copy(
        update={
            "primary": drawn.primary if primary_fault is None else None,
            "samples": tuple(one for one, fault in zip(drawn.samples, found, strict=True) if fault is None),
            "problem": problem,
            "problem_detail": found_out,
        }
    )


def only_storable(drawn: SampleSet) -> SampleSet:
    """The set without a primary answer that a LangGraph state cannot hold; its ``problem`` says so.

    The samples stay as they are: they are only measured, and shown as texts.
    """
    try:
        if drawn.primary is not None:
            refuse_unstorable(drawn.primary)
    except UnreadableReplyError as error:
        detail = str(error) if drawn.problem is None else f"{drawn.problem_detail}; {error}"
        return drawn.model_copy(update={"primary": None, "problem": _unreadable(drawn), "problem_detail": detail})
    return drawn


def _unreadable(drawn: SampleSet) -> Unmeasured:
    """The problem of a set with an unreadable reply: a failure of the transport beside it does not hide that."""
    known = drawn.problem
    return known if known is not None and known.depends_on_question else Unmeasured.UNREADABLE


def refuse_unstorable(sample: Sample) -> None:
    """Refuse a readable reply that a LangGraph state cannot hold.

    Raises:
        UnreadableReplyError: A call has an integer outside `PACKED`.
    """
    for call in sample.tool_calls:
        fault = json_fault(call.arguments, packed=True)
        if fault is not None:
            raise UnreadableReplyError(f"the call of {spelled(call.name)!r} holds {fault}")


def _fault(sample: Sample) -> str | None:
    try:
        _refuse(sample.text, ((call.name, call.arguments) for call in sample.tool_calls))
    except UnreadableReplyError as error:
        return str(error)
    return None


def _refuse(text: str, calls: Iterable[tuple[str, Any]]) -> None:
    fault = text_fault(text)
    if fault is not None:
        raise UnreadableReplyError(f"the answer holds {fault}")
    for name, arguments in calls:
        fault = json_fault([name, arguments])
        if fault is not None:
            raise UnreadableReplyError(f"the call of {spelled(name)!r} holds {fault}")


# -- Which of a reply's tokens spell its text: end tokens and stop strings come after it, other texts are not it -------
# Endpoints differ in what they list. Besides the tokens of the text it may be the end token, a stop string, or
# reasoning that was taken out of the text before it. And they write tokens that are not whole characters in their own
# ways.

BROKEN = "\ufffd"
"""What a token that is a part of a character is shown as, where its bytes are not given."""

Kept = tuple[tuple[str, ...], tuple[str, ...] | None]
"""Tokens, and their bytes in hex where those are needed."""


def text_tokens(text: str, tokens: Sequence[str], token_bytes: Sequence[str] | None) -> Kept | None:
    """The leading tokens that spell a text; None where the tokens are those of another text.

    Tokens after the text are dropped, white space among them unless the text ends in it. A token that the text ends
    within (a stop string began there) is kept, cut to the text. Not taken for another text: white space that differs,
    since servers strip texts and drop the space that begins a token, and replacement characters that stand for parts
    of one character. A text of white space has no tokens.

    Args:
        text: The text as the server gave it, not stripped.
        tokens: What it listed.
        token_bytes: Their bytes in hex, where a token is not whole characters.
    """
    count = _exactly(text, pieces := _pieces(tokens, token_bytes)) if text.strip() else 0
    if count is not None:
        return tuple(tokens[:count]), None if token_bytes is None else tuple(token_bytes[:count])
    found = _apart_from_space("".join(text.split()), pieces)
    if found is None:
        return None
    count, cut = found
    kept, raw = list(tokens[:count]), None if token_bytes is None else list(token_bytes[:count])
    if cut and (raw is None or bytes.fromhex(raw[-1]) == pieces[count - 1][0].encode()):
        kept[-1] = pieces[count - 1][0][:-cut]
        if raw is not None:
            raw[-1] = kept[-1].encode().hex()
    return tuple(kept), None if raw is None else tuple(raw)


def _pieces(tokens: Sequence[str], token_bytes: Sequence[str] | None) -> list[tuple[str, bool]]:
    """The characters that each token completes, and whether it leaves one incomplete."""
    if token_bytes is None:
        return [(token, False) for token in tokens]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [(decoder.decode(bytes.fromhex(raw)), bool(decoder.getstate()[0])) for raw in token_bytes]


def _exactly(text: str, pieces: Sequence[tuple[str, bool]]) -> int | None:
    """How many pieces spell the text to the letter; an incomplete character is shown as BROKEN."""
    whole, length, found = "".join(piece for piece, _ in pieces), 0, None
    for count, (piece, pending) in enumerate(pieces, start=1):
        length += len(piece)
        adds = piece or pending  # a token of no bytes at the end is an end token
        if adds and length + pending == len(text) and whole[:length] + BROKEN * pending == text:
            found = count
    return found


def _apart_from_space(letters: str, pieces: Sequence[tuple[str, bool]]) -> tuple[int, int] | None:
    """How many pieces spell the letters, white space aside, and how many characters of the last go beyond them.

    A replacement character stands for a character that is not ASCII, or for another part of the one before: after some
    pieces the letters spelled so far may be any of several counts. Bit i of ``counts``: i letters are one of them.
    """
    places: dict[str, int] = {}
    for place, letter in enumerate(letters):
        places[letter] = places.get(letter, 0) | 1 << place
    wide = sum(at for letter, at in places.items() if not letter.isascii())
    counts, whole, found = 1, 1 << len(letters), None
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
                return (place + 1, len(spelled) - at) if within else None if found is None else (found, 0)
            counts = onwards
        if spelled.strip() and counts & whole:
            found = place + 1
    return None if found is None else (found, 0)


_ENDED = ("finish_reason", "stop_reason", "stopReason", "done_reason", "finishReason", "completionReason")
"""Where LangChain's integrations say why an answer ended: OpenAI and Gemini, Anthropic, Bedrock Converse, Ollama; the
last two are those of Google's and Amazon's own replies."""
_REFUSED = frozenset({
    "content_filter", "refusal",  # OpenAI; Anthropic
    "blocklist", "model_armor", "prohibited_content", "recitation", "safety", "spii",  # Gemini
    "content_filtered", "guardrail_intervened",  # Bedrock
    "error_toxic",  # Cohere
})  # fmt: skip
"""Reasons that say the model or its server refused, or took what was said away."""
_CUT = frozenset({
    "incomplete", "length", "maxlength", "maxnewtokens", "maxoutputtokens", "maxtokens", "truncated",
    "contextlengthexceeded", "contextwindowexceeded", "modelcontextwindowexceeded", "modellength",  # of the model
    "timelimit", "tokenlimit",  # watsonx
    "errorlimit",  # Cohere
})  # fmt: skip
"""Reasons that say the answer is not whole; letters only: providers write "max_tokens", "MAX_TOKENS", "maxTokens"."""


def cut_off(message: AIMessage) -> bool:
    """Whether the answer ended because it became too long, so that it is not whole."""
    return any(map(is_cut, _ended(message.response_metadata)))


def is_cut(reason: str | None) -> bool:
    """Whether a finish reason says that the answer is not whole."""
    return reason is not None and "".join(filter(str.isalpha, _folded(reason))) in _CUT


def part_of_an_answer(drawn: SampleSet, plan: SamplingPlan) -> Missing | None:
    """Why a primary answer that was cut off is not measured; None where it is whole, or not known to be cut."""
    if drawn.primary is None or not is_cut(drawn.primary.finish_reason):
        return None
    return Missing(
        Unmeasured.CUT_OFF,
        f"the answer was cut off at max_tokens = {plan.max_tokens}; calibrate with a larger one, or with "
        'cut_off="measure" if a part is an answer, too',
    )


def _ended(metadata: Mapping[str, Any]) -> list[str]:
    """Why an answer ended, in the server's words; more than one where the metadata says it in several places."""
    partly = metadata.get("incomplete_details")  # OpenAI's Responses API, which may leave the reason out
    reason = partly.get("reason") if isinstance(partly, Mapping) else None
    status = "incomplete" if metadata.get("status") == "incomplete" else None
    found = [*(metadata.get(name) for name in _ENDED), reason or status]
    return [str(one) for one in found if one]


def _folded(reason: str) -> str:
    """A reason in one spelling: "SAFETY", and "FinishReason.SAFETY" as Python writes a member of an enum, are equal."""
    return reason.rpartition(".")[2].casefold()


def _refused(message: AIMessage) -> bool:
    if message.additional_kwargs.get("refusal") or not _REFUSED.isdisjoint(
        map(_folded, _ended(message.response_metadata))
    ):
        return True
    blocks = message.content if isinstance(message.content, list) else []
    return any(isinstance(block, dict) and block.get("type") == "refusal" for block in blocks)


def read_reply(message: AIMessage) -> Sample:
    """A `Sample` from a chat model's message.

    Log-probabilities are read in OpenAI's form (``response_metadata["logprobs"]["content"]``, or for Ollama the list
    itself). A list that is
    incomplete, holds a NaN or an infinity, or is that of another text counts as not measured. Tokens after the text
    (end tokens, stop strings) are left out. The tokens of tool calls are taken as they are: what a call was written
    like is not known.

    Raises:
        UnreadableReplyError: The reply cannot be judged and given out as it is; see `guardrail.sampling.replies`.
    """
    text = message.content if isinstance(message.content, str) else str(message.text)
    refuse_unreadable(message, text)
    metadata = message.response_metadata
    given = metadata.get("logprobs")
    given = {"content": given} if isinstance(given, list) else given
    found: dict[str, Any] = {} if given is None else _measured(_without_end(given))
    if not (message.tool_calls or message.additional_kwargs.get("function_call")):
        found = _of_text(text, found)
    if message.tool_calls:
        found["tool_calls"] = tuple(ToolCall(name=call["name"], arguments=call["args"]) for call in message.tool_calls)
    return Sample(
        text=text.strip(),
        finish_reason=next(filter(is_cut, _ended(metadata)), next(iter(_ended(metadata)), None)),
        refusal=_refused(message),
        **found,
    )


def _of_text(text: str, found: dict[str, Any]) -> dict[str, Any]:
    """What was measured of the tokens that spell the text; nothing where they spell another one."""
    kept = text_tokens(text, found["tokens"], found["token_bytes"]) if found else None
    if kept is None:
        return {}
    tokens, token_bytes = kept
    if token_bytes == tuple(token.encode().hex() for token in tokens):  # those that needed their bytes were left out
        token_bytes = None
    return {"tokens": tokens, "logprobs": found["logprobs"][: len(tokens)], "token_bytes": token_bytes}


def _measured(found: Any) -> dict[str, Any]:
    """Tokens, log-probabilities and bytes as fields of a `Sample`; none where they were not measured."""
    tokens, logprobs = _token_logprobs(found)
    if tokens is None:
        return {}
    return {"tokens": tokens, "logprobs": logprobs, "token_bytes": _token_bytes(found["content"], tokens)}


def _without_end(found: Any) -> Any:
    """Log-probabilities without the end of the answer, which llama-server lists as a last token of no bytes."""
    try:
        *rest, last = found["content"]
        return {"content": rest} if last["token"] == "" and not last.get("bytes") else found
    except (AttributeError, KeyError, TypeError, ValueError):
        return found


def _token_logprobs(found: Any) -> tuple[tuple[str, ...] | None, tuple[float, ...] | None]:
    try:
        content = found["content"]
        tokens = tuple(str(item["token"]) for item in content)
        # Servers round, so a certain token may come back as 1e-9; anything larger is not a log-probability.
        logprobs = tuple(min(float(item["logprob"]), 0.0) for item in content if float(item["logprob"]) <= 1e-6)
    except (KeyError, TypeError, ValueError):
        return None, None
    if len(logprobs) != len(tokens) or not all(math.isfinite(value) for value in logprobs):
        return None, None
    return tokens, logprobs


def _token_bytes(content: Sequence[Any], tokens: Sequence[str]) -> tuple[str, ...] | None:
    """Bytes of the tokens in hex, from OpenAI's ``bytes``; None where the tokens themselves say it all."""
    try:
        given = [item.get("bytes") for item in content]
        if not any(given):  # not given; some SDKs make empty lists of that
            return None
        raw = [token.encode() if one is None else bytes(list(one)) for one, token in zip(given, tokens, strict=True)]
        if all(one == token.encode() for one, token in zip(raw, tokens, strict=True)):
            return None
    except (AttributeError, TypeError, ValueError):  # no list of bytes: the tokens have to do
        return None
    return tuple(one.hex() for one in raw)
