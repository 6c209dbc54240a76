"""Memory, age and CPU time of a process, as Linux reports them."""

import os
import re
import threading
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
"""Clock ticks per second, the unit of /proc/PID/stat."""


class Memory:
    """The memory of this process, sampled by a thread."""

    def __init__(self) -> None:
        """Start sampling."""
        self._most = 0
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while True:
            self._most = max(self._most, memory_kib("RssAnon"))
            time.sleep(0.1)

    def report(self) -> dict[str, int]:
        """Return the peaks so far.

        Returns:
            `peak_mib`, with mapped pages that were touched, which the system can reclaim; and
            `private_mib`, without them.
        """
        most = max(self._most, memory_kib("RssAnon"))
        return {"peak_mib": memory_kib("VmHWM") >> 10, "private_mib": most >> 10}


class Stopwatch:
    """Wall time and processor time (of all threads) since it was started."""

    def __init__(self) -> None:
        """Start."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Return `seconds` and `cpu_seconds`."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"seconds": round(wall, 4), "cpu_seconds": round(cpu, 4)}


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
