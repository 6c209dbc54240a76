"""What Linux tells of a process: its memory, its age, its time on the processor."""

import os
import re
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
"""A second, in /proc/PID/stat."""


def memory_kib(name: str, pid: int | str = "self") -> int:
    """Read a figure of a process's memory, such as VmRSS, in KiB; 0 if there is none."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) if found else 0


def cpu_seconds(pid: int) -> float:
    """Give what a process has taken of the processor, in all threads."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS


def seconds_since_start() -> float:
    """Give the age of this process."""
    began = int(_stat("self")[19]) / TICKS
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


def _stat(pid: int | str) -> list[str]:
    """Read the fields behind the name of the program, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
