"""Records a run of a function into a tree of nodes, or follows what is recorded of it already."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.taken import taking
from kitsune_mlir.windows.capture import known_segments
from kitsune_mlir.windows.hazards import READ
from kitsune_mlir.windows.reads import Reads
from kitsune_mlir.windows.recorder import Recorder
from kitsune_mlir.windows.recording import Segment, template
from kitsune_mlir.windows.task import extent
from kitsune_mlir.windows.trace import READERS, Call, Fresh, Node, Places, Read, Ref, Run, hashed, meta_of

__all__ = ["Root", "Tracer"]

PATHS = 16
"""Values of one read of floating-point numbers, from which on the function is not traced: it will hardly see them again."""


class Root(Node):
    """What is recorded of a function for arguments of one kind.

    Attributes:
        why: why it is not traced any more; empty where it is.
        arguments: how many tensors it has.
        places: the tensors of a run by number: None, but for those from outside, which are held.
        written: numbers of the arguments and tensors from outside that some run changes.
        runs, replays, misses: how many were recorded, replayed, and not replayed.
        seen: how often the path has come that was not known the last time.
        recording, running: seconds of calls that were recorded, and of the others.
        gpu: the index of the GPU that it runs on; None on the host.
    """

    def __init__(self, arguments: int):
        super().__init__()
        self.why = ""
        self.arguments = arguments
        self.places: Places = [None] * arguments
        self.written: set[int] = set()
        self.runs = self.replays = self.misses = 0
        self.seen = 0
        self.recording = self.running = 0.0
        self.gpu: int | None = None

    def give_up(self, why: str) -> None:
        """Trace it no more; what is held is let go."""
        self.why = self.why or why
        self.next, self.items, self.came = {}, [], {}

    @property
    def changes(self) -> bool:
        """Whether some run changes an argument."""
        return bool(self.written) and min(self.written) < self.arguments

    @property
    def stream(self) -> int:
        """The handle of the current stream; 0 on the host."""
        return 0 if self.gpu is None else torch._C._cuda_getCurrentRawStream(self.gpu)

    def number(self, tensor: torch.Tensor | None = None) -> int:
        """A new number, of a tensor from outside where one is given."""
        self.places.append(tensor)
        return len(self.places) - 1


class Tracer(Recorder):
    """Runs segments at once, and notes them in a tree.

    Attributes:
        root: the tree.
    """

    def __init__(self, root: Root, tensors: Sequence[torch.Tensor], after: int | None, options: Mapping[str, Any] | None):
        super().__init__(after, options)
        self.reads = Reads(self.lent, READERS, self.value)
        self._programs = taking(self._program)
        self.root = root
        self._node: Node = root
        self._at = 0
        self._numbers: dict[int, int] = {}  # by address of a storage
        self._held: list[Any] = []  # so that no address is used twice
        self._places: Places = [*root.places]
        self._shared: dict[int, list[int]] = {}  # arguments by the address of a storage that several have
        for number, tensor in enumerate(tensors):
            self._note(number, tensor)
            self._shared.setdefault(tensor.untyped_storage().data_ptr(), []).append(number)
        self._shared = {place: own for place, own in self._shared.items() if len(own) > 1}

    def __enter__(self) -> Tracer:
        self._programs.__enter__()
        self._calls.__enter__()
        self.reads.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.reads.__exit__(*error)
        self._calls.__exit__(*error)
        self._programs.__exit__(*error)
        if error[0] is not None and (segment := self._recording.finish()) is not None:  # what eager had done before
            for result, made in zip(segment.results, known_segments().of(segment).replay(*segment.inputs), strict=True):
                result.copy_(made)

    def give_up(self, why: str) -> None:
        """Trace the function no more; this run goes on."""
        self.root.give_up(why)

    def returns(self, output: Any) -> None:
        """The function has returned."""
        self.reads.off = True
        self.cut()
        leaves, spec = pytree.tree_flatten(output)
        given = [self._ref(one) if isinstance(one, torch.Tensor) else one for one in leaves]
        self._node.output = given, spec, _plain(spec, len(leaves))
        if self._at < len(self._node.items) or self._node.read is not None:
            self.give_up(_OTHER)
        self.root.runs += 1

    def ended(self, segment: Segment) -> None:
        inputs = [self._ref(tensor) for tensor in segment.inputs]
        known = self._known()
        alike = isinstance(known, Run) and len(known.results) == len(segment.results)
        numbers = known.results if alike else [self.root.number() for _ in segment.results]
        run = self._item(Run(known_segments().of(segment), segment, inputs, numbers))
        outside = (inputs[n].number for n in segment.written)
        self.root.written.update(n for n in outside if n < self.root.arguments or self.root.places[n] is not None)
        if self._shared and self.root.changes:
            self.give_up("it changes arguments, of which some share memory")
        self._grow()
        run(self._places, self.root.stream, self.compiled, self._after)
        for result, number in zip(segment.results, numbers, strict=True):
            result.copy_(self._places[number])
            self._note(number, result)

    def settle(self, tensors: Sequence[torch.Tensor], mode: int) -> None:
        """Make tensors readable by others."""
        if self._recording.ops and self._recording.touches(tensors, mode != READ):
            self.cut()

    def value(self, reader: str, tensor: torch.Tensor) -> Any:
        """Python reads a value."""
        self.settle([tensor], READ)
        off, self._off = self._off, True
        try:
            found = READERS[reader](tensor)
        finally:
            self._off = off
        self._branch(Read(self._ref(tensor), reader), hashed(found))
        return found

    def lent(self, name: str, args: Sequence[Any]) -> None:
        """Others get a tensor's memory, or its text is made."""
        self.give_up(f"Tensor.{name} is called")
        self.settle([one for one in args if isinstance(one, torch.Tensor)], READ)

    def _program(self, program: Program, *call: Any) -> Any:
        """A call of a program."""
        if not self._off:
            self.give_up("a program is called")
            self.cut()
        return NotImplemented

    def take(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self._off:
            return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            return self.value("item", args[0])
        if func is torch.ops.aten.lift_fresh.default:
            made, known = func(*args, **kwargs), self._known()
            number = known.number if isinstance(known, Fresh) else self.root.number()
            self._item(Fresh(number, made.clone()))
            self._note(number, made)
            return made
        return super().take(func, args, kwargs)

    def _made(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._eager(func, args, kwargs, (), "it is given no tensors")

    def _eager(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Any], why: str) -> Any:
        if func._schema.is_mutable or "running statistics" in why:
            self.give_up(f"{func} changes an argument: {why}")
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.give_up(f"{func} draws random numbers")
        if func.namespace != "aten":
            self.give_up(f"{func} is another library's")
        self.settle(tensors, READ)
        off, self._off = self._off, True
        try:
            made = func(*args, **kwargs)
        finally:
            self._off = off
        results = (made,) if isinstance(made, torch.Tensor) else made
        if not isinstance(results, tuple | list) or not all(isinstance(one, torch.Tensor) for one in results):
            self.give_up(f"{func} gives no tensors")
            return made
        known = self._known()
        alike = isinstance(known, Call) and len(known.results) == len(results)
        numbers = known.results if alike else tuple(self.root.number() for _ in results)
        given: list[torch.Tensor] = []
        named = template(args, given), tuple((name, template(value, given)) for name, value in kwargs.items())
        self._item(Call(func, *named, tuple(map(self._ref, given)), numbers))
        for number, one in zip(numbers, results, strict=True):
            self._note(number, one)
        for number, one in zip(numbers, results, strict=True):
            self._branch(Read(Ref(number)), meta_of(one))
        return made

    def _elsewhere(self, tensor: torch.Tensor) -> str:
        if tensor.is_cuda and self.root.gpu is None:
            self.root.gpu = tensor.device.index
        return super()._elsewhere(tensor)

    def _known(self) -> Any:
        """The item that was recorded here, if there is one."""
        return self._node.items[self._at] if self._at < len(self._node.items) else None

    def _item(self, item: Run | Call | Fresh) -> Run | Call | Fresh:
        """Note an item, or find it where it was noted."""
        known = self._known()
        self._at += 1
        if known is None:
            if self._node.read is not None or self._node.output is not None:
                self.give_up(_OTHER)
            self._node.items.append(item)
            return item
        if type(known) is not type(item) or known.told != item.told:
            self.give_up(_OTHER)
            return item
        return known

    def _branch(self, read: Read, value: Any) -> None:
        node = self._node
        if self._at < len(node.items) or (node.read or read) != read or node.output is not None:
            self.give_up(_OTHER)
        node.read = read
        self._at = 0
        self._node = node.next.setdefault(value, Node())
        if len(node.next) > PATHS and isinstance(value, tuple) and value[0] is float:
            self.give_up(f"a float is read that had {PATHS} values: compare it on the device, and read the bool")

    def _note(self, number: int, tensor: torch.Tensor) -> None:
        """A tensor is the one of this number from now on."""
        self._grow()
        self._places[number] = tensor
        self._held.append(tensor)
        self._numbers[tensor.untyped_storage().data_ptr()] = number

    def _grow(self) -> None:
        self._places += self.root.places[len(self._places) :]

    def _ref(self, tensor: torch.Tensor) -> Ref:
        """Where a tensor is; one that nobody knows is from outside."""
        number = self._numbers.get(tensor.untyped_storage().data_ptr()) if tensor.numel() else None
        if number is None:
            meta, root = meta_of(tensor), self.root
            alike = (  # what is held is alone where it is
                at
                for at, own in enumerate(root.places)
                if own is not None and own.data_ptr() == tensor.data_ptr() and meta_of(own) == meta
            )
            number = next(alike, None)
            if number is None:
                number = root.number(tensor)
            if tensor.numel():
                self._note(number, tensor)
            return Ref(number)
        shared = self._shared.get(tensor.untyped_storage().data_ptr(), ()) if tensor.numel() else ()
        if shared:
            number = self._among(shared, tensor)
        own = self._places[number]
        if own.dtype != tensor.dtype or tensor.is_conj() or tensor.is_neg():
            self.give_up(f"memory of {own.dtype} is read as {tensor.dtype}, or conjugated")
            return Ref(number)
        offset = tensor.storage_offset() - own.storage_offset()
        if not offset and own.shape == tensor.shape and own.stride() == tensor.stride():
            return Ref(number)
        return Ref(number, tuple(tensor.shape), tensor.stride(), offset)

    def _among(self, arguments: Sequence[int], tensor: torch.Tensor) -> int:
        """Which of the arguments in one storage a tensor is, or is a view of: another call's may lie apart."""
        low, high, _ = extent(tensor, READ)
        places = {number: extent(self._places[number], READ) for number in arguments}
        same = [n for n, place in places.items() if place[0] == low and meta_of(self._places[n]) == meta_of(tensor)]
        found = same or [number for number, (first, end, _) in places.items() if first <= low and high <= end]
        if len(found) != 1 and not same:
            self.give_up("a view may be of one argument or of another, which share memory")
        return found[0] if found else arguments[0]


_OTHER = "its calls differ though what it was given and what it read are the same"


def _plain(spec: Any, count: int) -> Callable[[list[Any]], Any] | None:
    """What makes an output of its leaves, where it is one leaf or a tuple of leaves."""
    if spec == pytree.tree_structure(0):
        return operator.itemgetter(0)
    return tuple if spec == pytree.tree_structure((0,) * count) else None
