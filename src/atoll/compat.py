"""Can this method run on this federation? Asked before anything runs."""

from . import registry
from .core import Need
from .errors import AtollError
from .fleet import Fleet
from .rounds import AnyMethod


def check(method: AnyMethod, fleet: Fleet, name: str, backend: str) -> None:
    """Raise one sentence that names the remedy if the method cannot run."""
    architectures = fleet.architectures()
    widths = {m: fleet.models[i].feature_dim for i in fleet.ids if (m := fleet.models[i].name)}
    if Need.SAME_ARCHITECTURE in method.needs and len(architectures) > 1:
        raise AtollError(
            f"{name} shares whole models, so all clients need one architecture, but --models gives "
            f"{', '.join(architectures)}. Give one model, or take a method for unlike models: {_hospitable()}."
        )
    if Need.SAME_WIDTH in method.needs and len(set(widths.values())) > 1:
        listed = ", ".join(f"{m} {d}" for m, d in widths.items())
        raise AtollError(
            f"{name} shares heads or compares features, so all models need one feature width, but they have {listed}. "
            f"Add --width {min(widths.values())}, or choose models that agree."
        )
    if Need.PUBLIC_DATA in method.needs and fleet.public is None:
        raise AtollError(f"{name} distils on public data, and there is none. Add --public {100 * fleet.num_classes}.")
    if backend == "vmap" and not method.vectorisable:
        raise AtollError(f"--backend vmap cannot batch {name}. Use --backend processes or loop.")
    unlike = sorted({fleet.models[i].name for i in fleet.ids if not fleet.models[i].vectorisable})
    if backend == "vmap" and unlike:
        raise AtollError(f"--backend vmap cannot batch {', '.join(unlike)}. Use --backend loop.")


def _hospitable() -> str:
    """Methods that run on unlike models."""
    free = [name for name, cls in registry.methods().items() if Need.SAME_ARCHITECTURE not in cls.needs]
    return ", ".join(free)
