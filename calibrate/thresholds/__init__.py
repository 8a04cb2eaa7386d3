"""From labelled scores to a threshold: `fit` runs a rule of `calibrate.rules` and explains what it found."""

from .fitting import DEFAULT_DELTA, fit
from .rule import Rule

__all__ = ["DEFAULT_DELTA", "Rule", "fit"]
