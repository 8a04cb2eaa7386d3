"""The table of call settings in `guardrail.bindings`, and what each adapter allows."""

from guardrail.bindings import _ROWS, LONGEST_ANSWER, STOP_STRINGS, TABLE, Effect, names
from guardrail.types import SamplingPlan


def test_each_setting_has_one_row() -> None:
    assert len(_ROWS) == len(TABLE)


def test_what_a_plan_sets_in_a_call_is_fixed_by_the_plan() -> None:
    settings = {name for name in SamplingPlan.model_fields if name in TABLE}
    assert {"n", "temperature", "top_p", "max_tokens", "stop", "logprobs"} <= settings
    assert {TABLE[name].effect for name in settings} == {Effect.PLAN}
    assert {TABLE[name].effect for name in (*LONGEST_ANSWER, *STOP_STRINGS)} == {Effect.PLAN}


def test_no_call_of_an_adapter_may_carry_a_setting_that_shapes_its_answer() -> None:
    for requests in ("langchain", "openai-agents", "pydantic-ai", "litellm"):
        assert names(Effect.TRANSPORT, allowed_in=requests)
        assert not names(Effect.SHAPING, allowed_in=requests)


def test_a_client_of_a_proxy_may_send_what_it_could_before_there_was_a_table() -> None:
    assert names(allowed_in="litellm") == {
        *("guardrails", "litellm_metadata", "metadata", "prompt_cache_key", "response_format", "safety_identifier"),
        *("service_tier", "store", "stream", "stream_options", "tags", "timeout", "tool_choice", "tools", "user"),
    }
