"""Watch a promise after deployment: alarms that are valid at any time, however often the monitor is read.

Each monitor bets against a null hypothesis with money that starts at 1. While the hypothesis holds the money is a
non-negative supermartingale, so by Ville's inequality the probability that it ever reaches 1/delta is at most delta.
A monitor never changes an artifact. It raises an alarm, and the application decides what follows.

Here are the tests as values: a state, and the state after one more score or audit. `guardrail.review.Monitors` keeps
states in a database, where all processes of a service update them.

Sources: Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024
(arXiv 2010.09686);
Vovk, Petej, Nouretdinov et al., "Retrain or not retrain: conformal test martingales for change-point detection",
COPA 2021 (the Simple and Composite Jumper).
"""

from __future__ import annotations

from .canary import CanaryState
from .drift import Drift, DriftState
from .risk import RiskState
from .state import Alarm, jump

__all__ = ["Alarm", "CanaryState", "Drift", "DriftState", "RiskState", "jump"]
