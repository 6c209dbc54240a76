"""A killed run resumes where it stopped: no finished node runs twice."""

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest
import runs
from fake_openai import FakeOpenAI, Messages, Reply

CALLS = 7  # the gate, five thoughts, the answer


class Moment(NamedTuple):
    """When a run is cut off: at its n-th model call, before or after the reply."""

    call: int
    replied: bool


def cutting(moment: Moment, cut: Callable[[], None]) -> Callable[[Messages], Reply]:
    """Return the run's script with a call to `cut` at the given moment."""
    reply_to, calls = runs.script(), 0

    def script(messages: Messages) -> Reply:
        nonlocal calls
        calls += 1
        reply = reply_to(messages)
        reply = Reply(reply) if isinstance(reply, str) else reply
        if calls != moment.call:
            return reply
        if moment.replied:
            return Reply(reply.text, then=cut)
        cut()
        return Reply(reply.text, delay=0.1)

    return script


class InProcesses:
    """Runs in child processes; cutting off sends SIGKILL."""

    # Fork from a process that has imported everything, so that each run starts at once.
    _processes = multiprocessing.get_context("forkserver")
    _processes.set_forkserver_preload(
        [
            "hopgate.graphs.adaptive",
            "langchain_openai",
            "langgraph.checkpoint.postgres.aio",
            "langgraph.checkpoint.sqlite.aio",
            "pytest",
        ]
    )

    def __init__(self, searches: Path, database: str) -> None:
        self._searches, self._database = searches, database

    def cut_off(self, fake: FakeOpenAI, moment: Moment) -> Any:
        started = SimpleQueue[int]()
        fake.answers(cutting(moment, lambda: os.kill(started.get(), signal.SIGKILL)))
        result, status = self._run(fake, runs.QUESTION, started)
        assert (status == -signal.SIGKILL) or result
        return result

    def resume(self, fake: FakeOpenAI) -> Any:
        result, status = self._run(fake, None, SimpleQueue())
        assert status == 0
        return result

    def _run(
        self, fake: FakeOpenAI, question: str | None, started: "SimpleQueue[int]"
    ) -> tuple[Any, int | None]:
        receiver, sender = self._processes.Pipe(duplex=False)
        arguments = (self._database, fake.base_url, self._searches, question, sender)
        process = self._processes.Process(target=runs.in_a_process, args=arguments)
        process.start()
        started.put(process.pid)
        sender.close()
        try:
            result = receiver.recv()
        except EOFError:
            result = None
        process.join()
        return result, process.exitcode


@pytest.fixture
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, searches: Path
) -> AsyncIterator[InProcesses]:
    if request.param == "sqlite":
        yield InProcesses(searches, str(tmp_path / "t.sqlite"))
    else:
        uri = request.getfixturevalue("postgres")
        yield InProcesses(searches, uri)
        async with runs.opened(uri) as saver:
            await saver.adelete_thread("1")


@pytest.fixture
def searches(tmp_path: Path) -> Path:
    return tmp_path / "searches"


@pytest.fixture
async def undisturbed(fake: FakeOpenAI, tmp_path: Path) -> Any:
    """Return the result of a run that is not cut off."""
    fake.answers(runs.script())
    log = tmp_path / "undisturbed"
    result = await runs.run(runs.build(None, log), runs.QUESTION)
    assert len(fake.requests) == CALLS
    assert runs.searched(log) == Counter(runs.QUERIES)
    assert len(result["hops"]) == len(runs.THOUGHTS)
    assert result["citations"]
    fake.requests.clear()
    return result


# One of each kind: at the gate, a thought and the answer, before and after the reply.
CUTS = [
    ("sqlite", Moment(3, True)),
    ("sqlite", Moment(CALLS, True)),
    ("postgres", Moment(1, False)),
]


@pytest.mark.parametrize(("place", "moment"), CUTS, indirect=["place"], ids=str)
async def test_a_killed_run_resumes_where_it_stopped(
    fake: FakeOpenAI, place: InProcesses, searches: Path, undisturbed: Any, moment: Moment
) -> None:
    finished = place.cut_off(fake, moment)
    assert finished is None or moment == Moment(CALLS, True)
    fake.answers(runs.script())
    resumed = place.resume(fake)
    assert {**resumed, "usage": None} == {**undisturbed, "usage": None}
    calls = Counter(fake.prompts)
    assert resumed["usage"]["llm_calls"] == CALLS
    repeated = calls.total() - CALLS
    assert len(calls) == CALLS
    assert repeated <= 1
    assert set(runs.searched(searches)) == set(runs.QUERIES)
    assert repeated + runs.searched(searches).total() - len(runs.QUERIES) <= 1
    if not moment.replied:  # only the call in flight was lost
        assert repeated == 1
        assert calls[fake.prompts[moment.call - 1]] == 2
