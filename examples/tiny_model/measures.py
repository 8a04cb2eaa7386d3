"""The numbers that the evaluation needs, without a library: normalised match, entropy, AUROC, selective accuracy."""

import math
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata


def normalise(answer: str) -> str:
    """Return the answer in lower case without punctuation and with single spaces."""
    bare = answer.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(bare.split())


def is_right(answer: str, references: Sequence[str]) -> bool:
    """Return True if the normalised answer equals a normalised reference."""
    return normalise(answer) in {normalise(reference) for reference in references}


def string_entropy(answers: Sequence[str]) -> float:
    """Return the entropy, in nats, of the relative frequencies of distinct answers."""
    counts = Counter(answers).values()
    return -sum(count / len(answers) * math.log(count / len(answers)) for count in counts)


def auroc(uncertainty: Sequence[float], right: Sequence[bool]) -> float:
    """Return the probability that a wrong answer is more uncertain than a right one; ties count one half.

    Raises:
        ValueError: If all answers are right or all are wrong.
    """
    wrong = ~np.asarray(right, dtype=bool)
    n_wrong, n_right = int(wrong.sum()), int((~wrong).sum())
    if not n_wrong or not n_right:
        raise ValueError(f"AUROC needs right and wrong answers, got {n_right} right and {n_wrong} wrong.")
    ranks = rankdata(np.asarray(uncertainty, dtype=float))
    return float((ranks[wrong].sum() - n_wrong * (n_wrong + 1) / 2) / (n_wrong * n_right))


def share_accepted(uncertainty: Sequence[float], right: Sequence[bool], error: float) -> float:
    """Return the largest share of answers that a threshold can accept with at most this share of them wrong.

    The threshold is chosen on the same answers, so this is an optimistic description of the pool, not a guarantee.
    Answers of equal uncertainty are accepted or refused together.
    """
    values, wrong = np.asarray(uncertainty, dtype=float), ~np.asarray(right, dtype=bool)
    accepted = [values <= threshold for threshold in np.unique(values)]
    return max((float(mask.mean()) for mask in accepted if wrong[mask].mean() <= error), default=0.0)
