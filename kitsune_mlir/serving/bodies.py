"""Bodies of requests and answers: tensors by name, as safetensors or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.signature import torch_dtype

__all__ = ["JSON", "SAFETENSORS", "read_body", "write_body"]

JSON, SAFETENSORS = "application/json", "application/vnd.safetensors"


def read_body(program: Program, body: bytes, kind: str) -> dict[str, Any]:
    """The tensors of a request, on the program's device.

    Args:
        kind: the content's type; JSON is `{"inputs": {NAME: nested lists of numbers}}`.

    Raises:
        ArgumentError: the body is of another type, or malformed; the message says where.
    """
    if kind == SAFETENSORS:
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            return {name: tensor.to(program.device) for name, tensor in load(body).items()}
        except SafetensorError as error:
            raise ArgumentError(f"the body is no safetensors file: {error}") from error
    if kind != JSON:
        raise ArgumentError(f"the body is {kind or 'of no type'}; {JSON} and {SAFETENSORS} are taken")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"the body is no JSON: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("inputs"), dict):
        raise ArgumentError('the body is not {"inputs": {NAME: numbers}}')
    dtypes = {i.name: torch_dtype(i.dtype) for i in program.signature.inputs}
    return {name: _tensor(name, value, dtypes.get(name), program.device) for name, value in data["inputs"].items()}


def _tensor(name: str, value: Any, dtype: Any, device: str) -> Any:
    import torch

    try:
        return torch.tensor(value, dtype=dtype, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
        raise ArgumentError(f"input '{name}' is no tensor: {str(error).partition(chr(10))[0]}") from error


def write_body(output: Any, kind: str) -> bytes:
    """An output's tensors, "output0", ... in the order of its leaves; values that are no tensors are in JSON only."""
    import torch
    from torch.utils import _pytree as pytree

    leaves = {f"output{n}": leaf for n, leaf in enumerate(pytree.tree_leaves(output))}
    if kind == SAFETENSORS:
        from safetensors.torch import save

        tensors: Mapping[str, Any] = {n: t.detach().cpu() for n, t in leaves.items() if isinstance(t, torch.Tensor)}
        return save({name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()})
    plain = {n: v.tolist() if isinstance(v, torch.Tensor) else v for n, v in leaves.items()}
    return json.dumps({"outputs": plain}, default=str).encode()
