"""The audit of a cascade's promise: an exact test of the system's error rate on freshly labelled questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from guardrail.artifact import CascadeArtifact, StageShare
from guardrail.errors import UsageError
from guardrail.types import Frozen

from ..cascade import counts, matched
from ..data.records import RecordFile
from ..fitting import check_open_unit
from ..rules.certificate import upper_bound
from .audit import LEVEL, audit_counts, prepared

__all__ = ["CascadeAudit", "audit_cascade"]


class CascadeAudit(Frozen):
    """A cascade's promise against fresh labels."""

    verdict: Literal["refuted", "supported", "undecided"]
    """As in `Audit`, about the answers of the whole system."""
    artifact: str
    """Digest of the artifact."""
    target: float
    """The error rate that was tested, by default alpha."""
    level: float
    """Probability of refuting a system whose error rate is exactly the target; and of supporting it."""
    n_questions: int
    """Fresh questions with scores and labels of every stage that would answer them."""
    stages: tuple[StageShare, ...]
    """What each stage answers of them, and how many of these answers are wrong."""
    p_refute: float
    """P(Bin(n, target) >= n_errors)."""
    p_support: float
    """P(Bin(n, target) <= n_errors)."""
    upper: float | None
    """Exact upper confidence bound of the error rate at ``1 - level``; None without an answer."""
    needed: int | None
    """More answers that would decide it if the rate stayed as seen; None when decided, or when none would."""

    @property
    def n(self) -> int:
        """Answers of the system."""
        return sum(stage.n_accepted for stage in self.stages)

    @property
    def n_errors(self) -> int:
        """Wrong ones among them."""
        return sum(stage.n_errors for stage in self.stages)


def audit_cascade(
    artifact: CascadeArtifact,
    files: Sequence[RecordFile],
    *,
    level: float = LEVEL,
    target: float | None = None,
    anytime: bool = False,
) -> CascadeAudit:
    """Test the error rate of a system's answers on labelled questions that it was not fitted on.

    The test is that of `audit`, with the answers that the stages would give together.

    Args:
        artifact: The cascade's artifact.
        files: Fresh records of the same questions, one file a stage in the artifact's order. Scores and labels that
            are missing are made as each stage's artifact says.
        level: False-alarm probability, in (0, .5).
        target: Error rate to test; default: the artifact's alpha.
        anytime: Whether the verdict holds at any time, as the files grow; it needs more labels.

    Raises:
        UsageError: Another number of files than stages, calibration questions, or files that do not fit each other or
            their stage.
    """
    check_open_unit("level", level)
    rate = artifact.alpha if target is None else target
    check_open_unit("target", rate)
    if len(files) != len(artifact.stages):
        raise UsageError(
            f"the cascade has {len(artifact.stages)} stages, got {len(files)} record files. Give one --records a "
            "stage, cheapest model first."
        )
    ready = [prepared(file, stage) for file, stage in zip(files, artifact.stages, strict=True)]
    pool = matched([file for file, _ in ready], [key for _, key in ready])
    stages = counts(pool.uncertainty, pool.error, [stage.threshold for stage in artifact.outcome.stages])
    n, errors = sum(stage.n_accepted for stage in stages), sum(stage.n_errors for stage in stages)
    verdict, p_refute, p_support, needed = audit_counts(errors, n, rate, level, anytime=anytime)
    return CascadeAudit(
        verdict=verdict,
        artifact=artifact.digest,
        target=rate,
        level=level,
        n_questions=len(pool.ids),
        stages=stages,
        p_refute=p_refute,
        p_support=p_support,
        upper=upper_bound(errors, n, level) if n and not anytime else None,
        needed=needed,
    )
