"""What clients who lie cost: accuracy of the honest ones, by kind of lie, with a robust rule and without.

    python benchmarks/poison.py [--seeds 0,1,2] [--rule geometric] [--methods fedavg,fedproto]

Digits among 20 clients, 4 of whom lie. Personal models are tested after local training, over the clients who are honest
in all runs of a seed; losses are in points against the run in which nobody lies and the server takes means.
"""

import argparse
from functools import cache
from statistics import fmean

import torch

import atoll
from atoll.simulation.byzantine import KINDS
from atoll.simulation.faults import Faults, Poison

TASK = {"data": "digits", "clients": 20, "partition": "dirichlet:0.5", "rounds": 20, "eval_every": 20}
SHARE = 0.2


@cache
def honest_accuracy(method: str, seed: int, kind: str | None = None, rule: str | None = None) -> float:
    """Mean accuracy of the clients who are honest, in percent, at the end of a run."""
    poison = None if kind is None else f"{SHARE}:{kind}"
    result = atoll.run(method, seed=seed, poison=poison, robust=rule, **TASK)
    byzantine = Faults(result.pool.ids, seed, poison=Poison(SHARE, "signflip")).poisoned  # the same for every kind
    return 100 * fmean(row["accuracy"] for row in result.clients if row["client"] not in byzantine)


def loss(method: str, seeds: list[int], kind: str | None, rule: str | None) -> float:
    """Points that the honest lose, over seeds."""
    return fmean(honest_accuracy(method, s) - honest_accuracy(method, s, kind, rule) for s in seeds)


def table(methods: list[str], seeds: list[int], rule: str) -> None:
    print(f"| method | lie | points lost by means | points lost by {rule} |", "| --- | --- | ---: | ---: |", sep="\n")
    for method in methods:
        clean = fmean(honest_accuracy(method, s) for s in seeds)
        print(f"| {method} | none ({clean:.2f} %) | 0.00 | {loss(method, seeds, None, rule):.2f} |", flush=True)
        for kind in KINDS:
            lost = (loss(method, seeds, kind, r) for r in (None, rule))
            print(f"| {method} | {kind} |", " | ".join(f"{points:.2f}" for points in lost), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rule", default="geometric")
    parser.add_argument("--methods", default="fedavg,fedproto")
    given = parser.parse_args()
    torch.set_num_threads(1)
    table(given.methods.split(","), [int(s) for s in given.seeds.split(",")], given.rule)


if __name__ == "__main__":
    main()
