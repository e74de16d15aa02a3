"""What a product's sums can start from, instead of having it added afterwards: a bias, gathered rows."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterable

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.elementwise import is_constant
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.chain.core.body import Chain, Layer
from kitsune_mlir.codegen.gpu.engines.chain.core.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.core.match import zero
from kitsune_mlir.dialects.access import affine_maps
from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.products import yield_of

__all__ = ["Starts", "Term", "row_reads"]


@dataclasses.dataclass(frozen=True)
class Term:
    """Something that a step adds to a product's sums.

    Attributes:
        op: the generic.
        total: the value of its body that is the sum with the term.
        value: the value that is added.
    """

    op: ir.Operation
    total: ir.Value
    value: ir.Value


class Starts:
    """What the sums of a chain's products start from.

    Args:
        bias: of what is added to a product, only one vector along the columns; else everything from memory.

    Attributes:
        terms: by the product's result.
        folded: by the value of a body that such sums already are, the product's result.
    """

    def __init__(self, chain: Chain, bias: bool = False):
        self.chain = chain
        found = {layer.result: _terms_of(chain, layer) for layer in chain.layers}
        self.terms = {result: _bias_of(chain, terms) if bias else terms for result, terms in found.items()}
        self.folded = {term.total: result for result, terms in self.terms.items() for term in terms}

    def read_made(self, layer: Layer) -> bool:
        """Whether a layer's sums start from what another task of the program makes: then the waits come first."""
        terms = self.terms[layer.result]
        if terms:
            return any(_reads_made(self.chain, term) for term in terms)
        return not zero(layer.start) and not is_constant(layer.start)

    def sums(self, evaluator: Evaluator, layer: Layer, blocks: Iterable[int]) -> list[Value] | None:
        """A layer's sums of blocks of 8 columns before its product, in the order of tensor cores; None for zeros."""
        terms = self.terms[layer.result]
        if not terms and zero(layer.start):
            return None
        sums: list[Value] = []
        for block in blocks:
            for half in range(2):
                place = FragmentIndex(half, block)
                parts = [evaluator.inner(term.op, term.value, place) for term in terms]
                parts = parts or [evaluator.tensor(layer.start, place)]
                sums += [functools.reduce(operator.add, [part.at(lane) for part in parts]) for lane in range(2)]
        return sums


def _terms_of(chain: Chain, layer: Layer) -> list[Term]:
    """What element-wise steps add to a product's result before they do anything else, if it comes from memory."""
    terms: list[Term] = []
    value: ir.Value | None = layer.result if zero(layer.start) else None
    while value is not None and (term := _added(chain, value)) is not None:
        terms.append(term)
        yielded = list(yield_of(term.op).operands)
        value = term.op.results[0] if yielded == [term.total] else None
    return terms


def _bias_of(chain: Chain, terms: list[Term]) -> list[Term]:
    """The first of the terms if it is one vector along the columns."""
    if not terms:
        return []
    op, value = terms[0].op, terms[0].value
    bias = value if isinstance(value.owner, ir.Block) or value.owner.name != "arith.extf" else value.owner.operands[0]
    if not isinstance(bias.owner, ir.Block) or bias.owner != op.regions[0].blocks[0]:
        return []
    at = list(op.regions[0].blocks[0].arguments).index(bias)
    return [] if is_constant(op.operands[at]) or ROW in chain.operand_sides(op, at) else terms[:1]


def row_reads(chain: Chain, term: Term) -> tuple[ir.Value, ...]:
    """The values of a term's body that are rows in memory: the tile's own, or those of a table that an index names."""
    block = term.op.regions[0].blocks[0]
    found: dict[ir.Value, None] = {}
    pending = [term.value]
    while pending:
        value = pending.pop()
        if isinstance(value.owner, ir.Block):
            number = list(block.arguments).index(value) if value.owner == block else -1
            constant = number < 0 or is_constant(term.op.operands[number])
            if not constant and set(chain.operand_sides(term.op, number)) == {ROW, COL}:
                found[value] = None
        elif value.owner.name == "tensor.extract":
            if len(value.owner.operands) == 3:
                found[value] = None
        elif value.owner.operation.block == block:
            pending += [v for v in value.owner.operands if not isinstance(v.type, ir.ShapedType)]
    return tuple(found)


def _reads_made(chain: Chain, term: Term) -> bool:
    """Whether a term reads what another task of the program makes."""
    block = term.op.regions[0].blocks[0]
    pending, seen = [term.value], set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value.owner, ir.Block) and value.owner == block:
            value = term.op.operands[list(block.arguments).index(value)]
        load = chain.task.load_of(value)
        if load is not None and not load.given:
            return True
        if not isinstance(value.owner, ir.Block) and value.owner.operation.block == block:
            pending += list(value.owner.operation.operands)
    return False


def _added(chain: Chain, value: ir.Value) -> Term | None:
    """What the only reader of `value` adds to it, from memory."""
    uses = list(value.uses)
    if len(uses) != 1 or uses[0].owner.name != "linalg.generic":
        return None
    op = uses[0].owner.operation
    if chain.steps[op.results[0]].kind != "map":
        return None
    number = list(op.operands).index(value)
    argument = op.regions[0].blocks[0].arguments[number]
    readers = list(argument.uses)
    if len(readers) != 1 or readers[0].owner.name != "arith.addf" or len(affine_maps(op)[number].results) != 2:
        return None
    add = readers[0].owner.operation
    other = next((operand for operand in add.operands if operand != argument), None)
    if other is None or not _from_memory(chain, op, other):
        return None
    return Term(op, add.results[0], other)


def _from_memory(chain: Chain, op: ir.Operation, value: ir.Value) -> bool:
    """Whether a value of a body follows from loads, constants and positions alone."""
    block = op.regions[0].blocks[0]

    def scalars(value: ir.Value) -> list[ir.Value]:
        maker = value.owner
        if isinstance(maker, ir.Block) or maker.operation.block != block:
            return []
        return [v for v in maker.operands if not isinstance(v.type, ir.ShapedType)]

    arguments = [v for v in postorder([value], scalars) if isinstance(v.owner, ir.Block) and v.owner == block]
    operands = [op.operands[list(block.arguments).index(argument)] for argument in arguments]
    return all(is_constant(operand) or chain.task.load_of(operand) is not None for operand in operands)
