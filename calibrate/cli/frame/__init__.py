"""Rooms that several commands share, and long parts of one: the terminal, files, options, labels, people, verdicts."""
