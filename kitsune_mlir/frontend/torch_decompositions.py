"""`ExportedProgram.run_decompositions` without what it does anew for each program, whatever its size.

Of each composite operator that PyTorch has (some 500) that method finds out whether it may stay whole, and then gives it the
kernels of its Python dispatcher to trace with: a quarter of a second, for a small model most of its import. Here both are found
out once, and again where operators were registered since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export import exported_program as implementation

__all__ = ["run_decompositions"]

Table = Mapping[Any, Callable[..., Any]]

_PARTS = (
    "_decompose_exported_program",
    "_override_composite_implicit_decomp",
    "_split_decomp_table_to_cia_and_python_decomp",
)
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def run_decompositions(program: ExportedProgram, table: Table) -> ExportedProgram:
    """`program.run_decompositions(table)`."""
    found = _Composites.of(table)
    if found is None:  # a PyTorch that is made in another way
        return program.run_decompositions(dict(table))
    with torch._subclasses.fake_tensor.unset_fake_temporarily(), found.overridden():
        return implementation._decompose_exported_program(
            program,
            cia_to_decomp={},
            python_decomp_table=dict(found.others),
            joint_loss_index=None,
            decompose_custom_triton_ops=False,
        )


class _Composites:
    """Composite operators as a table has them, and as they are traced.

    Attributes:
        others: what the table has for operators that are not composite.
    """

    last: _Composites | None = None

    def __init__(self, table: Table, registered: list[str]):
        self.table, self.registered = table, registered
        composites, self.others = implementation._split_decomp_table_to_cia_and_python_decomp(dict(table))
        before = {op: dict(op.py_kernels) for op in composites}
        fakes = torch._subclasses.fake_impls.op_implementations_dict
        known = set(fakes)
        with implementation._override_composite_implicit_decomp(composites):
            self.kernels = {op: {k: v for k, v in op.py_kernels.items() if k not in before[op]} for op in composites}
            self.fakes = {op: how for op, how in fakes.items() if op not in known}
        # What a composite operator of this table decomposes to takes the place of what it had; other kernels stay.
        for op, how in composites.items():
            self.kernels[op][_COMPOSITE] = how
        self.own = {op: kernels.get(_COMPOSITE) for op, kernels in before.items()}

    @classmethod
    def of(cls, table: Table) -> _Composites | None:
        """Those of a table; None where this PyTorch does not have the parts."""
        if not all(hasattr(implementation, name) for name in _PARTS):
            return None
        registered = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        found = cls.last
        if found is None or found.table is not table or found.registered != registered or found._stale():
            found = cls.last = cls(table, registered)
        return found

    def _stale(self) -> bool:
        return any(op.py_kernels.get(_COMPOSITE) is not own for op, own in self.own.items())

    @contextmanager
    def overridden(self) -> Iterator[None]:
        """The operators are decomposed as the table says, and those that it does not name are left whole."""
        fakes = torch._subclasses.fake_impls.op_implementations_dict
        saved = {op: dict(op.py_kernels) for op in self.kernels}
        added = [op for op in self.fakes if op not in fakes]
        try:
            for op, kernels in self.kernels.items():
                held = op.py_kernels
                held.update({k: v for k, v in kernels.items() if k not in held or k == _COMPOSITE})
                op._dispatch_cache.clear()
            fakes.update({op: self.fakes[op] for op in added})
            yield
        finally:
            for op, kernels in saved.items():
                op.py_kernels.clear()
                op.py_kernels.update(kernels)
                op._dispatch_cache.clear()
            for op in added:
                fakes.pop(op, None)
