"""Networks of text encoders and routers, run by ONNX Runtime on the CPU, without torch.

A network is a graph without weights (see `hopgate.common.exporting`) and the weights it names,
which stay where they are stored; or a graph that brings its own. A graph may come with a stranger's
files, so it is checked before it is loaded: it can do arithmetic on its inputs and its weights, and
nothing else.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopgate.common.bfloat16 import compiled
from hopgate.common.errors import reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hopgate.common.bfloat16 import Infer, Weights

    Pool = Callable[[NDArray[np.float32], NDArray[np.int64]], NDArray[np.float32]]

INPUTS = ("tokens", "mask")
WEIGHTS = "weights"
"""Where a graph says that its weights are: no file, the name stands for those given with it."""
OUTPUT = "features"
SPIN_US = "50"
"""How long a thread waits awake for its next piece of a pass: without end, as by default, a pass
of one question takes twice the processor time; not at all, it takes a quarter longer."""
BATCH_TOKENS = 512
"""Tokens in one pass, padding included: more leave the CPU's caches (docs/results/start.md)."""
_NAMES = """
    Abs Add And Cast Ceil Clip Concat Constant ConstantOfShape Cos CumSum DequantizeLinear Div
    DynamicQuantizeLinear Einsum Equal Erf Expand Flatten Floor Gather GatherElements GatherND Gelu
    Gemm Greater GreaterOrEqual Identity IsInf IsNaN LayerNormalization Less LessOrEqual Log MatMul
    MatMulInteger Max Min Mod Mul Neg Not Or Pow QuantizeLinear Range Reciprocal ReduceL2 ReduceMax
    ReduceMean ReduceMin ReduceSum Relu Reshape ScatterND Shape Sigmoid Sign Sin Slice Softmax Split
    Sqrt Squeeze Sub Tanh Tile Transpose Trilu Unsqueeze Where
"""
OPERATORS = frozenset(_NAMES.split())
"""Allowed operators: none reads a file, loops, or runs another graph."""


class Network:
    """A network in memory, for use from any number of threads at once."""

    def __init__(
        self,
        graph: bytes | Path,
        weights: Weights | None = None,
        *,
        pool: Pool | None = None,
        pad: int = 0,
    ) -> None:
        """Load a graph, and join it with its weights unless it brings them.

        Args:
            graph: A serialised ONNX model, or its file, which may have more weights beside it.
                Of its inputs, token ids and mask are told apart by their names (`INPUTS`, or
                those of transformers); others are zero. All are int64 [texts, tokens].
            weights: By the names that the graph gives them.
            pool: Makes one vector a text from token vectors and the mask; None where the graph's
                output, float32 [texts, width], has that.
            pad: The id of the token that fills short texts.

        Raises:
            ValueError: The graph is damaged, does anything but arithmetic, or does not fit the
                weights.
        """
        import onnxruntime

        self._weights, self._pool, self._pad = weights or {}, pool, pad
        beside: Set[str] = set()
        if isinstance(graph, Path):
            beside = {each.name for each in graph.parent.glob(f"{graph.name}?*")}
        self._graph = graph
        check(graph if isinstance(graph, bytes) else graph.read_bytes(), self._weights, beside)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads()
        options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_US)
        options.log_severity_level = 4
        values = map(onnxruntime.OrtValue.ortvalue_from_numpy, self._weights.values())
        options.add_external_initializers(list(self._weights), list(values))
        try:
            self._session = onnxruntime.InferenceSession(
                graph,
                options,
                providers=["CPUExecutionProvider"],
                enable_fallback=False,  # it would print, and try the same again
            )
        except Exception as error:  # its errors have no common base class
            raise ValueError(f"the graph does not fit its weights: {reason(error, 300)}") from error
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._output = self._session.get_outputs()[0].name

    def run(
        self,
        ids: Sequence[Sequence[int]],
        *,
        bulk: bool = False,
    ) -> NDArray[np.float32]:
        """Return the network's output for each text.

        Texts of similar length share a pass.

        Args:
            ids: The token ids of each text, at least one text.
            bulk: Compute in bfloat16 where that is possible, see `hopgate.common.bfloat16`.

        Returns:
            float32, shape (texts, width), in the order of the texts.

        Raises:
            ValueError: The graph cannot process these tokens.
        """
        rows: list[NDArray[np.float32]] = []
        order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
        infer = self._infer_in_bulk if bulk else self._infer
        for batch in _batches([ids[at] for at in order]):
            rows.extend(self._pass(batch, infer))
        found = np.empty((len(rows), *rows[0].shape), dtype=np.float32)
        found[order] = rows
        return found

    def _pass(self, ids: Sequence[Sequence[int]], infer: Infer) -> NDArray[np.float32]:
        tokens, mask = padded(ids, self._pad)
        given = {"tokens": tokens, "input_ids": tokens, "mask": mask, "attention_mask": mask}
        zeros = np.zeros_like(tokens)
        try:
            found = infer({name: given.get(name, zeros) for name in self._inputs})
            return np.asarray(self._pool(found, mask) if self._pool else found, dtype=np.float32)
        except Exception as error:
            raise ValueError(f"the graph cannot be run: {reason(error, 300)}") from error

    def _infer(self, inputs: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        (found,) = self._session.run([self._output], inputs)
        return np.asarray(found)

    @cached_property
    def _infer_in_bulk(self) -> Infer:
        return compiled(self._graph, self._weights, threads()) or self._infer


def padded(
    ids: Sequence[Sequence[int]], pad: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return token ids and mask of several texts, each [texts, tokens]."""
    tokens = np.full((len(ids), max(map(len, ids))), pad, dtype=np.int64)
    mask = np.zeros_like(tokens)
    for row, each in enumerate(ids):
        tokens[row, : len(each)] = each
        mask[row, : len(each)] = 1
    return tokens, mask


def _batches(ids: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Cut texts, sorted by length, into passes of at most `BATCH_TOKENS`."""
    batches: list[list[Sequence[int]]] = []
    for each in ids:
        if batches and (len(batches[-1]) + 1) * len(each) <= BATCH_TOKENS:
            batches[-1].append(each)
        else:
            batches.append([each])
    return batches


def threads() -> int:
    """Return how many threads one pass may use: `OMP_NUM_THREADS`, else the process's cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Fields of onnx.proto, by number.
_GRAPH, _FUNCTION = 7, 25  # of a model
_NODE, _INITIALIZER, _SPARSE_INITIALIZER = 1, 5, 15  # of a graph
_OPERATOR, _ATTRIBUTE, _DOMAIN = 4, 5, 7  # of a node
_TENSORS, _GRAPHS, _SPARSE_TENSORS = (5, 10), (6, 11), (22, 23)  # of an attribute
_NAME, _EXTERNAL_DATA, _DATA_LOCATION = 8, 13, 14  # of a tensor
_KEY, _VALUE = 1, 2  # of an entry of the external data

_Fields = Mapping[int, list[Any]]
"""A protobuf message: the values of each field, whose last one counts if it takes only one."""


def check(graph: bytes, weights: Weights, beside: Set[str] = frozenset()) -> None:
    """Check that a graph does nothing but arithmetic on its inputs and on these weights.

    It is read without the package `onnx`, which takes 30 MB and 0.2 s.

    Args:
        graph: A serialised ONNX model.
        weights: By the names that the graph gives them.
        beside: Names of files beside the graph, from which one without `weights` may take them.

    Raises:
        ValueError: It is damaged, has other operators than `OPERATORS`, has functions or inner
            graphs, or takes a weight from elsewhere.
    """
    model = _fields(graph)
    graphs = _within([model], _GRAPH)
    nodes = _within(graphs, _NODE)
    if not nodes:
        raise ValueError("the graph is damaged: it is empty")
    for domain, name in ((_text(node, _DOMAIN), _text(node, _OPERATOR)) for node in nodes):
        if domain not in ("", "ai.onnx") or name not in OPERATORS:
            full = f"{domain}::{name}".removeprefix("::")
            raise ValueError(f"the graph has the operator {full!r}, which hopgate does not run")
    attributes = _within(nodes, _ATTRIBUTE)
    if model[_FUNCTION] or _within(attributes, *_GRAPHS):
        raise ValueError("the graph has another graph within, which hopgate does not run")
    outside = [each for each in _within(graphs, _INITIALIZER) if _is_outside(each)]
    known = all(
        bool(places := _locations(each)) and places <= beside
        if not weights
        else _text(each, _NAME) in weights and _locations(each) == {WEIGHTS}
        for each in outside
    )
    constants = _within(attributes, *_TENSORS)
    sparse = _within(graphs, _SPARSE_INITIALIZER) + _within(attributes, *_SPARSE_TENSORS)
    if sparse or not known or any(map(_is_outside, constants)):
        raise ValueError("the graph takes a weight from elsewhere, which hopgate does not read")


def _fields(message: object) -> _Fields:
    from google.protobuf import empty_pb2, unknown_fields

    found = empty_pb2.Empty()
    try:
        found.ParseFromString(message)
    except Exception as error:  # protobuf's DecodeError, imported late; a number for a message
        raise ValueError("the graph is damaged: it is not an ONNX model") from error
    fields = defaultdict[int, list[Any]](list)
    for each in unknown_fields.UnknownFieldSet(found):
        fields[each.field_number].append(each.data)
    return fields


def _within(messages: Iterable[_Fields], *numbers: int) -> list[_Fields]:
    """Return the messages in some fields of others."""
    return [_fields(part) for each in messages for number in numbers for part in each[number]]


def _text(message: _Fields, number: int) -> str:
    last = (message[number] or [b""])[-1]
    return last.decode(errors="replace") if isinstance(last, bytes) else str(last)


def _is_outside(tensor: _Fields) -> bool:
    return bool(tensor[_EXTERNAL_DATA] or any(tensor[_DATA_LOCATION]))


def _locations(tensor: _Fields) -> set[str]:
    entries = _within([tensor], _EXTERNAL_DATA)
    return {_text(each, _VALUE) for each in entries if _text(each, _KEY) == "location"}
