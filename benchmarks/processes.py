"""Memory, age and CPU time of a process, as Linux reports them."""

import os
import re
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
"""Clock ticks per second, the unit of /proc/PID/stat."""


def memory_kib(name: str, pid: int | str = "self") -> int:
    """Return a memory figure such as VmRSS in KiB; 0 if the process has none."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) if found else 0


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, over all threads."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS


def seconds_since_start() -> float:
    """Return the age of this process."""
    started_at = int(_stat("self")[19]) / TICKS
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_at


def _stat(pid: int | str) -> list[str]:
    """Return the fields after the program's name, which may contain any character."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
