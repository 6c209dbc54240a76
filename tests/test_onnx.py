"""Networks on ONNX Runtime: they give what torch gives, and a hostile graph is refused.

HOPGATE_WIDE=300 damages three hundred graphs in place of fifty.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from tiny_models import small_router, small_t5

import hopgate.retrievers
from hopgate.classifiers.checkpoint import HEAD, Checkpoint, read
from hopgate.classifiers.networks import T5Network, all_features, network_from
from hopgate.classifiers.router import Router
from hopgate.classifiers.training.graphs import add_graph
from hopgate.common import exporting
from hopgate.common import onnx as running
from hopgate.common.onnx import INPUTS, OUTPUT, WEIGHTS, Network

WIDE = int(os.environ.get("HOPGATE_WIDE", "0"))
Floats = np.ndarray[Any, np.dtype[np.float32]]

KINDS = {
    "t5": {"feed_forward_proj": "relu", "num_decoder_layers": 1},
    "t5-v1.1": {"feed_forward_proj": "gated-gelu", "num_layers": 1, "num_decoder_layers": 1},
}
SIZES = [*product((1, 2, 5, 33), (1, 2, 3, 17, 70)), (1, 384), (3, 384), (2, 200), (600, 4)]


def body_of(checkpoint: Checkpoint, part: str) -> dict[str, Floats]:
    """The weights that a router's graph takes."""
    state = checkpoint.state(part)
    return {name: values for name, values in state.items() if not name.startswith(HEAD)}


def difference(found: Floats, expected: Floats) -> float:
    """The largest difference, relative to the largest value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@cache
def exported(kind: str) -> tuple[Checkpoint, T5Network]:
    """A router with its graph, and its network."""
    network = small_t5(**KINDS[kind])
    router = small_router(network, small_t5(1, **KINDS[kind]), one_body=True)
    add_graph(router)
    return router, network


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_t5_gives_what_torch_gives(kind: str) -> None:
    router, network = exported(kind)
    assert router.graph
    running = Network(router.graph, body_of(router, "cost-tiny"))
    random = np.random.default_rng(0)
    for texts, tokens in SIZES:
        lengths = [tokens, *random.integers(1, tokens + 1, texts - 1)]
        ids = [random.integers(0, 60, length).tolist() for length in lengths]
        found, expected = running.run(ids), all_features(network, ids).numpy()
        assert found.shape == (texts, 32)
        assert found.dtype == np.float32
        assert difference(found, expected) < 1e-4, (texts, tokens)


def test_a_router_with_a_graph_does_not_build_its_torch_network() -> None:
    router, _ = exported("t5")
    through_torch = Router(replace(router, graph=None))
    on_onnx = Router(replace(router, config={"no": "T5"}))
    questions = ["who wrote it", "when was the mother of it built"]
    for alpha in (0.0, 0.4, 1.0):
        expected = through_torch.route(questions, alpha)
        for row, wanted in zip(on_onnx.route(questions, alpha), expected, strict=True):
            assert row == pytest.approx(wanted, abs=1e-5)


class Table(torch.nn.Module):
    """Gives the mean of a table's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(20, 4)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = (self.rows(tokens) * mask[..., None]).sum(1) / mask.sum(1)[:, None]
        return mean


class Wrong(Network):
    """Runs with a small error, as if the exporter had a fault."""

    def run(self, *arguments: Any) -> Floats:
        return super().run(*arguments) * np.float32(1.001)


def test_an_export_that_differs_from_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "Network", Wrong)
    with pytest.raises(RuntimeError, match=r"the exported graph differs from torch by 1\.0e-03"):
        exporting.export(Table().eval(), {"rows.weight": "rows"}, vocabulary=20, longest=16)


SAMPLE = Path(hopgate.retrievers.__file__).parent / "sample"
WORDS = [json.loads(line) for line in (SAMPLE / "questions.jsonl").read_text("utf-8").splitlines()]
PASSAGES = (SAMPLE / "passages.jsonl").read_text("utf-8").splitlines()
QUESTIONS = [
    *(row["question"] for row in WORDS),
    *(
        f"Who made {json.loads(line)['title']}, and what did they study before?"
        for line in PASSAGES
    ),
]
LONG = [" ".join(QUESTIONS[at : at + count]) for at, count in ((0, 3), (30, 8), (60, 15), (60, 60))]


def test_the_shipped_router_decides_as_torch_does() -> None:
    shipped, questions = read("builtin"), [*sorted(QUESTIONS, key=len), *LONG]
    assert len(questions) > 120
    assert shipped.graph
    ids = [encoding.ids for encoding in shipped.tokenizer.encode_batch(questions)]
    body = body_of(shipped, "cost-gpt-4o")
    network = network_from(shipped.architecture, shipped.config, shipped.state("cost-gpt-4o"))
    at = len(QUESTIONS)
    expected = torch.cat([all_features(network, each) for each in (ids[:at], ids[at:])]).numpy()
    assert np.abs(Network(shipped.graph, body).run(ids) - expected).max() < 1e-4
    alphas, labels = [step / 10 for step in range(11)], set()
    for profile in shipped.profiles:
        cost, reliability = map(shipped.state, shipped.blended_parts(profile))
        router = Router(shipped, profile)
        routed = router.route_alphas(questions, alphas)
        for share, rows in zip(map(router.dial.weight, alphas), routed, strict=True):
            weight, bias = (
                (1 - share) * cost[name] + share * reliability[name]
                for name in ("head.weight", "head.bias")
            )
            wanted = (expected @ weight.T + bias).argmax(1).tolist()
            assert ["ABC".index(max(row, key=row.__getitem__)) for row in rows] == wanted
            labels |= {*wanted}
    assert labels == {0, 1, 2}


def small_graph() -> tuple[Any, dict[str, Floats]]:
    """A graph that gives the mean of a table's rows, as an export would write it; its weights."""
    table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=[10, 4])
    point_at(table, WEIGHTS)
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["states"]),
        helper.make_node("ReduceMean", ["states", "axes"], [OUTPUT], keepdims=0),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"])
        for name in INPUTS
    ]
    output = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["texts", 4])
    axes = numpy_helper.from_array(np.array([1]), "axes")
    graph = helper.make_graph(nodes, "small", inputs, [output], [table, axes])
    versions = [helper.make_opsetid("", exporting.OPSET)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=10)
    return model, {"table": np.arange(40, dtype=np.float32).reshape(10, 4)}


def point_at(tensor: Any, location: str, offset: int = 0, length: int = 160) -> Any:
    """Say that a tensor's values are in a file."""
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset), "length": str(length)}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def elsewhere(location: str, name: str = "table") -> Any:
    """A table whose values are in a file."""
    return point_at(TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[10, 4]), location)


def add_constant(model: Any, **value: Any) -> None:
    """Add the values of a Constant node to the table."""
    model.graph.node.insert(0, helper.make_node("Constant", [], ["constant"], **value))
    model.graph.node.insert(1, helper.make_node("Add", ["constant", "table"], ["sum"]))
    model.graph.node[2].input[0] = "sum"


def sparse(location: str) -> Any:
    values = point_at(TensorProto(name="v", data_type=TensorProto.FLOAT, dims=[4]), location, 0, 16)
    return onnx.SparseTensorProto(
        values=values, indices=numpy_helper.from_array(np.arange(4), "i"), dims=[10, 4]
    )


def test_the_graph_that_is_made_hostile_below_works() -> None:
    model, weights = small_graph()
    found = Network(model.SerializeToString(), weights).run([[1, 2], [3]])
    assert found.tolist() == [[4 + 2, 5 + 2, 6 + 2, 7 + 2], [6, 7, 8, 9]]


def custom_domain(model: Any) -> None:
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.node[1].CopyFrom(
        helper.make_node("FusedMatMul", ["states", "states"], [OUTPUT], domain="com.microsoft")
    )


def unknown_operator(model: Any) -> None:
    model.graph.node.append(helper.make_node("NonZero", ["tokens"], ["other"]))


def branch(model: Any) -> None:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["states"], ["inner"])],
        "inner",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )
    model.graph.node.append(
        helper.make_node("If", ["mask"], ["other"], then_branch=inner, else_branch=inner)
    )


def hidden_branch(model: Any) -> None:
    inner = helper.make_graph([helper.make_node("NonZero", ["states"], ["x"])], "inner", [], [])
    model.graph.node[0].attribute.append(helper.make_attribute("body", inner))


def function(model: Any) -> None:
    """A function of the graph's own replaces an operator that is allowed."""
    node = helper.make_node("NonZero", ["a"], ["b"])
    model.functions.append(
        helper.make_function("", "Gelu", ["a"], ["b"], [node], [helper.make_opsetid("", 20)])
    )


def bytes_as_a_name(model: Any) -> bytes:
    model.graph.node[0].op_type = "Gatherings"
    return bytes(model.SerializeToString().replace(b"Gatherings", b"Gatherin\xff\xfe"))


def set_initializer(location: str, name: str = "table") -> Callable[[Any], None]:
    return lambda model: model.graph.initializer[0].CopyFrom(elsewhere(location, name))


def location_twice(model: Any) -> None:
    model.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")


def sparse_initializer(model: Any) -> None:
    model.graph.sparse_initializer.append(sparse("weights"))


OPERATOR, WITHIN = "the graph has the operator", "has another graph within"
ELSEWHERE, DAMAGED = "takes a weight from elsewhere", "the graph is damaged"
HOSTILE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "custom domain": (custom_domain, rf"{OPERATOR} 'com\.microsoft::FusedMatMul'"),
    "unknown operator": (unknown_operator, f"{OPERATOR} 'NonZero'"),
    "operator with branches": (branch, f"{OPERATOR} 'If'"),
    "name that is not text": (bytes_as_a_name, OPERATOR),
    "graph in an attribute": (hidden_branch, WITHIN),
    "function": (function, WITHIN),
    "weights in a file": (set_initializer("/etc/passwd"), ELSEWHERE),
    "weights in memory": (set_initializer("*/_ORT_MEM_ADDR_/*"), ELSEWHERE),
    "weights in two places": (location_twice, ELSEWHERE),
    "unknown weights": (set_initializer(WEIGHTS, "other"), ELSEWHERE),
    "sparse weights": (sparse_initializer, ELSEWHERE),
    "constant in a file": (lambda m: add_constant(m, value=elsewhere("/etc/passwd")), ELSEWHERE),
    "sparse constant in a file": (
        lambda m: add_constant(m, sparse_value=sparse("weights")),
        ELSEWHERE,
    ),
    "no nodes": (lambda m: m.graph.ClearField("node"), f"{DAMAGED}: it is empty"),
    "empty": (lambda m: b"", f"{DAMAGED}: it is empty"),
    "truncated": (lambda m: m.SerializeToString()[:-30], DAMAGED),
    "random bytes": (lambda m: np.random.default_rng(0).bytes(5000), DAMAGED),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_graph_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("weights", "secret"):  # what a graph must not read
        (tmp_path / name).write_bytes(np.full(40, 7, np.float32).tobytes())
    change, message = HOSTILE[kind]
    model, weights = small_graph()
    changed = change(model)
    graph = changed if isinstance(changed, bytes) else model.SerializeToString()
    with pytest.raises(ValueError, match=message):
        Network(graph, weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: {}, ELSEWHERE),
        (lambda weights: weights | {"other": np.zeros(3, np.float32)}, "does not fit .*other"),
        (lambda weights: {"table": np.zeros((10, 5), np.float32)}, "does not fit .*dimensions"),
        (lambda weights: {"table": np.zeros((10, 4))}, "does not fit .*type"),
    ],
    ids=["missing", "extra", "shape", "type"],
)
def test_weights_that_do_not_fit_the_graph_are_refused(
    change: Callable[[Any], Any], message: str
) -> None:
    model, weights = small_graph()
    with pytest.raises(ValueError, match=message):
        Network(model.SerializeToString(), change(weights))


def test_each_operator_that_is_allowed_is_one_of_onnx() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert known >= running.OPERATORS
    assert not running.OPERATORS & {"If", "Loop", "Scan", "SequenceMap", "StringConcat"}


def test_a_graph_that_fails_says_so_on_one_line_and_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """ONNX Runtime's own fallback prints on stdout if it cannot decode its error message."""
    model, weights = small_graph()
    network = Network(model.SerializeToString(), weights)
    with pytest.raises(ValueError, match=r"^the graph cannot be run: .*out of data bounds.*$"):
        network.run([[99]])
    model.graph.node[1].input[0] = "nothing"
    plain = model.SerializeToString()
    for graph in (plain, plain.replace(b"nothing", b"\xff" * 7)):
        with pytest.raises(ValueError, match="does not fit its weights"):
            Network(graph, weights)
    assert capfd.readouterr() == ("", "")


def test_results_are_in_the_order_of_the_texts() -> None:
    model, weights = small_graph()
    network = Network(model.SerializeToString(), weights)
    random = np.random.default_rng(1)
    # padding is row 0, which the mean includes: only texts of one length can be compared
    ids = [[int(random.integers(10))] * 200 for _ in range(9)]
    found = network.run(ids)
    assert found[:, 0].tolist() == [4 * row[0] for row in ids]


@pytest.mark.parametrize(("given", "expected"), [("3", 3), ("0", None), ("x", None), ("", None)])
def test_threads_of_a_pass_are_those_of_openmp_or_the_cores(
    given: str, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4}, raising=False)
    assert running.threads() == (expected or 5)


DAMAGE = """
import random, resource, sys
from hopgate.classifiers.checkpoint import HEAD, read
from hopgate.common.onnx import Network

router = read("builtin")
weights = {n: v for n, v in router.state("cost-gpt-4o").items() if not n.startswith(HEAD)}
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
random.seed(int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    changed = bytearray(router.graph)
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(len(changed))] = random.randrange(256)
    try:
        Network(bytes(changed), weights).run([[101, 2040, 102], [101, 102]])
    except ValueError:
        pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_damaged_bytes_of_a_graph_crash_nothing() -> None:
    """In a process of its own, which may die of one."""
    seed = str(os.getpid())
    command = [sys.executable, "-c", DAMAGE, seed, str(WIDE or 50)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, f"seed {seed}: {found.stderr}"
