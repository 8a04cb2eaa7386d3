"""Which measurements would hold an event loop up: those that ask a model, or something of unknown cost."""

from __future__ import annotations

from .judges import Judge, JudgeSimilarity, Similarity
from .judges.registry import is_light
from .judges.similarity import is_light_similarity
from .uncertainty import Estimator

__all__ = ["is_slow"]

_OURS = f"{__package__}.judges."


def is_slow(estimator: Estimator) -> bool:
    """Whether measuring may take noticeable time, so that async callers measure in a thread.

    Only the light judges and similarities of this library are known to be fast; somebody else's object is not, whatever
    its name.
    """
    return (
        estimator.entailment is not None
        or (estimator.judge is not None and _slow_judge(estimator.judge))
        or (estimator.similarity is not None and _slow_similarity(estimator.similarity))
        or any(map(is_slow, estimator.members))
    )


def _slow_judge(judge: Judge) -> bool:
    return not (_is_ours(judge) and is_light(judge.spec.name))


def _slow_similarity(similarity: Similarity) -> bool:
    if isinstance(similarity, JudgeSimilarity):
        return _slow_judge(similarity.judge)
    return not (_is_ours(similarity) and is_light_similarity(similarity.spec))


def _is_ours(judged_by: object) -> bool:
    return type(judged_by).__module__.startswith(_OURS)
