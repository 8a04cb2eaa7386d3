"""Monitors whose state several processes share through the review database."""
