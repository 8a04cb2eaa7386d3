"""Private parts of `transformers_chat` and `transformers_judges`."""
