"""Batches of requests on one model: token budget, one prefill each, half batches if memory runs out.

A request is token ids in, token ids out; ``transformers_chat`` knows what they mean.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from guardrail.errors import GuardrailError

from .decoding import CachedPrefix, Continuation, Decoder, Row, prefill
from .forward import rope_window
from .loading import torch
from .options import score_options
from .self_check import Support
from .tokens import Detokenizer, StopDetector

__all__ = ["CANCELLED", "BatchQueue", "DecodingRequest", "Engine", "Response"]

MAX_ROWS = 512
"""Most sequences in a batch: bounds the logits, which the token budget does not count."""

WAITING_THREADS = 64
"""Most asynchronous calls in flight at once."""

HOST_CACHE_BYTES = 2 << 30
"""Cache size that the automatic token budget allows on a CPU."""

Work = TypeVar("Work")
Result = TypeVar("Result")


# -- one model, many threads: they share batches without a background thread and without idle waiting -----------------
# A thread that finds the model idle becomes the leader: it takes waiting work, its own and that of others, runs it as
# one batch, and hands out the results. A thread that arrives meanwhile waits for the next leader. An idle model thus
# starts at once (no gathering delay), and a busy one gathers all work that arrives while it runs.


@dataclass(eq=False)
class _Ticket(Generic[Work, Result]):
    """One piece of work and its result."""

    work: Work
    done: bool = False
    result: Result | None = None
    error: BaseException | None = None


class BatchQueue(Generic[Work, Result]):
    """Runs work of many threads in shared batches, one batch at a time.

    Args:
        select: Chooses the next batch among waiting work: the indices to run, at least one.
        run: Runs a batch; one result for each piece of work, in order. Its exception reaches every thread with work in
            the batch.
    """

    def __init__(
        self, select: Callable[[Sequence[Work]], Sequence[int]], run: Callable[[Sequence[Work]], Sequence[Result]]
    ) -> None:
        self._select = select
        self._run = run
        # Guards the flag and the list only: a batch runs without it, so that threads can join the queue meanwhile.
        self._state = threading.Condition()
        self._busy = False
        self._waiting: list[_Ticket[Work, Result]] = []

    def submit(self, works: Sequence[Work]) -> list[Result]:
        """Run all ``works``, wait for them, and return their results in order."""
        tickets = [_Ticket[Work, Result](work) for work in works]
        with self._state:
            self._waiting.extend(tickets)
        try:
            while not all(ticket.done for ticket in tickets):
                self._lead_or_follow(tickets)
        finally:
            with self._state:
                # An interrupted thread takes its work away: no caller would read the result.
                self._waiting = [ticket for ticket in self._waiting if ticket not in tickets]
        for ticket in tickets:
            if ticket.error is not None:
                raise ticket.error
        return [ticket.result for ticket in tickets]  # type: ignore[misc]

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Use the model exclusively, between batches."""
        with self._state:
            while self._busy:
                self._state.wait()
            self._busy = True
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        with self._state:
            self._busy = False
            self._state.notify_all()

    def _lead_or_follow(self, tickets: Sequence[_Ticket[Work, Result]]) -> None:
        """Run one batch if the model is idle, otherwise wait for a change."""
        with self._state:
            # Checked again under the lock: another leader may have run the work since the caller looked.
            if all(ticket.done for ticket in tickets):
                return
            if self._busy:
                self._state.wait()
                return
            self._busy = True
        try:
            self._run_batch(self._take())
        finally:
            self._release()

    def _take(self) -> list[_Ticket[Work, Result]]:
        """Remove the next batch from the waiting work."""
        with self._state:
            chosen = set(self._select([ticket.work for ticket in self._waiting]))
            batch = [ticket for place, ticket in enumerate(self._waiting) if place in chosen]
            self._waiting = [ticket for place, ticket in enumerate(self._waiting) if place not in chosen]
            return batch

    def _run_batch(self, batch: list[_Ticket[Work, Result]]) -> None:
        """Run a batch and complete its tickets. If the leader is interrupted, the work waits for the next leader."""
        try:
            results = self._run([ticket.work for ticket in batch])
            for ticket, result in zip(batch, results, strict=True):
                ticket.result, ticket.done = result, True
        except Exception as error:
            for ticket in batch:
                ticket.error, ticket.done = error, True
        # KeyboardInterrupt reached the leader alone: the others' work is sound and goes back to the front.
        except BaseException:
            with self._state:
                self._waiting = batch + self._waiting
            raise


# -- requests on a model ----------------------------------------------------------------------------------------------

_NEVER = threading.Event()
CANCELLED: ContextVar[threading.Event] = ContextVar("cancelled", default=_NEVER)
"""Set once the asynchronous call that runs here is cancelled."""


@dataclass(frozen=True)
class DecodingRequest:
    """One prompt and what to compute after it."""

    prompt: tuple[int, ...]
    """Token ids."""
    rows: tuple[Row, ...] = ()
    """Sequences to decode after it."""
    options: tuple[tuple[int, ...], ...] = ()
    """Token ids of the options to score after it."""
    stops: tuple[str, ...] = ()
    """Strings that end a sequence."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end a sequence beside the model's end tokens."""
    cancelled: threading.Event = field(default_factory=CANCELLED.get, compare=False, repr=False)
    """Set once no caller waits for the request."""

    @property
    def width(self) -> int:
        """Most sequences that it needs at once."""
        return max(1, len(self.rows), sum(len(ids) > 1 for ids in self.options))

    @property
    def longest(self) -> int:
        """Most tokens that follow the prompt."""
        return max([0, *(row.max_tokens for row in self.rows), *map(len, self.options)])


@dataclass
class Response:
    """The result of a request."""

    continuations: list[Continuation] = field(default_factory=list)
    """One for each row."""
    options: tuple[tuple[float, ...], ...] = ()
    """Log-probability of each token of each option."""
    failure: Exception | None = None
    """Reason why the request has no result."""


class Engine:
    """Runs requests of many threads on one model, in shared batches.

    Args:
        model: A transformers causal language model in evaluation mode.
        detokenizer: Its tokens as text, for stop strings.
        end_ids: Tokens that end an answer.
        max_batch_tokens: Most tokens (prompt and answer, over all sequences) in a batch; None to choose by memory.
        context: Context window in tokens; None if unknown.
        support: Operations that the model does exactly; None for all.
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
        self.model = model
        self.support = support or Support()
        self.rope_window = rope_window(model)
        self.detokenizer = detokenizer
        self.end_ids = end_ids
        self.context = context
        self.budget = max_batch_tokens or automatic_budget(model)
        # Waiting threads cost little, and only waiting work can share a batch. The default pool of the event loop has
        # few threads, which other code needs, too.
        self.threads = ThreadPoolExecutor(max_workers=WAITING_THREADS, thread_name_prefix="transformers-chat")
        self.turns = BatchQueue[DecodingRequest, Response](self.select, self.run)

    @property
    def sync_every(self) -> int:
        """Steps between transfers of the tokens to the host: each transfer makes an accelerator wait."""
        return 1 if self.model.device.type == "cpu" else 8

    def submit(self, requests: Sequence[DecodingRequest]) -> list[Response]:
        """Run requests, together with those of other threads; one response each, in order.

        Raises:
            CancelledError: The call was cancelled, so its answers are cut short.
        """
        responses = self.turns.submit(requests)
        if any(request.cancelled.is_set() for request in requests):
            raise CancelledError
        return responses

    def select(self, waiting: Sequence[DecodingRequest]) -> list[int]:
        """The oldest request and the closest ones in length that fit; cancelled requests come first, by themselves."""
        cancelled = [place for place, request in enumerate(waiting) if request.cancelled.is_set()]
        # Alone, because a batch of cancelled requests returns at once and frees their threads.
        if cancelled:
            return cancelled
        oldest = len(waiting[0].prompt)
        # Similar lengths waste least padding, and the oldest is always in, so no request starves.
        order = sorted(range(1, len(waiting)), key=lambda place: abs(len(waiting[place].prompt) - oldest))
        chosen = [0]
        for place in order:
            # Stop at the first misfit: further ones are at least as far from the oldest in length.
            if not self._fits([waiting[other] for other in (*chosen, place)]):
                break
            chosen.append(place)
        return chosen

    def _fits(self, requests: Sequence[DecodingRequest]) -> bool:
        # A finished row decodes on until it leaves the batch, at most to the end of the padded batch. That end must
        # therefore lie within the context window, and within the rope window that changes the positions of all rows.
        reach = _reach(requests)
        inside = all(end is None or reach <= end for end in (self.context, self.rope_window))
        rows = sum(request.width for request in requests)
        return self.support.batches and inside and batch_tokens(requests) <= self.budget and rows <= MAX_ROWS

    def run(self, requests: Sequence[DecodingRequest]) -> list[Response]:
        """Run a batch. If memory runs out or the model refuses it, run its halves: only faulty requests then fail."""
        outcome = self._attempt(requests)
        if not isinstance(outcome, Exception):
            return outcome
        full = _is_out_of_memory(outcome)
        if full:
            if self.model.device.type == "cuda":
                # Blocks of the failed batch's shapes stay reserved otherwise and may not fit the halves.
                torch.cuda.empty_cache()
            # Lowered for good: the next batch of this size would run out of memory again.
            self.budget = max(1, min(self.budget, batch_tokens(requests) // 2))
        if len(requests) > 1:
            half = len(requests) // 2
            return self.run(requests[:half]) + self.run(requests[half:])
        return [self._run_split(requests[0]) if full else Response(failure=outcome)]

    def _run_split(self, request: DecodingRequest) -> Response:
        """Run a single request that does not fit: its rows in two halves, which reads the prompt twice."""
        if len(request.rows) < 2:
            text = (
                f"out of memory for a single answer to a prompt of {len(request.prompt)} tokens with "
                f"{request.longest} tokens of answer; lower max_tokens, shorten the prompt, or choose a smaller dtype"
            )
            return Response(failure=GuardrailError(text))
        half = len(request.rows) // 2
        first = self.run([dataclasses.replace(request, rows=request.rows[:half])])[0]
        # Options are scored with the first half; a second time would only cost.
        second = self.run([dataclasses.replace(request, rows=request.rows[half:], options=())])[0]
        return Response(
            first.continuations + second.continuations, first.options, failure=first.failure or second.failure
        )

    def _attempt(self, requests: Sequence[DecodingRequest]) -> list[Response] | Exception:
        """Run a batch, or return its error."""
        try:
            return self._forward(requests)
        except (RuntimeError, MemoryError, ValueError, IndexError) as error:
            if _is_out_of_memory(error):
                return error.with_traceback(None)  # the traceback holds the tensors
            # Not memory: a fault of torch or the device, which halving does not cure.
            if isinstance(error, RuntimeError):
                raise
            return error

    def _forward(self, requests: Sequence[DecodingRequest]) -> list[Response]:
        responses = [Response() for _ in requests]
        if _abandoned(requests):
            return responses
        prefix = prefill(self.model, [request.prompt for request in requests])
        if _abandoned(requests):
            return responses
        options = score_options(prefix, [(place, request.options) for place, request in enumerate(requests)])
        for response, scores in zip(responses, options, strict=True):
            response.options = scores
        if any(request.rows for request in requests):
            decoder = self.decoder(prefix, requests, sync_every=self.sync_every)
            while decoder.running and not _abandoned(requests):
                decoder.step()
            results = iter(decoder.results)
            for request, response in zip(requests, responses, strict=True):
                response.continuations = [next(results) for _ in request.rows]
        return responses

    def decoder(self, prefix: CachedPrefix, requests: Sequence[DecodingRequest], *, sync_every: int = 1) -> Decoder:
        """The decoder of all rows of the requests, whose prompts ``prefix`` has read."""
        owners = [(place, request) for place, request in enumerate(requests) for _ in request.rows]
        detectors = [StopDetector(self.detokenizer, request.stops) for _, request in owners]

        def stopped(row: int, ids: list[int]) -> bool:
            request = owners[row][1]
            # A detector decodes text for every token, so a request without stop strings never pays for it.
            at_stop = bool(request.stops) and detectors[row].push(ids[-1])
            return at_stop or ids[-1] in request.stop_ids or request.cancelled.is_set()

        rows = [row for request in requests for row in request.rows]
        room = max(row.max_tokens for row in rows)
        expanded = prefix.expand([place for place, _ in owners], room=room)
        return Decoder(expanded, rows, end_ids=self.end_ids, stopped=stopped, sync_every=sync_every)


def _abandoned(requests: Sequence[DecodingRequest]) -> bool:
    """Whether all requests were cancelled."""
    return all(request.cancelled.is_set() for request in requests)


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
    each: int = 2 * sum(map(_key_size, layers)) * model.dtype.itemsize
    if model.device.type == "cuda":
        free: int = torch.cuda.mem_get_info(model.device)[0]
        return max(4096, min(1 << 20, free // 2 // each))
    return max(2048, min(32768, HOST_CACHE_BYTES // each))


def _key_size(layer: Any) -> int:
    """Numbers of one layer's keys for one token."""
    queries = getattr(layer, "num_attention_heads", None) or 1
    heads: int = getattr(layer, "num_key_value_heads", None) or queries
    size: int = getattr(layer, "head_dim", None) or layer.hidden_size // queries
    return heads * size
