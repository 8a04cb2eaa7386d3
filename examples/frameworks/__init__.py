"""The guard in other agent frameworks: one runnable file for each, offline."""
