"""Rooms that several commands share: the app, the terminal, files, options, labels, verdicts, next commands."""
