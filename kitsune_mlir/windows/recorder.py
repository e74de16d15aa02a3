"""What takes the calls of operators in a block, and records those that need not run at once."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kitsune_mlir.runtime.program import Program
from kitsune_mlir.windows.operators import Kind, Results, kind_of, refusal, results_of
from kitsune_mlir.windows.recording import Op, Recording, Segment, rebuilt, template

__all__ = ["LONGEST", "Calls", "Recorder"]

LONGEST = 256
"""Calls of a segment."""

logger = logging.getLogger("kitsune_mlir.windows")
_known: dict[tuple[Any, ...], Results | str] = {}


class Recorder:
    """Takes calls; what becomes of segments, and of calls that PyTorch makes at once, is said by who inherits.

    Attributes:
        taken: how many calls were captured.
        reads: what looks at calls above operators, which is off while an operator is called.
    """

    def __init__(self, after: int | None, options: Mapping[str, Any] | None):
        self._after = after
        self._options = {"threads": 1, **(options or {})}
        self.taken = 0
        self._recording = Recording()
        self._lent: dict[int, Any] = {}
        self._off = False
        self._gpu = ""
        self._calls = Calls(self)
        self.reads: Any = None

    def cut(self) -> None:
        """End the segment, and have it run."""
        recording, self._recording = self._recording, Recording()
        if not recording.ops:
            return
        with self.off():
            segment = recording.finish()
            if segment is not None:
                self.ended(segment)

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Calls are PyTorch's for the block, and pass no mode: to pass one takes longer than many an operator."""
        off, self._off = self._off, True
        try:
            with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
                yield
        finally:
            self._off = off

    def ended(self, segment: Segment) -> None:
        """Have a segment run; calls are PyTorch's meanwhile."""
        raise NotImplementedError

    def compiled(self, function: Any, inputs: Sequence[Any]) -> Program:
        """Compile a function, with examples of its tensors."""
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
            return self._made(func, args, kwargs)
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

    def _made(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call without tensors, which makes new ones."""
        return func(*args, **kwargs)

    def _eager(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Any], why: str) -> Any:
        """A call that PyTorch makes at once."""
        raise NotImplementedError

    def _elsewhere(self, tensor: torch.Tensor) -> str:
        """Why a tensor's device is not that of what is recorded."""
        if not tensor.is_cuda:
            return ""
        device = str(tensor.device)
        self._gpu = self._gpu or device
        return "" if device == self._gpu else f"what is recorded runs on {self._gpu}"


def _results(func: Any, args: Any, kwargs: Any, metas: Sequence[Any]) -> Results | str:
    tensors = iter(metas)
    given = rebuilt(args, tensors)
    return results_of(func, given, {name: rebuilt(value, tensors) for name, value in kwargs})


class Calls(TorchDispatchMode):
    """Operators."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder = self._recorder
        reads = recorder.reads
        off, reads.off = reads.off, True
        try:
            return recorder.take(func, args, kwargs or {})
        finally:
            reads.off = off
