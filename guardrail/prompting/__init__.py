"""Prompts: how a question becomes messages, who speaks in them, and which of them look the same to a reader.

The wrapping is part of the artifact. A guard never rewrites what it is given; it checks that the messages it receives
look like the wrapping says and refuses them otherwise, naming both sides.
"""

from __future__ import annotations

from .comparing import has_blank, letters_of, normal_form, prompt_content
from .conversation import ONE_QUESTION, conversation_text, copies_of, plain_turns, question_text, role_of, turns_of
from .wrapping import PromptWrapping

__all__ = [
    "ONE_QUESTION",
    "PromptWrapping",
    "conversation_text",
    "copies_of",
    "has_blank",
    "letters_of",
    "normal_form",
    "plain_turns",
    "prompt_content",
    "question_text",
    "role_of",
    "turns_of",
]
