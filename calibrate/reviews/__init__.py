"""Learning from reviews: people's decisions become labels, and labels a new threshold. The model is not called.

A review queue holds *every* answer that was held back and a *fraction* of the accepted ones (audits, drawn with a known
probability; `guardrail.review.hooks`). That pool is not like the questions: held-back answers are over-represented.
So it is thinned. With pi_i the probability with which item i came into the queue (1 for a held-back answer, the audit
rate for an accepted one) and q the smallest of them, item i is kept with probability q / pi_i by a hash of its key.
Every question that was asked is then in the sample with the same probability q, independent of its score and label, so
the sample is exchangeable with questions to come, exactly, and every threshold rule keeps its promise without weights.
The price: of the decisions on held-back answers only the share q is used.

The error rate among accepted answers is estimated from the audits alone, each with weight 1 / pi_i (Horvitz & Thompson
1952, in Hajek's ratio form, because the queue does not know how many answers were accepted).
"""

from __future__ import annotations

from .audits import AcceptedError, accepted_error, feed, given_items
from .learning import Learned, learn, thinned
from .pool import Missing, Reviewed, ReviewedItem, ReviewPool, read_reviews, waiting

__all__ = [
    "AcceptedError",
    "Learned",
    "Missing",
    "ReviewPool",
    "Reviewed",
    "ReviewedItem",
    "accepted_error",
    "feed",
    "given_items",
    "learn",
    "read_reviews",
    "thinned",
    "waiting",
]
