"""`ExportedProgram.run_decompositions` without what it does anew for each program, whatever its size.

Of each composite operator that PyTorch has (some 500) that method finds out whether it may stay whole, and then gives it the
kernels of its Python dispatcher to trace with: a quarter of a second, for a small model most of its import. Here both are found
out once, and again where operators were registered since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch._aot_autograd.functional_utils import from_fun, has_data_mutation, to_fun
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.export import ExportedProgram
from torch.export import exported_program as implementation
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

__all__ = ["run_decompositions", "traced"]

Table = Mapping[Any, Callable[..., Any]]

_PARTS = (
    "_decompose_exported_program",
    "_override_composite_implicit_decomp",
    "_split_decomp_table_to_cia_and_python_decomp",
)


_lock = threading.RLock()
"""Held while operators have other kernels than usual: one thread's would be what the next one puts back."""


def run_decompositions(program: ExportedProgram, table: Table) -> ExportedProgram:
    """`program.run_decompositions(table)`."""
    with _lock, torch._subclasses.fake_tensor.unset_fake_temporarily():
        found = _Composites.of(table)
        if found is None:  # a PyTorch that is made in another way
            return program.run_decompositions(dict(table))
        with found.overridden():
            return implementation._decompose_exported_program(
                program,
                cia_to_decomp={},
                python_decomp_table=dict(found.others),
                joint_loss_index=None,
                decompose_custom_triton_ops=False,
            )


def traced(function: Callable[..., Any], args: Sequence[Any], table: Table, mode: FakeTensorMode) -> fx.GraphModule:
    """What a function of tensors without data, all of one mode, decomposes to: the graph of operators that it runs.

    The graph is functional, and may have dead nodes. Each node has its values in `meta["val"]`.

    Raises:
        ValueError: the function changes an argument.
        NotImplementedError: this PyTorch does not have the parts.
    """

    def functional(*given: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)):
            operands = [to_fun(value) for value in given]
            made = tree_map(from_fun, function(*operands))
        if any(map(has_data_mutation, operands)):  # batch norms and the like do, whatever their schema says
            raise ValueError("an operand is changed in place")
        return made

    with _lock, torch._subclasses.fake_tensor.unset_fake_temporarily():
        found = _Composites.of(table)
        if found is None:
            raise NotImplementedError("decomposing without torch.export")
        with (
            found.overridden(),
            torch.no_grad(),
            mode,
            _exporting(),
            enable_python_dispatcher(),
            FunctionalTensorMode(export=True),
        ):
            return make_fx(functional, found.others)(*args)


class _Composites:
    """Composite operators as a table has them, and as they are traced.

    Attributes:
        others: what the table has for operators that are not composite.
    """

    last: _Composites | None = None

    def __init__(self, table: Table, registered: list[str]):
        self.others: dict[Any, Callable[..., Any]]
        self.table, self.registered = table, registered
        composites, self.others = implementation._split_decomp_table_to_cia_and_python_decomp(dict(table))
        self.before = {op: dict(op.py_kernels) for op in composites}
        fakes = torch._subclasses.fake_impls.op_implementations_dict
        known = set(fakes)
        with implementation._override_composite_implicit_decomp(composites):
            self.kernels = {op: dict(op.py_kernels) for op in composites}
            self.fakes = {op: how for op, how in fakes.items() if op not in known}

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
        return any(op.py_kernels != kernels for op, kernels in self.before.items())

    @contextmanager
    def overridden(self) -> Iterator[None]:
        """The operators are decomposed as the table says, and those that it does not name are left whole."""
        fakes = torch._subclasses.fake_impls.op_implementations_dict
        added = {op: how for op, how in self.fakes.items() if op not in fakes}
        try:
            self._give(self.kernels)
            fakes.update(added)
            yield
        finally:
            self._give(self.before)
            for op in added:
                fakes.pop(op, None)

    @staticmethod
    def _give(kernels: Mapping[Any, Mapping[Any, Any]]) -> None:
        for op, held in kernels.items():
            op.py_kernels.clear()
            op.py_kernels.update(held)
            op._dispatch_cache.clear()


@contextmanager
def _exporting() -> Iterator[None]:
    """Operators that ask are told that a program is exported, and take no kernels of one processor's libraries."""
    from torch._export.utils import _compiling_state_context
    from torch.export._trace import _ignore_backend_decomps

    with _ignore_backend_decomps(), _compiling_state_context():
        yield
