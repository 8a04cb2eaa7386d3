"""Private parts of `openai_chat`."""
