"""The calling convention of an imported model, as plain data: what the runtime checks and hands over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects.builtin import ModuleOp

from kitsune_mlir.dialects.attribute_table import ORDER, PADDED, SIDE_BY_SIDE
from kitsune_mlir.dialects.tile_reader import TileProgram
from kitsune_mlir.dialects.touched_ranges import touched_ranges
from kitsune_mlir.frontend import ImportedModel
from kitsune_mlir.runtime.signature import Access, Input, Output, Signature, Weight
from kitsune_mlir.runtime.structure import structure_text

__all__ = ["memory_layouts", "signature_of"]

Numbers = dict[int, tuple[int, ...]]


def memory_layouts(module: ModuleOp, name: str) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """By number, arguments whose dimensions do not lie in memory in their own order, and how they do; arguments that the
    program takes with more zeros, and their extents then; those of them with groups side by side, rows of a group and how
    many; results in another order."""
    function = next(op for op in module.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == name)

    def read(kind: str, attribute: str = ORDER) -> Numbers:
        each = ir.ArrayAttr(function.attributes[kind]) if kind in function.attributes else ()
        described = {n: ir.DictAttr(attributes) for n, attributes in enumerate(each)}
        return {n: tuple(ir.DenseI64ArrayAttr(a[attribute])) for n, a in described.items() if attribute in a}

    return read("arg_attrs"), read("arg_attrs", PADDED), read("arg_attrs", SIDE_BY_SIDE), read("res_attrs")


def signature_of(
    imported: ImportedModel,
    arguments: Numbers,
    wide: Numbers,
    beside: Numbers,
    results: Numbers,
    tiles: ir.Operation | None = None,
) -> Signature:
    """The calling convention of an imported model as plain data.

    Args:
        arguments, wide, beside, results: as `memory_layouts` gives them.
        tiles: the tile program that is called; None for a model that only hands arguments and constants back.
    """
    overwrites = TileProgram(tiles).overwrites if tiles is not None else ()
    computed = {r.index: (tuple(r.shape), r.dtype) for r in imported.results if r.kind == "tensor" and r.index is not None}
    numbered = list(enumerate(imported.arguments))
    return Signature(
        tuple(
            Weight(
                *(a.name, a.kind, tuple(a.shape), a.dtype, arguments.get(n, ()), wide.get(n, ()), a.recipe), beside.get(n, ())
            )
            for n, a in numbered
            if a.kind != "input"
        ),
        tuple(
            Input(a.name, a.position or 0, tuple(a.shape), a.dtype, arguments.get(n, ()), a.lies)
            for n, a in numbered
            if a.kind == "input"
        ),
        tuple(
            Output(
                *(r.kind, tuple(r.shape), r.dtype, r.index, r.argument, r.value, r.mutates, r.copied),
                in_place=r.index is not None and r.mutates is not None and overwrites[r.index] >= 0,
                lies=r.lies,
            )
            for r in imported.results
        ),
        tuple(computed[i] for i in sorted(computed)),
        tuple((f.position, f.value) for f in imported.fixed_inputs),
        _dumped(imported.in_spec),
        _dumped(imported.out_spec),
        results,
        tuple(Weight(a.name, a.kind, tuple(a.shape), a.dtype) for a in imported.sources),
        _accesses(imported, tiles, overwrites) if tiles is not None else (),
        imported.parameters,
    )


def _accesses(imported: ImportedModel, tiles: ir.Operation, overwrites: Sequence[int]) -> tuple[Access, ...]:
    """What a tile program touches; a result that is written where an argument lies is that argument."""
    names = [argument.name for argument in imported.arguments]
    places = [*range(len(names)), *(len(names) + n if over < 0 else over for n, over in enumerate(overwrites))]
    names += [f"result {n}" for n in range(len(overwrites))]
    modes = {(True, False): "read", (False, True): "write", (True, True): "both"}
    touched = sorted(touched_ranges(tiles), key=lambda t: (places[t.argument], t.low))
    return tuple(Access(names[places[t.argument]], t.low, t.high - t.low, modes[t.reads, t.writes]) for t in touched)


def _dumped(spec: Any) -> str:
    """A pytree spec as text; "" where it holds a type that cannot be written down (a user's own class): no `save` then."""
    try:
        return structure_text(spec)
    except NotImplementedError:
        return ""
