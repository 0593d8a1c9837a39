"""Apply the privacy options to method and clients before a run, or explain why they cannot be met."""

from dataclasses import fields, replace
from math import ceil
from typing import Any, cast

from ..clients.dry_run import dry_run
from ..clients.pool import ClientPool
from ..core.contract import exchanges_of
from ..core.hooks import ChoosesCovariances, DropsSmallClasses, HasOptimiser, TakesRegularisers
from ..core.method import AnyMethod, traits_of
from ..core.optim.base import no_training
from ..core.optim.dpsgd import DPSGD
from ..core.schema import constraints_of
from ..data.tables.noisy_statistics import Noise
from ..errors import AtollError
from ..methods import _registry
from .budget import Budget
from .disclosure import DisclosureControl
from .options import PrivacyOptions, parse_target
from .statistics_mechanism import find_table_names
from .update_mechanism import find_update_field


def build_gate(config: PrivacyOptions, method: AnyMethod) -> DisclosureControl:
    """Build the disclosure control of a run.

    With ``--min-class-count``, covariances of few rows are not sent either, unless ``--cov-source`` is given.
    """
    guarded = "means" if isinstance(method, ChoosesCovariances) else "none"
    return DisclosureControl(
        config.min_class_count, config.cov_source or (guarded if config.min_class_count else "client")
    )


def prepare(config: PrivacyOptions, method: AnyMethod, pool: ClientPool) -> tuple[AnyMethod, ClientPool]:
    """Apply the privacy options to method and clients.

    Raises:
        AtollError: the method, the clients or the backend cannot meet the options.
    """
    if config.min_class_count and not pool.problem.num_classes:
        raise AtollError(
            f"--min-class-count counts samples of each class, but labels are {pool.problem.labels}. Leave it out."
        )
    method = _without_covariances(config, method)
    private = [f.name for f in fields(cast(Any, method)) if isinstance(getattr(method, f.name), DPSGD)]
    if config.dp is None:
        if config.dp_rounds is not None or config.dp_seed is not None:
            raise AtollError(
                "--dp-rounds and --dp-seed change nothing without --dp EPSILON. Add it, or leave them out."
            )
        if private:
            raise AtollError("dpsgd needs a budget, which decides its noise. Add --dp 8, or take --optimiser sgd.")
        return method, pool
    kind = _mechanism(config, method, pool, private)
    if kind == "training":
        noise = build_budget(config, method, pool.first_releases).multiplier
        seed = -1 if config.dp_seed is None else config.dp_seed
        optim = replace(cast(Any, method).optim, noise=noise, clip=config.dp_clip, seed=seed)
        method = replace(cast(Any, method), optim=optim)
    return method, replace(pool, bound=config.dp_clip) if kind == "statistics" else pool


def _without_covariances(config: PrivacyOptions, method: AnyMethod) -> AnyMethod:
    """Return the method with covariances from means, if the options say so and the method uses covariances."""
    if build_gate(config, method).cov_source != "means" or not sends_covariances(method):
        return method
    if not isinstance(method, ChoosesCovariances):
        raise AtollError(f"{config.method} cannot do without covariances of clients. Use --cov-source diag or none.")
    changed: AnyMethod = replace(cast(Any, method), cov_source="means")
    return changed


def sends_covariances(method: AnyMethod) -> bool:
    """Return True if covariances of features may be in an upload."""
    if isinstance(method, ChoosesCovariances) and method.cov_source == "means":
        return False
    return any(m.covariance for m in constraints_of(method).values())


def _mechanism(config: PrivacyOptions, method: AnyMethod, pool: ClientPool, private: list[str]) -> str:
    """Return the kind of noise that suits the method, or raise the reason why none does."""
    if private:
        _check_training(config, method, pool, private)
        return "training"
    with no_training():
        exchanges = list(dry_run(method, pool, config.seed))
    declared = constraints_of(method)
    try:
        for exchange in exchanges:
            if traits_of(method).bounded_statistics:
                find_table_names(exchange.upload, declared)
            else:
                find_update_field(exchange.download, exchange.upload, declared)
        if traits_of(method).varying_bytes:
            raise AtollError("it uploads more or fewer bytes by what was learnt, and noise does not hide a size")
    except AtollError as reason:
        raise AtollError(
            f"--dp cannot cover {config.method}: {reason}. Leave it out, or take another method."
        ) from None
    if isinstance(method, DropsSmallClasses) and method.min_count > 1:
        raise AtollError(
            f"--dp cannot cover {config.method} with min_count above 1: that goes by counts without noise. "
            "Use --min-class-count, which goes by noisy ones."
        )
    return "statistics" if traits_of(method).bounded_statistics else "updates"


def _check_training(config: PrivacyOptions, method: AnyMethod, pool: ClientPool, private: list[str]) -> None:
    if private != ["optim"]:
        raise AtollError(f"dpsgd is for `optim`, not for {', '.join(p for p in private if p != 'optim')}.")
    if not traits_of(method).private_training:
        able = ", ".join(name for name, cls in _registry.methods().items() if traits_of(cls).private_training)
        raise AtollError(
            f"dpsgd cannot cover {config.method}, which does not declare that its uploads depend only on the weights "
            f"that `optim` trains. Use --dp without it, or one of: {able}. If {config.method} is yours, and this is "
            "true of it, declare it in the `traits` of the class itself: Traits(private_training=True)."
        )
    if isinstance(method, TakesRegularisers) and method.regularisers:
        raise AtollError("dpsgd cannot cover terms given by --with: they may report of samples. Leave them out.")
    if config.backend == "vmap":
        raise AtollError(
            "--backend vmap cannot be used with dpsgd, which needs samples one by one. Use --backend loop."
        )
    unfit = sorted({pool.models[i].name for i in pool.ids if pool.models[i].has_buffers})
    if unfit:
        raise AtollError(
            f"dpsgd cannot train {', '.join(unfit)}: running statistics (BatchNorm) mix samples. Take models without."
        )


def build_budget(config: PrivacyOptions, method: AnyMethod, first: int = 0) -> Budget:
    """Build the budget of a run, planned for ``dp_rounds`` rounds or those of the run.

    Args:
        config: the privacy options of the run.
        method: the method of the run.
        first: releases before the first round, which are made already: of the statistics of tables.
    """
    goal = parse_target(str(config.dp))
    planned = first + releases_per_round(method) * int(config.dp_rounds or config.rounds)
    return Budget(goal.epsilon, goal.delta, planned, made=first)


def mechanism_of(method: AnyMethod) -> str:
    """Return what gets noise: ``training`` steps, ``statistics`` of classes, or ``updates`` of whole clients."""
    if needs_row_gradients(method):
        return "training"
    return "statistics" if traits_of(method).bounded_statistics else "updates"


def table_noise(config: PrivacyOptions, method: AnyMethod) -> Noise:
    """Return the noise on the statistics of tables, which are one release of the run's budget."""
    return Noise(build_budget(config, method, first=1).multiplier, mechanism_of(method) == "updates")


def needs_row_gradients(method: AnyMethod) -> bool:
    """Return True if training needs the gradient of every row, so that clients cannot share a batched call."""
    return isinstance(method, HasOptimiser) and isinstance(method.optim, DPSGD)


def releases_per_exchange(method: AnyMethod) -> int:
    """Return the number of releases in one exchange: with DPSGD one for each epoch, even for a part, else one."""
    return ceil(method.optim.epochs) if isinstance(method, HasOptimiser) and needs_row_gradients(method) else 1


def releases_per_round(method: AnyMethod) -> int:
    """Return the number of releases of one client in one round."""
    return releases_per_exchange(method) * len(exchanges_of(method))
