"""Private parts of `integrations.gateway`."""

from guardrail.errors import require

for _package in ("aiohttp", "openai", "orjson"):
    # First, because adapters that need some of them, too, would name another extra.
    require(_package, extra="serve")
