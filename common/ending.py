"""The process's end while threads are still inside a library."""

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

busy = set[object]()
"""One entry for each thread that is at work and that the process does not wait for."""

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=busy.clear)  # a forked process has none of the threads


def end_process(code: int) -> NoReturn:
    """End the process with an exit code, whatever its threads are doing.

    An ordinary end stops a thread as soon as it comes back from a library, and C++ code such as
    ONNX Runtime's then aborts the process (SIGABRT).
    """
    if not busy:
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or nobody reads it
            stream.flush()
    os._exit(code)
