"""What every test shares: a clean environment, the fake endpoint, the embedded model."""

import os
import signal
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from commands import Ran, in_process
from fake_openai import FakeOpenAI
from langgraph_dev import Server, start
from otlp import Collector
from postgres import server

if TYPE_CHECKING:
    from torch import nn

# Read when langgraph, transformers and torch are imported, which no import above does.
os.environ |= {
    "GRPC_VERBOSITY": "NONE",  # milvus-lite shares stderr with other tests
    "HF_HUB_OFFLINE": "1",
    "LANGGRAPH_STRICT_MSGPACK": "true",
    "LANGSMITH_TRACING": "false",
    "OMP_NUM_THREADS": "1",  # many small models on two cores
    "TOKENIZERS_PARALLELISM": "false",
}
for name in [each for each in os.environ if each.startswith(("OPENAI_", "LANGSMITH_API"))]:
    del os.environ[name]

# A busy machine is not a failure.
hypothesis.settings.register_profile("hopgate", deadline=None)
hypothesis.settings.load_profile("hopgate")

KEY = "sk-test-1f6b0c9d2e"


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hopgate's data folder for one test."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOPGATE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def _fake_server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as server:
        yield server


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    """A key that must appear nowhere."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return KEY


@pytest.fixture
def fake(_fake_server: FakeOpenAI, key: str, monkeypatch: pytest.MonkeyPatch) -> FakeOpenAI:
    """The fake endpoint with nothing scripted; `openai:fake` and `auto` reach it."""
    _fake_server.reset()
    monkeypatch.setenv("OPENAI_BASE_URL", _fake_server.base_url)
    return _fake_server


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a `hopgate` command in this process, without progress however slow the machine is."""
    monkeypatch.setattr("hopgate.terminal.progress.FIRST_SECONDS", 3600)
    return in_process(capfd)


@pytest.fixture(scope="session", autouse=True)
def _exports_each_shape_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Take about ten seconds from each training: graphs have no weights, so shapes share one.

    Each is still checked against its own network. Parallel workers share the graphs too.
    """
    from hopgate.common import exporting
    from hopgate.common.files import write_atomic

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "graphs"
    folder.mkdir(exist_ok=True)
    real = exporting._exported

    def once(module: "nn.Module", names: dict[str, str], longest: int) -> bytes:
        configs = [str(getattr(part, "config", "")) for part in module.modules()]
        shapes = [(name, *values.shape) for name, values in module.named_parameters()]
        key = repr((module, configs, shapes, sorted(names.items()), longest))
        graph = folder / sha256(key.encode()).hexdigest()
        if not graph.exists():
            write_atomic(graph, real(module, names, longest))
        return graph.read_bytes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "_exported", once)
        yield


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """The spans that `dev_server` exports."""
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="session")
def dev_server(
    _fake_server: FakeOpenAI, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A `langgraph dev`: `openai:fake` is the fake endpoint, `local:smollm2` the embedded model."""
    env = {
        "OPENAI_API_KEY": "sk-server",
        "OPENAI_BASE_URL": _fake_server.base_url,
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collector.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "100",  # milliseconds
    }
    with start(tmp_path_factory.mktemp("server"), env=env) as started:
        yield started


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URI of a real PostgreSQL server, running."""
    with server() as uri:
        yield uri


@pytest.fixture(scope="session")
def embedded() -> str:
    """The name of the embedded model, its real server running."""
    from hopgate.models import local

    local.serve()
    return "local:smollm2"


SLOW = (
    "page",
    "server",
    "examples",
    "aegra",
    "stores",
    "training",
    "filters",
    "onnx",
    "resuming",
    "auth",
    "light",
    "cli",
    "cli_index",
    "label",
    "live",
    "project",
    "improving",
    "harvest",
    "versions",
)
"""Test modules that take longest. They run first, so that parallel workers end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow modules first."""
    rank = {f"test_{name}.py": place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: rank.get(item.path.name, len(SLOW)))


def pytest_configure() -> None:
    """Let Ctrl-C reach the commands that tests start, also from a job in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
