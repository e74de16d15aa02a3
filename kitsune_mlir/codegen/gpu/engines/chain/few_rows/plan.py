"""Layers for a few rows of a block: what is done, and who does what.

A block has up to 16 rows and all columns of every layer. Each column of a weight is read by one warp only. Weights come
through a ring in shared memory (`chain.few_rows.weight_ring`), or, those that TMA does not read so, from L2 into registers.
Nothing but the layers' inputs, a few kilobytes, is handed from warp to warp.
"""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import ROW
from kitsune_mlir.codegen.gpu.engines.chain.core.body import SUM, Layer
from kitsune_mlir.codegen.gpu.engines.chain.core.liveness import order_of
from kitsune_mlir.codegen.gpu.engines.chain.core.match import match_chain, zero
from kitsune_mlir.codegen.gpu.engines.chain.core.records import RowsPlan
from kitsune_mlir.codegen.gpu.engines.chain.few_rows.weight_ring import WeightRing, plan_ring
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.tile_records import TaskView

__all__ = ["ROWS", "STEP", "RowLayer", "FewRowsPlan", "plan_few_rows"]

ROWS = 16
"""Rows of a product of a warp."""
STEP = 32
"""Terms of a sum that a lane's 16 bytes of a weight serve: two products of a warp."""
SHORT_STEP, MOST_SHORT = 16, 64
"""The same where elements are read one by one, and up to how many terms that is done."""
MOST_BLOCKS = 8
"""Blocks of 8 columns whose sums a warp has at a time: 32 registers."""


@dataclasses.dataclass(frozen=True)
class RowLayer:
    """A layer.

    Attributes:
        layer: the product.
        weight: window of the weight, with sides COL and SUM.
        whole: weights are read 16 bytes at a time, and the input is in shared memory; else both come element by element.
        streamed: weights come through the ring.
        output: what the sums become: the next layer's input, or the result.
        blocks: blocks of 8 columns that a warp does at a time.
        units: how many such pieces there are.
        rounds: how many of them a warp does.
        input_at: offset of the input's rows in shared memory.
    """

    layer: Layer
    weight: Window
    whole: bool
    streamed: bool
    output: ir.Value
    blocks: int
    units: int
    rounds: int
    input_at: int

    @property
    def chunks(self) -> int:
        """Steps of a sum."""
        return -(-self.layer.depth // (STEP if self.whole else SHORT_STEP))

    @property
    def pitch(self) -> int:
        """Bytes from one row of the input to the next in shared memory.

        Neighbours lie in different halves of the banks, or, where eight rows are read at a time, in different sixteen bytes.
        """
        return _pitch(self.layer.depth, self.streamed)


@dataclasses.dataclass(frozen=True)
class FewRowsPlan(RowsPlan):
    """What was decided.

    Attributes:
        layers: in order.
        source: window of the first layer's rows in memory, with sides ROW and SUM.
        ring: how weights come; None if all of them go into registers.
        bytes: of shared memory: the ring's, then the layers' inputs.
    """

    layers: tuple[RowLayer, ...]
    source: Window
    ring: WeightRing | None
    bytes: int

    @property
    def group_rows(self) -> int:
        """Rows of the block."""
        return ROWS


def plan_few_rows(task: TaskView, warps: int, room: int) -> FewRowsPlan:
    """Plan a task, or a part of one, for some warps, in `room` bytes of shared memory if these are enough.

    Raises:
        MatchFailure: it is no sequence of layers of a few rows with element-wise steps between them.
    """
    chain = match_chain(task)
    order = order_of(chain)
    if chain.rows > ROWS:
        raise MatchFailure(f"{chain.rows} rows; a warp multiplies {ROWS}")
    if any(step.kind not in ("map", "alias") for step in chain.steps.values()) or chain.scatters:
        raise MatchFailure("rows are reduced, joined or added, which takes all columns of a row")
    stores = [store for part in order.stores for store in part]
    if len(stores) != 1 or stores != list(order.stores[-1]):
        raise MatchFailure("results of other layers than the last")
    factors = [layer.ranges[0].value for layer in chain.layers]
    if any(len(layer.ranges) != 1 for layer in chain.layers):
        raise MatchFailure("a layer sums over several tensors")
    rows = chain.task.load_of(factors[0])
    if rows is None or any(chain.task.load_of(factor) is not None for factor in factors[1:]):
        raise MatchFailure("the first layer reads computed rows, or another one memory")
    source = Window.of(rows, (ROW, SUM)[2 - len([size for size in rows.sizes if size > 1]) :])
    found: list[tuple[Window, bool, ir.Value]] = []
    for number, layer in enumerate(chain.layers):
        output = factors[number + 1] if number + 1 < len(factors) else stores[0].tensor
        if order.ready.get(output) != number or shape_of(output)[1:] != [layer.cols]:
            raise MatchFailure("a layer's input is made of several layers' sums")
        if not zero(layer.start):
            raise MatchFailure("sums that start from computed numbers")
        weight = Window.of(layer.weight, layer.sides)
        whole = layer.depth % STEP == 0 and weight.stride(SUM) == 1 and weight.align((SUM,)) == 16
        if number == 0:
            whole = whole and source.stride(SUM) == 1 and source.align((SUM,)) == 16
        if not whole and (number or layer.depth > MOST_SHORT):
            raise MatchFailure(f"sums over {layer.depth} terms that are not read 16 bytes at a time")
        if layer.cols % 8:
            raise MatchFailure(f"{layer.cols} columns; multiples of 8 are done")
        found.append((weight, whole, output))
    deals = [_deal(layer.cols // 8, warps) for layer in chain.layers]
    inputs = sum(ROWS * _pitch(layer.depth, False) for layer, (_, whole, _) in zip(chain.layers, found, strict=True) if whole)
    many = {n: weight for n, (weight, whole, _) in enumerate(found) if whole and deals[n][2] == 1}
    ring = plan_ring(many, room - inputs)
    layers, place = [], ring.bytes if ring else 0
    for number, (layer, (weight, whole, output), deal) in enumerate(zip(chain.layers, found, deals, strict=True)):
        streamed = ring is not None and number in ring.maps
        layers.append(RowLayer(layer, weight, whole, streamed, output, *deal, place))
        place += ROWS * layers[-1].pitch if whole else 0
    return FewRowsPlan(chain, order, 1, {}, (), tuple(layers), source, ring, place)


def _pitch(depth: int, streamed: bool) -> int:
    return -(-2 * depth // 128) * 128 + (16 if streamed else 64)


def _deal(blocks: int, warps: int) -> tuple[int, int, int]:
    """(blocks at a time, pieces, pieces of a warp): the least work for a warp, in as few pieces."""
    choices = [(each, blocks // each) for each in range(1, MOST_BLOCKS + 1) if blocks % each == 0]
    each, units = min(choices, key=lambda choice: (-(-choice[1] // warps) * choice[0], choice[1]))
    return each, units, -(-units // warps)
