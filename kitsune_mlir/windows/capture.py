"""`window()`: calls of any eager PyTorch program become segments, which are compiled once and appended to a window."""

from __future__ import annotations

import concurrent.futures
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kitsune_mlir.runtime.program import Program
from kitsune_mlir.windows.hazards import BOTH, READ
from kitsune_mlir.windows.operators import Kind, Results, kind_of, refusal, results_of
from kitsune_mlir.windows.recording import Op, Recording, rebuilt, template
from kitsune_mlir.windows.segments import Segments
from kitsune_mlir.windows.task import extent
from kitsune_mlir.windows.window import Window

__all__ = ["LONGEST", "SHORTEST", "Capture", "forget", "window"]

LONGEST = 256
"""Calls of a segment."""
SHORTEST = 8
"""Calls after which a module's end is the end of a segment, so that layers which are alike are one segment."""

logger = logging.getLogger("kitsune_mlir.windows")
_segments = Segments()
_known: dict[tuple[Any, ...], Results | str] = {}

_READERS = {"tolist", "__repr__", "__str__", "__format__", "__deepcopy__", "__reduce_ex__", "__bool__"}
_LENDERS = {"numpy", "__array__", "data_ptr", "untyped_storage", "storage", "_typed_storage", "__dlpack__", "share_memory_"}


def window(
    size: int = 128,
    back_end: str = "auto",
    threads: int | None = 0,
    after: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Capture:
    """Run what PyTorch is asked for in a `with` block in segments, through a window.

        with kitsune_mlir.window() as captured:
            y = model(x)          # any eager program: loops, branches on values, views, changes in place
        print(captured.explain())

    Tensors are ordinary ones, whose values are there when they are looked at within the block, and after it. Only the thread
    that opened the block is captured.

    Args:
        size, back_end, threads: as of `Window`.
        after: how often a segment has to come before it is compiled; None: when PyTorch has
            spent as long on it as compiling takes.
        options: of `kitsune_mlir.compile`.
    """
    return Capture(Window(size, back_end, threads), after, options)


def forget() -> None:
    """Forget the segments of all windows, with their programs."""
    _segments.clear()


class Capture:
    """See `window`.

    Attributes:
        window: what segments are appended to.
        taken: how many calls were captured.
        eager: how many PyTorch ran at once, by reason.
        segments: how many segments were appended, by who runs them and why.
    """

    def __init__(self, window: Window, after: int | None, options: Mapping[str, Any] | None):
        self.window, self._after = window, after
        self._options = {"threads": 1, **(options or {})}
        self.taken = 0
        self.eager: Counter[str] = Counter()
        self.segments: Counter[str] = Counter()
        self._recording = Recording()
        self._lent: dict[int, Any] = {}
        self._off = False
        self._gpu = ""
        self._calls, self._reads = _Calls(self), _Reads(self)
        self._hook: Any = None

    def __enter__(self) -> Capture:
        self._hook = torch.nn.modules.module.register_module_forward_hook(self._module_ends)
        self._calls.__enter__()
        self._reads.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._reads.__exit__(*error)
        self._calls.__exit__(*error)
        self._hook.remove()
        self.cut()
        self.window.flush()
        if error[0] is None:
            self.window.raise_lost()

    def explain(self) -> str:
        """What was captured and what was not, in words."""
        lines = [f"{self.taken} calls were captured in {sum(self.segments.values())} segments"]
        lines += [f"  {count} segments: {who}" for who, count in self.segments.most_common()]
        lines += [f"  {count} calls were run by PyTorch at once: {why}" for why, count in self.eager.most_common()]
        return "\n".join(lines)

    def cut(self) -> None:
        """End the segment, and append it."""
        recording, self._recording = self._recording, Recording()
        if not recording.ops:
            return
        off, self._off = self._off, True
        try:
            segment = recording.finish()
            if segment is None:
                return
            entry = _segments.of(segment)
            call = entry.call(segment, self._compiled, self._after)
            self.segments[f"PyTorch, {entry.why}" if entry.why else "a program"] += 1
            self.window.append_call(call)
        finally:
            self._off = off

    def settle(self, tensors: Sequence[torch.Tensor], mode: int) -> None:
        """Make tensors readable, or with mode BOTH writable, by others."""
        if self._recording.ops and self._recording.touches(tensors, mode != READ):
            self.cut()
        off, self._off = self._off, True
        try:
            self.window.wait_for([extent(tensor, mode) for tensor in tensors if tensor.layout == torch.strided])
        finally:
            self._off = off

    def _compiled(self, function: Any, inputs: Sequence[Any]) -> Program:
        from kitsune_mlir.pipeline import compile

        def work() -> Program:
            with torch.no_grad():
                examples = tuple(tensor.clone() if tensor.is_inference() else tensor for tensor in inputs)
                return compile(function, examples, options=self._options)

        # In the midst of a call this thread's dispatcher is not as a trace wants it; a new thread's is.
        with concurrent.futures.ThreadPoolExecutor(1) as worker:
            program = worker.submit(work).result()
        logger.info("compiled a segment: %s", program)
        return program

    def take(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call of an operator, below autograd."""
        if self._off:
            return func(*args, **kwargs)
        kind, why = kind_of(func)
        tensors: list[torch.Tensor] = []
        given = template(args, tensors)
        named = tuple((name, template(value, tensors)) for name, value in kwargs.items()) if kwargs else ()
        if not tensors:
            return func(*args, **kwargs)
        why = why or refusal(func, tensors, args) or self._elsewhere(tensors[0])
        if self._lent and not why:
            why = "others can write to the memory" * any(t.untyped_storage().data_ptr() in self._lent for t in tensors)
        recording = self._recording
        if kind is Kind.VIEW:
            result = func(*args, **kwargs)
            leaves = (result,) if isinstance(result, torch.Tensor) else result
            if not why and all(t.numel() and not t.dtype.is_complex for t in leaves):
                recording.view(Op(kind, func, given, named, tuple(map(recording.number_of, tensors)), ()), leaves)
            return result
        if why:
            return self._eager(func, args, kwargs, tensors, why)
        refs = tuple(map(recording.number_of, tensors))
        metas = recording.metas
        key = func, given, named, tuple([metas[n] for n in refs])
        results = _known.get(key)
        if results is None:
            results = _known[key] = _results(func, given, named, key[3])
        if isinstance(results, str):
            return self._eager(func, args, kwargs, tensors, results)
        op = Op(kind, func, given, named, refs, ())
        if kind is Kind.IN_PLACE:
            if results.metas[0] != metas[refs[0]]:
                return self._eager(func, args, kwargs, tensors, "a tensor gets another shape in place")
            recording.in_place(op)
            made = args[0]
        else:
            new = [torch.empty_strided(m.shape, m.stride, dtype=m.dtype, device=m.device) for m in results.metas]
            recording.function(op, new)
            made = new[0] if results.spec.is_leaf() else pytree.tree_unflatten(new, results.spec)
        self.taken += 1
        if len(recording.ops) >= LONGEST:
            self.cut()
        return made

    def read(self, name: str, args: Sequence[Any]) -> None:
        """Python looks at a tensor's memory past all operators."""
        tensors = [t for t in args if isinstance(t, torch.Tensor) and t.layout == torch.strided and not t.is_meta]
        if tensors and not self._off:
            self.eager[f"Tensor.{name}"] += 1
            self.settle(tensors, BOTH if name in _LENDERS else READ)
            if name in _LENDERS:
                self._lent |= {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}

    def _eager(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Any], why: str) -> Any:
        self.eager[f"{func}: {why}"] += 1
        writes = func._schema.is_mutable or "running statistics" in why
        self.settle(tensors, BOTH if writes else READ)
        return func(*args, **kwargs)

    def _elsewhere(self, tensor: torch.Tensor) -> str:
        """Why a tensor's device is not the window's; host calls of a GPU's window are run when they are appended."""
        if not tensor.is_cuda:
            return ""
        device = str(tensor.device)
        self._gpu = self._gpu or self.window.device or device
        return "" if device == self._gpu else f"the window runs on {self._gpu}"

    def _module_ends(self, module: Any, args: Any, output: Any) -> None:
        if len(self._recording.ops) >= SHORTEST:
            self.cut()


def _results(func: Any, args: Any, kwargs: Any, metas: Sequence[Any]) -> Results | str:
    tensors = iter(metas)
    given = rebuilt(args, tensors)
    return results_of(func, given, {name: rebuilt(value, tensors) for name, value in kwargs})


class _Calls(TorchDispatchMode):
    """Operators."""

    def __init__(self, capture: Capture):
        super().__init__()
        self._capture = capture

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        capture = self._capture
        reads, capture._reads.off = capture._reads.off, True
        try:
            return capture.take(func, args, kwargs or {})
        finally:
            capture._reads.off = reads


class _Reads(TorchFunctionMode):
    """What of Python looks at memory without an operator."""

    def __init__(self, capture: Capture):
        super().__init__()
        self._capture = capture
        self.off = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.off:
            name = getattr(func, "__name__", "")
            if name in _LENDERS or name in _READERS:
                self._capture.read(name, args)
        return func(*args, **(kwargs or {}))
