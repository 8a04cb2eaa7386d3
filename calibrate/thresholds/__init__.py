"""Threshold rules: from scores and errors to ``Feasible`` or ``Infeasible``. A family of rules a file.

``fit`` is the one call; ``rules`` lists the names, ``Rule`` is what one of your own derives from;
``conformal_selection`` works on a batch and yields no threshold.
"""

from .fit import DEFAULT_DELTA, fit
from .registry import rules
from .rule import Rule
from .selection import Selection, conformal_selection

__all__ = ["DEFAULT_DELTA", "Rule", "Selection", "conformal_selection", "fit", "rules"]
