"""What an estimator is: a pure function from a `SampleSet` to an `Uncertainty`, and what it declares about itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..judges import Judge, JudgeSpec, Similarity
from ..types import Frozen, SampleSet, Uncertainty, Unit, Unmeasured
from .clustering import Clustering, Clusters

__all__ = ["Estimator", "EstimatorSpec", "Evidence", "Missing", "Needs", "Support"]

Support = Literal["discrete", "continuous"]
"""Whether the estimator takes few values only. Decides what `rule="certified"` means; declared, never read off data."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to be drawn for an estimator; `guardrail.sampling.plan_for` turns it into a plan."""

    samples: bool = False
    """The n sampled responses."""
    logprobs: bool = False
    """Token log-probabilities (of the samples if it needs samples, else of the primary answer)."""
    options: bool = False
    """Option log-likelihoods."""
    judge: bool = False
    """An equivalence judge, and the clusters it gives."""
    similarity: bool = False
    """A graded similarity, and the matrix it gives."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a formula has no value here."""

    reason: Unmeasured
    detail: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a formula sees: the sample set, its clusters if it declared a judge, its matrix if it declared a similarity.

    Attributes:
        drawn: What was drawn.
        clusters: The samples by meaning.
        matrix: Similarity of samples, shape (n, n), symmetric with unit diagonal. Rows are in canonical order (sorted
            by string), not in the order of the samples, so that no formula can depend on that order.
    """

    drawn: SampleSet
    clusters: Clusters | None = None
    matrix: NDArray[np.float64] | None = None


class EstimatorSpec(Frozen):
    """What an artifact stores about an estimator; another spec at run time is a mismatch."""

    name: str
    """Name of the estimator."""
    version: int
    """Raised by any change that can move a score (see "Recalibrate" in the changelog)."""
    unit: Unit
    """Unit of the score."""
    support: Support
    """Whether the score takes few values only."""
    judge: JudgeSpec | None = None
    """The equivalence judge, for estimators that cluster."""
    clustering: Clustering | None = None
    """How verdicts become clusters, for estimators that cluster."""
    similarity: JudgeSpec | None = None
    """The graded similarity, for estimators over a graph of samples."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the formula."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """A named uncertainty estimator. Higher is less certain, always.

    Attributes:
        name: Name, as in `guardrail.uncertainty.available()`.
        version: Raised by any change that can move a score.
        unit: Unit of the score.
        support: Whether the score takes few values only.
        needs: What has to be drawn.
        formula: The pure function itself.
        judge: Equivalence judge, for estimators that cluster.
        clustering: How verdicts become clusters.
        similarity: Graded similarity, for estimators over a graph of samples.
    """

    name: str
    version: int
    unit: Unit
    support: Support
    needs: Needs
    formula: Callable[[Evidence], float | Missing]
    judge: Judge | None = None
    clustering: Clustering = "components"
    similarity: Similarity | None = None

    @property
    def spec(self) -> EstimatorSpec:
        """What an artifact stores."""
        clusters = self.judge is not None
        return EstimatorSpec(
            name=self.name,
            version=self.version,
            unit=self.unit,
            support=self.support,
            judge=self.judge.spec if self.judge is not None else None,
            clustering=self.clustering if clusters else None,
            similarity=self.similarity.spec if self.similarity is not None else None,
        )

    def score(self, evidence: Evidence) -> Uncertainty:
        """Apply the formula; anything that is not a finite number becomes a reason.

        Rounding residue just below zero (an entropy of -1e-17) is set to 0.
        """
        found: float | Missing
        try:
            found = self.formula(evidence)
        except (ArithmeticError, np.linalg.LinAlgError) as error:  # an eigendecomposition need not converge
            found = Missing(Unmeasured.NOT_FINITE, f"{self.name}: {type(error).__name__}: {error}")
        if isinstance(found, float) and not math.isfinite(found):
            found = Missing(Unmeasured.NOT_FINITE, f"{self.name} gave {found}")
        if isinstance(found, Missing):
            return self.unmeasured(found.reason, found.detail)
        value = 0.0 if -1e-9 < found <= 0 else float(found)
        return Uncertainty(value=value, unit=self.unit, estimator=self.name)

    def unmeasured(self, reason: Unmeasured, detail: str) -> Uncertainty:
        """An `Uncertainty` without a value."""
        return Uncertainty(value=None, unit=self.unit, estimator=self.name, reason=reason, detail=detail)
