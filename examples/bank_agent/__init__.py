"""A bank's agent that may read balances, and may send money only if it is certain or a person agrees."""
