"""What does it cost if each hospital standardises its columns by its own rows, so that no sums of columns leave it?

Logistic regression under FedAvg on four real hospitals, over thirty splits of their rows.
"""

import atoll
from atoll.report.seed_statistics import paired_difference

SPLITS = 30


def scores(standardise: str) -> dict[str, dict[int, float]]:
    """Return the accuracies in percent of personal and generic models, by the seed of the split."""
    found: dict[str, dict[int, float]] = {"personal": {}, "generic": {}}
    for seed in range(SPLITS):
        result = atoll.run("fedavg", data="hospitals", models=["linear"], standardise=standardise, seed=seed)
        for kind, by_seed in found.items():
            by_seed[seed] = 100 * result.summary[kind]["best_by_val"]
    return found


def main() -> None:
    common, own = scores("all"), scores("site")
    print(f"{'models':<10} {'all':>6} {'site':>6}  site minus all (95 % interval, p), splits in which site is worse")
    for kind in common:
        found = paired_difference(own[kind], common[kind])
        assert found is not None
        means = (sum(each[kind].values()) / SPLITS for each in (common, own))
        print(f"{kind:<10} {next(means):6.2f} {next(means):6.2f}", end="  ")
        worse = sum(own[kind][seed] < common[kind][seed] for seed in range(SPLITS))
        print(f"{found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f}, p {found.p:.2g}), {worse} of {SPLITS}")


if __name__ == "__main__":
    main()
