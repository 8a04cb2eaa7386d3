"""Threshold rules: from scores and errors to ``Feasible`` or ``Infeasible``. A family of rules a file.

``fit`` is the one call; ``rules`` lists the names; ``conformal_selection`` works on a batch and yields no threshold.
"""

from .fit import DEFAULT_DELTA, fit
from .registry import rules
from .selection import Selection, conformal_selection

__all__ = ["DEFAULT_DELTA", "Selection", "conformal_selection", "fit", "rules"]
