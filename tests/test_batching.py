"""Calls that arrive together run as one."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future

import pytest

from hopgate.common import batching
from hopgate.common.batching import Batcher


class Slow:
    """Doubles numbers; each batch waits until it is let go."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.started = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def __call__(self, key: str, items: Sequence[int]) -> list[int]:
        self.batches.append((key, list(items)))
        self.started.release()
        assert self.go.acquire(timeout=10)
        if 13 in items:
            raise ValueError("13 is unlucky")
        return [2 * item for item in items]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr(batching, "threads", lambda: 1)
    return Slow()


def results(calls: Sequence[Future[int]]) -> list[int]:
    return [call.result(timeout=10) for call in calls]


def busy(slow: Slow) -> tuple[Batcher[str, int, int], Future[int]]:
    """A batcher whose only thread is at work."""
    batcher = Batcher[str, int, int](slow)
    first = batcher.submit("a", 0)
    assert slow.started.acquire(timeout=10)
    return batcher, first


def test_a_call_runs_at_once_and_those_that_come_meanwhile_run_together(slow: Slow) -> None:
    batcher, first = busy(slow)
    others = [batcher.submit("a", number) for number in (1, 2, 3)]
    slow.go.release(2)
    assert results([first, *others]) == [0, 2, 4, 6]
    assert slow.batches == [("a", [0]), ("a", [1, 2, 3])]


def test_only_calls_with_the_same_key_run_together(slow: Slow) -> None:
    batcher, first = busy(slow)
    others = [batcher.submit(key, number) for key, number in (("a", 1), ("b", 2), ("a", 3))]
    slow.go.release(3)
    assert results([first, *others]) == [0, 2, 4, 6]
    assert slow.batches[1:] == [("a", [1, 3]), ("b", [2])]


def test_a_batch_has_a_largest_size(slow: Slow) -> None:
    batcher, first = busy(slow)
    others = [batcher.submit("a", number) for number in range(100, 101 + batching.LARGEST)]
    slow.go.release(3)
    assert results([first, *others]) == [0, *range(200, 202 + 2 * batching.LARGEST, 2)]
    assert [len(items) for _, items in slow.batches] == [1, batching.LARGEST, 1]


def test_no_call_fails_for_another(slow: Slow) -> None:
    batcher, _ = busy(slow)
    good, bad, late = (batcher.submit("a", number) for number in (1, 13, 2))
    slow.go.release(10)
    assert results([good, late]) == [2, 4]
    with pytest.raises(ValueError, match="13 is unlucky"):
        bad.result(timeout=10)


def test_a_cancelled_call_is_left_out(slow: Slow) -> None:
    batcher, first = busy(slow)
    kept, left = batcher.submit("a", 1), batcher.submit("a", 2)
    assert left.cancel()
    slow.go.release(2)
    assert results([first, kept]) == [0, 2]
    assert slow.batches == [("a", [0]), ("a", [1])]
    with pytest.raises(CancelledError):
        left.result()


def test_a_batch_that_hangs_holds_up_only_its_group(slow: Slow) -> None:
    batcher = Batcher[str, int, int](slow, lambda key: key)
    stuck = batcher.submit("a", 0)
    assert slow.started.acquire(timeout=10)
    behind, other = batcher.submit("a", 1), batcher.submit("b", 2)
    assert slow.started.acquire(timeout=10)
    assert [key for key, _ in slow.batches] == ["a", "b"]
    assert not stuck.done()
    behind.cancel()
    slow.go.release(2)
    assert results([stuck, other]) == [0, 4]
    assert slow.batches == [("a", [0]), ("b", [2])]


def test_a_process_ends_although_a_batch_hangs() -> None:
    script = (
        "import threading; from hopgate.common.batching import Batcher; "
        "started = threading.Event(); "
        "hang = lambda key, items: (started.set(), threading.Event().wait()); "
        "Batcher(hang).submit('a', 1); started.wait(10)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
