"""A command ends with its exit code while a thread of it is inside C++ code."""

import subprocess
import sys

import pytest

IN_CPP = """
import atexit, sys, time
import onnxruntime, numpy as np
from hopgate.common import threads

def loads():
    options = onnxruntime.SessionOptions()
    while True:  # each call comes back from C++ without the interpreter's lock
        try:
            onnxruntime.InferenceSession(b"no model", options)
        except Exception:
            pass

for _ in range(2):
    threads.start(loads)
time.sleep(0.2)
atexit.register(print, "ended")
sys.stdout.write("said ")
END
"""


def ended(end: str) -> subprocess.CompletedProcess[str]:
    script = IN_CPP.replace("END", end)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("code", [0, 130])
def test_a_thread_inside_a_library_does_not_change_how_a_process_ends(code: int) -> None:
    found = ended(f"threads.end_process({code})")
    assert (found.returncode, found.stdout, found.stderr) == (code, "said ended\n", "")
