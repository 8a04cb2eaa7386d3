"""From messages to a `SampleSet`: native samplers, and concurrent calls for every other chat model.

A chat model that can draw all samples of a prompt at once (one prefill, exact log-probabilities, option read-out)
implements `NativeSampler`. Every other `BaseChatModel` is called n + 1 times, concurrently.

Honest sampling: no response cache is used, the caller's model is never changed, a shortfall is reported, not padded.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from ._calls import acall_concurrently, call_concurrently
from ._failures import told
from ._readable import only_readable
from .bindings import native_settings
from .errors import UsageError
from .follow_ups import Round, attach, failed_replies, rounds
from .prompting import question_text
from .types import Bindings, SampleSet, SamplingPlan, Unmeasured
from .uncertainty.base import Estimator
from .uncertainty.ensemble import expanded

if TYPE_CHECKING:
    from typing_extensions import TypeIs

__all__ = ["NativeSampler", "adraw", "draw", "is_native", "plan_for", "request_seed"]


@runtime_checkable
class NativeSampler(Protocol):
    """A chat model that draws whole sample sets itself. ``integrations.transformers_chat`` is one.

    One whose two methods also take the keyword ``primary`` is asked with ``primary=False`` where more samples are drawn
    for a set that has its primary answer (``early_stopping="on"``): it then leaves that answer out and saves its cost.
    """

    def draw_samples(
        self, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, *, seeds: Sequence[int | None]
    ) -> list[SampleSet]:
        """Draw one sample set for each prompt.

        Args:
            prompts: One message list for each request.
            plan: What to draw. ``plan.n == 0`` draws the primary answer alone; with ``plan.options`` the option
                log-likelihoods are read and, when n is 0, the primary answer is the likeliest option.
            seeds: One seed for each request; None for fresh randomness. The result of a request depends on its own
                seed and messages, not on what else is in the batch (up to floating-point rounding).

        Returns:
            One `SampleSet` for each prompt, in order. What could not be drawn is reported in ``problem``.

        Raises:
            PromptTooLongError: A prompt plus ``plan.max_tokens`` does not fit the context window.
        """
        ...

    async def adraw_samples(
        self, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, *, seeds: Sequence[int | None]
    ) -> list[SampleSet]:
        """The same without blocking the event loop."""
        ...


def is_native(model: object) -> TypeIs[NativeSampler]:
    """Whether a chat model draws whole sample sets itself; ``isinstance`` says the same, ten times slower."""
    return hasattr(model, "draw_samples") and hasattr(model, "adraw_samples")


def plan_for(
    estimators: Iterable[Estimator],
    *,
    options: Sequence[str] | None = None,
    n: int = 10,
    temperature: float = 0.7,
    top_p: float = 0.9,
    max_tokens: int = 64,
    stop: Sequence[str] = (),
    seed: int | None = 0,
    bindings: Bindings | None = None,
) -> SamplingPlan:
    """The cheapest plan that gives every estimator what it declares it needs.

    Args:
        estimators: What will be computed.
        options: Option labels, for closed-ended questions.
        n: Samples, if any estimator needs samples; otherwise none are drawn.
        temperature: Sampling temperature; above 0.
        top_p: Nucleus mass.
        max_tokens: Longest answer.
        stop: Stop strings.
        seed: Base seed; None for fresh randomness every time.
        bindings: Tools and answer format; `guardrail.bindings.bindings_for` makes them.

    Raises:
        UsageError: No estimator, or one that needs options when none are given.
    """
    estimators = expanded(list(estimators))
    if not estimators:
        raise UsageError("no estimator given, so there is nothing to plan for. Name one, e.g. semantic_entropy.")
    hungry = [estimator.name for estimator in estimators if estimator.needs.options]
    if hungry and options is None:
        raise UsageError(
            f"{', '.join(hungry)} reads the likelihood of answer options, but no option labels were given. "
            "Pass options=('A', 'B', 'C', 'D'), or use an estimator for open answers such as semantic_entropy."
        )
    return SamplingPlan(
        n=n if any(estimator.needs.samples for estimator in estimators) else 0,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        stop=tuple(stop),
        logprobs=any(estimator.needs.logprobs for estimator in estimators),
        follow_ups=tuple(sorted({name for estimator in estimators if (name := estimator.needs.follow_up)})),
        options=tuple(options) if hungry and options is not None else None,
        seed=seed,
        bindings=bindings,
    )


def request_seed(plan: SamplingPlan, messages: Iterable[BaseMessage]) -> int | None:
    """Seed of one request: a 63-bit hash of the plan's seed and the messages; None when the plan has no seed.

    The same question therefore draws the same samples again (a resumed run, a reviewed answer), while different
    questions draw independently.
    """
    if plan.seed is None:
        return None
    digest = hashlib.sha256(str(plan.seed).encode())
    for message in messages:
        digest.update(f"\x00{message.type}\x00{message.text}".encode())
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def draw(
    model: BaseChatModel,
    prompts: Sequence[Sequence[BaseMessage]],
    plan: SamplingPlan,
    *,
    callbacks: Callbacks = None,
    max_concurrency: int | None = None,
    primary: bool = True,
) -> list[SampleSet]:
    """Draw one sample set for each prompt, and ask the plan's follow-ups about it.

    A model that fails on a prompt does not raise: its set says so in ``problem`` and will abstain. A follow-up that
    fails leaves the drawn answers alone.

    Args:
        model: Any chat model. It is not changed; a response cache and streaming are switched off on a copy.
        prompts: One message list for each request.
        plan: What to draw.
        callbacks: For the calls of a model without a native sampler.
        max_concurrency: Calls in flight at once for such a model (default 16).
        primary: False for further samples of a set that has its primary answer, so that it need not be drawn again. A
            native sampler whose methods do not take this keyword draws it all the same.

    Raises:
        UsageError: The plan asks for option likelihoods, which only a native sampler can read, or names an unknown
            follow-up.
    """
    drawn = _draw(model, prompts, plan, callbacks=callbacks, max_concurrency=max_concurrency, primary=primary)
    for asked in rounds(prompts, drawn, plan):
        try:
            replies = _draw(
                model, asked.prompts, asked.plan, callbacks=callbacks, max_concurrency=max_concurrency, name=asked.name
            )
        except UsageError as error:
            replies = _unasked(asked, error)
        drawn = attach(drawn, asked, replies)
    return drawn


async def adraw(
    model: BaseChatModel,
    prompts: Sequence[Sequence[BaseMessage]],
    plan: SamplingPlan,
    *,
    callbacks: Callbacks = None,
    max_concurrency: int | None = None,
    primary: bool = True,
) -> list[SampleSet]:
    """`draw` without blocking the event loop."""
    drawn = await _adraw(model, prompts, plan, callbacks=callbacks, max_concurrency=max_concurrency, primary=primary)
    for asked in rounds(prompts, drawn, plan):
        try:
            replies = await _adraw(
                model, asked.prompts, asked.plan, callbacks=callbacks, max_concurrency=max_concurrency, name=asked.name
            )
        except UsageError as error:
            replies = _unasked(asked, error)
        drawn = attach(drawn, asked, replies)
    return drawn


def _draw(
    model: BaseChatModel,
    prompts: Sequence[Sequence[BaseMessage]],
    plan: SamplingPlan,
    *,
    callbacks: Callbacks,
    max_concurrency: int | None,
    name: str = "primary",
    primary: bool = True,
) -> list[SampleSet]:
    if not prompts:
        return []
    if not is_native(model):
        _refuse_options(model, plan)
        limit, first = max_concurrency, -1 if primary else 0
        return call_concurrently(
            model, prompts, plan, callbacks=callbacks, max_concurrency=limit, name=name, first=first
        )
    try:
        seeds = [request_seed(plan, messages) for messages in prompts]
        given = _settings(model, model.draw_samples, plan, primary)
        return [only_readable(drawn) for drawn in model.draw_samples(prompts, plan, seeds=seeds, **given)]
    except UsageError:
        raise
    except Exception as error:
        if len(prompts) == 1:
            return [_failed(prompts[0], error)]
        # One bad prompt must not take the others down: find it by drawing one at a time.
        alone = [[messages] for messages in prompts]
        return [
            drawn
            for one in alone
            for drawn in _draw(model, one, plan, callbacks=callbacks, max_concurrency=max_concurrency, primary=primary)
        ]


async def _adraw(
    model: BaseChatModel,
    prompts: Sequence[Sequence[BaseMessage]],
    plan: SamplingPlan,
    *,
    callbacks: Callbacks,
    max_concurrency: int | None,
    name: str = "primary",
    primary: bool = True,
) -> list[SampleSet]:
    if not prompts:
        return []
    if not is_native(model):
        _refuse_options(model, plan)
        limit, first = max_concurrency, -1 if primary else 0
        return await acall_concurrently(
            model, prompts, plan, callbacks=callbacks, max_concurrency=limit, name=name, first=first
        )
    try:
        seeds = [request_seed(plan, messages) for messages in prompts]
        given = _settings(model, model.adraw_samples, plan, primary)
        return [only_readable(drawn) for drawn in await model.adraw_samples(prompts, plan, seeds=seeds, **given)]
    except UsageError:
        raise
    except Exception as error:
        if len(prompts) == 1:
            return [_failed(prompts[0], error)]
        alone = [[messages] for messages in prompts]
        return [
            drawn
            for one in alone
            for drawn in await _adraw(
                model, one, plan, callbacks=callbacks, max_concurrency=max_concurrency, primary=primary
            )
        ]


def _settings(model: BaseChatModel, draw: Callable[..., Any], plan: SamplingPlan, primary: bool) -> dict[str, Any]:
    """Keywords of a native sampler's method beside prompts, plan and seeds."""
    settings = native_settings(model, draw, plan.bindings)
    if not primary and "primary" in inspect.signature(draw).parameters:
        settings["primary"] = False
    return settings


def _refuse_options(model: BaseChatModel, plan: SamplingPlan) -> None:
    if plan.options is not None:
        raise UsageError(
            f"{type(model).__name__} cannot read the likelihood of answer options {plan.options}. Use a local model "
            "(integrations.transformers_chat.TransformersChat), or an estimator for open answers."
        )


def _unasked(asked: Round, error: UsageError) -> list[SampleSet]:
    """Replies of a follow-up that this model cannot be asked."""
    reason = Unmeasured.MODEL_FAILED if asked.plan.options is None else Unmeasured.NO_OPTIONS
    return failed_replies(asked, reason, str(error))


def _failed(messages: Sequence[BaseMessage], error: Exception) -> SampleSet:
    return SampleSet(
        question=question_text(messages),
        primary=None,
        problem=Unmeasured.MODEL_FAILED,
        problem_detail=told(error, asking=True),
    )
