"""Turning a torch module into a graph for `hopgate.common.onnx`; needs the extra `train`."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from hopgate.common.onnx import INPUTS, OUTPUT, WEIGHTS, Network, padded

if TYPE_CHECKING:
    import onnx_ir
    from torch import nn

OPSET = 20
TOLERANCE = 1e-4
"""Largest difference from torch, relative to the largest value of the output."""
_SHAPES = ((1, 1), (1, 7), (2, 40), (3, 256), (17, 12), (64, 5))
"""Texts and tokens of the batches that an export is checked with."""


def export(module: nn.Module, names: dict[str, str], vocabulary: int, longest: int) -> bytes:
    """Return a module's graph, without its weights.

    Args:
        module: Takes token ids and mask, both int64 [texts, tokens]; gives float32
            [texts, width]. In evaluation mode, on the CPU.
        names: The name of each weight in the graph, by the parameter's name in the module. A
            parameter with several names needs only one of them.
        vocabulary: Number of token ids.
        longest: Maximum number of tokens of a text.

    Raises:
        RuntimeError: The graph's output differs from the module's, for some size of a batch.
    """
    graph = _exported(module, names, longest)
    _check(module, graph, names, vocabulary, longest)
    return graph


def _exported(module: nn.Module, names: dict[str, str], longest: int) -> bytes:
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is missing
    for part in module.modules():
        if config := getattr(part, "config", None):
            config._attn_implementation = "eager"
    mask = torch.ones(3, 7, dtype=torch.int64)
    sizes = {0: torch.export.Dim("texts", max=65536), 1: torch.export.Dim("tokens", max=longest)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (mask * 3, mask),
            dynamo=True,
            dynamic_shapes=(sizes, sizes),
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            opset_version=OPSET,
            optimize=False,
            verbose=False,
        )
        assert program
        return _without_weights(program.model, _by_every_name(module, names))


def _by_every_name(module: nn.Module, names: dict[str, str]) -> dict[str, str]:
    """Return `names` with all names of parameters that have several."""
    every = list(module.named_parameters(remove_duplicate=False))
    known = {id(parameter): names[name] for name, parameter in every if name in names}
    return {name: known[id(parameter)] for name, parameter in every if id(parameter) in known}


def _without_weights(model: onnx_ir.Model, names: dict[str, str]) -> bytes:
    """Rename the weights, fold everything that does not depend on them, and leave them out."""
    import onnx_ir
    from onnxscript import optimizer

    initializers = model.graph.initializers
    for value in list(initializers.values()):
        if value.name in names:
            del initializers[str(value.name)]
            value.name = names[value.name]
            initializers[value.name] = value
    weights = set(names.values())

    def should_fold(node: onnx_ir.Node) -> bool | None:
        return False if any(each and each.name in weights for each in node.inputs) else None

    optimizer.optimize_ir(model, should_fold=should_fold)
    for name, value in initializers.items():
        if name in weights and (tensor := value.const_value) is not None:
            shape = onnx_ir.Shape(tensor.shape.numpy())
            value.const_value = onnx_ir.ExternalTensor(
                WEIGHTS, 0, tensor.nbytes, tensor.dtype, shape=shape, name=name
            )
    proto: Any = onnx_ir.to_proto(model)
    del proto.graph.value_info[:], proto.metadata_props[:], proto.graph.metadata_props[:]
    del proto.functions[:]
    parts = (proto.graph.node, proto.graph.initializer, proto.graph.input, proto.graph.output)
    for part in (each for kind in parts for each in kind):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    return bytes(proto.SerializeToString(deterministic=True))


def _check(
    module: nn.Module, graph: bytes, names: dict[str, str], vocabulary: int, longest: int
) -> None:
    import torch

    parameters = dict(module.named_parameters(remove_duplicate=False))
    network = Network(graph, {names[n]: parameters[n].detach().numpy() for n in names})
    random = np.random.default_rng(0)
    for texts, tokens in _SHAPES:
        lengths = random.integers(1, min(tokens, longest) + 1, texts)
        ids = [random.integers(0, vocabulary, length).tolist() for length in lengths]
        with torch.inference_mode():
            expected = module(*map(torch.from_numpy, padded(ids))).numpy()
        error = np.abs(network.run(ids) - expected).max() / np.abs(expected).max()
        if not error < TOLERANCE:
            raise RuntimeError(
                f"the exported graph differs from torch by {error:.1e} for {texts} texts of up to "
                f"{tokens} tokens; install other versions of torch and onnxscript"
            )
