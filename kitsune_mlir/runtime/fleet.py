"""`Fleet`: calls of programs of one code that become a launch by arrays, not one by one.

`Batch` goes through its requests in Python: checks, pointers, rows of the table and results of each take 4 to 6 us. Here what a
program's calls have in common is written once, a launch picks it by the programs' numbers, and a loop of NumPy or PyTorch does
each of the steps for all requests; outputs become tensors when somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from kitsune_mlir.runtime.batch import Batch, named
from kitsune_mlir.runtime.bound import stream_of
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
    """Programs of one code, by number; `Fleet.of` makes it.

    Args:
        batch: launches them one by one, where they do not fit as they are.
        programs: as of `Batch.__call__`; they change neither arguments nor weights.
        pieces: where results lie.
    """

    def __init__(self, batch: Batch, programs: Sequence[Any], pieces: Sequence[Piece]):
        self._direct, self._runner, self._pieces = programs[0].direct, batch.runner, pieces
        self._table = WeightTable(np.array([one.direct.weights for one in programs], np.uint64))
        self._copies = [one.copies for one in programs] if any(len(one.copies) for one in programs) else None

    @staticmethod
    def of(batch: Batch, programs: Sequence[Any]) -> Fleet | None:
        """Of programs of a batch's code; None where their calls have to be looked at one by one."""
        calls = [one.direct for one in programs]
        if any(one is None or one.writes or one.strided or one.runner is not batch.runner for one in calls):
            return None
        pieces = pieces_of(calls[0].results)
        return Fleet(batch, programs, pieces) if pieces is not None else None

    def __call__(self, numbers: np.ndarray, calls: Sequence[Sequence[Any]]) -> Outputs | None:
        """Launch calls of the programs with these numbers; None where one does not fit as it is."""
        if self._copies is not None and any([self._copies[number].stale for number in numbers.tolist()]):
            return None
        direct, pieces, count = self._direct, self._pieces, len(calls)
        columns = direct.columns(calls)
        if columns is None:
            return None
        wholes = direct.pieces(pieces, count)
        columns += [np.arange(*one.span(whole, count), dtype=np.uint64) for one, whole in zip(pieces, wholes, strict=True)]
        failed = self._runner.run_columns(self._table, numbers, columns, stream_of(direct.device))
        errors: dict[int, BaseException] = {n: named(n, error) for n, error in failed.items()}

        def made() -> list[Any]:
            outputs = [direct.assemble(results) for results in results_in(pieces, wholes, count)]
            for number, error in errors.items():
                outputs[number] = error
            return outputs

        return Outputs(count, made, errors)
