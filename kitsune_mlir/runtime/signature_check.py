"""Whether a signature is whole in itself, fits the code that it is stored with, and fits stored weights.

Written programs are checked before they are saved and after they are read: what a digest protects may be wrong all the same,
where another program wrote it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.derived import check_recipe, check_value
from kitsune_mlir.runtime.plain import shown
from kitsune_mlir.runtime.signature import MODES, Input, Output, Signature, Weight, torch_dtype
from kitsune_mlir.runtime.strided import Strided, extent_of
from kitsune_mlir.runtime.structure import structure_of

__all__ = ["check_accesses", "check_fit", "check_signature", "check_weights"]

WEIGHT_KINDS = ("parameter", "buffer", "constant", "derived")
MOST = 1 << 48  # of an extent: there are no more addresses
PLAIN = (int, float, bool, str, type(None))


def check_signature(signature: Signature, own: bool = False) -> None:
    """Names, shapes, orders and indices of a signature agree with each other and with its structures.

    Args:
        own: this project wrote it: what recipes give is not computed to find that out.

    Raises:
        ValueError: they do not; the message names the entry.
    """
    arguments = {a.name: a for a in (*signature.weights, *signature.inputs)}
    _require_once((a.name for a in (*signature.weights, *signature.sources, *signature.inputs)), "argument {!r}")
    for argument in (*arguments.values(), *signature.sources):
        _check_argument(argument)
    supplied = {weight.name: (weight.shape, weight.dtype) for weight in signature.supplied}
    for weight in (*signature.weights, *signature.sources):
        _check_recipe(weight, supplied, own)
    for number, (shape, dtype) in enumerate(signature.results):
        _bytes(shape, dtype, f"result {number}")
        order = signature.result_orders.get(number)
        _require(order is None or _is_order(order, shape), f"the order {order} of result {number} is none of {len(shape)}")
    for number in signature.result_orders:
        _require(number < len(signature.results), f"it gives an order of result {number}, of {len(signature.results)}")
    for number, output in enumerate(signature.outputs):
        _check_output(output, f"output {number}", signature, arguments)
    changed = [o.mutates for o in signature.outputs if o.mutates is not None]
    _require_once(changed, "a change of {!r}")
    used = {o.index for o in signature.outputs if o.kind == "tensor"}
    for number in range(len(signature.results)):
        _require(number in used, f"result {number} is no output's")
    _check_structures(signature, len(signature.outputs) - len(changed))
    for number, output in enumerate(signature.outputs):
        if output.in_place:
            _check_in_place(output, f"output {number}", signature, arguments)


def check_fit(signature: Signature, input_bytes: Sequence[int], result_bytes: Sequence[int], overwrites: Sequence[int]) -> None:
    """The code takes and gives what a signature says: as many tensors, of as many bytes each, the same ones in place of others.

    Raises:
        ValueError: it does not; the message names the tensor and both sizes.
    """
    inputs = [(f"weight '{w.name}'", w.wide or w.shape, w.dtype) for w in signature.weights]
    inputs += [(f"input '{i.name}'", i.taken, i.dtype) for i in signature.inputs]
    results = [(f"result {n}", shape, dtype) for n, (shape, dtype) in enumerate(signature.results)]
    for kind, tensors, sizes in (("arguments", inputs, input_bytes), ("results", results, result_bytes)):
        _require(len(tensors) == len(sizes), f"it has {len(tensors)} {kind}, and the code {len(sizes)}")
        for (name, shape, dtype), size in zip(tensors, sizes, strict=True):
            own = _bytes(shape, dtype, name)
            _require(own == size, f"{name} is {dtype} {list(shape)}, {own} bytes, and the code's has {size}")
    names = [argument.name for argument in (*signature.weights, *signature.inputs)]
    said = {o.index: names.index(o.mutates or "") for o in signature.outputs if o.in_place}
    does = {number: argument for number, argument in enumerate(overwrites) if argument >= 0}
    _require(said == does, f"it has results {said} in place of arguments, and the code {does}")


def check_accesses(signature: Signature) -> None:
    """Ranges are in their tensors, those of one tensor apart; what is returned is written, what is only read is not.

    Raises:
        ValueError: they are not; the message names the tensor.
    """
    sizes = {w.name: (w.wide or w.shape, w.dtype) for w in signature.weights}
    sizes |= {i.name: (i.taken, i.dtype) for i in signature.inputs}
    over = {o.mutates: f"result {o.index}" for o in signature.outputs if o.in_place}
    sizes |= {f"result {n}": result for n, result in enumerate(signature.results)}
    ends: dict[str, int] = {}
    for access in signature.accesses:
        name = f"an access of '{access.tensor}'"
        _require(access.tensor in sizes and access.tensor not in over.values(), f"{name} names no tensor of its")
        _require(access.mode in MODES, f"{name} is a {shown(access.mode)}, none of {', '.join(MODES)}")
        size = _bytes(*sizes[access.tensor], name)
        first, end = access.offset, access.offset + access.bytes
        _require(ends.get(access.tensor, 0) <= first < end <= size, f"{name} is bytes [{first}, {end}) of {size}")
        ends[access.tensor] = end
        written = access.tensor in over or access.tensor.startswith("result ")
        _require(written or access.mode == "read", f"{name} is a '{access.mode}', and it is not written")
        _require(not access.tensor.startswith("result ") or access.mode == "write", f"{name} is a '{access.mode}'")
    written = {access.tensor for access in signature.accesses if access.mode != "read"}
    for number, (shape, dtype) in enumerate(signature.results):
        tensor = next((name for name, result in over.items() if result == f"result {number}"), f"result {number}")
        _require(tensor in written or not _bytes(shape, dtype, "a result"), f"no access writes {tensor!r}")


def check_weights(signature: Signature, stored: Mapping[str, Any]) -> None:
    """Stored tensors are weights of the signature, of its shapes and dtypes, and all constants are there.

    Raises:
        ValueError: they are not; the message names the weight.
    """
    weights = {w.name: w for w in signature.supplied}
    for name, tensor in stored.items():
        _require(name in weights, f"the stored weight {shown(name)} is none of the program's")
        want = weights[name]
        fits = tuple(tensor.shape) == want.shape and tensor.dtype == torch_dtype(want.dtype)
        found = f"{tensor.dtype} {list(tensor.shape)}"
        _require(fits, f"the stored weight '{name}' is {found}, the program's is {want.dtype} {list(want.shape)}")
    for name, weight in weights.items():
        _require(weight.kind != "constant" or name in stored, f"the constant '{name}' is not stored")


def _check_argument(argument: Weight | Input) -> None:
    kind = "weight" if isinstance(argument, Weight) else "input"
    name, shape = f"{kind} '{argument.name}'", argument.shape
    _bytes(shape, argument.dtype, name)
    _require(not argument.order or _is_order(argument.order, shape), f"{name} has an order {argument.order} of {len(shape)}")
    if isinstance(argument, Input) and argument.lies is not None:
        _check_strided(argument, argument.lies, name)
    if isinstance(argument, Weight):
        _require(argument.kind in WEIGHT_KINDS, f"{name} is a {shown(argument.kind)}, none of {', '.join(WEIGHT_KINDS)}")
        wide = argument.wide or shape
        covers = len(wide) == len(shape) and all(w >= s for w, s in zip(wide, shape, strict=True))
        _require(covers, f"{name} of {list(shape)} is to be widened to {list(wide)}")
        if argument.beside:
            _check_beside(argument, name)
        else:
            _require(not (argument.order and argument.wide), f"{name} has both an order and wide extents")


def _check_strided(argument: Input | Output, lies: Strided, name: str) -> None:
    """All of its elements are in the dense tensor that it is said to lie in."""
    whole = _bytes(lies.whole, argument.dtype, name) // torch_dtype(argument.dtype).itemsize
    said = f"{name} of {list(argument.shape)} is to lie in {list(lies.whole)}, from {lies.first} on, by {list(lies.stride)}"
    _require(not getattr(argument, "order", ()) and len(lies.stride) == len(argument.shape), said)
    _require(lies.first >= 0 and all(0 <= step < MOST for step in lies.stride), said)
    _require(lies.first + extent_of(argument.shape, lies.stride) <= whole, said)


def _check_beside(weight: Weight, name: str) -> None:
    """Whole numbers of groups lie side by side, and the second dimension is so many times wider."""
    shape, beside = list(weight.shape), list(weight.beside)
    said = f"{name} of {shape} has groups side by side {beside}"
    _require(len(beside) == 2 and min(beside) > 0 and len(shape) > 1 and shape[0] % math.prod(beside) == 0, said)
    wide = [shape[0], shape[1] * beside[1], *shape[2:]]
    _require(list(weight.wide) == wide, f"{said}, and becomes {list(weight.wide)}")


def _check_recipe(weight: Weight, supplied: Mapping[str, tuple[Sequence[int], str]], own: bool) -> None:
    name = f"weight '{weight.name}'"
    derived = weight.kind == "derived"
    _require(derived == bool(weight.recipe), f"{name} is a {weight.kind} with the recipe {shown(weight.recipe)}")
    if weight.recipe:
        try:
            check_recipe(weight.recipe, supplied.__contains__)
            if not own:
                check_value(weight.recipe, supplied, weight.shape, weight.dtype)
        except (ValueError, ArgumentError) as error:
            raise ValueError(f"the recipe of {name}: {error}") from error


def _check_output(output: Output, name: str, signature: Signature, arguments: Mapping[str, Weight | Input]) -> None:
    has = {"tensor": output.index is not None, "alias": output.argument is not None, "python": True}
    _require(output.kind in has, f"{name} is a {shown(output.kind)}, none of {', '.join(has)}")
    _require(has[output.kind], f"{name} is of kind {output.kind} and does not say of what")
    _require(isinstance(output.value, PLAIN), f"{name} is {shown(output.value)}, no plain value")
    found: tuple[tuple[int, ...], str] | None = None
    if output.kind == "tensor":
        number = output.index or 0
        _require(0 <= number < len(signature.results), f"{name} is result {number}, of {len(signature.results)}")
        found = signature.results[number]
    elif output.kind == "alias":
        found = _argument(output.argument, name, arguments)
        if output.lies is not None:
            _check_strided(output, output.lies, name)
            _require(output.lies.whole == found[0], f"{name} is to lie in {list(output.lies.whole)}, not in {list(found[0])}")
            found = (output.shape, found[1])
    said = (output.shape, output.dtype)
    _require(found is None or said == found, f"{name} is {_words(said)}, and what it is made of is {_words(found)}")
    if output.mutates is not None:
        over = _argument(output.mutates, name, arguments)
        _require(found == over, f"{name}, {_words(said)}, is to overwrite '{output.mutates}', which is {_words(over)}")


def _check_in_place(output: Output, name: str, signature: Signature, arguments: Mapping[str, Weight | Input]) -> None:
    """The result that is written where an argument lies is no other output's, and lies as that does."""
    number = output.index or 0
    _require(output.kind == "tensor" and output.mutates is not None, f"{name} is written in place of no argument")
    uses = sum(o.kind == "tensor" and o.index == number for o in signature.outputs)
    _require(uses == 1, f"result {number} is written in place, and is {uses} outputs")
    argument = arguments[output.mutates or ""]
    order = signature.result_orders.get(number, ())
    moved = argument.wide if isinstance(argument, Weight) else argument.lies
    _require(argument.order == order and not moved, f"{name} does not lie as '{output.mutates}', in whose place it is written")


def _argument(name: str | None, output: str, arguments: Mapping[str, Weight | Input]) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the argument that an output names."""
    _require(name in arguments, f"{output} names the argument {shown(name)}, which there is not")
    found = arguments[name or ""]
    return found.shape, found.dtype


def _check_structures(signature: Signature, leaves: int) -> None:
    """Every leaf of the arguments is an input or a fixed value, once; every leaf of the output is an output."""
    taken, given = structure_of(signature.in_spec), structure_of(signature.out_spec)
    parts = taken.children() if taken.type is tuple else []
    calls = len(parts) == 2 and parts[0].type is tuple and parts[1].type is dict
    _require(calls, "the structure of its arguments is not that of a call")
    _require(all(type(key) is str for key in parts[1].context), "the names of its keyword arguments are no texts")
    named = signature.parameters
    _require(
        len(named) <= parts[0].num_children, f"it has names of {len(named)} of {parts[0].num_children} positional arguments"
    )
    _require_once(named, "the name {!r}")
    positions = [i.position for i in signature.inputs] + [position for position, _ in signature.fixed]
    _require_once(positions, "leaf {} of the arguments")
    for position in positions:
        _require(0 <= position < taken.num_leaves, f"it names leaf {position} of {taken.num_leaves} of the arguments")
    _require(len(positions) == taken.num_leaves, f"it names {len(positions)} of {taken.num_leaves} leaves of the arguments")
    _require(given.num_leaves == leaves, f"it has {leaves} outputs, and the output's structure {given.num_leaves}")
    for position, value in signature.fixed:
        written = isinstance(value, dict) and set(value) == {"repr"} and isinstance(value["repr"], str)
        _require(written or isinstance(value, PLAIN), f"leaf {position} of the arguments is {shown(value)}, no plain value")


def _bytes(shape: Sequence[int], dtype: str, name: str) -> int:
    """Bytes of a tensor; ValueError for a shape or a dtype that there is not."""
    _require(all(0 <= extent < MOST for extent in shape), f"{name} has the shape {shown(list(shape))}")
    return math.prod(shape) * torch_dtype(dtype).itemsize


def _is_order(order: Sequence[int], shape: Sequence[int]) -> bool:
    return sorted(order) == list(range(len(shape)))


def _require_once(values: Iterable[Any], what: str) -> None:
    for value, times in Counter(values).items():
        _require(times == 1, f"{what.format(value)} occurs {times} times")


def _words(tensor: tuple[tuple[int, ...], str] | None) -> str:
    return f"{tensor[1]} {list(tensor[0])}" if tensor and tensor[1] else "no tensor"


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(problem)
