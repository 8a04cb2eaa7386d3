"""Requests of many threads on one model: shared batches within a token budget, halved when memory runs out.

A request is token ids in, token ids out; ``transformers_chat`` knows what they mean.
"""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakSet

from guardrail.errors import GuardrailError

from .decoding import Continuation, Decoder, Row, plain, rope_window
from .loading import torch
from .self_check import Support
from .tokens import Detokenizer

MAX_ROWS = 512
"""Most sequences in a batch: bounds the logits, which the token budget does not count."""

WAITING_THREADS = 64
"""Most asynchronous calls in flight at once."""

HOST_CACHE_BYTES = 2 << 30
"""Cache size that the automatic token budget allows on a CPU."""

T = TypeVar("T")

CANCELLED: ContextVar[threading.Event | None] = ContextVar("cancelled", default=None)
"""Set once the asynchronous call that runs here is cancelled; None in a synchronous call."""


class NotFiniteError(GuardrailError):
    """The model's logits are NaN or infinite, so that its tokens mean nothing."""

    def __init__(self) -> None:
        super().__init__(
            "the model's logits are not finite; a wider dtype (float32 or bfloat16 instead of float16) usually helps"
        )


@dataclass(frozen=True)
class DecodingRequest:
    """One prompt and the sequences that continue it."""

    prompt: tuple[int, ...]
    """Token ids."""
    rows: tuple[Row, ...]
    """Answers, and options with their given tokens."""
    stops: tuple[str, ...] = ()
    """Strings that end an answer."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end an answer beside the model's end tokens."""
    cancelled: threading.Event = field(
        default_factory=lambda: CANCELLED.get() or threading.Event(), compare=False, repr=False
    )
    """Set once no caller waits for the request."""

    @property
    def width(self) -> int:
        """Most sequences that it keeps in the cache at once."""
        return max(1, sum(row.max_tokens > 1 for row in self.rows))

    @property
    def longest(self) -> int:
        """Most tokens that follow the prompt."""
        return max(row.max_tokens for row in self.rows)


@dataclass
class Response:
    """The result of a request."""

    continuations: list[Continuation] = field(default_factory=list)
    """One for each row."""
    failure: Exception | None = None
    """Reason why the request has no result."""


_engines: WeakSet[Engine] = WeakSet()


def _after_fork() -> None:
    for engine in list(_engines):
        engine.start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Engine:
    """Runs requests of many threads on one model.

    One thread uses the model. It takes all requests that wait and fit into one batch, so an idle model starts at once,
    and a busy one gathers what arrives meanwhile.

    Args:
        model: A transformers causal language model in evaluation mode.
        detokenizer: Its tokens as text, for stop strings.
        end_ids: Tokens that end an answer.
        max_batch_tokens: Most tokens (prompt and answer, over all sequences) in a batch; None to choose by memory.
        context: Context window in tokens; None if unknown.
        support: What may share a batch; None for everything.
    """

    def __init__(
        self,
        model: Any,
        detokenizer: Detokenizer,
        end_ids: frozenset[int],
        max_batch_tokens: int | None = None,
        context: int | None = None,
        support: Support | None = None,
    ) -> None:
        self.model = plain(model)
        self.support = support or Support()
        self.detokenizer = detokenizer
        self.end_ids = end_ids
        self.budget = max_batch_tokens or automatic_budget(self.model)
        # A row that has ended decodes on until it leaves the batch, at most to the end of the padded batch. That end
        # must lie within the context window, and within the rope window that changes the positions of all rows.
        self.reach = min((end for end in (context, rope_window(model)) if end is not None), default=None)
        self.start()
        _engines.add(self)

    def start(self) -> None:
        """Begin without threads and requests, also in a forked process, which has no thread of its parent."""
        # Waiting threads cost little, and only waiting work can share a batch. The default pool of the event loop has
        # few threads, which other code needs, too.
        self.threads = ThreadPoolExecutor(max_workers=WAITING_THREADS, thread_name_prefix="transformers-chat")
        self._model_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="transformers-model")
        self._lock = threading.Lock()
        self._waiting: list[tuple[DecodingRequest, Future[Response]]] = []

    # --- requests of many threads -------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[DecodingRequest]) -> list[Response]:
        """Run requests, together with those of other threads; one response each, in order.

        Raises:
            CancelledError: The call was cancelled, so its answers are cut short.
        """
        tickets = [(request, Future[Response]()) for request in requests]
        with self._lock:
            self._waiting += tickets
        try:
            for _ in tickets:  # as many turns as requests: a turn serves the oldest at least
                self._model_thread.submit(self._turn)
            responses = [future.result() for _, future in tickets]
        except BaseException:  # Ctrl-C, for one: no caller would read the answers
            for request in requests:
                request.cancelled.set()
            raise
        if any(request.cancelled.is_set() for request in requests):
            raise CancelledError
        return responses

    def steps(self, request: DecodingRequest) -> Iterator[Continuation]:
        """Decode a request of one row token by token; other requests run in between.

        Yields:
            The same continuation after each of its tokens. It ends early if the call is cancelled.

        Raises:
            NotFiniteError: The model gave no probabilities.
        """
        decoder = self.alone(lambda: None if request.cancelled.is_set() else self.decoder([request]))
        # The event of this very step: an asynchronous stream is a call for each of its chunks.
        while decoder and decoder.running and not (CANCELLED.get() or request.cancelled).is_set():
            self.alone(lambda: decoder.run(steps=1))
            if not math.isfinite(decoder.results[0].logprobs[-1]):
                raise NotFiniteError
            yield decoder.results[0]

    def alone(self, work: Callable[[], T]) -> T:
        """Use the model between two batches."""
        return self._model_thread.submit(work).result()

    def _turn(self) -> None:
        """Run one batch of the requests that wait, if any do."""
        with self._lock:
            batch, self._waiting = self._waiting, []  # an error of `select` belongs to all who wait
        if not batch:
            return
        try:
            chosen = set(self.select([request for request, _ in batch]))
            left = [ticket for position, ticket in enumerate(batch) if position not in chosen]
            batch = [ticket for position, ticket in enumerate(batch) if position in chosen]
            with self._lock:
                self._waiting = left + self._waiting  # in front of those that have come meanwhile
            responses = self.run([request for request, _ in batch])
            for response, (_, future) in zip(responses, batch, strict=True):
                future.set_result(response)
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)

    def select(self, waiting: Sequence[DecodingRequest]) -> list[int]:
        """The oldest request and the closest ones in length that fit; cancelled requests come first, by themselves."""
        cancelled = [position for position, request in enumerate(waiting) if request.cancelled.is_set()]
        if cancelled:
            return cancelled  # alone, because a batch of cancelled requests returns at once and frees their threads
        oldest = len(waiting[0].prompt)
        # Similar lengths waste least padding, and the oldest is always in, so no request starves.
        by_length = sorted(range(1, len(waiting)), key=lambda position: abs(len(waiting[position].prompt) - oldest))
        chosen = [0]
        for position in by_length:
            # Stop at the first misfit: further ones are at least as far from the oldest in length.
            if not self._fits([waiting[other] for other in (*chosen, position)]):
                break
            chosen.append(position)
        return chosen

    def _fits(self, requests: Sequence[DecodingRequest]) -> bool:
        inside = self.reach is None or _reach(requests) <= self.reach
        rows = sum(request.width for request in requests)
        return self.support.batches and inside and batch_tokens(requests) <= self.budget and rows <= MAX_ROWS

    # --- one batch ----------------------------------------------------------------------------------------------------

    def run(self, requests: Sequence[DecodingRequest]) -> list[Response]:
        """Run a batch. If memory runs out or the model refuses it, run its halves: only faulty requests then fail."""
        if not self.support.answers and any(len(request.rows) > 1 for request in requests):
            return [self._run_apart(request, 1) for request in requests]
        try:
            return self._run_together(requests)
        except (RuntimeError, MemoryError, ValueError, IndexError) as error:
            full = _is_out_of_memory(error)
            # Not memory: a fault of torch or the device, which halving does not cure.
            if isinstance(error, RuntimeError) and not full:
                raise
            failure: Exception = error.with_traceback(None)  # the traceback holds the tensors
        if full:
            if self.model.device.type == "cuda":
                # Blocks of the failed batch's shapes stay reserved otherwise and may not fit the halves.
                torch.cuda.empty_cache()
            # Lowered for good: the next batch of this size would run out of memory again.
            self.budget = max(1, min(self.budget, batch_tokens(requests) // 2))
        if len(requests) > 1:
            half = len(requests) // 2
            return self.run(requests[:half]) + self.run(requests[half:])
        request = requests[0]
        if full and len(request.rows) > 1:
            return [self._run_apart(request, (len(request.rows) + 1) // 2)]
        if full:
            failure = GuardrailError(
                f"out of memory for a single answer to a prompt of {len(request.prompt)} tokens with "
                f"{request.longest} tokens of answer; lower max_tokens, shorten the prompt, or choose a smaller dtype"
            )
        return [Response(failure=failure)]

    def _run_apart(self, request: DecodingRequest, size: int) -> Response:
        """Run the rows of a request in groups of ``size``, each of which reads the prompt again."""
        groups = [request.rows[start : start + size] for start in range(0, len(request.rows), size)]
        parts = [self.run([dataclasses.replace(request, rows=rows)])[0] for rows in groups]
        continuations = [continuation for part in parts for continuation in part.continuations]
        return Response(continuations, next((part.failure for part in parts if part.failure), None))

    def _run_together(self, requests: Sequence[DecodingRequest]) -> list[Response]:
        if all(request.cancelled.is_set() for request in requests):
            return [Response() for _ in requests]
        decoder = self.decoder(requests)
        results = iter(decoder.results)
        if not all(request.cancelled.is_set() for request in requests):
            decoder.run()
        responses = [Response([next(results) for _ in request.rows]) for request in requests]
        for response in responses:
            if not all(math.isfinite(value) for result in response.continuations for value in result.logprobs):
                response.failure = NotFiniteError()
        return responses

    def decoder(self, requests: Sequence[DecodingRequest]) -> Decoder:
        """The decoder of all rows of the requests, which has read their prompts."""
        prompt_of = [prompt for prompt, request in enumerate(requests) for _ in request.rows]
        rows = [row for request in requests for row in request.rows]

        def stopped(row: int, ids: list[int]) -> bool:
            request = requests[prompt_of[row]]
            if request.cancelled.is_set():
                return True
            if rows[row].given:
                return False
            # The whole answer is decoded for each token, since a stop string may span tokens. Its time grows with the
            # square of the answer's length; a request without stop strings never pays for it.
            text = self.detokenizer.decode(ids) if request.stops else ""
            return ids[-1] in request.stop_ids or any(stop in text for stop in request.stops)

        prompts = [request.prompt for request in requests]
        return Decoder(self.model, prompts, rows, prompt_of, end_ids=self.end_ids, stopped=stopped)


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether torch ran out of memory, on any device."""
    text = str(error).lower()
    return (
        isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "out of memory" in text or "allocate memory" in text
    )


def batch_tokens(requests: Sequence[DecodingRequest]) -> int:
    """Most cache positions that a batch takes, including padding."""
    return _reach(requests) * sum(request.width for request in requests)


def _reach(requests: Sequence[DecodingRequest]) -> int:
    """Most positions of a row, including padding."""
    return max(len(request.prompt) for request in requests) + max(request.longest for request in requests)


def automatic_budget(model: Any) -> int:
    """Token budget by memory: half of the free memory of a GPU, 2 GiB of cache elsewhere."""
    config = model.config.get_text_config(decoder=True)
    # Models whose layers differ list them; all others repeat one layer.
    layers = getattr(config, "per_layer_config", None) or [config] * config.num_hidden_layers
    # Twice: keys and values.
    bytes_per_token: int = 2 * sum(map(_key_size, layers)) * model.dtype.itemsize
    if model.device.type == "cuda":
        free: int = torch.cuda.mem_get_info(model.device)[0]
        return max(4096, min(1 << 20, free // 2 // bytes_per_token))
    return max(2048, min(32768, HOST_CACHE_BYTES // bytes_per_token))


def _key_size(layer: Any) -> int:
    """Numbers of one layer's keys for one token."""
    queries = getattr(layer, "num_attention_heads", None) or 1
    heads: int = getattr(layer, "num_key_value_heads", None) or queries
    size: int = getattr(layer, "head_dim", None) or layer.hidden_size // queries
    return heads * size
