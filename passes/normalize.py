"""`kitsune-normalize`: bring what torch-mlir writes into the form that the planning passes read."""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import builtin
from torch_mlir.dialects import linalg as linalg_dialect
from torch_mlir.dialects.transform import interpreter
from torch_mlir.passmanager import PassManager

from kitsune_mlir.dialects.access import affine_maps, shape_of
from kitsune_mlir.dialects.iteration import is_reshape
from kitsune_mlir.dialects.products import (
    WIDENING,
    body_of,
    constant_fill,
    defining_op,
    is_contraction,
    is_movement,
    is_projected_product,
)
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.layouts.returned_orders import order_results
from kitsune_mlir.passes.normalization.column_parts import part_columns
from kitsune_mlir.passes.normalization.gathered_again import gather_again
from kitsune_mlir.passes.normalization.moved_joins import join_moved
from kitsune_mlir.passes.normalization.narrow import narrow
from kitsune_mlir.passes.normalization.narrow_results import narrow_results
from kitsune_mlir.passes.normalization.outer_products import multiply_outer
from kitsune_mlir.passes.normalization.own_rows import index_own_rows
from kitsune_mlir.passes.normalization.positions import part_positions
from kitsune_mlir.passes.normalization.scalar_parts import part_scalars
from kitsune_mlir.passes.normalization.sliced_maps import slice_before_maps
from kitsune_mlir.passes.normalization.sliced_repeats import slice_before_repeating
from kitsune_mlir.passes.normalization.splat_factors import sum_beside_splats
from kitsune_mlir.passes.normalization.strided_slices import part_steps
from kitsune_mlir.passes.normalization.unit_moves import reshape_unit_moves
from kitsune_mlir.passes.normalization.unread_columns import leave_out_columns
from kitsune_mlir.passes.normalization.unread_edges import cut_unread_edges
from kitsune_mlir.passes.normalization.widened_again import widen_again

from .base import Pass

# Named ops that stay named while element-wise ops are fused: upstream's fuser looks at linalg.generic only, and it would
# put element-wise arithmetic inside products (recomputing it for every output element) if it saw them.
KEPT = (
    ["matmul", "matmul_transpose_a", "matmul_transpose_b", "batch_matmul", "batch_matmul_transpose_a"]
    + ["batch_matmul_transpose_b", "batch_reduce_matmul", "matvec", "vecmat", "batch_matvec", "batch_vecmat"]
    + ["conv_1d_ncw_fcw", "conv_2d_nchw_fchw", "conv_2d_nhwc_hwcf", "conv_3d_ncdhw_fcdhw", "conv_1d_nwc_wcf"]
    + ["conv_2d_ngchw_gfchw", "conv_2d_ngchw_fgchw", "conv_2d_nhwc_fhwc", "conv_2d_nhwgc_gfhwc", "conv_3d_ndhwc_dhwcf"]
    + ["depthwise_conv_1d_ncw_cw", "depthwise_conv_2d_nchw_chw", "depthwise_conv_2d_nhwc_hwc", "depthwise_conv_3d_ncdhw_cdhw"]
    + ["pooling_nchw_sum", "pooling_nchw_max", "pooling_nhwc_sum", "pooling_nhwc_max", "pooling_ncw_sum", "pooling_ncw_max"]
    + ["pooling_ndhwc_sum", "pooling_ndhwc_max", "transpose"]
)
# Aggregates of several loop nests, which upstream takes apart; they have no generic form.
AGGREGATES = ["softmax", "winograd_filter_transform", "winograd_input_transform", "winograd_output_transform"]
# Named products and convolutions whose builder regenerates the body for narrower inputs.
CASTABLE = [n for n in KEPT if "pooling" not in n and n != "transpose"]

SCRIPT = """module attributes {{transform.with_named_sequence}} {{
  transform.named_sequence @main(%root: !transform.any_op {{transform.readonly}}) {{
    %ops = transform.structured.match ops{{{names}}} in %root : (!transform.any_op) -> !transform.any_op
    %generics = transform.structured.{action} %ops : (!transform.any_op) -> !transform.any_op
    transform.yield
  }}
}}"""


def run_upstream(module: ir.Operation, pipeline: str) -> None:
    """Run a textual pipeline of upstream passes over a module operation; who runs a pass of ours verifies what it leaves."""
    passes = PassManager.parse(f"builtin.module({pipeline})", module.context)
    passes.enable_verifier(False)
    passes.run(module)


def _narrow_factors(op: ir.Operation) -> list[ir.Value]:
    """The factors of a product, narrow ones where both are of one type then: no engine multiplies bf16 by f32."""
    given = list(op.operands)[:2]
    found = [narrow(v) or v for v in given]
    types = {ir.ShapedType(v.type).element_type for v in found}
    return found if len(types) == 1 or len({ir.ShapedType(v.type).element_type for v in given}) > 1 else given


def fold_casts(op: ir.Operation) -> None:
    """Let a named product read bf16 / f16 operands directly where torch-mlir widened them first."""
    inputs = _narrow_factors(op)
    if inputs == list(op.operands)[:2]:
        return
    if "indexing_maps" in op.attributes and op.name == "linalg.matmul" and len(op.attributes) > 2:
        return
    keep = {n: op.attributes[n] for n in ("strides", "dilations") if n in op.attributes}
    builder = getattr(linalg_dialect, op.name.removeprefix("linalg."))
    with ir.InsertionPoint(op), op.location:
        new = builder(*inputs, outs=[op.operands[2]], **keep)
    op.results[0].replace_all_uses_with(new)
    op.erase()


def name_contraction(op: ir.Operation) -> None:
    """Turn a product that came as a linalg.generic into a `linalg.contract`, which upstream's fuser leaves alone."""
    inputs = _narrow_factors(op)
    maps = affine_maps(op)
    widening = {o.name for o in body_of(op)} & WIDENING
    if widening - {"arith.extf"} or str(body_of(op)[-1].name) != "arith.addf":
        return  # linalg.contract widens integers as signed: leave those that may not be
    indexing = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])
    with ir.InsertionPoint(op), op.location:
        new = linalg_dialect.contract(*inputs, outs=[op.operands[2]], indexing_maps=indexing)
    op.results[0].replace_all_uses_with(new)
    op.erase()


def drop_importer_asserts(module: ir.Operation) -> None:
    """Remove asserts that state limits of the importer ("unimplemented: …"), not errors of the program.

    Batch normalisation comes with one such assert for each division; a division by zero gives inf, as in torch.
    """
    for op in list(walk(module)):
        if op.name == "cf.assert" and ir.StringAttr(op.attributes["msg"]).value.startswith("unimplemented"):
            op.erase()


def drop_unused(module: ir.Operation) -> None:
    """Remove ops on tensors that nobody reads. Upstream keeps those with an assert, which fusion has put into readers too."""
    for op in reversed(list(walk(module))):
        on_memory = any(isinstance(value.type, ir.MemRefType) for value in op.operands)
        if op.name == "linalg.generic" and not on_memory and not any(list(result.uses) for result in op.results):
            op.erase()


def transform(module: ir.Operation, names: list[str], action: str) -> None:
    """Apply a `transform.structured` op to all operations of some names."""
    found = sorted({op.name for op in walk(module)} & set(names))
    if found:
        listed = "[" + ", ".join(f'"{n}"' for n in found) + "]"
        script = ir.Module.parse(SCRIPT.format(names=listed, action=action), module.context)
        interpreter.apply_named_sequence(module, script.body.operations[0], script)


def generalize(module: ir.Operation) -> None:
    """Turn every named linalg op that is not in KEPT into linalg.generic."""
    transform(module, [f"linalg.{n}" for n in AGGREGATES], "decompose_interface")
    named = {op.name for op in walk(module) if op.name.startswith("linalg.")}
    special = ["generic", "yield", "index", "pack", "unpack"]
    transform(module, sorted(named - {f"linalg.{n}" for n in [*KEPT, *special]}), "generalize")


def hide_reshapes(module: ir.Operation) -> None:
    """Put reshapes behind opaque casts, so that the fuser does not turn 2-D work around them into 5-D work.

    It would do so even to named products (which become generics on the way, and then swallow element-wise ops).
    """
    for op in list(walk(module)):
        if is_reshape(op):
            with ir.InsertionPoint(op), op.location:
                hidden = builtin.UnrealizedConversionCastOp([op.results[0].type], [op.operands[0]])
            op.results[0].replace_all_uses_with(hidden.results[0])
            hidden.operation.attributes["kitsune.reshape"] = ir.StringAttr.get(op.name)
            hidden.operation.attributes["reassociation"] = op.attributes["reassociation"]
            op.erase()


def show_reshapes(module: ir.Operation) -> None:
    """Undo `hide_reshapes`."""
    for op in list(walk(module)):
        if op.name != "builtin.unrealized_conversion_cast" or "kitsune.reshape" not in op.attributes:
            continue
        name = ir.StringAttr(op.attributes["kitsune.reshape"]).value
        attributes = {"reassociation": op.attributes["reassociation"]}
        if name == "tensor.expand_shape":
            attributes["static_output_shape"] = ir.DenseI64ArrayAttr.get(shape_of(op.results[0]))
        with ir.InsertionPoint(op), op.location:
            shown = ir.Operation.create(name, [op.results[0].type], [op.operands[0]], attributes)
        op.results[0].replace_all_uses_with(shown.results[0])
        op.erase()


def fold_movement(module: ir.Operation) -> None:
    """Let products read transposed operands in place: compose the transposition into their maps (and widen inside).

    Only permutations, repetitions (one matrix for a whole batch) and pure casts are folded: no traffic is added.
    """
    # Listed first: rewriting erases an op together with its body, which the walk must not visit any more.
    for op in [op for op in walk(module) if is_contraction(op)]:
        changed = True
        while changed:
            changed = False
            for i in range(2):
                source = defining_op(op.operands[i])
                if not is_movement(source) or not _foldable_cast(source) or not _same_types(op.operands[1 - i], source):
                    continue
                if not affine_maps(source)[0].is_permutation and not _repeats_for(op, i, source):
                    continue
                if _turns(source) and not is_projected_product(op):
                    continue  # an image is read once for every tap: its order was chosen for that
                op = _read_through(op, i, source)
                changed = True
                break


def _repeats_for(op: ir.Operation, operand: int, source: ir.Operation) -> bool:
    """Whether a movement only repeats what it reads, along loops of a product that its other operand has too."""
    given, result = affine_maps(source)
    plain = all(isinstance(e, ir.AffineDimExpr) for m in (given, result, *affine_maps(op)) for e in m.results)
    if not plain or not given.is_projected_permutation or not result.is_permutation:
        return False
    read = {ir.AffineDimExpr(e).position for e in given.results}
    along = [
        ir.AffineDimExpr(loop).position
        for loop, e in zip(affine_maps(op)[operand].results, result.results, strict=True)
        if ir.AffineDimExpr(e).position not in read
    ]
    other = {ir.AffineDimExpr(e).position for e in affine_maps(op)[1 - operand].results}
    return set(along) <= other


def _turns(source: ir.Operation) -> bool:
    """Whether a movement puts dimensions in another order."""
    maps = affine_maps(source)
    return maps[0] != maps[1]


def _foldable_cast(source: ir.Operation) -> bool:
    return all(o.name == "arith.extf" for o in body_of(source))


def _same_types(other: ir.Value, source: ir.Operation) -> bool:
    """Whether a product's factors have one type with a movement folded: the other one is of its type, or a cast from there."""
    maker, wanted = defining_op(other), ir.ShapedType(source.operands[0].type).element_type
    cast = maker is not None and is_movement(maker) and body_of(maker) and _foldable_cast(maker)
    given = maker.operands[0] if cast and maker is not None else other
    return not body_of(source) or wanted in (ir.ShapedType(v.type).element_type for v in (other, given))


def _read_through(op: ir.Operation, operand: int, source: ir.Operation) -> ir.Operation:
    """Rebuild product `op` so that its input `operand` is the input of the moving generic `source`."""
    source_map, result_map = affine_maps(source)
    maps = affine_maps(op)
    # Tensor dimension j of the source's input is walked by loop source_map[j], which is dimension p of its result.
    result_dims = [expr.position for expr in map(ir.AffineDimExpr, result_map.results)]
    picked = [result_dims.index(ir.AffineDimExpr(e).position) for e in source_map.results]
    maps[operand] = ir.AffineMap.get(maps[operand].n_dims, 0, [list(maps[operand].results)[p] for p in picked])
    operands = list(op.operands)
    operands[operand] = source.operands[0]
    with ir.InsertionPoint(op), op.location:
        new = ir.Operation.create(
            "linalg.generic",
            [op.results[0].type],
            operands,
            {
                "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
                "iterator_types": op.attributes["iterator_types"],
                "operandSegmentSizes": op.attributes["operandSegmentSizes"],
            },
            regions=1,
        )
        elements = [ir.ShapedType(v.type).element_type for v in operands]
        block = new.regions[0].blocks.append(*elements, arg_locs=[op.location] * len(elements))
        old = op.regions[0].blocks[0]
        mapping = dict(zip(old.arguments, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            if elements[operand] != old.arguments[operand].type:
                cast = ir.Operation.create("arith.extf", [old.arguments[operand].type], [block.arguments[operand]])
                mapping[old.arguments[operand]] = cast.results[0]
            for inner in old.operations:
                _clone_into(inner.operation, mapping)
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()
    return new


def _clone_into(op: ir.Operation, mapping: dict[ir.Value, ir.Value]) -> None:
    copy = op.clone()
    for i, value in enumerate(op.operands):
        if value in mapping:
            copy.operands[i] = mapping[value]
    mapping.update(zip(op.results, copy.results, strict=True))


@dataclass(frozen=True)
class Normalize(Pass):
    """Bring what the importer writes into one form: products, element-wise generics and reductions over whole tensors.

    Widening casts around products are folded into them (bf16 x bf16 -> f32), others go into each map that reads them,
    transposes of operands become indexing maps, dimensions of extent 1 disappear, chains of element-wise ops become one op,
    what these compute of numbers alone is made once, rows of a small table are gathered where they are read, products with sums
    of one term are element-wise work, columns of products that nobody reads are left out, and every linalg op ends as a
    linalg.generic. What it does not know it leaves as it is.
    """

    name: ClassVar[str] = "kitsune-normalize"

    def run(self, module: ir.Operation) -> None:
        run_upstream(module, "inline,func.func(convert-elementwise-to-linalg),canonicalize,cse")
        with module.context, ir.Location.unknown():
            drop_importer_asserts(module)
            generalize(module)
            for op in [op for op in walk(module) if op.name.removeprefix("linalg.") in CASTABLE]:
                fold_casts(op)
            for op in [op for op in walk(module) if is_projected_product(op)]:
                name_contraction(op)
            run_upstream(module, "canonicalize,cse")
            cut_unread_edges(module)
        run_upstream(module, "func.func(linalg-fold-unit-extent-dims),canonicalize,cse")
        with module.context, ir.Location.unknown():
            hide_reshapes(module)
            part_positions(module)
            widen_again(module)
            gather_again(module)
        run_upstream(
            module, "linalg-fuse-elementwise-ops,canonicalize,cse,func.func(linalg-generalize-named-ops),canonicalize,cse"
        )
        with module.context, ir.Location.unknown():
            show_reshapes(module)
            part_scalars(module)
            reshape_unit_moves(module)
            slice_before_repeating(module)
            slice_before_maps(module)
            part_steps(module)
            join_moved(module)
            sum_beside_splats(module)
            fold_movement(module)
            multiply_outer(module)
            narrow_results(module)
            leave_out_columns(module)
            part_columns(module)
            index_own_rows(module)
            order_results(module)
            drop_unused(module)
        run_upstream(module, "canonicalize,cse")


__all__ = ["Normalize", "constant_fill", "run_upstream"]
