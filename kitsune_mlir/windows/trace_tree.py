"""`trace_tree`: a function whose calls depend on values, recorded once a path and run again without its Python code."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from kitsune_mlir.runtime.tensor_guards import guard_of
from kitsune_mlir.windows.recorder import Recorder
from kitsune_mlir.windows.trace import Node, Places, Ref, at
from kitsune_mlir.windows.tracing import Root, Tracer

__all__ = ["TraceTree", "trace_tree"]

MOST = 64
"""Kinds of arguments of a function that trees are kept for."""
QUICK, MOST_OTHERS = 8, 256
"""Kinds of tensors that are found without comparing all of the arguments, and the objects beside them for which that is so."""
FREE, SHARE = 0.05, 0.5
"""Seconds of recording one kind, and the share of all other time that its calls take, after which paths are not recorded until
more calls were made. So paths that hardly come again cost half as much again as without recording, whatever that takes."""
ENOUGH = 64
"""Runs of one kind that were not replayed, from which on as many have to be."""


def trace_tree(
    function: Callable[..., Any], *, hot: int = 2, after: int | None = None, options: Mapping[str, Any] | None = None
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
        hot: how often a path has to come to where it is not known before it is recorded, which takes several times as long as
            running it; until then the function is run as it is.
        after: how often a segment has to come before it is compiled, and paths are recorded whatever that costs; None: when
            PyTorch has spent as long on it as compiling takes, and paths are recorded for at most half as long as calls take.
        options: of `kitsune_mlir.compile`.
    """
    return TraceTree(function, hot, after, options)


class TraceTree:
    """See `trace_tree`.

    Attributes:
        function: what is traced.
        calls: how many were replayed, recorded, and run as they are.
    """

    def __init__(self, function: Callable[..., Any], hot: int, after: int | None, options: Mapping[str, Any] | None):
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.calls: Counter[str] = Counter()
        self._hot, self._after, self._options = hot, after, options
        self._quick: dict[tuple[int, ...], list[_Quick]] = {}
        self._roots: dict[Hashable, Root] = {}
        self._lock = threading.RLock()
        self._compiled = Recorder(after, options).compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        if torch.compiler.is_dynamo_compiling():
            return self.function(*args, **kwargs)
        if torch.is_grad_enabled() or torch._C._len_torch_dispatch_stack():
            return self._as_is(args, kwargs)
        state, missed = _state(self.function), None
        if not kwargs:
            for quick in self._quick.get(_others(args), ()):
                if quick.fits(args, state):
                    with self._lock:
                        output = self._replayed(quick.root, [args[n] for n in quick.tensors])
                    if output is not _MISSED:
                        return output
                    missed = quick.root
                    break
        tensors: list[torch.Tensor] = []
        try:
            key = _key((args, kwargs), tensors), state, _shared(tensors)
            with self._lock:
                root = self._roots.get(key)
        except (RuntimeError, TypeError):  # values that cannot be compared, tensors without memory
            return self._as_is(args, kwargs)
        elsewhere = root is not None and root.gpu is not None and torch._C._cuda_getDevice() != root.gpu
        if root is not None and (root.why or elsewhere):
            return self._as_is(args, kwargs)
        with self._lock:
            if root is None:
                if len(self._roots) == MOST:
                    del self._roots[next(iter(self._roots))]
                root = self._roots[key] = Root(len(tensors))
            if root is not missed and (output := self._replayed(root, tensors)) is not _MISSED:
                self._note(root, args, kwargs, tensors, state)
                return output
            root.misses += 1
            if root.misses >= ENOUGH and root.replays < root.misses:
                root.give_up(f"its paths hardly come again: {root.replays} of {root.replays + root.misses} runs were replayed")
            if root.seen >= self._hot and (self._after is not None or root.recording <= FREE + SHARE * root.running):
                self.calls["recorded"] += 1
                start = time.perf_counter()
                with Tracer(root, tensors, self._after, self._options) as tracer:
                    output = self.function(*args, **kwargs)
                    tracer.returns(output)
                root.recording += time.perf_counter() - start
                return output
        start = time.perf_counter()
        output = self._as_is(args, kwargs)
        root.running += time.perf_counter() - start
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

    def _note(self, root: Root, args: Sequence[Any], kwargs: Any, tensors: Sequence[torch.Tensor], state: Hashable) -> None:
        """Find the next arguments like these sooner."""
        if kwargs or root.changes:
            return
        places = [n for n, one in enumerate(args) if isinstance(one, torch.Tensor)]
        if len(places) == len(tensors) and (check := guard_of(tensors)) is not None:
            rest = [(n, one) for n, one in enumerate(args) if n not in places]
            if not all(_stays_equal(one) for _, one in rest):
                return
            if len(self._quick) >= MOST_OTHERS:
                self._quick.clear()
            others = _others(args)
            known = self._quick.get(others, ())
            self._quick[others] = [_Quick(root, len(args), places, rest, check, state), *known[: QUICK - 1]]

    def _replayed(self, root: Root, tensors: Sequence[torch.Tensor]) -> Any:
        """The output; `_MISSED`, and everything as it was, where the path is not known."""
        if root.why or (root.gpu is not None and torch._C._cuda_getDevice() != root.gpu):
            return _MISSED
        places: Places = [*root.places]
        places[: len(tensors)] = tensors
        start = time.perf_counter()
        before = [(places[n], places[n].clone()) for n in root.written] if root.written and root.read else ()
        compiled, after, stream = self._compiled, self._after, root.stream
        node: Node = root
        value: Hashable = None
        while node.output is None and node.read is not None:
            for item in node.items:
                item(places, stream, compiled, after)
            value = node.read(places)
            following = node.next.get(value)
            if following is None:
                break
            node = following
        if node.output is None:
            for tensor, own in before:
                tensor.copy_(own)
            node.came[value] = root.seen = node.came.get(value, 0) + 1
            return _MISSED
        for item in node.items:
            item(places, stream, compiled, after)
        self.calls["replayed"] += 1
        root.replays += 1
        root.running += time.perf_counter() - start
        leaves, spec, plain = node.output
        found = [at(places, one) if type(one) is Ref else one for one in leaves]
        return plain(found) if plain is not None else pytree.tree_unflatten(found, spec)


_MISSED = object()


class _Quick(NamedTuple):
    """Arguments that are known by their guard: tensors at some places, and others that are the very same objects.

    The function changes none of the tensors, so it does not matter whether they share memory.
    """

    root: Root
    count: int
    tensors: Sequence[int]
    rest: Sequence[tuple[int, Any]]
    check: Callable[..., bool]
    state: Hashable

    def fits(self, args: Sequence[Any], state: Hashable) -> bool:
        """Whether these are such."""
        if len(args) != self.count or state != self.state or self.root.why or self.root.changes:
            return False
        if any(args[n] is not one for n, one in self.rest):
            return False
        return self.check(*[args[n] for n in self.tensors])


def _others(args: Sequence[Any]) -> tuple[int, ...]:
    """What arguments are no tensors, by identity. (Whoever keeps it keeps the objects, too.)"""
    return tuple([id(one) for one in args if not isinstance(one, torch.Tensor)])


def _stays_equal(value: Any) -> bool:
    """Whether an argument that is the same object has the same key: it cannot be changed, or is told apart by identity."""
    if type(value) is tuple:
        return all(map(_stays_equal, value))
    return isinstance(value, int | float | complex | str | bytes | None) or type(value).__hash__ is object.__hash__


def _key(value: Any, tensors: list[torch.Tensor]) -> Hashable:
    """What tells arguments of one kind from others; their tensors are added to the list.

    Raises:
        TypeError: a value is not hashable, or a tensor is none of PyTorch's plain ones.
    """
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
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


def _shared(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether some of the tensors lie in the same storage."""
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()]
    return len({*places}) < len(places)


def _state(function: Any) -> Hashable:
    """What else of PyTorch's state calls depend on."""
    cpu = torch.is_autocast_enabled("cpu")
    return cpu, torch.is_autocast_enabled("cuda"), torch.is_inference_mode_enabled(), getattr(function, "training", None)
