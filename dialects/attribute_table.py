"""Every attribute that a pass writes: on which operations, of which type, who writes it, who reads it, what it means.

Operations of this dialect check theirs in their verifiers. What passes note on operations of other dialects is named
`kitsune.NAME`. MLIR asks a dialect in C++ to verify such an attribute; its Python bindings have no such hook, so
`misplaced` is asked wherever a module is verified: by the pass manager after each pass, by `kitsune-opt` of what it reads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from torch_mlir import ir

from .scatter_kinds import KINDS

__all__ = ["ATTRIBUTES", "AttributeSpec", "declared", "misplaced"]

PIPELINE, STAGE, TASK = "kitsune.pipeline", "kitsune.stage", "kitsune.task"
PROGRAM, ARGUMENT, RESULT = "func.func", "argument of func.func", "result of func.func"
WORKER = ("func.func", "llvm.func")
ANY = "any operation"

MODES = ("temporal", "spatial", "separate")
KINDS_OF_ARGUMENTS = ("parameter", "buffer", "constant", "derived", "input")
CELLS = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Recurrent cells, with the number of gates of a unit."""

# Names that several modules write or read.
INTO, UPDATES, ORDERED, GROUPS, INDEXED = "into", "updates", "ordered", "groups", "indexed"
MUTATES, OVERWRITES, PROGRAM_OVERWRITES, ALONE = "kitsune.mutates", "overwrites", "kitsune.overwrites", "alone"
VALID_ROWS, LIVE, COUNTED = "kitsune.valid_rows", "kitsune.live_tiles", "kitsune.counted_rows"
ENDS = "kitsune.tile_ends"
HALO, IN_PLACE, NO_FUSION = "kitsune.halo", "kitsune.in_place", "kitsune.no_fusion"
ATTENTION, PAIRS, PARTIAL, COMBINE = "kitsune.attention", "kitsune.pairs", "kitsune.partial", "kitsune.combine"
NAME, KIND, PADDED = "kitsune.name", "kitsune.kind", "kitsune.padded_shape"
SIDE_BY_SIDE = "kitsune.side_by_side"
CALLER_ORDER, ORDER = "kitsune.caller_dim_order", "kitsune.dim_order"
NEUTRAL = "kitsune.neutral"
OPERAND_SUM, MICRO_BATCH = "kitsune.operand_sum", "kitsune.micro_batch"
PDL_FIRST, PDL_SECONDARY, PDL_PRIMARY = "kitsune.pdl_first", "kitsune.pdl_secondary", "kitsune.pdl_primary"
WRITTEN, SPARE = "kitsune.written", "kitsune.spare"


@dataclass(frozen=True)
class AttributeSpec:
    """One attribute.

    Attributes:
        name: as it is written.
        on: the operations that may have it; `ARGUMENT` and `RESULT` are those of a function.
        type: a key of `TYPES`.
        written, read: by which passes and parts of the compiler.
        meaning: a sentence.
        least: of an integer, or of each of several.
        one_of: the strings that it may be; () for any.
    """

    name: str
    on: tuple[str, ...]
    type: str
    written: str
    read: str
    meaning: str
    least: int | None = None
    one_of: tuple[str, ...] = ()

    def problem(self, attribute: ir.Attribute) -> str | None:
        """What is wrong with a value: what it must be, and what it is; None if nothing is."""
        if not TYPES[self.type](attribute):
            return f"'{self.name}' must be {self.type}, got {attribute}"
        if self.one_of and (word := ir.StringAttr(attribute).value) not in self.one_of:
            return f"'{self.name}' must be one of {', '.join(self.one_of)}, got '{word}'"
        if self.least is not None and any(number < self.least for number in _numbers(attribute)):
            return f"'{self.name}' must be at least {self.least}, got {attribute}"
        return None


def _numbers(attribute: ir.Attribute) -> list[int]:
    return list(attribute) if isinstance(attribute, ir.DenseI64ArrayAttr) else [ir.IntegerAttr(attribute).value]


TYPES = {
    "a string": lambda a: isinstance(a, ir.StringAttr),
    "an integer": lambda a: isinstance(a, ir.IntegerAttr),
    "a number": lambda a: isinstance(a, ir.FloatAttr | ir.IntegerAttr),
    "a unit": lambda a: isinstance(a, ir.UnitAttr),
    "array<i64: ...>": lambda a: isinstance(a, ir.DenseI64ArrayAttr),
    "array<i32: ...>": lambda a: isinstance(a, ir.DenseI32ArrayAttr),
    "an array": lambda a: isinstance(a, ir.ArrayAttr),
    "an array of strings": lambda a: isinstance(a, ir.ArrayAttr) and all(isinstance(item, ir.StringAttr) for item in a),
}
"""What an attribute can be, and whether it is."""

FORM, PARTITION, PLACE = "`kitsune-form-stages`", "`kitsune-partition-streams`", "`kitsune-place-buffers`"
WRITE = "`kitsune-write-in-place`"
MATERIALIZE, CODE = "`kitsune-materialize`", "code generators"

# fmt: off
ATTRIBUTES = (
    AttributeSpec("sym_name", (PIPELINE, STAGE, TASK), "a string", FORM + ", " + MATERIALIZE, "all after it", "Its name."),
    AttributeSpec("mode", (PIPELINE,), "a string", PARTITION, MATERIALIZE,
        "Who runs the stages: every block tiles of every stage, shares of the multiprocessors, or several kernels. "
        "`temporal` where it is absent.", one_of=MODES),
    AttributeSpec("arena", (PIPELINE,), "an integer", PLACE, MATERIALIZE, "Bytes of the buffer of all intermediates.", 0),
    AttributeSpec("engine", (STAGE,), "a string", PARTITION, MATERIALIZE + ", cost models", "Who does it, by its offer."),
    AttributeSpec("tile", (STAGE,), "array<i64: ...>", PARTITION, MATERIALIZE + ", cost models",
        "Tile sizes of the dimensions that its operations share.", 1),
    AttributeSpec(GROUPS, (STAGE,), "an integer", PARTITION, MATERIALIZE,
        "Groups of a product's columns that have counters of their own.", 1),
    AttributeSpec(UPDATES, (STAGE,), "an integer", PARTITION, MATERIALIZE + ", cost models",
        "Of a scatter-add with atomics: rows that a task adds.", 1),
    AttributeSpec(ORDERED, (STAGE,), "an integer", PARTITION, MATERIALIZE + ", cost models",
        "Of a deterministic scatter-add: rows of the result, which one task adds in order.", 0),
    AttributeSpec(INTO, (STAGE,), "a string", PARTITION, PLACE + ", " + MATERIALIZE + ", cost models",
        "The stage whose tasks do this one's scatter-add."),
    AttributeSpec(INDEXED, (STAGE,), "an array of strings", PARTITION, "`kitsune-synchronize`, " + MATERIALIZE,
        "The stages of whose results tiles wait for the rows that their indices name."),
    AttributeSpec("workers", (STAGE, TASK), "an integer", PARTITION + ", " + MATERIALIZE, MATERIALIZE + ", " + CODE,
        "Multiprocessors that it owns in a spatial pipeline.", 1),
    AttributeSpec("launch", (STAGE, TASK), "an integer", PARTITION + ", " + MATERIALIZE, MATERIALIZE + ", " + CODE,
        "The kernel that it is part of in a separate pipeline.", 0),
    AttributeSpec("ring", (STAGE,), "an integer", PARTITION, PLACE, "Tiles that a ring for its result should hold.", 1),
    AttributeSpec("buffers", (STAGE,), "an array", PLACE, MATERIALIZE, "A `#kitsune.buffer` for each result."),
    AttributeSpec("offsets", (STAGE,), "array<i64: ...>", PLACE, MATERIALIZE,
        "Bytes from the start of the arena to each result; -1 where it has no place there.", -1),
    AttributeSpec("after", (STAGE,), "an array of strings", PLACE, MATERIALIZE,
        "The stages that must have finished before it may write: readers of what lay in its buffers' bytes."),
    AttributeSpec(OVERWRITES, (STAGE,), "array<i64: ...>", WRITE, PLACE + ", " + MATERIALIZE,
        "For each result the argument of the function in whose memory it is written; -1 where it has memory of its own.", -1),
    AttributeSpec("sync", (STAGE,), "an array", "`kitsune-synchronize`", MATERIALIZE, "A `#kitsune.sync` for each input."),
    AttributeSpec("grid", (TASK,), "array<i64: ...>", MATERIALIZE, CODE, "How many tiles there are along each dimension.", 1),
    AttributeSpec("engine", (TASK,), "a string", MATERIALIZE, CODE, "Who is asked first to do it."),
    AttributeSpec("first", (TASK,), "an integer", MATERIALIZE, CODE,
        "In a spatial program, the first of the multiprocessors that it owns.", 0),
    AttributeSpec("slots", ("kitsune.make_semaphore",), "an integer", MATERIALIZE, CODE, "How many counters there are.", 1),
    AttributeSpec("count", ("kitsune.wait", "kitsune.wait_rows", "kitsune.wait_rounds"), "an integer", MATERIALIZE, CODE,
        "Posts of a slot that are waited for.", 1),
    AttributeSpec("rows", ("kitsune.wait_rows",), "an integer", MATERIALIZE, CODE, "Rows of a tile, which has one slot.", 1),
    AttributeSpec("extent", ("kitsune.wait_rows",), "an integer", MATERIALIZE, CODE, "Rows that an index can name.", 1),
    AttributeSpec("pushes", ("kitsune.make_queue",), "an integer", MATERIALIZE, CODE, "Producers of a part of each tile.", 1),
    AttributeSpec("pops", ("kitsune.make_queue",), "an integer", MATERIALIZE, CODE, "Readers of each tile.", 1),
    AttributeSpec("kind", ("kitsune.atomic_scatter", "kitsune.ordered_scatter"), "a string", MATERIALIZE, CODE,
        "What becomes of two values that meet, as in `arith::AtomicRMWKind`.", one_of=KINDS),
    AttributeSpec("cell", ("kitsune.recurrence",), "a string", "the importer", CODE, "What a step does.", one_of=tuple(CELLS)),
    AttributeSpec("batch_first", ("kitsune.recurrence",), "a unit", "the importer", CODE,
        "A step is the second dimension of what is given and of the result, not the first."),
    AttributeSpec("operandSegmentSizes", ("kitsune.recurrence",), "array<i32: ...>", "the importer", CODE,
        "How many operands are what is given, weights, biases and states."),
    AttributeSpec(ALONE, ("kitsune.atomic_scatter",), "a unit", MATERIALIZE, "the host's code generator",
        "One tile does all of it: nothing needs to be atomic, and a row outside is an error."),
    AttributeSpec("kitsune.program", (PROGRAM,), "a unit", MATERIALIZE, CODE + ", `kitsune-check-progress`",
        "The function is a tile program."),
    AttributeSpec("kitsune.mode", (PROGRAM,), "a string", MATERIALIZE, CODE,
        "The pipeline's mode, where it is not `temporal`.", one_of=MODES),
    AttributeSpec("kitsune.arguments", WORKER, "an integer", MATERIALIZE + ", " + CODE, CODE,
        "How many of the function's arguments are the model's; of the host's worker, all.", 0),
    AttributeSpec("kitsune.results", (PROGRAM,), "an integer", MATERIALIZE, CODE,
        "How many arguments after these are its results.", 0),
    AttributeSpec(PROGRAM_OVERWRITES, WORKER, "array<i64: ...>", MATERIALIZE, CODE + ", `kitsune-check-progress`, the runtime",
        "For each result the argument whose memory the caller gives for it, and whose values are there before; -1 for none. "
        "The program does not use that argument itself.", -1),
    AttributeSpec(PDL_FIRST, (PROGRAM,), "a unit", "`kitsune-to-gpu`", "`kitsune-to-gpu`",
        "Its kernel comes after one that copies inputs, for whose end it waits before anything else."),
    AttributeSpec(PDL_SECONDARY, (PROGRAM,), "a unit", "`kitsune-to-gpu`", "`kitsune-to-gpu`",
        "Its kernel comes after another one of the program, for whose end it waits itself (programmatic dependent launch)."),
    AttributeSpec(PDL_PRIMARY, (PROGRAM,), "a unit", "`kitsune-to-gpu`", "`kitsune-to-gpu`",
        "Its kernel lets the next one of the program begin before it has ended."),
    AttributeSpec(WRITTEN, (PROGRAM,), "array<i64: ...>", "`kitsune-to-gpu`", "`kitsune-to-gpu`",
        "The arguments that earlier kernels of the program write: what these hold is no longer what the caller gave.", 0),
    AttributeSpec(SPARE, (PROGRAM,), "array<i64: ...>", "`kitsune-to-gpu`", "`kitsune-to-gpu`",
        "Bytes of the arena that nobody needs while its kernel runs, each range's start and end; the last has no end.", 0),
    AttributeSpec(NAME, (ARGUMENT,), "a string", "the importer", "messages, dumps", "The argument's name in the model."),
    AttributeSpec(KIND, (ARGUMENT,), "a string", "the importer", "`kitsune-channels-last`, `kitsune-pad-sums`",
        "What the argument is: all but inputs are given once.", one_of=KINDS_OF_ARGUMENTS),
    AttributeSpec(CALLER_ORDER, (ARGUMENT,), "array<i64: ...>", "the importer", "`kitsune-channels-last`",
        "The order of its dimensions in the caller's memory, outermost first, where it is not row-major.", 0),
    AttributeSpec(ORDER, (ARGUMENT, RESULT), "array<i64: ...>", "`kitsune-channels-last`, `kitsune-normalize`",
        "the calling convention", "The order of its dimensions in the program's memory, outermost first.", 0),
    AttributeSpec(MUTATES, (RESULT,), "an integer", "the importer", WRITE,
        "The argument that the model changes, whose new value this is and nothing else.", 0),
    AttributeSpec(VALID_ROWS, (RESULT, PROGRAM), "array<i64: ...>", "the importer, " + MATERIALIZE, CODE,
        "The argument, an i64, that says how many rows of the result are valid, and how many rows it is long along its "
        "outermost dimension (a row may be several elements); of a tile program these two for each result, or -1 and -1.", -1),
    AttributeSpec(COUNTED, ("tm_tensor.scatter", "kitsune.atomic_scatter"), "array<i64: ...>", "the importer, " + MATERIALIZE,
        CODE, "The argument, an i64, that says how many rows are put somewhere, and how many there are: the others change "
        "nothing, so they need not be read.", 0),
    AttributeSpec(ENDS, (TASK,), "array<i64: ...>", CODE, CODE,
        "Of a task of one of several launches, how many places of its grid's first dimension, the first ones, a call needs: "
        "for each count that decides its argument, units, places, group and extra (`kernel/live.py`).", 0),
    AttributeSpec(LIVE, WORKER, "array<i64: ...>", CODE, "the runtime",
        "For each task of which a call may leave out tiles: the word of the control block that says how many, the length of "
        "the grid along the dimension from whose end they are left out, how many counts decide, and for each count its "
        "argument and a threshold for each place: it matters where the count is more.", -1),
    AttributeSpec(SIDE_BY_SIDE, (ARGUMENT,), "array<i64: ...>", "`kitsune-channels-last`", "the calling convention",
        "Rows of a group of a grouped convolution's weight, and how many groups the program takes as one, of the padded shape: "
        "the channels of a group lie behind those of the groups before it, beside zeros.", 1),
    AttributeSpec(PADDED, (ARGUMENT,), "array<i64: ...>", "`kitsune-pad-sums`, `kitsune-channels-last`",
        "the calling convention",
        "Extents with which the program takes a weight: what the caller's has not is zeros at the end of dimensions.", 1),
    AttributeSpec(NEUTRAL, ("tm_tensor.scan",), "a number", "the importer", CODE,
        "What changes nothing, of a scan whose body is more than one operation."),
    AttributeSpec("kitsune.reshape", ("builtin.unrealized_conversion_cast",), "a string", "`kitsune-normalize`",
        "`kitsune-normalize`", "The reshape that the cast hides from the fuser, inside the pass only."),
    AttributeSpec(ATTENTION, ("linalg.generic", "tensor.concat"), "an integer", "`kitsune-fuse-attention`",
        FORM + ", `kitsune-merge-rows`, `kitsune-split-reductions`, " + PARTITION,
        "The attention that it is part of: one stage.", 0),
    AttributeSpec(PAIRS, (ANY,), "an integer", "`kitsune-fuse-pairs`", FORM + ", " + PARTITION,
        "The products of all pairs of a sample's vectors that it is part of: one stage.", 0),
    AttributeSpec(NO_FUSION, (ANY,), "a unit", "`kitsune-normalize`, `kitsune-pad-sums`, " + FORM, FORM,
        "It is a stage of its own."),
    AttributeSpec(PARTIAL, ("linalg.generic",), "a unit", "`kitsune-split-reductions`", FORM,
        "It makes the partial results of a reduction in parts, which stay in memory."),
    AttributeSpec(COMBINE, ("linalg.generic",), "a unit", "`kitsune-split-reductions`", FORM,
        "It combines the partial results of a reduction in parts."),
    AttributeSpec(OPERAND_SUM, ("linalg.generic",), "an integer", "`kitsune-split-reductions`",
        FORM + ", cost models, " + CODE,
        "A product, and the sum of its rows' operand over its terms, which the product's stage makes beside it.", 0),
    AttributeSpec(MICRO_BATCH, (ANY,), "an integer", "`kitsune-micro-batches`", FORM,
        "Of which rows' micro-batch it is a part: stages of one come before those of the next.", 0),
    AttributeSpec(HALO, ("tensor.pad",), "a unit", FORM, FORM + ", " + MATERIALIZE,
        "Only convolutions read it, which read zeros outside of the image themselves: there is no padded copy."),
    AttributeSpec(IN_PLACE, (ANY,), "a unit", FORM, FORM + ", " + MATERIALIZE,
        "Only products read this concatenation or gather, each part where it lies: there is no copy."),
    AttributeSpec("kitsune.manifest", ("gpu.module",), "a string", "`kitsune-to-gpu`", "the runtime",
        "The kernel's manifest, JSON."),
    *(AttributeSpec(f"kitsune.{name}", WORKER, "an integer", "`kitsune-to-host`", "the host's runtime", meaning, 0)
      for name, meaning in (("tiles", "Tiles of all tasks."), ("slots", "Counters of all semaphores."),
                            ("control_bytes", "Memory for counters and errors of a run."),
                            ("scratch_bytes", "Memory that each worker has for itself."),
                            ("arena_bytes", "Memory for all intermediates."))),
    AttributeSpec("kitsune.argument_bytes", WORKER, "array<i64: ...>", "`kitsune-to-host`", "the host's runtime",
        "Bytes of each argument but the arena.", 0),
)
# fmt: on

_DISCARDABLE = {spec.name: spec for spec in ATTRIBUTES if spec.name.startswith("kitsune.")}


@functools.cache
def declared(op: str) -> dict[str, AttributeSpec]:
    """The attributes that the table has for an operation of this dialect, by name."""
    return {spec.name: spec for spec in ATTRIBUTES if op in spec.on}


def misplaced(root: ir.Operation) -> Iterator[tuple[ir.Operation, str]]:
    """Operations in `root` with a `kitsune.` attribute that is unknown, stands where it means nothing, or has a wrong value.

    Yields each with what is wrong, after `'NAME' op`.
    """
    found: list[tuple[ir.Operation, str]] = []

    def look(op: ir.Operation) -> ir.WalkResult:
        name = op.name
        for attribute in op.attributes:
            if attribute.startswith("kitsune.") and (wrong := _problem(attribute, op.attributes[attribute], name)):
                found.append((op, wrong))
        if name == "func.func":
            for attributes, place in (("arg_attrs", ARGUMENT), ("res_attrs", RESULT)):
                for each in op.attributes[attributes] if attributes in op.attributes else ():
                    wrong = [w for item in each if (w := _problem(item.name, item.attr, place))]
                    found.extend((op, text) for text in wrong)
        return ir.WalkResult.ADVANCE

    root.walk(look, ir.WalkOrder.PRE_ORDER)
    yield from found


def _problem(name: str, attribute: ir.Attribute, place: str) -> str | None:
    if not name.startswith("kitsune."):
        return None
    spec = _DISCARDABLE.get(name)
    if spec is None:
        return f"has attribute '{name}', which is none of the dialect's"
    if place not in spec.on and ANY not in spec.on:
        return f"has attribute '{name}', which is for {' and '.join(spec.on)}, not for {place}"
    return spec.problem(attribute)
