"""A bank's agent that may read balances, and may send money only when it is sure or a person agrees."""
