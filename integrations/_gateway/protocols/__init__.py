"""Protocols of clients, as translations of chat completions."""
