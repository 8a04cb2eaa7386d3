"""From messages to a `SampleSet`: native samplers, and concurrent calls for every other chat model.

A chat model that can draw all samples of a prompt at once (one prefill, exact log-probabilities, option read-out)
implements `NativeSampler`. Every other `BaseChatModel` is called n + 1 times, concurrently.

Honest sampling: no response cache is used, the caller's model is never changed, a shortfall is reported, not padded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from ..bindings import native_settings
from ..errors import UsageError, told
from ..prompting import question_text
from ..types import SampleSet, SamplingPlan, Unmeasured
from .calls import acall_concurrently, call_concurrently
from .follow_ups import Round, attach, failed_replies, rounds
from .native import is_native, request_seed
from .replies import only_readable

__all__ = ["adraw", "draw"]

if TYPE_CHECKING:
    pass


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
