"""Read the memory of this process, without imports that would take memory."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def resident_megabytes() -> float:
    """Return the current resident size, or its peak on systems that do not report the current one."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 1e6
    return _highest_of_all()


def peak_megabytes() -> float:
    """Return the peak resident size since this process began."""
    # First, because what getrusage reports may be of the process that started this one: Linux keeps it over an exec.
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    peaks = [int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else _highest_of_all()


def _highest_of_all() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
