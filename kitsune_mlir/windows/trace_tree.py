"""`trace_tree`: a function whose calls depend on values, recorded once a path and run again without its Python code."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kitsune_mlir.windows.recorder import Recorder
from kitsune_mlir.windows.trace import Node, Places, Ref, at
from kitsune_mlir.windows.tracing import Root, Tracer

__all__ = ["TraceTree", "trace_tree"]

MOST = 64
"""Kinds of arguments of a function that trees are kept for."""
ENOUGH = 64
"""Recorded runs of one kind, from which on more have to be replayed than recorded."""


def trace_tree(
    function: Callable[..., Any], *, after: int | None = None, options: Mapping[str, Any] | None = None
) -> TraceTree:
    """The same function, whose Python code runs once for each path that it takes.

        step = kitsune_mlir.trace_tree(step)       # or @kitsune_mlir.trace_tree
        with torch.no_grad():
            state = step(state)

    A path is what of the function's values Python reads (`bool(x)`, `x.item()`, `x.tolist()`): calls between two reads are a
    segment, which is compiled when it has come often enough, and of known paths nothing else is run. It is the caller's part
    that Python's code depends on nothing but the arguments and the values that it reads: not on globals that change, and not on
    the attributes of modules; their tensors may change in place, and are what they are at each call. Values that are no tensors
    are told apart by `==`; each kind of arguments (shapes, strides, types, other values) has a tree of its own.

    What a function with gradients is asked for, or within a `kitsune_mlir.window()`, is run as it is. So is a function that
    draws random numbers, changes running statistics, gives memory to NumPy, calls another library's operators, reads ever new
    floating-point numbers (compare them on the device, and read the bool), or whose paths hardly come again; `explain` has the
    reason.

    Args:
        after, options: as of `kitsune_mlir.window`.
    """
    return TraceTree(function, after, options)


class TraceTree:
    """See `trace_tree`.

    Attributes:
        function: what is traced.
        calls: how many were replayed, recorded, and run as they are.
    """

    def __init__(self, function: Callable[..., Any], after: int | None, options: Mapping[str, Any] | None):
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.calls: Counter[str] = Counter()
        self._after, self._options = after, options
        self._roots: dict[Hashable, Root] = {}
        self._lock = threading.RLock()
        self._compiled = Recorder(after, options).compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        if torch.is_grad_enabled() or torch._C._len_torch_dispatch_stack():
            return self._as_is(args, kwargs)
        tensors: list[torch.Tensor] = []
        try:
            key = _key((args, kwargs), tensors), _state(self.function)
            with self._lock:
                root = self._roots.get(key)
        except TypeError:  # a value that cannot be compared, or a tensor whose memory is not its own
            return self._as_is(args, kwargs)
        elsewhere = root is not None and root.gpu is not None and torch._C._cuda_getDevice() != root.gpu
        if root is not None and (root.why or elsewhere):
            return self._as_is(args, kwargs)
        with self._lock:
            if root is None:
                if len(self._roots) == MOST:
                    del self._roots[next(iter(self._roots))]
                root = self._roots[key] = Root(len(tensors))
            elif (found := self._replay(root, tensors)) is not None:
                self.calls["replayed"] += 1
                root.replays += 1
                return pytree.tree_unflatten(*found)
            self.calls["recorded"] += 1
            with Tracer(root, tensors, self._after, self._options) as tracer:
                output = self.function(*args, **kwargs)
                tracer.returns(output)
            if root.runs >= ENOUGH and root.replays < root.runs:
                root.give_up(f"its paths hardly come again: {root.runs} runs were recorded and {root.replays} replayed")
            return output

    def explain(self) -> str:
        """What is known of the function, in words."""
        lines = [f"{count} calls were {how}" for how, count in self.calls.most_common()]
        for number, root in enumerate(self._roots.values()):
            nodes = [root]
            for node in nodes:
                nodes += node.next.values()  # type: ignore[arg-type]
            items = sum(len(node.items) for node in nodes)
            state = f"run as they are: {root.why}" if root.why else f"{root.runs} runs recorded"
            lines.append(f"arguments of kind {number}: {state}; {len(nodes)} nodes, {items} pieces of work")
        return "\n".join(lines)

    def _as_is(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.calls["run as they are"] += 1
        return self.function(*args, **kwargs)

    def _replay(self, root: Root, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], Any] | None:
        """The output's leaves and how they are nested; None, and everything as it was, where the path is not known."""
        places: Places = [*root.places]
        places[: len(tensors)] = tensors
        before = [(places[n], places[n].clone()) for n in root.written] if root.written and root.read else ()
        compiled, after, stream, node = self._compiled, self._after, root.stream, root
        while node.output is None:
            if (read := node.read) is None:
                break
            for item in node.items:
                item(places, stream, compiled, after)
            following: Node | None = node.next.get(read(places))
            if following is None:
                break
            node = following  # type: ignore[assignment]
        if node.output is None:
            for tensor, own in before:
                tensor.copy_(own)
            return None
        for item in node.items:
            item(places, stream, compiled, after)
        leaves, spec = node.output
        return [at(places, one) if type(one) is Ref else one for one in leaves], spec


def _key(value: Any, tensors: list[torch.Tensor]) -> Hashable:
    """What tells arguments of one kind from others; their tensors are added to the list.

    Raises:
        TypeError: a value is not hashable, or a tensor is none of PyTorch's plain ones, or shares its memory with another.
    """
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        storage = value.untyped_storage().data_ptr()
        if any(one.untyped_storage().data_ptr() == storage for one in tensors) and storage:
            raise TypeError("arguments share memory")
        if value.is_conj() or value.is_neg():
            raise TypeError("an argument is conjugated or negated")
        tensors.append(value)
        return value.shape, value.stride(), value.dtype, value.device
    if kind is tuple or kind is list:
        return kind, *[_key(one, tensors) for one in value]
    if kind is dict:
        return kind, *[(name, _key(one, tensors)) for name, one in value.items()]
    if kind is float:
        return kind, value.hex()
    if isinstance(value, torch.Tensor):
        raise TypeError(f"an argument is a {kind.__name__}")
    if pytree.tree_is_leaf(value):
        hash(value)
        return kind, value
    leaves, spec = pytree.tree_flatten(value)
    return kind, str(spec), *[_key(one, tensors) for one in leaves]


def _state(function: Any) -> Hashable:
    """What else of PyTorch's state calls depend on."""
    cpu = torch.is_autocast_enabled("cpu")
    return cpu, torch.is_autocast_enabled("cuda"), torch.is_inference_mode_enabled(), getattr(function, "training", None)
