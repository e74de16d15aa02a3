"""`Program`: a compiled model that is called like the model."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from kitsune_mlir.errors import ArgumentError, PackageError, TargetError
from kitsune_mlir.runtime.arguments import address_of, overwrite_each, tensor_of
from kitsune_mlir.runtime.batch import Batch
from kitsune_mlir.runtime.bound import Bound, stream_of
from kitsune_mlir.runtime.call_structure import CallStructure
from kitsune_mlir.runtime.direct import DirectCall, direct_call
from kitsune_mlir.runtime.inputs import input_tensor, pointer_of
from kitsune_mlir.runtime.memory import Memory, memory_of
from kitsune_mlir.runtime.package import LEVELS, Contents, write_package
from kitsune_mlir.runtime.results import Overwritten, changed, check_into, empty, into_leaves
from kitsune_mlir.runtime.runner import Runner
from kitsune_mlir.runtime.signature import Access, Signature, torch_dtype
from kitsune_mlir.runtime.structure import structure_of
from kitsune_mlir.runtime.taken import takers
from kitsune_mlir.runtime.timeline import Timeline
from kitsune_mlir.runtime.weights import WeightCopies, discarded, placed, without_values

__all__ = ["Program", "Runner"]


class Program:
    """A compiled model: call it with what the model takes; it gives what the model gives.

    Attributes:
        target: the target's name.
        signature: what it takes and gives.
        weights: the model's own tensors by name. They are shared with the model, not copied (on the same device). A model on
            the meta device, which has no values, compiles too; its program runs once it is saved and loaded with weights.
        seconds: compile time by phase.
        kept_as: the key under which it may be found on disk; None where it is not kept.
    """

    def __init__(
        self,
        target: str,
        signature: Signature,
        weights: Mapping[str, Any],
        runner: Runner | None,
        ir: Mapping[str, str],
        summary: Mapping[str, Any],
        artifacts: Mapping[str, bytes],
        seconds: Mapping[str, float] | None = None,
        runner_error: str = "",
        specs: tuple[Any, Any] | None = None,
    ):
        import torch
        from torch.utils import _pytree as pytree

        self.kept_as: str | None = None
        self.target = target
        self.signature = signature
        self.weights = dict(weights)
        self.seconds = dict(seconds or {})
        self.summary = dict(summary)
        self.artifacts = dict(artifacts)
        self._ir = dict(ir)
        self._code = runner, runner_error
        if (empty := without_values(weights)) is not None:
            runner, runner_error = None, f"weight '{empty}' is on the meta device: save the program, and load it with weights"
        self._runner = runner
        self._runner_error = runner_error
        stored = (signature.in_spec, signature.out_spec)
        self._in_spec, self._out_spec = specs or tuple(map(structure_of, stored))
        self._structure = CallStructure(self._in_spec, signature.parameters, signature.fixed)
        self._unflatten = pytree.tree_unflatten
        self._dtypes = [torch_dtype(i.dtype) for i in signature.inputs]
        self._result_dtypes = [torch_dtype(dtype) for _, dtype in signature.results]
        self._weight_tensors: list[Any] = []
        self._copies = WeightCopies()
        self._overwritten = Overwritten(signature)
        self._counts = True
        self._direct: DirectCall | None = None  # where nothing is copied after a run
        self._always: DirectCall | None = None  # the same, where no weight is ever copied again
        self._quick: DirectCall | None = None  # where its output tells whether the arguments fitted
        if runner is not None:
            self._weight_tensors, self._copies = placed(signature, self.weights, runner.device)
            device = torch.device(runner.device)
            own = [self.weights.get(weight.name) for weight in signature.weights]
            specs = self._in_spec, self._out_spec
            direct = direct_call(signature, self._weight_tensors, device, runner, *specs, own)
            self._quick = None if direct is None or direct.silent else direct
            self._direct = None if direct is None or direct.late else direct
            self._always = None if self._copies else self._direct

    def with_weights(self, weights: Mapping[str, Any]) -> Program:
        """The same code with other weights, by name; those that are not given stay. This program stays as it is.

        Raises:
            ArgumentError: a weight has no such name, or another shape or type than was compiled for.
        """
        if unknown := weights.keys() - {weight.name for weight in self.signature.supplied}:
            names = ", ".join(sorted(weight.name for weight in self.signature.supplied))
            raise ArgumentError(f"the program has no weight '{min(unknown)}'; its weights are {names or 'none'}")
        runner, problem = self._code
        parts = (self.target, self.signature, {**self.weights, **weights}, runner, self._ir, self.summary, self.artifacts)
        made = Program(*parts, self.seconds, problem, (self._in_spec, self._out_spec))
        return made if self._counts else made.uncounted()

    def discard_weights(self) -> int:
        """Give back the memory of the model's weights of which the program has copies in another form; how many bytes it was.

        Neither the model nor other programs of these weights can be used after that, and this one can be saved only with
        `weights=False`. Weights that it reads where they lie stay.
        """
        self._usable_runner()
        self._copies.refresh()
        gone, size = discarded(self.signature, self.weights, self._weight_tensors)
        self.weights |= gone
        self._copies, self._always = WeightCopies(), self._direct
        return size

    def uncounted(self) -> Program:
        """Itself, which leaves it to its caller to count changes of the arguments that it writes to."""
        self._counts = False
        for direct in filter(None, (self._direct, self._quick)):
            direct.counts = False
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program on tensors (or DLPack objects) of the shapes, dtypes and device that it was compiled for.

        Raises:
            ArgumentError: an argument does not fit; the message names it, what it is and what is wanted.
            TargetError: the program's target cannot be used on this machine.
        """
        if takers and (output := self._taken(args, kwargs)) is not NotImplemented:
            return output
        if self._quick is not None and not kwargs:
            if self._always is None:
                self._copies.refresh()
            output = self._quick(args)
            if output is not None:
                return output
        return self._call(args, kwargs)

    def run(self, *args: Any, into: Any = None, **kwargs: Any) -> Any:
        """Run the program as a call does, and write results where the caller says.

        Args:
            into: a tensor for each tensor of the output, nested as the output is; None where a new one is wanted. Each has
                the shape, dtype, strides and device of the result, begins at a multiple of 16 bytes, and shares memory with
                nothing else that the call uses. It is what is returned in its place. With all of them given, a call that needs
                no copies of arguments allocates no results.

        Raises:
            ArgumentError: a tensor does not fit; the message names it, what it is and what is wanted. Or as a call does.
            TargetError: as a call does.
        """
        if into is None:
            return self(*args, **kwargs)
        if takers and (output := self._taken(args, kwargs, into)) is not NotImplemented:
            return output
        return self._call(args, kwargs, into_leaves(into, self._out_spec))

    def _taken(self, args: Sequence[Any], kwargs: Mapping[str, Any], into: Any = None) -> Any:
        """The output, where somebody takes this thread's calls."""
        taker = takers.get(threading.get_ident())
        return NotImplemented if taker is None else taker(self, args, kwargs, into)

    @property
    def most_requests(self) -> int:
        """How many requests a launch takes (`batch`); raises TargetError as `device` does."""
        return self._usable_runner().most_requests

    def shares_code(self, other: Program) -> bool:
        """Whether both run the same code, with weights that may differ."""
        return self._runner is not None and self._runner is other._runner

    @property
    def direct(self) -> DirectCall | None:
        """The quick way through calls whose arguments are tensors that fit, when no weight has to be copied again."""
        return self._always or (None if self._copies.stale else self._direct)

    @property
    def placed_weights(self) -> Sequence[Any]:
        """The weights as the code reads them, in the order of `signature.weights`."""
        return self._weight_tensors

    @property
    def copies(self) -> WeightCopies:
        """Weights that are copied or derived, which whoever replays recorded calls keeps in step with their sources."""
        return self._copies

    @property
    def accesses(self) -> tuple[Access, ...]:
        """What a run reads and writes, in bytes of weights, inputs and results as they lie in the program's memory."""
        return self.signature.accesses

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any], into: Sequence[Any] | None = None) -> Any:
        """The general way: any structure of arguments; what does not fit is converted or named in an error.

        Args:
            into: a tensor, or None, for each leaf of the output.
        """
        bound = self._bound(args, kwargs, into)
        self._usable_runner().run(bound.pointers, stream_of(bound.device))
        return bound.output()

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        """A call that is not made yet: arguments are checked, and results have their memory.

        Raises:
            ArgumentError, TargetError: as a call does.
        """
        self._copies.refresh()
        direct = self._direct
        if direct is not None and not kwargs and (bound := direct.bind(args)) is not None:
            pointers, results = bound
            own = [*self._weight_tensors, *args]
            return Bound(
                pointers, direct.device, own, lambda: direct.assemble(results), self.signature.words, self.signature.written
            )
        return self._bound(args, kwargs)

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any], into: Sequence[Any] | None = None) -> Bound:
        import torch

        runner = self._usable_runner()
        leaves = self._structure.leaves(args, kwargs)
        takes, reach = zip(self.signature.inputs, self._dtypes, strict=True), self.signature.reach
        inputs = [input_tensor(i, dtype, leaves[i.position], runner.device, reach.get(i.name, 0)) for i, dtype in takes]
        device = inputs[0].device if inputs else torch.device(runner.device)
        self._copies.refresh()
        arguments = [*self._weight_tensors, *inputs]
        given: dict[int, Any] = {}
        handed: Sequence[Any] = ()
        if into is not None:
            given, handed = check_into(self.signature, into, device, self.signature.words, arguments)
        given |= self._in_place(arguments)
        orders = self.signature.result_orders
        results = [
            given[n] if n in given else empty(shape, orders.get(n, range(len(shape))), dtype, device)
            for n, ((shape, _), dtype) in enumerate(zip(self.signature.results, self._result_dtypes, strict=True))
        ]
        own = [*self._weight_tensors, *(leaves[i.position] for i in self.signature.inputs)]
        places = [pointer_of(want, tensor) for want, tensor in zip(self.signature.inputs, inputs, strict=True)]
        pointers = [*(t.data_ptr() for t in self._weight_tensors), *places, *(t.data_ptr() for t in results)]
        output = functools.partial(self._outputs, leaves, results, handed)
        return Bound(pointers, device, own, output, self.signature.words, self.signature.written, arguments)

    def batch(self, limit: int) -> Batch:
        """The same program for up to `limit` requests in one launch, each with arguments, results and weights of its own.

            together = program.batch(64)
            outputs = together([(x,), (y,)], programs=[program, program.with_weights(others)])

        Raises:
            ArgumentError: the limit is not above 0, or above what the program was compiled for.
            TargetError: the program's target cannot be used on this machine.
        """
        return Batch(self, self._usable_runner(), limit)

    def _in_place(self, arguments: Sequence[Any]) -> dict[int, Any]:
        """The results that lie where arguments do; in a copy of one that shares memory with another argument."""
        if not self._overwritten:
            return {}
        shared = self._overwritten.shared(arguments, [t.data_ptr() for t in arguments])
        return {n: arguments[a].clone() if a in shared else arguments[a] for n, a in self._overwritten.pairs}

    def _usable_runner(self) -> Runner:
        if self._runner is None:
            raise TargetError(self._runner_error or f"target '{self.target}' cannot be used on this machine")
        return self._runner

    def leaves_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The leaves of a call's arguments, in the order in which `signature.inputs` and `signature.fixed` number them.

        Raises:
            ArgumentError: the arguments have another structure than the program's, or one has another value than was
                compiled in.
        """
        return self._structure.leaves(args, kwargs)

    @property
    def out_spec(self) -> Any:
        """The pytree spec of the output."""
        return self._out_spec

    def _outputs(self, leaves: Sequence[Any], results: Sequence[Any], handed: Sequence[Any]) -> Any:
        """The output; `handed` are the caller's tensors for its leaves, or None."""
        import torch

        # The caller's own tensors, and copies of what is on another device; what is derived from weights is no output.
        pairs = [(w.name, at) for w, at in zip(self.signature.weights, self._weight_tensors, strict=True) if not w.recipe]
        by_name = {name: own if (own := self.weights[name]).device == placed.device else placed for name, placed in pairs}
        by_name |= {i.name: leaves[i.position] for i in self.signature.inputs}
        out, late = [], list[tuple[Any, Any, str]]()
        for output in self.signature.outputs:
            if output.kind == "tensor":
                value = results[output.index or 0]
                own = handed[len(out)] if handed and output.mutates is None else None
                if own is not None and output.copied:
                    tensor_of(own, "into", shared=True).copy_(value)
                value = own if own is not None else value.clone() if output.copied else value
            elif output.kind == "alias":
                value = output.view_of(by_name[output.argument or ""])
            else:
                value = output.value
            if output.mutates is None:
                out.append(value)
                continue
            with torch.no_grad():
                over = tensor_of(by_name[output.mutates], f"input '{output.mutates}'", shared=True)
                if output.in_place and address_of(over, "an argument") == value.data_ptr():
                    changed([over] if self._counts else [])
                    continue
                late.append((over, tensor_of(value, "an output"), output.mutates))
                for weight, placed in zip(self.signature.weights, self._weight_tensors, strict=True):
                    if weight.name == output.mutates and placed.data_ptr() not in (over.data_ptr(), value.data_ptr()):
                        placed.copy_(value)
        overwrite_each(late, self._counts)
        return self._unflatten(out, self._out_spec)

    @property
    def device(self) -> str:
        """Where the program runs and its arguments have to be: "cpu", or "cuda:0".

        Raises:
            TargetError: the program's target cannot be used on this machine.
        """
        return self._usable_runner().device

    def timeline(self) -> Timeline:
        """When each block worked on each task in the last call, on the current stream (a program compiled with `timestamps`).

        Raises:
            ArgumentError: the program does not run on a GPU.
            KitsuneError: it was not compiled with timestamps, or has not been called on this stream.
        """
        runner = self._code[0]  # that of all programs with this code: they may have been called with other weights
        executor = getattr(runner if runner is not None else self._usable_runner(), "executor", None)
        if executor is None or not hasattr(executor, "timeline"):
            raise ArgumentError(f"a program for target '{self.target}' has no timeline; programs for GPUs have")
        import torch

        return executor.timeline(torch.cuda.current_stream().cuda_stream)

    def ir(self, level: str) -> str:
        """The program's text at a level: linalg, stages, tiles, gpu, llvm or ptx.

        Raises:
            ArgumentError: there is no such level, or this target has none (the host has no gpu and no ptx).
        """
        if level not in LEVELS:
            raise ArgumentError(f"no level '{level}'; levels: {', '.join(LEVELS)}")
        if level not in self._ir:
            raise ArgumentError(f"a program for target '{self.target}' has no '{level}' form; it has {', '.join(self._ir)}")
        return self._ir[level]

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that `ir` has for this program."""
        return tuple(self._ir)

    @property
    def memory(self) -> Memory:
        """What a call needs at most; known before the first one."""
        return memory_of(self.signature, self.summary.get("arena_bytes", 0))

    def explain(self) -> str:
        """Stages, buffers, waits, launches, predicted traffic and changed arguments, in words."""
        from kitsune_mlir.runtime.explain import changes_text, explain_text

        memory = f"A call needs at most {self.memory}."
        return "\n".join(filter(None, [explain_text(self.summary), memory, changes_text(self.signature.outputs)]))

    def save(self, path: str | os.PathLike[str], *, weights: bool = True, ir: bool = True) -> None:
        """Write the program to a `.kit` file (a zip; no pickle). `kitsune_mlir.load` reads it, without torch-mlir.

        With `weights=False` parameters and buffers stay out, and `load` must be given them (constants are always stored).
        With `ir=False` the texts of all levels stay out: the file is a tenth as large, and `ir` of what is loaded has nothing.
        The file is written beside `path` and then moved there, so that a failure leaves an older file as it was.

        Raises:
            OSError: the file cannot be written.
            PackageError: the model has a structure or a weight that a file cannot hold.
        """
        if not self.signature.in_spec or not self.signature.out_spec:
            raise PackageError(f"the model's arguments or output have a structure that a file cannot hold: {self._out_spec}")
        stored = [w.name for w in self.signature.supplied if weights or w.kind == "constant"]
        tensors = {name: self.weights[name] for name in stored}
        if (empty := without_values(tensors)) is not None:
            raise PackageError(f"weight '{empty}' is on the meta device, without values: only weights=False can be saved")
        texts = self._ir if ir else {}
        code = {name: data for name, data in self.artifacts.items() if ir or not name.endswith(".ptx")}
        write_package(path, Contents(self.target, self.signature, self.summary, texts, code, tensors))

    def __repr__(self) -> str:
        stages = len(self.summary.get("stages", []))
        return f"<kitsune_mlir.Program for {self.target}: {stages} stages, {len(self.signature.inputs)} inputs>"
