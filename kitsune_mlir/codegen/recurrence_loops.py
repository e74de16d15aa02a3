"""`kitsune.recurrence` as a loop over the steps with products and maps inside, for code that is lowered by upstream."""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.recurrence import RECURRENCE, Recurrence
from kitsune_mlir.dialects.verify import walk

__all__ = ["expand_recurrences"]

_SIGMOID = """
      %neg_{0} = arith.negf %{0} : f32
      %exp_{0} = math.exp %neg_{0} : f32
      %more_{0} = arith.addf %exp_{0}, %one : f32
      %s_{0} = arith.divf %one, %more_{0} : f32"""

_LSTM = f"""
      %i = arith.addf %g0, %r0 : f32
      %f = arith.addf %g1, %r1 : f32
      %g = arith.addf %g2, %r2 : f32
      %o = arith.addf %g3, %r3 : f32
      {_SIGMOID.format("i")}{_SIGMOID.format("f")}{_SIGMOID.format("o")}
      %t_g = math.tanh %g : f32
      %kept = arith.mulf %s_f, %old1 : f32
      %added = arith.mulf %s_i, %t_g : f32
      %new1 = arith.addf %kept, %added : f32
      %t_c = math.tanh %new1 : f32
      %new0 = arith.mulf %s_o, %t_c : f32"""

_GRU = f"""
      %r = arith.addf %g0, %r0 : f32
      %z = arith.addf %g1, %r1 : f32
      {_SIGMOID.format("r")}{_SIGMOID.format("z")}
      %reset = arith.mulf %s_r, %r2 : f32
      %inner = arith.addf %g2, %reset : f32
      %n = math.tanh %inner : f32
      %apart = arith.subf %old0, %n : f32
      %part = arith.mulf %s_z, %apart : f32
      %new0 = arith.addf %n, %part : f32"""

_TANH = """
      %sum = arith.addf %g0, %r0 : f32
      %new0 = math.tanh %sum : f32"""

_RELU = """
      %sum = arith.addf %g0, %r0 : f32
      %none = arith.constant 0.0 : f32
      %new0 = arith.maximumf %sum, %none : f32"""

_CELLS = {"lstm": _LSTM, "gru": _GRU, "rnn_tanh": _TANH, "rnn_relu": _RELU}


def expand_recurrences(root: ir.Operation) -> None:
    """Replace each `kitsune.recurrence` in `root` by a loop for each of its directions."""
    for op in [op for op in walk(root) if op.name == RECURRENCE]:
        with op.location:
            module = ir.Module.parse(_text(Recurrence.of(op)), op.context)
        block = module.body.operations[0].regions[0].blocks[0]
        known: dict[ir.Value, ir.Value] = dict(zip(block.arguments, op.operands, strict=True))
        *body, end = [inner.operation for inner in block.operations]
        with ir.InsertionPoint(op):
            for inner in body:
                clone_with(inner, known)
        for result, value in zip(op.results, end.operands, strict=True):
            result.replace_all_uses_with(known[value])
        op.erase()


def _text(what: Recurrence) -> str:
    """A module with one function of the operation's operands and results."""
    types = [str(value.type) for value in what.op.operands]
    results = [str(value.type) for value in what.op.results]
    arguments = ", ".join(f"%a{number}: {type_}" for number, type_ in enumerate(types))
    out, finals = "%empty", [f"%final{number}_start" for number in range(len(what.states))]
    lines = [f"  %empty = tensor.empty() : {results[0]}"]
    lines += [f"  {final} = tensor.empty() : {results[1]}" for final in finals]
    lines += [
        f"  %{name} = arith.constant {number} : index" for name, number in (("zero", 0), ("next", 1), ("end", what.steps))
    ]
    lines += [f"  %last = arith.constant {what.steps - 1} : index", "  %one = arith.constant 1.0 : f32"]
    for direction in range(what.directions):
        lines.append(_direction(what, direction, out, finals))
        out, finals = f"%out{direction}#0", [f"%final{number}_{direction}" for number in range(len(what.states))]
    made, types_ = ", ".join([out, *finals]), ", ".join(results)
    return "\n".join([f"func.func @f({arguments}) -> ({types_}) {{", *lines, f"  return {made} : {types_}", "}"])


def _direction(what: Recurrence, number: int, out: str, finals: list[str]) -> str:
    """The loop of a direction: it carries the result, the hidden state and, in f32, the cell's."""
    b, h, columns, d, e = what.batch, what.hidden, what.gates * what.hidden, what.directions, what.dtype
    given, weight, bias = (f"%a{number + group * d}" for group in range(3))
    steps = f"{b}x{what.steps}" if what.batch_first else f"{what.steps}x{b}"
    wide, state, row = f"tensor<{b}x{h}xf32>", f"tensor<{d}x{b}x{h}x{e}>", f"tensor<{b}x{columns}xf32>"
    narrow, out_type = f"tensor<{b}x{h}x{e}>", f"tensor<{steps}x{d * h}x{e}>"
    at, sizes = ("0, %at, ", f"{b}, 1") if what.batch_first else ("%at, 0, ", f"1, {b}")
    identity, parallel = "affine_map<(b, u) -> (b, u)>", 'iterator_types = ["parallel", "parallel"]'
    widen, narrowed = ("arith.extf", "arith.truncf") if e != "f32" else ("arith.bitcast",) * 2

    def convert(name: str, source: str, one: str, other: str, op: str) -> str:
        return f"""    {name}_to = tensor.empty() : tensor<{b}x{h}x{other}>
    {name} = linalg.generic {{indexing_maps = [{identity}, {identity}], {parallel}}}
        ins({source} : tensor<{b}x{h}x{one}>) outs({name}_to : tensor<{b}x{h}x{other}>) {{
    ^bb0(%in: {one}, %unused: {other}):
      %converted = {op} %in : {one} to {other}
      linalg.yield %converted : {other}
    }} -> tensor<{b}x{h}x{other}>"""

    lines, types = [], [narrow, wide][: len(what.states)]
    for place in range(len(types)):
        lines.append(
            f"    %begin{number}_{place} = tensor.extract_slice %a{3 * d + place}[{number}, 0, 0] [1, {b}, {h}] [1, 1, 1]"
            f" : {state} to {narrow}"
        )
    begin = [f"%begin{number}_0", f"%wide{number}"][: len(types)]
    if len(types) > 1:
        lines.append(convert(f"%wide{number}", f"%begin{number}_1", e, "f32", widen))
    held = ["%h", "%c"][: len(types)]
    carried = ", ".join(f"{name} = {start}" for name, start in zip(["%made", *held], [out, *begin], strict=True))
    carried_types = ", ".join([out_type, *types])
    parts = [f"%part{gate}" for gate in range(what.gates)], [f"%hid{gate}" for gate in range(what.gates)]
    slices = [
        f"    {name} = tensor.extract_slice {source}[0, {gate * h}] [{b}, {h}] [1, 1] : {row} to {wide}"
        for names, source in zip(parts, ("%now", "%sums"), strict=True)
        for gate, name in enumerate(names)
    ]
    operands, gates = [*parts[0], *parts[1]], range(what.gates)
    arguments = [*(f"%g{gate}: f32" for gate in gates), *(f"%r{gate}: f32" for gate in gates)]
    arguments += [f"%old: {e}", "%old1: f32"][: len(types)]
    operand_types = ", ".join([wide] * len(operands))
    lines.append(
        f"""  %out{number}:{1 + len(held)} = scf.for %t = %zero to %end step %next iter_args({carried}) -> ({carried_types}) {{
    %at = arith.{"subi %last, %t" if number else "addi %zero, %t"} : index
    %now = tensor.extract_slice {given}[{at}0] [{sizes}, {columns}] [1, 1, 1] : tensor<{steps}x{columns}xf32> to {row}
    %row = tensor.empty() : {row}
    %start = linalg.generic {{indexing_maps = [affine_map<(b, j) -> (j)>, affine_map<(b, j) -> (b, j)>], {parallel}}}
        ins({bias} : tensor<{columns}x{e}>) outs(%row : {row}) {{
    ^bb0(%in: {e}, %unused: f32):
      %bias = {widen} %in : {e} to f32
      linalg.yield %bias : f32
    }} -> {row}
    %sums = linalg.generic {{indexing_maps = [affine_map<(b, j, k) -> (b, k)>, affine_map<(b, j, k) -> (j, k)>,
        affine_map<(b, j, k) -> (b, j)>], iterator_types = ["parallel", "parallel", "reduction"]}}
        ins(%h, {weight} : {narrow}, tensor<{columns}x{h}x{e}>) outs(%start : {row}) {{
    ^bb0(%x: {e}, %w: {e}, %sum: f32):
      %wide_x = {widen} %x : {e} to f32
      %wide_w = {widen} %w : {e} to f32
      %product = arith.mulf %wide_x, %wide_w : f32
      %more = arith.addf %sum, %product : f32
      linalg.yield %more : f32
    }} -> {row}
{chr(10).join(slices)}
    %cell:{len(held)} = linalg.generic {{
        indexing_maps = [{", ".join([identity] * (len(operands) + len(held)))}], {parallel}}}
        ins({", ".join(operands)} : {operand_types})
        outs({", ".join(held)} : {", ".join(types)}) {{
    ^bb0({", ".join(arguments)}):
      %old0 = {widen} %old : {e} to f32{_CELLS[what.cell]}
      %new = {narrowed} %new0 : f32 to {e}
      linalg.yield {", ".join(["%new", "%new1"][: len(held)])} : {", ".join([e, "f32"][: len(held)])}
    }} -> ({", ".join(types)})
    %set = tensor.insert_slice %cell#0 into %made[{at}{number * h}] [{sizes}, {h}] [1, 1, 1] : {narrow} into {out_type}
    scf.yield {", ".join(["%set", *(f"%cell#{place}" for place in range(len(held)))])} : {carried_types}
  }}"""
    )
    ends = [f"%out{number}#1", f"%narrow{number}"][: len(types)]
    if len(types) > 1:
        lines.append(convert(f"%narrow{number}", f"%out{number}#2", "f32", e, narrowed))
    for place, (end, final) in enumerate(zip(ends, finals, strict=True)):
        lines.append(
            f"  %final{place}_{number} = tensor.insert_slice {end} into {final}[{number}, 0, 0] [1, {b}, {h}] [1, 1, 1]"
            f" : {narrow} into {state}"
        )
    return "\n".join(lines)
