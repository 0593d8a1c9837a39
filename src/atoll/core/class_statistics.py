"""Statistics of classes in feature space: means, covariances, their pooling over clients, and draws from them."""

import torch
from torch import Tensor

from .prng import Key, fold, normal
from .vmap import is_batched

NEGLIGIBLE = 1e-5  # share of a feature's variance that rounding to single precision may have made up
COLUMNS_AT_ONCE = 32  # of a factor: a panel of this width stays in the processor's cache
CLASSES_AT_ONCE = 16  # factored together; more only cost memory


def class_means(z: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """Count [C] and mean feature [C, d] of each class, from features [N, d] and one-hot labels [N, C]."""
    n = member.sum(0)
    total = member.double().T @ z.double()
    return n, (total / n.clamp(min=1)[:, None]).to(z.dtype)


def covariances(z: Tensor, member: Tensor, n: Tensor, mu: Tensor) -> Tensor:
    """Unbiased covariance [C, d, d] of each class, exactly symmetric; zero for classes with fewer than two rows."""

    def covariance(c: int) -> Tensor:
        own = slice(None) if is_batched() else member[:, c] > 0
        centred = (z[own] - mu[c]) * member[own, c, None]
        s = centred.T @ centred
        return (s + s.mT) / 2 / (n[c] - 1).clamp(min=1)

    if is_batched():
        return torch.stack([covariance(c) for c in range(len(mu))])
    out = z.new_zeros(len(mu), z.shape[1], z.shape[1])
    for c in (n > 1).nonzero().flatten().tolist():  # the others may be many, and their zeros are there already
        out[c] = covariance(c)
    return out


class Pool:
    """Statistics of the union of several samples, from the statistics of each, one at a time.

    Around the running mean, in double precision: the textbook form, a difference of squares, loses positive
    definiteness to rounding. ``exact`` weighs a sample's covariance by n - 1, otherwise by n.

    Without covariances of the samples, the spread of their means tells that of the rows, if all are drawn from one
    distribution: sum_k n_k (mu_k - mu)(mu_k - mu)^T / (K - 1) has the expectation sigma, for K samples of any sizes
    (FedCOF, https://arxiv.org/abs/2412.14326). ``from_means`` asks for that.
    """

    def __init__(
        self, classes: int, width: int, covariances: bool = True, exact: bool = True, from_means: bool = False
    ):
        self._owners = torch.zeros(classes, dtype=torch.double) if from_means else None
        self.n = torch.zeros(classes, dtype=torch.double)
        self.mu = torch.zeros(classes, width, dtype=torch.double)
        self._scatter = torch.zeros(classes, width, width, dtype=torch.double) if covariances else None
        self._lost = 1.0 if exact else 0.0

    def add(self, n: Tensor, mu: Tensor, sigma: Tensor | None) -> None:
        held = (n > 0).nonzero().flatten()
        before, more = self.n[held], n[held].double()
        after, off = before + more, mu[held].double() - self.mu[held]
        if self._scatter is not None:
            between = (before * more / after)[:, None, None] * off[:, :, None] * off[:, None, :]
            if sigma is not None:
                inside = (more - self._lost)[:, None, None] * sigma[held].double()
                between = inside + between
            self._scatter[held] += between
        if self._owners is not None:
            self._owners[held] += 1
        self.mu[held] += (more / after)[:, None] * off
        self.n[held] = after

    def sigma(self) -> Tensor:
        """The pooled covariance [C, d, d]; that of a class with a single mean is 0 ``from_means``."""
        assert self._scatter is not None
        freedom = (self.n if self._owners is None else self._owners) - 1
        return self._scatter / freedom.clamp(min=1)[:, None, None]


def roots(sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Factors L [B, d, r] with L L^T = sigma, and the features [B, r] that their columns started from.

    A Cholesky factorisation that stops when every feature is explained by those taken, so that rank r costs r columns.
    It cannot fail: a column is never larger than the variance still unexplained, so that singular matrices need no
    jitter, and one that rounding (or a liar) made indefinite gives no more variance than its diagonal. The next feature
    is the first that is at least half as unexplained as any: enough for accuracy, and unlike the very largest it
    seldom changes with a last digit.
    """
    whole = sigma.diagonal(dim1=1, dim2=2).clamp(min=0)
    left, rest, batch = whole.clone(), sigma.clone(), torch.arange(len(sigma))
    panels, taken = [sigma.new_zeros(*sigma.shape[:2], 0)], []
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
            taken.append(j)
        panels.append(panel)
        if panel.shape[2] < COLUMNS_AT_ONCE:
            break
        rest.baddbmm_(panel, panel.mT, alpha=-1)
    return torch.cat(panels, 2), torch.stack(taken, 1) if taken else batch.new_zeros(len(sigma), 0)


def draw(n: Tensor, mu: Tensor, sigma: Tensor, total: int, k: Key) -> tuple[Tensor, Tensor]:
    """``total`` features z ~ N(mu_c, sigma_c) and their labels, shared out among the classes in proportion to ``n``."""
    counts = allocate(n, total)
    parts = [mu.new_zeros(0, mu.shape[1])]
    for classes in counts.nonzero().flatten().split(CLASSES_AT_ONCE):
        factors, features = roots(sigma[classes].double())
        for c, factor, own in zip(classes.tolist(), factors, features, strict=True):
            noise = normal(fold(k, c), int(counts[c]), mu.shape[1])[:, own]
            parts.append(mu[c] + (noise.double() @ factor.T).to(mu.dtype))
    return torch.cat(parts).float(), torch.arange(len(n)).repeat_interleave(counts)


def allocate(n: Tensor, total: int) -> Tensor:
    """Split ``total`` in proportion to ``n`` by the largest-remainder rule; the lower class wins a tie."""
    n = n.round().long().clamp(min=0)
    mass = max(1, int(n.sum()))
    share, remainder = total * n // mass, total * n % mass
    rest = total - int(share.sum()) if n.any() else 0
    first = remainder.argsort(descending=True, stable=True)[:rest]
    share[first] += 1
    return share
