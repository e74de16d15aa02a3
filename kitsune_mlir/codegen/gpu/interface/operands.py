"""What a body of code works on: buffers, tensor maps, semaphores and places of one task, or of any of several that are alike.

A program in which every task has a body of its own gets one kernel parameter a pointer and a tensor map, and all else as
constants. Where tasks share bodies (`kernel/task_equality.py`), what they differ in is looked up in a table in constant memory,
with a row for each of them; pointers and tensor maps are then two kernel parameters, arrays that are indexed by the table's
words (`ld.param` and the TMA unit take such addresses). A body looks a word up where it uses it, so that no register holds it
for the whole body.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from torch_mlir import ir
from torch_mlir.dialects import llvm

from kitsune_mlir.codegen.gpu.emit.memory import GLOBAL, Cache, load, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, i64, wrap
from kitsune_mlir.codegen.gpu.interface.split import Number, PartialsSlot
from kitsune_mlir.dialects.tile_records import Buffer, Semaphore, TaskView
from kitsune_mlir.errors import CompileError

__all__ = ["ALIGNMENT", "Arguments", "Member", "Operands", "Row", "Table", "Word", "cache_of"]

ALIGNMENT = 256
"""Buffers that begin at different places within so many bytes are different kinds of operands."""
_MAP_BYTES = 128
_UNIT = ALIGNMENT
"""Tables count the bytes in front of buffers and partial results in units."""
_WORD = 4
_LINE = 16
"""Words of a line of the constant cache: a row begins with one, so that few lines have to come for it."""
_MOST_WORDS = 16384
"""Constant memory of a module is 64 KB (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability")."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The kernel's arguments.

    Attributes:
        pointers: one value a pointer, by its number; or the address of the array of them.
        maps: the same of the tensor maps, if there are any.
        places: by (argument of the program, offset) of a buffer the number of the pointer to it; None where each argument has a
            pointer, under its own number.
        request: of a kernel that takes several (`kernel.requests`), which one these are the arguments of.
        slots, partial_bytes: counters, and bytes of partial results, of a request.
    """

    pointers: Sequence[Value] | Mapping[int, Value] | Value
    maps: Sequence[Value] | Value
    places: Mapping[tuple[int, int], int] | None = None
    request: Value | None = None
    slots: int = 0
    partial_bytes: int = 0

    def slot(self, number: Number) -> Number:
        """Number of the request's counter that is the `number`-th of each."""
        return number if self.request is None else self.request * self.slots + number

    def partials(self, start: Number) -> Number:
        """Where, in bytes, the request's partial results are that begin at `start` in each."""
        return start if self.request is None else i64(self.request) * self.partial_bytes + start

    def pointer(self, number: Value | int) -> Value:
        """The `number`-th pointer, to global memory."""
        if not isinstance(self.pointers, Value):
            assert isinstance(number, int)
            return self.pointers[number]
        address = load(_element(self.pointers, number, 8), "i64", constant=True)
        return wrap(llvm.inttoptr(as_type(GLOBAL), address.ir))

    def map(self, number: Value | int) -> Value:
        """Address of the `number`-th tensor map."""
        if not isinstance(self.maps, Value):
            assert isinstance(number, int)
            return self.maps[number]
        return _element(self.maps, number, _MAP_BYTES)


def cache_of(buffer: Buffer) -> Cache:
    """How L2 should treat what goes there and comes from there: what stages hand on is read again, soon.

    Against no hint, on an H200: dlrm, gcast and a Llama layer of 128 tokens 1 to 2 % faster, no model slower.
    """
    return Cache.KEEP if buffer.role == "arena" else Cache.DEFAULT


def _element(array: Value, number: Value | int, bytes: int) -> Value:
    return offset(array, number * bytes if isinstance(number, int) else i64(number) * bytes)


@dataclasses.dataclass(frozen=True)
class Row:
    """A word that says where a row of the table is: that of a body's `member`-th run."""

    body: int
    member: int


Word = int | Row


class Table:
    """Words in constant memory: for each body a row a member; before them the body and the row of each step of the kernel.

    What the words of a row are is known when all code has been emitted: `define` comes last.

    Args:
        order: the body and the member of each step.
    """

    SYMBOL = "operands"

    def __init__(self, order: Sequence[tuple[int, int]]) -> None:
        self._order = order
        self._columns: dict[int, dict[tuple[Word, ...], int]] = {}

    def step(self, number: Value) -> tuple[Value, Value]:
        """The body, and the row, of a step."""
        place = offset(self._base(), i64(number) * (2 * _WORD))
        return load(place, "i32", constant=True), load(offset(place, _WORD), "i32", constant=True)

    def look_up(self, body: int, column: Sequence[Word], row: Value) -> Value:
        """The i32 in a row of a body: one of `column`, which has a word a member."""
        columns = self._columns.setdefault(body, {})
        place = columns.setdefault(tuple(column), len(columns))
        return load(offset(offset(self._base(), i64(row)), place * _WORD), "i32", constant=True)

    def _base(self) -> Value:
        return wrap(llvm.mlir_addressof(as_type("!llvm.ptr<4>"), self.SYMBOL))

    def words(self) -> list[int]:
        """The whole table."""
        rows = {place: len(self._columns.get(place[0], ())) for place in sorted(self._order)}
        length = {place: -(-size // _LINE) * _LINE for place, size in rows.items()}
        if 2 * len(self._order) + _LINE + sum(length.values()) > _MOST_WORDS:
            length = rows
        starts, end = {}, -(-2 * len(self._order) // _LINE) * _LINE
        for place, size in length.items():
            starts[place], end = end, end + size
        words = [0] * end
        for number, place in enumerate(self._order):
            words[2 * number : 2 * number + 2] = [place[0], starts[place] * _WORD]
        for body, columns in self._columns.items():
            for column, at in columns.items():
                for member, word in enumerate(column):
                    value = starts[word.body, word.member] * _WORD if isinstance(word, Row) else word
                    words[starts[body, member] + at] = value
        return words

    def define(self, module: ir.Block) -> None:
        """Put the table into a module.

        Raises:
            CompileError: it does not fit constant memory.
        """
        words = self.words()
        if len(words) > _MOST_WORDS:
            raise CompileError(f"the operands of {len(self._order)} stages take {len(words)} words, at most {_MOST_WORDS} fit")
        listed = ", ".join(map(str, words))
        parsed = ir.Operation.parse(
            f"llvm.mlir.global internal constant @{self.SYMBOL}(dense<[{listed}]> : tensor<{len(words)}xi32>) "
            f"{{addr_space = 4 : i32, alignment = {_LINE * _WORD} : i64}} : !llvm.array<{len(words)} x i32>"
        )
        ir.InsertionPoint.at_block_begin(module).insert(parsed)


@dataclasses.dataclass(frozen=True)
class Member:
    """One task, as the operand of a body.

    Attributes:
        task: the task.
        maps: numbers of its tensor maps, in the order of its plan's.
        place: of its partial results, or None.
        start: pieces of work that are dealt out before its first.
    """

    task: TaskView
    maps: tuple[int, ...] = ()
    place: PartialsSlot | None = None
    start: int = 0


class Operands:
    """The operands of the running one of some tasks that are alike.

    Args:
        arguments: of the kernel.
        members: the tasks. Code is emitted for the first one; its buffers and semaphores stand for those of the others.
        look_up: gives the running member's word of a column, where there are several members.
    """

    def __init__(
        self, arguments: Arguments, members: Sequence[Member], look_up: Callable[[Sequence[Word]], Value] | None = None
    ):
        self._arguments, self._members, self._look_up = arguments, members, look_up
        self._buffers = {buffer.value: number for number, buffer in enumerate(members[0].task.buffers)}

    def pick(self, values: Sequence[Number]) -> Value | int:
        """The running member's of one number a member."""
        words = [value for value in values if isinstance(value, int)]
        assert len(words) == len(values), "members have numbers, not values"
        if len(set(words)) == 1:
            return words[0]
        assert self._look_up is not None
        return self._look_up(words)

    def pointer(self, buffer: Buffer) -> Value:
        """Pointer to the first element of a buffer of the first task, or of a part of one (`Buffer.offset` says where)."""
        number = self._buffers[buffer.value]
        own = [member.task.buffers[number] for member in self._members]
        if (places := self._arguments.places) is not None:
            return offset(self._arguments.pointer(places[own[0].memory]), buffer.offset - own[0].offset)
        start = self._arguments.pointer(self.pick([one.argument for one in own]))
        inside = buffer.offset - own[0].offset
        moved = own[0].offset % _UNIT
        units = self.pick([(one.offset - moved) // _UNIT for one in own])
        if isinstance(units, int):
            return offset(start, buffer.offset)
        return offset(offset(start, i64(units) * _UNIT), moved + inside)

    def tensor_map(self, index: int) -> Value:
        """Address of the plan's `index`-th tensor map."""
        return self._arguments.map(self.pick([member.maps[index] for member in self._members]))

    def first_slot(self, semaphore: Semaphore) -> Value | int:
        """Number of the first counter of a semaphore of the first task."""
        records = (*self._members[0].task.waits, *self._members[0].task.posts)
        number = next(n for n, one in enumerate(records) if one.semaphore == semaphore)
        return self._arguments.slot(self.pick([(*m.task.waits, *m.task.posts)[number].semaphore.first for m in self._members]))

    @property
    def number(self) -> Value | int:
        """The task's number."""
        return self.pick([member.task.number for member in self._members])

    @property
    def start(self) -> Value | int:
        """Pieces of work that are dealt out before the task's first."""
        return self.pick([member.start for member in self._members])

    @property
    def place(self) -> PartialsSlot | None:
        """Where partial results and their counters are; looked up here."""
        places = [member.place for member in self._members if member.place is not None]
        if not places:
            return None
        assert len(places) == len(self._members)
        units = self.pick([place.offset // _UNIT for place in places])
        before = None
        if any(place.before for place in places):
            # Nothing before: a wait for no posts.
            known = [place.before or (0, 0) for place in places]
            slot = self._arguments.slot(self.pick([counter for counter, _ in known]))
            before = (slot, self.pick([posts for _, posts in known]))
        return PartialsSlot(
            self._arguments.partials(units * _UNIT if isinstance(units, int) else i64(units) * _UNIT),
            self._arguments.slot(self.pick([place.arrivals for place in places])),
            self._arguments.slot(self.pick([place.read for place in places])),
            before,
        )
