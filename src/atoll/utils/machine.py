"""Describe the software and the processor that decide the last bits of results."""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from .._version import __version__

# Variables by which libraries choose other instructions, and so another order of additions.
_VARIABLES = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")


def describe_machine() -> dict[str, str]:
    """Return versions, processor and instruction set of this process, by name."""
    found = {
        "atoll": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "variables": " ".join(f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ),
    }
    if torch.cuda.is_available():
        found["cuda"] = f"{torch.version.cuda} on {torch.cuda.get_device_name()}"
    return found


def find_differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what differs between two descriptions, such as ``"torch 2.12.0 before, 2.13.0 now"``."""
    names = dict.fromkeys((*before, *now))
    return [
        f"{name} {before.get(name) or 'none'} before, {now.get(name) or 'none'} now"
        for name in names
        if before.get(name, "") != now.get(name, "")
    ]


def command_line() -> str:
    """Return the command that started this process."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _processor() -> str:
    """Return the name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
