"""`Fleet`: calls of programs of one code that become a launch by compiled code, not one by one.

`Batch` goes through its requests in Python: checks, pointers, rows of the table and results of each take 4 to 6 us. Here what a
program's calls have in common is written once, and compiled code (`call_table`) picks it by the programs' names. Outputs become
tensors when somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from kitsune_mlir.runtime.batch import Batch, named
from kitsune_mlir.runtime.bound import stream_of
from kitsune_mlir.runtime.call_table import Calls
from kitsune_mlir.runtime.pieces import Piece, pieces_of, results_in
from kitsune_mlir.runtime.runner import WeightTable

__all__ = ["Fleet", "Outputs"]


class Outputs(Sequence[Any]):
    """What calls of a launch gave, in their order.

    The outputs lie in one piece of memory, of which tensors are made when one is asked for, of all of them together: whoever
    wants to know only that they are there need not wait for that.

    Attributes:
        errors: by number, those that are in the place of an output.
    """

    __slots__ = ("_count", "_make", "_made", "errors")

    def __init__(self, count: int, make: Callable[[], list[Any]], errors: Mapping[int, BaseException]):
        self._count, self._make, self.errors = count, make, errors
        self._made: list[Any] | None = None

    @staticmethod
    def of(outputs: Sequence[Any]) -> Outputs:
        """Outputs, or errors in their places, that are there."""
        if type(outputs) is Outputs:
            return outputs
        errors = {number: output for number, output in enumerate(outputs) if isinstance(output, BaseException)}
        return Outputs(len(outputs), lambda: [*outputs], errors)

    def part(self, first: int, end: int) -> Outputs:
        """Some of them, from a number to the one behind the last."""
        errors = {n - first: error for n, error in self.errors.items() if first <= n < end}
        return Outputs(end - first, lambda: self._all()[first:end], errors)

    def __len__(self) -> int:
        return self._count

    def _all(self) -> list[Any]:
        if self._made is None:
            self._made = self._make()
        return self._made

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._all()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all())


class Fleet:
    """Programs of one code; `Fleet.of` makes it.

    Attributes:
        models: the number of each by its name.

    Args:
        batch: launches them one by one, where they do not fit as they are.
        programs: as of `Batch.__call__`; they change neither arguments nor weights.
        pieces: where results lie.
    """

    def __init__(self, batch: Batch, programs: Mapping[str, Any], pieces: Sequence[Piece]):
        own = [*programs.values()]
        self._direct, self._runner, self._pieces = own[0].direct, batch.runner, pieces
        self.models = {name: number for number, name in enumerate(programs)}
        self._table = WeightTable(np.array([one.direct.weights for one in own], np.uint64))
        copies = {name: one.copies for name, one in programs.items()}
        self._copies = copies if any(map(len, copies.values())) else None

    @staticmethod
    def of(batch: Batch, programs: Mapping[str, Any]) -> Fleet | None:
        """Of programs of a batch's code; None where their calls have to be looked at one by one."""
        calls = [one.direct for one in programs.values()]
        if any(one is None or one.writes or one.strided or one.runner is not batch.runner for one in calls):
            return None
        pieces = pieces_of(calls[0].results)
        return Fleet(batch, programs, pieces) if pieces is not None else None

    def launch(self, calls: list[Any]) -> tuple[Outputs, np.ndarray] | None:
        """Launch calls, each a program's name and a tuple of tensors: what they give, and the programs' numbers; None where one
        does not fit as it is."""
        direct, copies = self._direct, self._copies
        check = direct.check_of(calls[0][1])
        if check is None or (copies is not None and any([copies[name].stale for name, _ in calls])):
            return None
        wholes = direct.pieces(self._pieces, len(calls))
        firsts = [piece.first(whole) for piece, whole in zip(self._pieces, wholes, strict=True)]
        given = Calls(self.models, check, calls, 0, len(calls))
        launched = self._runner.run_calls(self._table, given, firsts, stream_of(direct.device))
        if launched is None:
            return None
        numbers, failed = launched
        return self._outputs(wholes, len(calls), {n: named(n, error) for n, error in failed.items()}), numbers

    def _outputs(self, wholes: Sequence[Any], count: int, errors: dict[int, BaseException]) -> Outputs:
        direct, pieces = self._direct, self._pieces

        def made() -> list[Any]:
            outputs = [direct.assemble(results) for results in results_in(pieces, wholes, count)]
            for number, error in errors.items():
                outputs[number] = error
            return outputs

        return Outputs(count, made, errors)
