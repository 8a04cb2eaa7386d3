"""The page on which people decide about held-back answers."""
