"""Where in the user's model something came from: out of FX nodes, Python tracebacks and MLIR locations."""

from __future__ import annotations

import os
import re
import traceback
from types import TracebackType

import torch
from torch import fx
from torch_mlir import ir

__all__ = ["frames_of_node", "node_location", "origin_of_location", "origin_of_node", "origin_of_traceback", "target_name"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep


def target_name(node: fx.Node) -> str:
    """`aten.mm.default` for a call of that overload; the function's or the module's name else."""
    target = node.target
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return getattr(target, "__name__", str(target))


def frames_of_node(node: fx.Node) -> list[tuple[str, int]]:
    """`(file, line)` of the calls that led to `node`, outermost first; torch's own files only if there are no others.

    torch records the frames of functions called `forward`, not of what they call.
    """
    return _frames(node.meta.get("stack_trace") or "")


def _frames(text: str) -> list[tuple[str, int]]:
    frames = [(file, int(line)) for file, line in _FRAME.findall(text) if not file.startswith((_HERE, "<"))]
    return [f for f in frames if not f[0].startswith(_TORCH)] or frames


def origin_of_node(node: fx.Node) -> str | None:
    """`file:line` of the innermost line of the model that made `node`."""
    return origin_of_text(node.meta.get("stack_trace") or "")


def origin_of_text(text: str) -> str | None:
    """`file:line` of the innermost line of the model in the text of a Python traceback."""
    frames = _frames(text)
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else None


def origin_of_traceback(tb: TracebackType | None) -> str | None:
    """`file:line` of the innermost frame that belongs neither to torch nor to this package's frontend."""
    for frame in reversed(traceback.extract_tb(tb)):
        if not frame.filename.startswith((_TORCH, _HERE, "<")) and "torch_mlir" not in frame.filename:
            return f"{frame.filename}:{frame.lineno}"
    return None


def node_location(node: fx.Node, context: ir.Context) -> ir.Location:
    """The location `"aten.op"(file:line)` of an FX node, with its callers as call sites."""
    frames = [ir.Location.file(file, line, 0, context=context) for file, line in reversed(frames_of_node(node))]
    if not frames:
        where = ir.Location.unknown(context=context)
    elif len(frames) == 1:
        where = frames[0]
    else:
        where = ir.Location.callsite(frames[0], frames[1:], context=context)
    return ir.Location.name(target_name(node), where, context=context)


def origin_of_location(loc: ir.Location) -> tuple[str | None, str | None]:
    """The operator's name and the `file:line` in a location that `node_location` made, as far as they are in it."""
    if isinstance(loc, ir.NameLoc):
        return loc.name_str, origin_of_location(loc.child_loc)[1]
    if isinstance(loc, ir.CallSiteLoc):
        return origin_of_location(loc.callee)
    if isinstance(loc, ir.FileLineColLoc):
        return None, f"{loc.filename}:{loc.start_line}"
    if isinstance(loc, ir.FusedLoc):
        for part in loc.locations:
            operator, where = origin_of_location(part)
            if operator or where:
                return operator, where
    return None, None
