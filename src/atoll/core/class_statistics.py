"""Compute class means and covariances in feature space, pool them over clients, and sample features from them."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from .prng import Key, fold, normal_columns
from .vmap import is_batched

NEGLIGIBLE = 1e-5  # share of a feature's variance that may come from rounding to single precision
COLUMNS_AT_ONCE = 32  # columns of a factor in a panel: this width stays in the processor's cache
CLASSES_AT_ONCE = 16  # classes factorised together: more only cost memory


def class_means(z: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of rows [C] and the mean feature [C, d] of each class.

    Args:
        z: features [N, d].
        member: one-hot labels [N, C]; padding rows are zero.
    """
    n = member.sum(0)
    total = member.double().T @ z.double()
    return n, (total / n.clamp(min=1)[:, None]).to(z.dtype)


def covariances(z: Tensor, member: Tensor, n: Tensor, mu: Tensor) -> Tensor:
    """Return the unbiased covariance [C, d, d] of each class, exactly symmetric.

    Classes with fewer than two rows have covariance 0.

    Args:
        z: features [N, d].
        member: one-hot labels [N, C]; padding rows are zero.
        n: rows of each class [C].
        mu: mean feature of each class [C, d].
    """

    def covariance(c: int) -> Tensor:
        centred = _centred(z, member, mu, c)
        s = centred.T @ centred
        return (s + s.mT) / 2 / (n[c] - 1).clamp(min=1)

    return _class_by_class(covariance, n, z.new_zeros(len(mu), z.shape[1], z.shape[1]))


def covariance_factors(z: Tensor, member: Tensor, n: Tensor, mu: Tensor, rank: int) -> Tensor:
    """Return factors F [C, d, r] of class covariances, so that F F^T is the best approximation of rank r.

    They are the first ``rank`` principal components, each times the square root of its variance, with the largest entry
    positive; r is the smaller of ``rank`` and d. If a class has at most ``rank`` + 1 rows, F F^T is its covariance.

    Args:
        z: features [N, d].
        member: one-hot labels [N, C]; padding rows are zero.
        n: rows of each class [C].
        mu: mean feature of each class [C, d].
        rank: columns of a factor.
    """
    width = min(rank, z.shape[1])

    def factor(c: int) -> Tensor:
        scaled = _centred(z, member, mu, c) / (n[c] - 1).clamp(min=1).sqrt()
        _, deviations, directions = torch.linalg.svd(scaled, full_matrices=False)
        columns = (deviations[:width, None] * directions[:width]).T
        largest = columns.gather(0, columns.abs().argmax(0, keepdim=True))
        return pad(columns * torch.where(largest < 0, -1.0, 1.0), (0, width - columns.shape[1]))

    return _class_by_class(factor, n, z.new_zeros(len(mu), z.shape[1], width))


def _centred(z: Tensor, member: Tensor, mu: Tensor, c: int) -> Tensor:
    """Return the features of a class less their mean; in a batched call, with rows of zeros for other rows."""
    own = slice(None) if is_batched() else member[:, c] > 0
    return (z[own] - mu[c]) * member[own, c, None]


def _class_by_class(compute: Callable[[int], Tensor], n: Tensor, out: Tensor) -> Tensor:
    """Compute a matrix for each class with two rows or more; ``out`` holds zeros for the others."""
    if is_batched():
        return torch.stack([compute(c) for c in range(len(out))])
    for c in (n > 1).nonzero().flatten().tolist():  # Skip the many classes without rows.
        out[c] = compute(c)
    return out


class Pool:
    """Pool the class statistics of several clients into those of the union of their rows.

    Statistics are added client by client around the running mean, in double precision: the textbook form, a difference
    of squares, loses positive definiteness to rounding.

    Args:
        classes: number of classes.
        width: number of features.
        covariances: pool covariances as well as means.
        exact: weight a client's covariance by n - 1, otherwise by n.
        from_means: estimate the covariance from the spread of the clients' means alone. If all rows are drawn from one
            distribution, sum_k n_k (mu_k - mu)(mu_k - mu)^T / (K - 1) has the expectation sigma, for K clients of any
            sizes (FedCOF, https://arxiv.org/abs/2412.14326).

    Attributes:
        n: rows of each class [C].
        mu: mean feature of each class [C, d].
    """

    def __init__(
        self, classes: int, width: int, covariances: bool = True, exact: bool = True, from_means: bool = False
    ):
        self._owners = torch.zeros(classes, dtype=torch.double) if from_means else None
        self.n = torch.zeros(classes, dtype=torch.double)
        self.mu = torch.zeros(classes, width, dtype=torch.double)
        self._scatter = torch.zeros(classes, width, width, dtype=torch.double) if covariances else None
        self._lost = 1.0 if exact else 0.0

    def add(self, n: Tensor, mu: Tensor, sigma: Tensor | None = None, factors: Tensor | None = None) -> None:
        """Add the class statistics of one client.

        Args:
            n: rows [C].
            mu: means [C, d].
            sigma: covariances [C, d, d], if there are any.
            factors: factors F [C, d, r] of covariances F F^T, if these are sent instead.
        """
        held = (n > 0).nonzero().flatten()
        before = self.n[held]
        more = n[held].double()
        after = before + more
        off = mu[held].double() - self.mu[held]
        if self._scatter is not None:
            weights, freedom = (before * more / after)[:, None] * off, more - self._lost
            # One class at a time: a matrix stays in the processor's cache, and all of them would take much memory.
            for at, c in enumerate(held.tolist()):
                spread = torch.outer(weights[at], off[at])
                if sigma is not None:
                    spread += sigma[c].double().mul_(freedom[at])
                if factors is not None:
                    factor = factors[c].double()
                    spread.addmm_(factor, factor.T, alpha=float(freedom[at]))
                self._scatter[c] += spread
        if self._owners is not None:
            self._owners[held] += 1
        self.mu[held] += (more / after)[:, None] * off
        self.n[held] = after

    def sigma(self) -> Tensor:
        """Return the pooled covariance [C, d, d]. With ``from_means``, a class with a single mean has covariance 0.

        The sums become the result, without a copy: nothing can be added afterwards.
        """
        assert self._scatter is not None
        freedom = (self.n if self._owners is None else self._owners) - 1
        pooled, self._scatter = self._scatter.div_(freedom.clamp(min=1)[:, None, None]), None
        return pooled


def factorise(sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Factorise covariances by a pivoted Cholesky decomposition that stops at the numerical rank.

    Rank r costs r columns. The decomposition cannot fail: a column is never larger than the variance still unexplained,
    so that singular matrices need no jitter, and a matrix that rounding or a Byzantine client made indefinite gives no
    more variance than its diagonal. The pivot is the first feature with at least half of the largest unexplained share:
    accurate enough, and unlike the largest itself this choice seldom changes with the last digit.

    Args:
        sigma: covariances [B, d, d], in double precision.

    Returns:
        Factors L [B, d, r] with L L^T = sigma, and the pivots [B, r] of their columns.
    """
    whole = sigma.diagonal(dim1=1, dim2=2).clamp(min=0)
    left = whole.clone()
    rest = sigma.clone()
    batch = torch.arange(len(sigma))
    panels = [sigma.new_zeros(*sigma.shape[:2], 0)]
    pivots: list[Tensor] = []
    for _ in range(0, sigma.shape[1], COLUMNS_AT_ONCE):
        panel = panels[0]
        for _ in range(COLUMNS_AT_ONCE):
            share = torch.where(whole > 0, left / whole, 0.0)
            most = share.amax(1, keepdim=True)
            if not bool((most > NEGLIGIBLE).any()):
                break
            j = (share >= most / 2).int().argmax(1)
            column = rest[batch, :, j] - (panel @ panel[batch, j, :, None]).squeeze(2)
            bound = left.sqrt()
            pivot = torch.where(most > NEGLIGIBLE, bound[batch, j, None], torch.inf)
            column = (column / pivot).clamp(-bound, bound)
            left = (left - column.square()).clamp(min=0)
            left[batch, j] = 0.0
            panel = torch.cat([panel, column[:, :, None]], 2)
            pivots.append(j)
        panels.append(panel)
        if panel.shape[2] < COLUMNS_AT_ONCE:
            break
        rest.baddbmm_(panel, panel.mT, alpha=-1)
    return torch.cat(panels, 2), torch.stack(pivots, 1) if pivots else batch.new_zeros(len(sigma), 0)


def draw(n: Tensor, mu: Tensor, sigma: Tensor, total: int, k: Key) -> tuple[Tensor, Tensor]:
    """Sample features z ~ N(mu_c, sigma_c) of all classes.

    Args:
        n: rows of each class [C]; the sample is allocated in proportion to them.
        mu: means [C, d].
        sigma: covariances [C, d, d].
        total: number of features to draw.
        k: key of the draws.

    Returns:
        Features [total, d] and their labels [total], ordered by class.
    """
    counts = allocate(n, total)
    parts = [mu.new_zeros(0, mu.shape[1])]
    for classes in counts.nonzero().flatten().split(CLASSES_AT_ONCE):
        factors, features = factorise(sigma[classes].double())
        for c, factor, own in zip(classes.tolist(), factors, features, strict=True):
            noise = normal_columns(fold(k, c), int(counts[c]), mu.shape[1], own)
            parts.append(mu[c] + (noise.double() @ factor.T).to(mu.dtype))
    return torch.cat(parts).float(), torch.arange(len(n)).repeat_interleave(counts)


def allocate(n: Tensor, total: int) -> Tensor:
    """Split ``total`` into whole numbers in proportion to ``n`` [C], by largest remainders (ties: lower classes)."""
    n = n.round().long().clamp(min=0)
    mass = max(1, int(n.sum()))
    share, remainder = total * n // mass, total * n % mass
    rest = total - int(share.sum()) if n.any() else 0
    first = remainder.argsort(descending=True, stable=True)[:rest]
    share[first] += 1
    return share
