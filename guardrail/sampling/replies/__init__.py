"""Replies of models: `read` them, the `ends` and `spelling` of their texts, and the `failures` in place of one."""
