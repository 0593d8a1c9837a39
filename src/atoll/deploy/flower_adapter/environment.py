"""Make the environment of Flower's programs."""

import os
import sys
from pathlib import Path

# Variables that Atoll's processes and Flower's programs get. Others may hold secrets of the account.
_KEPT = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV", "COLUMNS")
_KEPT_PREFIXES = ("LC_", "LD_", "PYTHON", "OMP_", "MKL_", "CUDA_", "NVIDIA_", "TORCH_", "ATOLL_", "MLFLOW_", "WANDB_")


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: own folder, no telemetry, no installation of packages."""
    programs = str(Path(sys.executable).parent)
    kept = {name: v for name, v in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    return kept | {
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
    }
