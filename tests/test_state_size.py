"""The bytes that a run of five hops with 15 passages of 100 words adds to a database."""

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "checkpoint_bytes.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location(BENCHMARK.stem, BENCHMARK)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def measured(
    request: pytest.FixtureRequest, benchmark: Any, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Return the limit in bytes and the measurement."""
    if request.param == "sqlite":
        limit, database = 200_000, benchmark.Sqlite(tmp_path_factory.mktemp("size"))
    else:
        limit, database = 100_000, benchmark.Postgres(request.getfixturevalue("postgres"))
    return limit, asyncio.run(benchmark.measure(database))


def test_a_run_of_five_hops_stays_small(measured: Any) -> None:
    limit, found = measured
    assert found["total"] < limit
    assert found["total"] == sum(found["channels"].values()) == sum(found["tables"].values())


def test_later_hops_add_no_more_than_earlier_ones(measured: Any) -> None:
    _, found = measured
    *hops, last = found["hops"]  # the last one copies the results to the main graph
    assert len(hops) == 4
    assert max(hops) < 1.1 * min(hops)
    assert last < 5 * max(hops)
