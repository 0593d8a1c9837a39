"""What figures are meant to reach."""

from fnmatch import fnmatchcase
from typing import NamedTuple


class Target(NamedTuple):
    sign: str  # "<=" or ">="
    value: float

    def met(self, figure: float) -> bool:
        return figure <= self.value if self.sign == "<=" else figure >= self.value

    def __str__(self) -> str:
        return f"{'≤' if self.sign == '<=' else '≥'} {self.value:g}"


TARGETS = {
    "vs_tuned.*": Target("<=", 1.1),
    "vs_plain.*_B64_*": Target("<=", 0.9),
    "vmap_speedup.W3": Target(">=", 20),
    **{f"overhead.{name}": Target("<=", 1.2) for name in ("feddw", "fedpd")},
    "overhead.*": Target("<=", 1.3),
    "own_arithmetic.pfedes": Target("<=", 1.2),
    "rss_mb.*": Target("<=", 1500),
    "idle_kb_per_client": Target("<=", 10),
    "scale.same_digest": Target(">=", 1),
    "spectrum.over_torch_1e6": Target("<=", 1.3),
    "spectrum.*_vector": Target("<=", 0.5),
    "spectrum.*_layer": Target("<=", 0.5),
    "growth.registered_clients_*": Target("<=", 1.5),
    "growth.eval_window": Target("<=", 1.1),
    "files.ms_per_round_1000": Target("<=", 2),
    "files.ms_per_round_10000": Target("<=", 5),
    "cost.dcpfl_500x100": Target("<=", 12),
    "peak_mb.dcpfl_500x100": Target("<=", 1074),  # 1 GiB
    "peak_mb.scd_resnet18": Target("<=", 2000),
    "auto.beside_best.*": Target("<=", 1.25),
    "auto.two_workers.*": Target(">=", 1.7),
    "vs_peer.*": Target(">=", 1),
    "vs_loop.tuned.W2": Target(">=", 1 / 1.08),
    "vs_loop.batched.W1": Target(">=", 1 / 2),
    "vs_loop.batched.W3": Target(">=", 1 / 4),
    "startup.help_seconds": Target("<=", 0.5),
    "startup.typo_seconds": Target("<=", 0.5),
    "startup.completion_seconds": Target("<=", 0.5),
    "startup.first_round_beyond_torch_seconds": Target("<=", 1),
    "startup.first_round_digits_seconds": Target("<=", 5),
}


def target(name: str) -> Target | None:
    """That of a figure, if it has one."""
    return next((wanted for pattern, wanted in TARGETS.items() if fnmatchcase(name, pattern)), None)
