"""The guard in other agent frameworks: one runnable, offline file per framework."""
