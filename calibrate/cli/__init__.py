"""The `calibrate` command line: one module a command."""
