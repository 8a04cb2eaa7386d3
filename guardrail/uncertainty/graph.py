"""Estimators over the graph of samples: nodes are samples, edge weights their similarity.

W is the (n, n) similarity matrix with unit diagonal, D = diag(row sums), L = I - D^-1/2 W D^-1/2 the normalised
Laplacian. The diagonal of W is part of D, as in Lin et al. 2024. Scores that come from an eigendecomposition are
rounded to 10 decimals: equal partitions give equal scores with every linear-algebra library.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain
from typing import Any

from ..judges import GuardedJaccard, RougeL
from .base import Estimator, Evidence, Needs

__all__ = ["ESTIMATORS"]

Matrix = tuple[tuple[float, ...], ...]
ECCENTRICITY_CUT = 0.9
"""Eigenvectors with an eigenvalue below this span the space in which eccentricity is measured."""
HEAT_TIME = 0.3
"""Diffusion time t of the heat kernel."""
_DECIMALS = 10


def _spectrum(W: Matrix) -> tuple[Any, Any]:
    """Eigenvalues, an array of shape (n,), ascending, and eigenvectors, in columns, of the normalised Laplacian."""
    import numpy as np  # slow to import, and only eigenvalues need it

    scale = 1 / np.sqrt(np.sum(W, axis=1))
    # The symmetric form: its eigenvalues are real, and `eigh` gives orthonormal eigenvectors in ascending order.
    values, vectors = np.linalg.eigh(np.eye(len(W)) - scale[:, None] * np.array(W) * scale[None, :])
    return values, vectors


def lexical_similarity(evidence: Evidence) -> float:
    """Lexical dissimilarity: 1 - mean ROUGE-L F1 over all pairs of different samples. Probability, in [0, 1].

    0 iff all samples have the same words in the same order. A similarity other than `rouge_l` gives another spec.
    Source: Lin et al. 2022, as in lm-polygraph. Differences: normalised words without stemming, refusals count as
    alike, and fewer than two samples are unmeasured where lm-polygraph gives NaN.
    """
    W = evidence.matrix
    m = len(W)
    return 1 - (math.fsum(chain(*W)) - m) / (m * (m - 1))  # fsum is exact, so the order of the samples does not matter


def degree(evidence: Evidence) -> float:
    """Degree uncertainty: trace(m I - D) / m^2, the mean dissimilarity of two samples. Probability, in [0, 1 - 1/m].

    0 iff every two samples have similarity 1. Pairs include each sample with itself, which gives the bound. On the same
    W it is (m - 1) / m times `lexical_similarity`. Source: Lin et al., TMLR 2024 (U_Deg), where W comes from an NLI
    model.
    """
    W = evidence.matrix
    m = len(W)
    return (m * m - math.fsum(chain(*W))) / (m * m)


def eigenvalue(evidence: Evidence) -> float:
    """Eigenvalue uncertainty: sum_k max(0, 1 - lambda_k) over the eigenvalues of L. Count, in [1, m].

    A continuous number of meanings: with a 0/1 block-diagonal W it is exactly the number of blocks of any sizes.
    Source: Lin et al., TMLR 2024 (U_EigV), where W comes from an NLI model.
    """
    W = evidence.matrix
    values, _ = _spectrum(W)
    return round(math.fsum(max(0.0, 1 - value) for value in values), _DECIMALS)


def eccentricity(evidence: Evidence) -> float:
    """Eccentricity: Frobenius norm of the centred eigenvectors of L with lambda < 0.9. Distance, in [0, sqrt(m - 1)].

    Row i of the eigenvectors V = (v_1 ... v_k) embeds sample i; the rows are centred on their mean. The square is
    k - |V^T 1|^2 / m, so signs and the choice of basis within equal eigenvalues do not matter. A 0/1 block-diagonal W
    with g blocks scores sqrt(g - 1). The cut makes it jump where an eigenvalue crosses 0.9.
    Source: Lin et al., TMLR 2024 (U_Ecc); the cut is their default, and is not tuned here.
    """
    W = evidence.matrix
    values, vectors = _spectrum(W)
    # Rounded first: an eigenvalue at .9 up to the last bit must fall on the same side with every library.
    selected = vectors[:, values.round(_DECIMALS) < ECCENTRICITY_CUT]
    centred = selected - selected.mean(axis=0)
    return round(math.sqrt((centred * centred).sum()), _DECIMALS)


def kernel_language_entropy(evidence: Evidence) -> float:
    """Kernel language entropy: von Neumann entropy -tr(rho ln rho) of the heat kernel. Nats, in [0, ln m].

    Samples with the same row in W are one node with the share p of its samples. K = exp(-t L) over the nodes, t = 0.3;
    rho_ij = sqrt(p_i p_j) K_ij / sqrt(K_ii K_jj) has trace 1. All samples alike give 0, none alike ln m, and a 0/1
    block-diagonal W gives the entropy of the blocks' shares, that is `discrete_semantic_entropy`.

    Source: Nikitin et al., NeurIPS 2024 (heat kernel, unit diagonal, unit trace). Difference: nodes are distinct
    answers weighted by share. With a node for every sample, diffusion over t = 0.3 leaves n equal answers far apart
    (2.298 nats of at most 2.303 for n = 10 with this L), and the score is dominated by n.
    """
    W = evidence.matrix
    # One node for each distinct row: equal answers as separate nodes would be far apart at a short diffusion time.
    counts = Counter(W)
    nodes = {row: W.index(row) for row in sorted(counts)}
    import numpy as np  # as in `_spectrum`

    values, vectors = _spectrum(tuple(tuple(row[column] for column in nodes.values()) for row in nodes))
    K = (vectors * np.exp(-HEAT_TIME * values)) @ vectors.T
    scale = np.sqrt([counts[row] / len(W) for row in nodes] / np.diag(K))
    shares = np.linalg.eigvalsh(scale[:, None] * K * scale[None, :])
    return round(-math.fsum(share * math.log(share) for share in shares if share > 0), _DECIMALS)


_MATRIX = Needs(samples=True, similarity=True)
_ALIKE = GuardedJaccard()

ESTIMATORS = (
    Estimator("degree", 1, "probability", _MATRIX, degree, similarity=_ALIKE),
    Estimator("eccentricity", 1, "distance", _MATRIX, eccentricity, similarity=_ALIKE),
    Estimator("eigenvalue", 1, "count", _MATRIX, eigenvalue, similarity=_ALIKE),
    Estimator("kernel_language_entropy", 1, "nats", _MATRIX, kernel_language_entropy, similarity=_ALIKE),
    Estimator("lexical_similarity", 1, "probability", _MATRIX, lexical_similarity, similarity=RougeL()),
)
