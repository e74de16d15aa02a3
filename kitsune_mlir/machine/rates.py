"""The rates that cost models plan with, each once: value, unit, device, date, and where it comes from. Numbers only, no IR.

A `Rate` is a float, so models calculate with it. What a machine has as a whole (memory, tensor cores, caches) is in
`kitsune_mlir.machine.target`; other machines than the device of a rate are those rates scaled by their clocks and caches.
`docs/rates.md` is written from this file, with the quantities that have several values beside what was measured.
"""

from __future__ import annotations

import dataclasses

__all__ = ["DISAGREEMENTS", "ENGINES", "SIMULATED", "Disagreement", "EngineRates", "Rate", "RateTable", "rates"]

DEVICE = "NVIDIA H200"
MMA_FIT = "fitted to the times in test/unit/test_mma_cost.py"
SIMT_FIT = "fitted to the times in test/unit/test_tiles_simt.py"
ZOO_FIT = "fitted to tiles of the zoo, bench/results/simulate-h200.json, `python -m bench.predictions run DIR`"
GENERIC_FIT = "fitted to bench/results/generic-h200.json, `python -m bench.generic run DIR`"
PARTS_FIT = "fitted to bench/results/reductions-h200.json"
OPERATORS_FIT = "fitted to operators of `python -m bench.suite run DIR op_...` (bench/results/bench-nvidia-h200-*.json)"
MODES = "bench/results/modes-h200.json, `python -m bench.modes run DIR`"
QUEUES = "bench/results/queues-h200.json, `python -m test.gpu.queue_programs run DIR`"
CONV_FIT = "fitted with the `conv` engine, no record was kept"
CHAIN_FIT = "fitted with the `chain` engine, no record was kept"
ATTENTION_FIT = "fitted with the `attention` engine, no record was kept"
RATES = "bench/results/rates-h200.json, `python -m bench.rates run DIR`"
SORT_FIT = "fitted to sorts of bench/breadth/operators, bench/results/bench-nvidia-h200-2026-11-23.json"
RADIX_FIT = "fitted to random_moves_84 and op_order_argsort_vector, bench/results/bench-nvidia-h200-2026-11-28.json"
RADIX_GUESS = "set with the `radix_sort` engine from the rates of hand-offs, no record was kept"
RECURRENCE_GUESS = "set with the `recurrence` engine from the rates of hand-offs, no record was kept"
SCAN_GUESS = "set with the engine, no record was kept"
LAUNCHES_GUESS = "set with the choice of launches, no record was kept"
PARTS_GUESS = "set with `kitsune-split-reductions`, no record was kept"


class Rate(float):
    """A number with what it stands for.

    Attributes:
        unit: of the value.
        meaning: what takes so long, or moves so fast.
        date: when the value was set.
        source: the record and command that it comes from, or what it was fitted to.
        device: what it was measured on.
    """

    unit: str
    meaning: str
    date: str
    source: str
    device: str

    def __new__(cls, value: float, unit: str, date: str, source: str, meaning: str, device: str = DEVICE) -> Rate:
        rate = super().__new__(cls, value)
        rate.unit, rate.date, rate.source, rate.meaning, rate.device = unit, date, source, meaning, device
        return rate


class RateTable(dict):
    """Several rates of one kind by what they are of; the rest as for `Rate`."""

    def __init__(self, values: dict, unit: str, date: str, source: str, meaning: str, device: str = DEVICE):
        super().__init__(values)
        self.unit, self.date, self.source, self.meaning, self.device = unit, date, source, meaning, device


# fmt: off
# --- Between stages, tiles and launches: passes/modes, passes/stages, machine/stage_cost.py, simulation/

MODE_HAND_OFF = Rate(1.5e-6, "s", "2026-11-22", MODES,
    "from a stage's last tile to the first operands of a tile that waits for it, in one kernel")
CHAIN_HAND_OFF = Rate(2.5e-6, "s", "2026-11-21", CHAIN_FIT,
    "from the last tile of a stage to the first product of the next, the way in and out of a stage included: what fusing "
    "saves")
STREAMED_HAND_OFF = Rate(1.0e-6, "s", "2026-11-21", MODES,
    "the hand-off between tasks of one kernel whose weights come through one ring, whatever the activations do")
POST = Rate(0.7e-6, "s", "2026-11-21", ZOO_FIT, "from a post to the end of a wait for it, through L2")
ATOMIC_POST = Rate(2e-6, "s", "2026-11-21", MODES,
    "that the post of a tile waits for the tile's atomic additions (edges of graph networks)")
ATOMIC_SETTLING = Rate(3e-6, "s", "2026-11-22", MODES,
    "the same for a block's one post after all of its tiles: a graph network of 20,000 nodes takes 76.5 us in one launch, "
    "72.5 in two")
ROW_LOOKUP = Rate(1.3e-6, "s", "2026-11-22", "fitted with waits for rows, no record was kept",
    "in which a thread has an index and the counter of the row that it names: two reads of L2, one after the other")
LAUNCH_GAP = Rate(0.7e-6, "s", "2026-11-21", MODES,
    "from one kernel's last tile to the next one's tiles, with programmatic dependent launch and launches queued (2 us in "
    "the replay of a single graph)")
LAUNCH_AHEAD = Rate(0.9e-6, "s", "2026-11-27", OPERATORS_FIT,
    "of a kernel's start that is over when the one before it has ended, as its blocks are there by then (simulated)")
LAUNCH_SAVING = Rate(1e-6, "s", "2026-11-28", LAUNCHES_GUESS,
    "that one launch more saves at least to be worth its kernel, where launches are long")
LAUNCH_SHORT = Rate(2e-6, "s", "2026-11-21", MODES,
    "a launch that takes less is over before the replay of a single graph has started the next one, so it has to save as much")
LAUNCH_LONG_MOVE = Rate(5e-7, "s", "2026-11-28", LAUNCHES_GUESS,
    "that memory takes for what a stage beside convolutions moves, from which on its blocks sharing multiprocessors count")
RING_SHARES = RateTable({0: 0.0, 2: 0.6, 4: 0.9, 8: 1.0}, "share", "2026-11-21", QUEUES,
    "of `Target.ring_rate` that a ring reaches, by the tiles that it holds for each block of its producer; 0 is no ring but "
    "the whole edge in memory")
L2_USABLE = Rate(0.8, "share", "2026-11-21", ZOO_FIT,
    "of L2 that holds a program's data: some is other people's, and addresses do not spread evenly")
DRAM_SHARE = Rate(0.94, "share", "2026-11-21", ZOO_FIT, "of the rate of a plain copy that tiles get from memory")

# --- Stages and tiles of any engine: machine/

CLOCK = Rate(1.9e9, "cycle/s", "2026-11-22", GENERIC_FIT, "at which an engine's own cycles are counted")
GATHER = Rate(1.0e-6, "s", "2026-11-21", ZOO_FIT, "that a tile takes longer whose addresses are read from memory first")
COPY_RATE = Rate(3.4e9, "B/s", "2026-11-21", ZOO_FIT,
    "of a product's operands that threads copy, element by element, where no bulk copy can")
BLOCK_SHARE = Rate(0.5, "share", "2026-11-21", ZOO_FIT,
    "of a multiprocessor's pipes that one block keeps busy: so many blocks side by side do not slow each other down")
PARTIAL_RATE = Rate(5.3e10, "B/s", "2026-11-23", RATES, "of partial results that a multiprocessor writes or reads")
MEET = Rate(1.75e-6, "s", "2026-11-23", RATES,
    "that blocks which share a tile take longer than one with a whole tile, beside writing and reading partial results")
RECURRENT_STEP = Rate(2.3e-6, "s", "2026-11-23", RECURRENCE_GUESS,
    "from the end of a step of a recurrent layer in one block until all others have begun the next one")
RECURRENT_FLAG = Rate(1.2e-6, "s", "2026-11-23", RECURRENCE_GUESS,
    "the same where a hidden state comes with the number of its step")
RECURRENT_LOAD = Rate(6.0e10, "B/s", "2026-11-23", RECURRENCE_GUESS, "loaded from L2 by the threads of a block of such a layer")
RECURRENT_LOADS = Rate(5.0e12, "B/s", "2026-11-23", RECURRENCE_GUESS, "the same of all blocks together")
RECURRENT_SHARED = Rate(2.0e11, "B/s", "2026-11-23", RECURRENCE_GUESS, "weights that a block reads from shared memory")
RECURRENT_PRODUCT = Rate(0.94e-9, "s", "2026-11-23", RECURRENCE_GUESS, "of a `mma.sync`, all parts of a multiprocessor at work")
RECURRENT_CHAIN = Rate(2.0e-8, "s", "2026-11-23", RECURRENCE_GUESS, "of a `mma.sync` that waits for the one before")
RECURRENT_CELL = Rate(6.0e-8, "s", "2026-11-23", RECURRENCE_GUESS, "that each thread takes for a unit, beside its sums")
RECURRENT_PASS = Rate(6.0e-7, "s", "2026-11-23", RECURRENCE_GUESS, "that each further pass over rows of the batch adds")
RECURRENT_GROUP = Rate(4.0e-7, "s", "2026-11-23", RECURRENCE_GUESS, "the same of rows that come after others in a pass")
RECURRENT_SUM = Rate(1.5e-9, "s", "2026-11-23", RECURRENCE_GUESS, "for each partial sum of a gate")
COMPARED = Rate(6.5, "instructions", "2026-11-28", SORT_FIT,
    "for each element and step of a network that sorts, the places of 32 bits and less beside keys in one word")
RADIX_MEET = Rate(1.75e-6, "s", "2026-11-28", RADIX_GUESS, "that each step of a row takes which blocks sort together")
RADIX_ELEMENT = Rate(2.1e-9, "s", "2026-11-28", RADIX_FIT, "for each element of a block's part, in two of these steps")
BULK_RATE = Rate(1.5, "times", "2026-11-21", "the ratio of the H200's `bulk_rate` and `cache_rate` in machine/target.py",
    "the rate of the caches at which bulk copies come from L2, where a machine's own is not known")
GATHERED_RATE = Rate(4.0e10, "B/s", "2026-11-22", ZOO_FIT, "gathered by a chain too wide to gather beside its products")
ADDED_RATE = Rate(1.2e10, "B/s", "2026-11-22", ZOO_FIT, "added to rows by a chain too wide to add beside its products")
VECTOR_WEIGHTS = RateTable({
    "math.exp": 2.5, "math.exp2": 2.0, "math.log": 3.0, "math.log2": 2.0, "math.log1p": 6.0, "math.expm1": 6.0,
    "math.tanh": 2.5, "math.erf": 6.0, "math.sin": 10.0, "math.cos": 10.0, "math.powf": 20.0, "math.fpowi": 4.0,
    "math.sqrt": 3.0, "math.rsqrt": 2.5, "arith.divf": 3.0, "arith.remf": 16.0,
    "arith.divsi": 20.0, "arith.divui": 20.0, "arith.remsi": 20.0, "arith.remui": 20.0,
    "arith.extf": 0.25, "arith.truncf": 0.5, "arith.constant": 0.0, "linalg.index": 0.5, "linalg.yield": 0.0,
    }, "instructions", "2026-11-21", ZOO_FIT, "of an element, beside an addition, which is one")
SIMULATED_WEIGHTS = RateTable({**VECTOR_WEIGHTS, "math.sin": 20.0, "math.cos": 20.0, "math.powf": 90.0}, "instructions",
    "2026-11-27", OPERATORS_FIT, "the same, as the simulator counts them")
SLOWER_MATRIX = RateTable({1: 1.0, 2: 1.0, 4: 2.0, 8: 12.0}, "times", "2026-11-22",
    "the vendor's figures, beside the measured rate of bf16",
    "that products are slower than bf16 ones, by the bytes of an operand's element: TF32, f64")
TASK_FLOOR = Rate(2e-6, "s", "2026-11-22", GENERIC_FIT,
    "that any task takes, as part of its floor: without it an empty one would be slow")

# --- Tiles of products: engines/mma/cost.py

MMA_TENSOR_RATE = Rate(3.15e6, "multiply-add/us", "2026-11-22", MMA_FIT,
    "of 16-bit numbers on a multiprocessor, all of them busy")
MMA_SUSTAINED_RATE = Rate(3.05e6, "multiply-add/us", "2026-11-22", MMA_FIT, "the same for long")
MMA_SUSTAINED_AFTER = Rate(40.0, "us", "2026-11-21", MMA_FIT, "of products after which the limits of power and L2 show")
MMA_CHUNK_LEAST = Rate(0.16, "us", "2026-11-22", MMA_FIT, "of the smallest chunk: barriers, and starting loads and products")
MMA_LOAD_RATE = Rate(1.08e5, "B/us", "2026-11-22", MMA_FIT,
    "that a multiprocessor takes from L2, about the same with 96 busy ones as with 132: 64 a cycle")
MMA_SUSTAINED_LOADS = Rate(1.15e7, "B/us", "2026-11-22", MMA_FIT, "that all multiprocessors together take from L2, for long")
MMA_OVERLAP_LOSS = Rate(0.1, "share", "2026-11-22", MMA_FIT,
    "of products, loads or DRAM, whichever take less time, that is not hidden behind the others")
MMA_DRAM_RATE = Rate(3.9e6, "B/us", "2026-11-22", MMA_FIT,
    "of operands from memory, where L2 does not hold them from call to call")
MMA_DRAM_ASKING = Rate(0.25, "share", "2026-11-22", MMA_FIT,
    "of `MMA_DRAM_RATE` that grows with the multiprocessors that ask for operands ...")
MMA_DRAM_ENOUGH = Rate(0.9, "share", "2026-11-22", MMA_FIT, "... up to this part of all")
MMA_START = Rate(1.8, "us", "2026-11-22", MMA_FIT,
    "from a task's start to the first product, and from the last store to the end")
MMA_STORE_RATE = Rate(2.24e4, "B/us", "2026-11-22", MMA_FIT,
    "of a result that a multiprocessor brings from accumulators to memory")
MMA_TURN = Rate(0.13, "us", "2026-11-22", MMA_FIT,
    "from a block's one tile to its next, beside what of the store stands in the way of its products ...")
MMA_STORE_SHARE = Rate(0.64, "share", "2026-11-22", MMA_FIT, "... that part of it")
MMA_MEET = Rate(0.7, "us", "2026-11-22", MMA_FIT,
    "from one block's announcement of its partial results until another one knows: the part of `MEET` that the rest of this "
    "model does not have already")
MMA_HALVING_RATE = Rate(2.7e4, "B/us", "2026-11-21", MMA_FIT,
    "of f32 operands that a multiprocessor halves (`contraction.tf32x3`)")
MMA_SHARING = Rate(1.015, "times", "2026-11-22", MMA_FIT,
    "that blocks which share tiles take of all their time, as they meet and differ")

# --- Tiles of convolutions: engines/conv/tiles.py

CONV_MACS = Rate(2048, "multiply-add/cycle", "2026-11-21", "the vendor's figure",
    "of 16-bit numbers on a multiprocessor; half as many in TF32")
CONV_SHARED_RATE = Rate(128, "B/cycle", "2026-11-21", "the vendor's figure", "of shared memory")
CONV_CACHE_RATE = Rate(4000, "B/cycle", "2026-11-21", CONV_FIT, "from L2 to all multiprocessors together ...")
CONV_LINK_RATE = Rate(60, "B/cycle", "2026-11-21", CONV_FIT, "... and to one of them")
CONV_TILE_CYCLES = Rate(1800, "cycle", "2026-11-21", CONV_FIT,
    "until the first operands arrive, and from the last product to the last store")
CONV_COLUMN_CYCLES = Rate(6, "cycle", "2026-11-21", CONV_FIT, "of the stores, a column")
CONV_EXCHANGE_CYCLES = Rate(3000, "cycle", "2026-11-21", CONV_FIT,
    "until the last piece of a tile has the partial results of the others")
CONV_STEP_CYCLES = Rate(350, "cycle", "2026-11-21", CONV_FIT,
    "from one step to the next at least: barriers, and starting the products")

# --- What becomes one stage: kitsune_mlir/codegen/gpu/engines/chain/layers.py

CHAIN_TURN = Rate(0.7e-6, "s", "2026-11-21", CHAIN_FIT, "from a block's one tile of 128 x 128 of a product to its next")
CHAIN_WIDE_LAYER = Rate(1.5e-6, "s", "2026-11-22", CHAIN_FIT,
    "that a layer of several passes takes beside its products: the ends of passes, rows through shared memory")
CHAIN_LAYER = Rate(0.3e-6, "s", "2026-11-21", CHAIN_FIT,
    "by which a layer's accumulators are ready later than its last product was issued")

# --- Reductions in parts: passes/split_reductions.py

PARTS_LOAD_RATE = Rate(8e10, "B/s", "2026-11-21", PARTS_GUESS, "that a multiprocessor reads where it reduces")
PARTS_SCALAR_RATE = Rate(2e10, "multiply-add/s", "2026-11-21", PARTS_GUESS,
    "of a multiprocessor where tensor cores cannot do a product")
PARTS_START = Rate(2.5e-6, "s", "2026-11-21", PARTS_GUESS, "before a stage's first result and after its last, whatever it does")
PARTS_LEAST_GAIN = Rate(2e-6, "s", "2026-11-21", PARTS_FIT, "that parts save at least: a stage more is one more to wait for")
PARTS_PARTIAL_RATE = Rate(2.8e12, "B/s", "2026-11-21", PARTS_FIT,
    "of partial results, all multiprocessors together, each byte written and read")
PARTS_RING_BYTES = Rate(200e3, "B", "2026-11-21", PARTS_FIT, "that a block which multiplies has on its way at most")
PARTS_SHARED_TILES = Rate(1.3, "times", "2026-11-21", PARTS_FIT,
    "longer that long sums take where blocks share tiles than `mma.cost` says, which knows shorter ones")
PARTS_LATENCY = Rate(2.1e-6, "s", "2026-11-21", PARTS_FIT, "from asking for a chunk to having it, while all ask")

# --- Tiles of memory-bound stages, attention and gemv: interface/memory_tiles.py, engines/attention, engines/gemv

SIMT_TILE = Rate(1.0e-6, "s", "2026-11-21", SIMT_FIT, "of a tile, from the start of its loads to the end of its stores ...")
SIMT_LEVEL = Rate(0.5e-6, "s", "2026-11-21", SIMT_FIT, "... and what each reduction adds: shuffles, or a barrier")
SIMT_DEPTH_LOSS = Rate(0.022, "share", "2026-11-21", SIMT_FIT,
    "of the memory's rate that a map loses with each doubling of what a thread asks for at a time")
ATTENTION_TILES = RateTable({128: 1.0, 64: 0.65}, "tile", "2026-11-22", ATTENTION_FIT,
    "that 128 keys take by the rows of a tile, beside those of the largest (1.2 us)")
ATTENTION_OVERHEAD = Rate(1.0, "block of keys", "2026-11-22", ATTENTION_FIT,
    "that every tile takes beyond its blocks of keys")
GEMV_FREE_READS = Rate(0.6, "reads", "2026-11-21", "fitted with the `gemv` engine, no record was kept",
    "of activations from L2, for each weight from DRAM, that cost no time")

# --- Loops of the generic engine: engines/generic/cost.py

GENERIC_FAR = Rate(330.0, "cycle", "2026-11-22", GENERIC_FIT, "until a load from L2 has its value ...")
GENERIC_NEAR = Rate(60.0, "cycle", "2026-11-22", GENERIC_FIT, "... where the last one's line is likely the same ...")
GENERIC_SHARED = Rate(40.0, "cycle", "2026-11-22", GENERIC_FIT, "... and from shared memory")
GENERIC_OVERLAPPED = Rate(6.0, "iterations", "2026-11-22", GENERIC_FIT,
    "of a loop whose loads do not depend on each other that are under way together (LLVM unrolls, loads come first)")
GENERIC_OP = Rate(5.0, "cycle", "2026-11-22", GENERIC_FIT, "from an operand to a result ...")
GENERIC_SPECIAL = Rate(25.0, "cycle", "2026-11-22", GENERIC_FIT, "... of divisions and functions")
GENERIC_ISSUED = Rate(4.0, "instructions/cycle", "2026-11-22", "the vendor's figure", "that a multiprocessor begins")
GENERIC_ADDRESS = Rate(4.0, "instructions", "2026-11-22", GENERIC_FIT, "round a load or store: its address, its loop")
GENERIC_LINES = Rate(32.0, "transactions", "2026-11-22", "the vendor's figure",
    "of a warp's access whose threads are not neighbours in memory")
GENERIC_BRANCH = Rate(60.0, "cycle", "2026-11-22", GENERIC_FIT,
    "of a branch on what was loaded, where neighbouring threads part")
GENERIC_STORED = Rate(12.0, "cycle", "2026-11-22", GENERIC_FIT, "of each store that a later step may read")
GENERIC_DEALT = Rate(60.0, "cycle", "2026-11-22", GENERIC_FIT,
    "of a dealt-out loop beside its iterations: dividing the work, a barrier")
# fmt: on


@dataclasses.dataclass(frozen=True)
class EngineRates:
    """How an engine works (`machine/stage_cost.py` says which part of a tile is which).

    Attributes:
        start, finish, turn: seconds; `finish` beside what the stores take.
        poll: seconds that a wait takes which is met already.
        tensor: share of the multiprocessor's rate of products that it reaches.
        vector: the same for other arithmetic.
        mixed: share of the smaller one of these two that does not run beside the larger one.
        load_rate: bytes a second that it takes from L2 into one multiprocessor.
        store_rate: the same from registers to L2.
        level: seconds that each reduction adds to a tile.
        overlaps: share of the stores and of `finish` that the block's next tile hides.
        gather: seconds that a tile takes longer whose addresses are read from memory first.
        f32_tensor: share of `tensor` that products of f32 numbers reach, each as several of TF32 numbers.
        halving_rate: bytes a second of their operands that it takes apart; 0: as many as come.
        sine, f32_sine: times the work that a sine or cosine is beside products, in whose place it is issued; in f32 results.
        date, source, device: as for `Rate`.
    """

    start: float
    finish: float
    turn: float
    poll: float
    tensor: float
    vector: float
    mixed: float
    load_rate: float
    store_rate: float
    level: float = 0.0
    overlaps: float = 0.0
    gather: float = GATHER
    f32_tensor: float = 1.0
    halving_rate: float = 0.0
    sine: float = 1.0
    f32_sine: float = 1.0
    date: str = "2026-11-21"
    source: str = ZOO_FIT
    device: str = DEVICE


ENGINES: dict[str, EngineRates] = {
    #                      start   finish  turn    poll    tensor vector mixed load_rate store_rate level overlaps
    "mma": EngineRates(    1.3e-6, 0.6e-6, 0.6e-6, 0.0,    0.97,   0.5,  0.3, 1.75e11, 3.6e10, 0.0,    0.7),
    "conv": EngineRates(   1.8e-6, 0.6e-6, 0.6e-6, 0.0,    0.8,    0.5,  0.3, 1.75e11, 3.6e10, 0.0,    0.7),
    "chain": EngineRates(  2.0e-6, 0.6e-6, 0.3e-6, 0.0,    1.06,   0.9,  0.2, 1.2e11,  3.6e10, 0.4e-6, 0.5),
    "gemv": EngineRates(   1.2e-6, 0.8e-6, 0.3e-6, 0.0,    0.3,    0.5,  0.0, 6.0e10,  3.6e10, 0.0,    0.5),
    "attention": EngineRates(2e-6, 1.0e-6, 0.6e-6, 0.0,    0.7,    0.4,  0.3, 1.2e11,  3.6e10, 0.3e-6, 0.5),
    "pairs": EngineRates(  1.5e-6, 0.6e-6, 0.5e-6, 0.7e-6, 0.3,    0.5,  0.3, 7.0e10,  3.6e10),
    "simt": EngineRates(   1.1e-6, 0.4e-6, 0.5e-6, 0.7e-6, 0.1,    0.9,  0.0, 4.5e10,  5.0e10, 0.2e-6),
    "depthwise": EngineRates(1.1e-6, 0.4e-6, 0.5e-6, 0.7e-6, 0.03, 0.9,  0.0, 6.0e10,  5.0e10),
    "scatter": EngineRates(1.2e-6, 0.6e-6, 0.4e-6, 0.7e-6, 0.1,    0.8,  0.0, 4.5e10,  3.0e10),
    "ordered": EngineRates(4.0e-6, 1.0e-6, 2.0e-6, 0.7e-6, 0.1,    0.8,  0.0, 4.5e10,  3.0e10),
    "scan": EngineRates(   1.5e-6, 0.4e-6, 0.6e-6, 0.7e-6, 0.1,    0.5,  0.0, 3.0e10,  3.0e10, source=SCAN_GUESS),
    "sort": EngineRates(   3.0e-6, 0.4e-6, 2.0e-6, 0.7e-6, 0.1,    0.5,  0.0, 1.0e10,  1.0e10, source=SCAN_GUESS),
    "radix_sort": EngineRates(3.0e-6, 0.4e-6, 2.0e-6, 0.7e-6, 0.1, 0.5,  0.0, 3.0e10,  3.0e10, source=RADIX_GUESS),
    "histogram": EngineRates(3.0e-6, 0.4e-6, 2.0e-6, 0.7e-6, 0.1,  0.5,  0.0, 3.0e10,  3.0e10, source=SCAN_GUESS),
    "pairwise": EngineRates(1.5e-6, 0.4e-6, 0.6e-6, 0.7e-6, 0.8,   0.9,  0.0, 4.5e10,  5.0e10, source=SCAN_GUESS),
    "recurrence": EngineRates(3.0e-6, 0.6e-6, 3.0e-6, 0.7e-6, 0.3, 0.5,  0.0, 6.0e10,  3.0e10, source=RECURRENCE_GUESS),
    "generic": EngineRates(1.0e-6, 0.4e-6, 0.3e-6, 0.7e-6, 0.0025, 0.06, 1.0, 2.0e10,  2.0e10, 0.5e-6),
}  # fmt: skip
"""By the engine's name."""

_FITTED = {"date": "2026-11-27", "source": OPERATORS_FIT}
SIMULATED: dict[str, EngineRates] = {
    "mma": dataclasses.replace(ENGINES["mma"], f32_tensor=0.75, halving_rate=1e6 * MMA_HALVING_RATE, f32_sine=2.5, **_FITTED),
    "simt": dataclasses.replace(ENGINES["simt"], turn=0.1e-6, overlaps=0.9, gather=0.3e-6, **_FITTED),
    "scatter": dataclasses.replace(ENGINES["scatter"], turn=0.1e-6, overlaps=0.9, **_FITTED),
    "conv": dataclasses.replace(ENGINES["conv"], tensor=0.65, f32_tensor=0.6, **_FITTED),
    "chain": dataclasses.replace(ENGINES["chain"], overlaps=0.8, sine=2.0, f32_sine=2.0, **_FITTED),
}
"""What the simulator takes in place of `ENGINES`, by which modes are chosen: those choices were measured, and stay."""


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """One quantity that models plan with by several values.

    Attributes:
        quantity: what it is.
        used: which rates stand for it: names of this module, or of fields of `ENGINES`.
        measured: what a record says, and which; "" where none decides.
    """

    quantity: str
    used: tuple[str, ...]
    measured: str = ""


DISAGREEMENTS = (
    Disagreement(
        "hand-off between stages of one kernel",
        ("CHAIN_HAND_OFF", "MODE_HAND_OFF", "STREAMED_HAND_OFF", "POST"),
        "A post and its wait 0.7 us; from the last store to another block's operands by TMA 1.5 us where threads store and "
        "1.6 where TMA does; from one sum to the next 1.8 and 1.9 (hand_off_* of bench/results/rates-h200.json). They are "
        "different parts of one way: `POST`, then `MODE_HAND_OFF`; `STREAMED_HAND_OFF` has its weights already. "
        "`CHAIN_HAND_OFF` and `PARTS_START` also hold a stage's own start and finish.",
    ),
    Disagreement(
        "from a block's one small tile to its next",
        ("ENGINES['simt'].turn", "SIMULATED['simt'].turn", "ENGINES['scatter'].turn", "SIMULATED['scatter'].turn"),
        "Stages of many small tiles take 0.2 us for a further tile of a block, of which `ENGINES` says 1 and more (operators "
        "of bench/results/bench-nvidia-h200-*.json). Modes are chosen by `ENGINES`: with other rates other stages share a "
        "launch, which has not been measured.",
    ),
    Disagreement(
        "L2 to one multiprocessor, alone",
        ("MMA_LOAD_RATE", "CONV_LINK_RATE", "ENGINES['mma'].load_rate", "ENGINES['chain'].load_rate", "PARTS_LOAD_RATE"),
        "Alone 211 to 221 GB/s, by loads of 16 bytes, spans and boxes; with all 132 at work 70 by boxes, 75 by spans and "
        "112 by loads, of 16 MB that each reads from a place of its own (reads_* of bench/results/rates-h200.json). "
        "Products read the same lines at the same time, and get more: the fitted rates are between.",
    ),
    Disagreement(
        "L2 to all multiprocessors together",
        ("MMA_SUSTAINED_LOADS", "CONV_CACHE_RATE", "Target.bulk_rate", "Target.cache_rate"),
        "9.2 TB/s by boxes, 9.6 by spans, 13.4 by loads of 16 bytes (reads_* of bench/results/rates-h200.json, as above).",
    ),
    Disagreement(
        "from a block's one tile of a product to its next",
        ("MMA_TURN", "ENGINES['mma'].turn", "CHAIN_TURN"),
        "A tile of 128 x 128 takes 0.28 us beside its products, of 128 x 256 0.84: it grows with what is stored (step_* of "
        "bench/results/rates-h200.json; of 128 x 64 nothing is left). `mma.cost` counts the store apart, `ENGINES` and "
        "`CHAIN_TURN` hold it.",
    ),
    Disagreement(
        "blocks that share a tile meet",
        ("MMA_MEET", "MEET", "CONV_EXCHANGE_CYCLES"),
        "Without data 0.6 to 0.75 us, 2, 4 or 8 blocks; the blocks of a product 1.75 us (exchange_*, split_* of "
        "bench/results/rates-h200.json), of which `mma.cost` has a part in its other terms. With 1.75 us in place of its 1.58 "
        "`conv` shares fewer tiles, and four convolutions take 0.997 to 1.034 times as long "
        "(bench/results/versions-meet-h200.json), so it keeps its own.",
    ),
    Disagreement(
        "partial results, of one multiprocessor and of all",
        ("PARTS_PARTIAL_RATE", "PARTIAL_RATE"),
        "3.3 to 4.3 TB/s, each byte written and read (exchange_* of bench/results/rates-h200.json); the fitted rate is of "
        "stages that also wait for each other.",
    ),
    Disagreement("operands from memory", ("MMA_DRAM_RATE", "Target.dram_rate", "DRAM_SHARE")),
)
"""Where models have several values for what looks like one quantity, and what a run on a device says of it."""


def rates() -> dict[str, Rate | RateTable]:
    """All rates of this module but those of engines, by name, in the order of the source."""
    return {name: value for name, value in globals().items() if isinstance(value, Rate | RateTable)}
