"""The quick way through a call of a program: tensors one after the other, each as the program wants it.

`Program` asks here first. Whatever does not fit as it is (keywords, nested arguments, arrays of other libraries, strides, a
wrong type or device) is left to its general way, which converts it or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.runtime.arguments import overwrite_each
from kitsune_mlir.runtime.pieces import Piece, pieces_of, results_in
from kitsune_mlir.runtime.results import Overwritten, changed, strides
from kitsune_mlir.runtime.runner import Runner
from kitsune_mlir.runtime.signature import Signature, torch_dtype
from kitsune_mlir.runtime.tensor_guards import guard_of
from kitsune_mlir.runtime.unrolled import unrolled

if TYPE_CHECKING:
    from kitsune_mlir.runtime.compiled_call import CompiledCall, Cut
    from kitsune_mlir.runtime.copy_kernel import Copies

__all__ = ["FEWEST", "DirectCall", "direct_call"]

COMPILED_AFTER = 16
"""Calls from which on they are made by compiled code, which takes some milliseconds to be had."""

MISSES = 8
"""Calls whose arguments differ from the last ones in what a guard sees, before new guards are no longer made."""

FEWEST = 4
"""Calls from which on it pays to allocate their results together."""


class DirectCall:
    """A call without keywords whose arguments are all tensors and whose outputs are all new tensors, or lie where arguments do,
    or are copied there; see `direct_call`.

    Attributes:
        silent: the output is None, which tells nobody whether the arguments fitted: only `bind` does.
        writes: arguments or weights are changed.
        weights: their pointers.
        results: shape, strides and dtype of each.
        late: results that are copied to arguments after a run, by whoever makes the call: numbers of result and argument
            (weights first), and the argument's name.
        bound: of a tuple of tensors on the current device, what `bind` gives of them, or None where they are not like earlier
            ones, which were often such.
        runner, run: what runs the code on pointers of weights, inputs and results, and its method.
    """

    def __init__(
        self,
        signature: Signature,
        weights: Sequence[Any],
        device: Any,
        runner: Runner,
        assemble: Callable[[list[Any]], Any],
        overwritten: Overwritten,
        late: Sequence[tuple[int, int, str]] = (),
    ):
        import torch

        self.late = late
        self.counts, self.silent, self.writes = True, False, bool(signature.written)
        self._types, self._pointer = (torch.Tensor, torch.nn.Parameter), torch.Tensor.data_ptr
        self.device, self._index = device, device.index
        self.runner, self.run = runner, runner.run
        self.weights = tuple(t.data_ptr() for t in weights)
        self._kept = list(weights)
        self._inputs = [
            (torch.Size(i.shape), torch_dtype(i.dtype), strides(i.shape, i.order) if i.order else None, i.lies)
            for i in signature.inputs
        ]
        self.strided = tuple(
            (n, i.lies.first, i.lies.first * torch_dtype(i.dtype).itemsize, signature.reach.get(i.name, 0))
            for n, i in enumerate(signature.inputs)
            if i.lies is not None
        )
        self._count = len(self._inputs)
        self.results = [
            (shape, strides(shape, signature.result_orders.get(n, ())), torch_dtype(dtype))
            for n, (shape, dtype) in enumerate(signature.results)
        ]
        self.assemble = assemble
        self._overwritten = overwritten
        self._places: dict[int, int] = dict(overwritten.pairs)
        self._seen: Callable[..., bool] | None = None  # quicker than `fits` for arguments like those that fitted before
        self._misses = 0
        if device.type == "cuda":
            self._current: Callable[[], int] | None = torch._C._cuda_getDevice
            self._stream: Callable[[int], int] | None = torch._C._cuda_getCurrentRawStream
        else:
            self._current = self._stream = None
        # What torch.compile's own code allocates with; torch.empty_strided takes twice as long.
        self._empty = getattr(torch._C._dynamo.guards, f"_empty_strided_{device.type}", None) or self._plain_empty
        make = unrolled(self._count, len(self.results), self.strided)
        self._new = None if self._places else make(self.weights, self._empty, self.results)
        self._pieces = pieces_of(self.results) if device.type == "cuda" else None
        self._given = unrolled(self._count, 0, self.strided)(self.weights, self._empty, ())
        in_strided = {n + len(self.weights) for n, *_ in self.strided} & {*self._places.values()}
        self._compilable = device.type == "cuda" and runner.most_requests == 1 and not in_strided
        self._calls = self._binds = 0
        self.bound: Callable[[tuple[Any, ...]], Any] = _unknown
        self._ready: dict[int, CompiledCall] = {}  # by stream

    def _plain_empty(self, shape: Sequence[int], stride: Sequence[int], dtype: Any) -> Any:
        import torch

        return torch.empty_strided(shape, stride, dtype=dtype, device=self.device)

    def __call__(self, args: Sequence[Any]) -> Any:
        """The output; None where the arguments do not fit as they are."""
        # As `bind` does it, where arguments are as before: while torch.compile's hook is there, functions are slow to call.
        stream = 0 if self._stream is None else self._stream(self._index)
        ready = self._ready.get(stream)
        if ready is not None and self._current() == self._index:  # type: ignore[misc]
            results = ready.call(args)  # type: ignore[arg-type]
            if results is not None:
                if self._places and self.counts:
                    changed(self._in_place(args))
                if self.late:
                    self._copy_late(args, results)
                return self.assemble(results)
            if not ready.may_fit():
                self._ready.pop(stream, None)
        seen, new = self._seen, self._new
        if seen is None or new is None or len(args) != self._count or not seen(*args):
            bound = self.bind(args)
        elif self._current is not None and self._current() != self._index:
            return None
        else:
            try:
                bound = new(args)
            except RuntimeError:  # a tensor of torch.func, which has no memory
                return None
        if bound is None:
            return None
        pointers, results = bound
        self.run(pointers, stream)
        if self.late:
            self._copy_late(args, results)
        if self._compilable:
            self._calls += 1
            if self._calls % COMPILED_AFTER == 0 and (compiled := self.compiled(args, stream)) is not None:
                self._ready[stream] = compiled
        return self.assemble(results)

    def _in_place(self, args: Sequence[Any]) -> list[Any]:
        """The tensors in whose places results are."""
        arguments = [*self._kept, *args]
        return [arguments[place] for place in self._places.values()]

    def _copy_late(self, args: Sequence[Any], results: Sequence[Any]) -> None:
        arguments = [*self._kept, *args]
        overwrite_each([(arguments[place], results[n], name) for n, place, name in self.late], self.counts)

    def bind(self, args: Sequence[Any], into: Sequence[Any] | None = None) -> tuple[tuple[int, ...], list[Any]] | None:
        """Pointers of a call and its results, of which `assemble` makes the output; None where the arguments do not fit.

        Args:
            into: the results, as the program writes them (but for those in the place of arguments); None: new ones.
        """
        if into is None and (bound := self.bound(args)) is not None:  # type: ignore[arg-type]
            return bound
        if not self._like_before(args):
            return None
        if self._new is not None and into is None:
            self._binds += 1
            if self._binds % COMPILED_AFTER == 0 and self._seen is not None and not self.strided:
                from kitsune_mlir.runtime.bind_code import binder  # LLVM, of which the first calls need nothing

                self._bind_by(binder(self.weights, self._seen, self._count, self._empty, self.results))
        try:
            if self._new is not None and into is None:
                return self._new(args)
            found = self._given(args)
        except RuntimeError:  # a tensor of torch.func, which has no memory
            return None
        if found is None:
            return None
        pointers = found[0]
        empty = self._empty
        if self._places:
            arguments = [*self._kept, *args]
            if self._overwritten.shared(arguments, pointers):
                return None
            places = self._places
            results = [
                arguments[places[n]] if n in places else empty(*one) if into is None else into[n]
                for n, one in enumerate(self.results)
            ]
            if self.counts:
                changed([results[n] for n in places])
        else:
            results = [empty(shape, stride, dtype) for shape, stride, dtype in self.results] if into is None else [*into]
        return (*pointers, *(result.data_ptr() for result in results)), results

    def again(self, args: Sequence[Any]) -> Callable[[int], Any] | None:
        """What calls with the same arguments, which it holds, on a stream of the program's device, the current one, and
        gives the output. None where they do not fit, and where a call writes to one."""
        found = None if self._places or self.writes or not self.fits(args) else self._given(args)
        if found is None:
            return None
        pointers, held = found[0], list(args)
        run, assemble, empty, results = self.run, self.assemble, self._empty, self.results

        def call(stream: int, held: Sequence[Any] = held) -> Any:
            made = []
            for shape, stride, dtype in results:
                made.append(empty(shape, stride, dtype))
            run((*pointers, *map(address, made)), stream)
            return assemble(made)

        import torch

        address = torch.Tensor.data_ptr
        return call

    def compiled(
        self,
        args: Sequence[Any],
        stream: int,
        held: Sequence[Any] | None = None,
        copies: Copies | None = None,
        cut: Callable[..., Any] | None = None,
        cuts: Sequence[Cut | None] = (),
    ) -> CompiledCall | None:
        """What makes calls with tensors like these on a stream, where an earlier one ran; None where there is nothing.

        Args:
            held: arguments that are the same in all calls, which it holds; None: they are what is in `args`.
            copies: where there are such, the copies of `args` that are made before.
            cut, cuts: as of `CompiledCall`.
        """
        from kitsune_mlir.runtime.call_memory import Memory  # LLVM, of which the first calls need nothing
        from kitsune_mlir.runtime.compiled_call import CompiledCall

        check = guard_of(args)
        if not self._compilable or check is None or not check(*args):
            return None
        constants = self.weights if held is None else (self._given(held) or [None])[0]
        calls = self.runner.calls(stream)
        if constants is None or calls is None:
            return None
        try:
            memory = Memory.of(self._kept, args, self._places, self.strided) if held is None else Memory()
            given = stream, check, len(args), constants, copies, self.results, self._empty, cut, cuts, held, memory
            return CompiledCall(*calls, *given)
        except KitsuneError:  # LLVM has no code for this processor, or a tensor map cannot be encoded
            return None

    def _bind_by(self, made: tuple[Callable[[tuple[Any, ...]], Any], object] | None) -> None:
        """Have compiled code do what `_seen` and `_new` do together."""
        if made is None:
            return
        bind, self._bind_table = made
        current, index = self._current, self._index
        if current is not None:  # on a GPU, the current one

            def here(args: tuple[Any, ...]) -> Any:
                return bind(args) if current() == index else None

            self.bound = here
        else:
            self.bound = bind

    def _like_before(self, args: Sequence[Any]) -> bool:
        """Whether the arguments fit as they are, on the current device."""
        if len(args) != self._count or (self._current is not None and self._current() != self._index):
            return False
        if self._seen is None or not self._seen(*args):
            if not self.fits(args):
                return False
            if self._misses < MISSES:
                self._misses += 1
                self._seen = guard_of(args)
        return True

    def given(self, args: Sequence[Any]) -> tuple[int, ...] | None:
        """Pointers of weights and inputs of a call that changes neither, of which `together` has made results; None where the
        arguments do not fit."""
        if (self._seen is None or len(args) != self._count or not self._seen(*args)) and not self._like_before(args):
            return None
        try:
            found = self._given(args)
        except RuntimeError:  # a tensor of torch.func, which has no memory
            return None
        return None if found is None else found[0]

    def together(self, count: int) -> tuple[list[list[Any]], Sequence[Sequence[int]]] | None:
        """New results of so many calls, and for each result the pointers of all; None where each call had better make its own.

        Small ones lie in one piece of a GPU's memory, which lives as long as one of them: to allocate and to give back memory
        takes longer there than many a kernel needs for a request.
        """
        if self._pieces is None or count < FEWEST or (self._current is not None and self._current() != self._index):
            return None
        wholes = self.pieces(self._pieces, count)
        firsts = [piece.first(whole) for piece, whole in zip(self._pieces, wholes, strict=True)]
        return results_in(self._pieces, wholes, count), [range(at, at + count * step, step) for at, step in firsts]

    def pieces(self, pieces: Sequence[Piece], count: int) -> list[Any]:
        """New memory for each result of so many calls."""
        return [self._empty((count * piece.each,), (1,), piece.dtype) for piece in pieces]

    def check_of(self, args: Sequence[Any]) -> Callable[..., bool] | None:
        """Says whether tensors are like those of a call; None where these do not fit, or nothing can say so."""
        return self._seen if type(args) is tuple and self._like_before(args) else None

    def fits(self, args: Sequence[Any]) -> bool:
        """Whether the arguments are tensors as the program wants them."""
        try:
            return all(
                type(tensor) in self._types
                and tensor.dtype is dtype
                and tensor.shape == shape
                and tensor.device == self.device
                and (lies.fits(tensor) if lies else tensor.is_contiguous() if stride is None else tensor.stride() == stride)
                and not tensor.is_neg()
                for tensor, (shape, dtype, stride, lies) in zip(args, self._inputs, strict=True)
            )
        except RuntimeError:  # a layout that has no strides
            return False


def _unknown(args: tuple[Any, ...]) -> None:
    """What nothing is known of."""


def direct_call(
    signature: Signature,
    weights: Sequence[Any],
    device: Any,
    runner: Runner,
    in_spec: Any,
    out_spec: Any,
    own: Sequence[Any] = (),
) -> DirectCall | None:
    """The quick way through a program's calls; None where its signature has none.

    Args:
        weights: the placed weights, in the order of the program.
        device: a `torch.device` with an index, or the CPU.
        runner: runs the code.
        in_spec, out_spec: pytree specs of `(args, kwargs)` and of the output.
        own: the model's tensors for the weights, or None; nothing where none of them is changed.
    """
    from torch.utils import _pytree as pytree

    count = len(signature.inputs)
    flat = pytree.tree_structure(((0,) * count, {}))
    if in_spec != flat or [i.position for i in signature.inputs] != list(range(count)):
        return None
    if any("complex" in i.dtype for i in signature.inputs):
        return None  # they may be conjugated views
    new = [o for o in signature.outputs if o.mutates is None]
    changes = [o for o in signature.outputs if o.mutates is not None]
    if any(o.kind == "alias" or o.copied for o in new) or any(o.kind != "tensor" for o in changes):
        return None
    overwritten = Overwritten(signature)
    names = [argument.name for argument in (*signature.weights, *signature.inputs)]
    late = [(o.index or 0, names.index(o.mutates or ""), o.mutates or "") for o in changes if not o.in_place]
    for place in [*(place for _, place in overwritten.pairs), *(place for _, place, _ in late)]:
        its = own[place] if place < len(own) else None
        if place < len(weights) and (its is None or its.data_ptr() != weights[place].data_ptr()):
            return None  # a copy, from which the model's own is written
    values = [o.value for o in new]
    indices = [o.index for o in new]
    unflatten = pytree.tree_unflatten

    def assemble(results: list[Any]) -> Any:
        return unflatten([v if i is None else results[i] for i, v in zip(indices, values, strict=True)], out_spec)

    quick: Callable[[list[Any]], Any] = assemble
    silent = False
    if out_spec == pytree.tree_structure(0):
        first, value = indices[0], values[0]
        silent = first is None and value is None
        quick = (lambda results: value) if first is None else (lambda results: results[first])
    elif indices == list(range(len(signature.results))) and out_spec == pytree.tree_structure((0,) * len(indices)):
        quick = tuple
    made = DirectCall(signature, weights, device, runner, quick, overwritten, late)
    made.silent = silent
    return made
