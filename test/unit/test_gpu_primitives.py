"""GPU primitives without a GPU: PTX and cubins of every primitive, fragments, arenas, tensor maps, messages."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import if_, shuffle_xor, thread_id
from kitsune_mlir.codegen.gpu.emit.convert import pack_pair
from kitsune_mlir.codegen.gpu.emit.memory import Cache, load, load_acquire, offset, reduce_add, store, store_release
from kitsune_mlir.codegen.gpu.emit.smem import SHARED_LIMIT, SharedArena
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, constant, i32, maximum, select
from kitsune_mlir.codegen.gpu.emit.vectors import _pieces, load_elements, store_elements
from kitsune_mlir.codegen.gpu.interface.semaphores import post, wait_at_least
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from kitsune_mlir.codegen.gpu.sm90 import tma, wgmma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, NamedBarrier, fence_async, fence_async_shared, sync_cluster
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.errors import CompileError
from kitsune_mlir.machine.shared_tile import SharedTile
from test.gpu import (
    cases_products,  # noqa: F401
    cases_roles,  # noqa: F401
    cases_scalar,  # noqa: F401
    cases_tiles,  # noqa: F401
)
from test.gpu.case import CASES
from test.gpu.kit import bulk
from test.gpu.kit.fragment import Fragment
from test.gpu.kit.layouts import RowLayout, WgmmaAccumulator
from test.rotation import in_turn


@pytest.fixture
def context():
    with ir.Context() as made, ir.Location.unknown():
        yield made


def emitted(build, parameters=("pointer",), threads: int = 128) -> str:
    """PTX of a kernel whose body `build(kernel, *arguments)` emits; it is assembled too."""
    kernel = Kernel("k", list(parameters), threads)
    with kernel.body() as arguments:
        build(kernel, *arguments)
    compiled = kernel.compile()
    assert list(compiled.cubin.kernels) == ["k"]
    return compiled.ptx


@pytest.mark.parametrize("name", in_turn(sorted(CASES), 12))
def test_device_cases_assemble_without_spills_and_warnings(name):
    cubin = CASES[name]().kernel.cubin
    assert cubin.data[:4] == b"\x7fELF"
    assert not cubin.warnings
    assert not any(resources.spills for resources in cubin.kernels.values())


# --- what the primitives become ------------------------------------------------------------------------------------------

MAP = TensorMap.contiguous("bf16", (256, 256), (64, 64))


@pytest.mark.parametrize(
    ("build", "parameters", "expected"),
    [
        (lambda k, p: reduce_add(p, [constant(1.0, "f32")] * 4), ["pointer"], r"red\.relaxed\.gpu\.global\.add\.v4\.f32"),
        (lambda k, p: reduce_add(p, [constant(1.0, "bf16")] * 8), ["pointer"], r"add\.noftz\.v4\.bf16x2"),
        (lambda k, p: reduce_add(p, [constant(1.0, "f16")] * 2), ["pointer"], r"add\.noftz\.f16x2"),
        (lambda k, p: reduce_add(p, i32(1), release=True), ["pointer"], r"red\.release\.gpu\.global\.add\.u32"),
        (lambda k, p: store(load_acquire(p), offset(p, 4)), ["pointer"], r"ld\.acquire\.gpu\.global"),
        (lambda k, p: store_release(i32(1), p), ["pointer"], r"st\.release\.gpu\.global"),
        (lambda k, p: store(load(p, "vector<4xi32>", constant=True), offset(p, 16)), ["pointer"], r"ld\.global\.nc\.v4\.b32"),
        (lambda k, p: store(load(p, "vector<8xbf16>", cache=Cache.STREAM), p), ["pointer"], r"L2::cache_hint\.v4\.b32"),
        (
            lambda k, m: tma.load_tile(k.shared(0), m, Barrier(k.shared(0)), [0, 8]),
            [MAP],
            r"cp\.async\.bulk\.tensor\.2d\.shared::cluster",
        ),
        (
            lambda k, m: tma.load_tile(k.shared(0), m, Barrier(k.shared(0)), [0, 8], 3, Cache.KEEP),
            [MAP],
            r"multicast::cluster\.L2::cache_hint",
        ),
        (lambda k, m: tma.store_tile(m, k.shared(0), [0, 8]), [MAP], r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta"),
        (lambda k, m: bulk.reduce_tile(m, k.shared(0), [0, 8]), [MAP], r"cp\.reduce\.async\.bulk\.tensor\.2d.*\.add"),
        (lambda k, p: bulk.reduce_span(p, k.shared(0), 64, "bf16"), ["pointer"], r"bulk_group\.add\.noftz\.bf16"),
        (lambda k, p: (fence_async(), post(p)), ["pointer"], r"fence\.proxy\.async\.global;(.|\n)*red\.release\.gpu"),
        (lambda k, p: wait_at_least(p, 3), ["pointer"], r"ld\.acquire\.gpu\.global\.b32"),
        (lambda k, p: NamedBarrier(3, 128).sync(), ["pointer"], r"bar(rier)?\.sync\s+3, 128"),
        (lambda k, p: fence_async_shared(), ["pointer"], r"fence\.proxy\.async\.shared::cta"),
        (lambda k, p: Barrier(k.shared(0)).arrive_at(1), ["pointer"], r"mbarrier\.arrive\.shared::cluster\.b64 _"),
        (
            lambda k, p: bulk.push_span(k.shared(1024), k.shared(1024), 64, Barrier(k.shared(0)), 1),
            ["pointer"],
            r"mapa\.shared::cluster(.|\n)*cp\.async\.bulk\.shared::cluster\.shared::cta\.mbarrier::complete_tx::bytes",
        ),
        (lambda k, p: sync_cluster(), ["pointer"], r"barrier\.cluster\.arrive\.aligned;(.|\n)*barrier\.cluster\.wait\.aligned"),
        (
            lambda k, p: store(pack_pair(load(p, "f32"), load(offset(p, 4), "f32"), "bf16", True), p),
            ["pointer"],
            r"cvt\.rn\.relu\.bf16x2",
        ),
    ],
)
def test_primitives_become_the_instructions_meant(context, build, parameters, expected):
    assert re.search(expected, emitted(build, parameters))


def test_coordinates_are_written_outermost_first(context):
    text = emitted(lambda k, m, a, b: tma.store_tile(m, k.shared(0), [a, b]), [MAP, "i32", "i32"])
    row = re.search(r"ld\.param\.b32\s+(%r\d+), \[k_param_1\]", text)[1]
    col = re.search(r"ld\.param\.b32\s+(%r\d+), \[k_param_2\]", text)[1]
    assert re.search(rf"\{{{col}, {row}\}}", text)


def test_tma_writes_nothing_that_starts_before_the_tensor(context):
    def build(kernel, tensor_map):
        for write in (tma.store_tile, bulk.reduce_tile):
            with pytest.raises(ValueError, match=r"starts before the tensor: coordinates \['0', '-8'\]"):
                write(tensor_map, kernel.shared(0), [0, -8])
        tma.load_tile(kernel.shared(0), tensor_map, Barrier(kernel.shared(0)), [-8, -8])

    assert re.search(r"cp\.async\.bulk\.tensor\.2d\.shared::cluster", emitted(build, [MAP]))


def test_barriers_and_inline_ptx_are_not_duplicated(context):
    """A convergent call in a branch on a run-time value must appear once."""

    def build(kernel, pointer):
        for _ in range(2):
            if_(thread_id() < 64, lambda: NamedBarrier(1, 64).sync(), lambda: store(i32(2), pointer))

    assert len(re.findall(r"bar(?:rier)?\.sync\s+1, 64", emitted(build))) == 2


def test_accumulator_fragment_is_stored_by_stmatrix(context):
    def build(kernel, pointer):
        tile = SharedTile(64, 64, 2)
        span = kernel.arena.take("tile", tile.bytes, tile.alignment)
        value = load(pointer, "f32")
        fragment = Fragment(WgmmaAccumulator(64), [value + index for index in range(32)])
        fragment.store_swizzled(thread_id(), tile, kernel.shared(span), "bf16")

    text = emitted(build)
    assert len(re.findall(r"stmatrix\.sync\.aligned\.m8n8\.x4", text)) == 4


# --- values --------------------------------------------------------------------------------------------------------------


def test_values_refuse_what_has_no_meaning(context):
    def build(kernel, pointer):
        number, real = thread_id(), load(pointer, "f32")
        with pytest.raises(TypeError, match="only known when the kernel runs"):
            bool(number == 0)
        with pytest.raises(TypeError, match="no such operation on f32"):
            _ = real % 2.0
        with pytest.raises(TypeError, match="no such operation on i32"):
            _ = number / 2
        with pytest.raises(OverflowError, match="does not fit i32"):
            constant(1 << 32, "i32")
        with pytest.raises(ValueError, match="cache hints"):
            load(kernel.shared(0), "i32", cache=Cache.KEEP)

    emitted(build)


def test_constants_keep_their_bits(context):
    def build(kernel, pointer):
        for position, (value, type) in enumerate(
            [(0xFFFFFFFF, "i32"), (-1, "i32"), (1 << 63, "i64"), (True, "i1"), (200, "i8")]
        ):
            made = constant(value, type)
            assert isinstance(made, Value) and str(made.type) == type
            store(cast(made, "i64"), offset(pointer, 8 * position))

    text = emitted(build)
    for stored in ("-1", "-9223372036854775808", "-56"):
        assert re.search(rf"(st\.global\.b64.*|mov\.b64.*|, ){stored}", text)


def test_shuffles_and_selects_of_narrow_types(context):
    def build(kernel, pointer):
        for dtype in ("bf16", "f16", "i16", "f64", "i64"):
            value = load_elements(pointer, dtype, 1)[0]
            other = shuffle_xor(value, 1)
            store_elements([select(maximum(value, other) == value, value, other)], pointer)

    assert len(re.findall(r"shfl\.sync\.bfly", emitted(build))) == 7


@given(st.integers(1, 70), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8, 16]))
def test_pieces_cover_a_run_with_aligned_powers_of_two(count, size, align):
    align = max(align, size)
    pieces = _pieces(count, size, align)
    assert [start for start, _ in pieces] == [sum(length for _, length in pieces[:i]) for i in range(len(pieces))]
    assert sum(length for _, length in pieces) == count
    for start, length in pieces:
        assert length & (length - 1) == 0 and length * size <= 16
        assert length == 1 or (start * size % (length * size) == 0 and align % (length * size) == 0)


# --- fragments -----------------------------------------------------------------------------------------------------------


def test_fragments_combine_only_with_their_own_layout(context):
    def build(kernel, pointer):
        value = load(pointer, "f32")
        tall, wide = RowLayout(4, 64, 128, 32, 2), RowLayout(8, 64, 128, 16, 4)
        left, right = Fragment.filled(tall, value), Fragment.filled(wide, value)
        with pytest.raises(ValueError, match="cannot combine"):
            left.combine("add", right)
        with pytest.raises(ValueError, match="needs an Exchange"):
            Fragment.filled(RowLayout(1, 512, 128, 128, 4), value).row_reduce("add", thread_id())
        with pytest.raises(ValueError, match="reads A from an accumulator"):
            left.as_a_operand()
        with pytest.raises(ValueError, match="multiple of 16"):
            Fragment.filled(WgmmaAccumulator(24), value).as_a_operand()
        with pytest.raises(ValueError, match="registers, not 3"):
            Fragment(tall, [value] * 3)
        total = left.row_reduce("add", thread_id())
        scaled = left.map(lambda x, s, c: x * s + c, total, 1.0)
        store_elements(scaled.registers, offset(pointer, thread_id() * 16))

    assert len(re.findall(r"shfl\.sync\.bfly", emitted(build))) == 5


def test_wgmma_refuses_wrong_operands(context):
    def build(kernel, pointer):
        tile = wgmma.SharedOperand(SharedTile(64, 64, 2), kernel.shared(0))
        with pytest.raises(ValueError, match="multiple of 8"):
            wgmma.multiply(None, tile, tile, 12)
        with pytest.raises(ValueError, match="4 bytes"):
            wgmma.multiply(None, tile, tile, 64, "tf32")
        with pytest.raises(ValueError, match="16-bit"):
            single = wgmma.SharedOperand(SharedTile(64, 32, 4), kernel.shared(0), transposed=True)
            wgmma.multiply(None, single, single, 64, "tf32")
        with pytest.raises(ValueError, match="accumulators"):
            wgmma.multiply([constant(0.0, "f32")], tile, tile, 64)
        with pytest.raises(ValueError, match="registers of A"):
            wgmma.multiply(None, [i32(0)] * 6, tile, 64, steps=2)

    emitted(build)


# --- kernels, arenas, tensor maps ----------------------------------------------------------------------------------------


def test_kernel_manifest_and_launch_bounds(context):
    kernel = Kernel("k", ["pointer", MAP, "i64", "f32"], threads=256, min_blocks=2, cluster=2)
    kernel.arena.take("a", 100)
    with kernel.body() as (pointer, _, number, real):
        store(number, pointer)
        store(real, offset(pointer, 8))
    compiled = kernel.compile()
    assert compiled.manifest["shared_bytes"] == 100 and compiled.manifest["cluster"] == 2
    assert [p["kind"] for p in compiled.manifest["parameters"]] == ["pointer", "tensor_map", "i64", "f32"]
    assert compiled.manifest["parameters"][1]["map"]["box"] == [64, 64]
    for directive in (".reqntid 256", ".minnctapersm 2", ".extern .shared .align 1024"):
        assert directive in compiled.ptx or directive == ".extern .shared .align 1024"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threads": 100}, "multiple of 32"),
        ({"threads": 2048}, "up to 1024"),
        ({"threads": 128, "cluster": 32}, "1 to 16 blocks"),
        ({"threads": 128, "parameters": ["double"]}, "no parameter kind 'double'"),
    ],
)
def test_impossible_kernels_are_refused(context, arguments, message):
    with pytest.raises(CompileError, match=message):
        Kernel(**{"name": "k", "parameters": [], **arguments})


def test_arena_aligns_scopes_and_remembers_its_peak():
    arena = SharedArena()
    assert arena.take("a", 10).offset == 0
    assert arena.take("b", 1000, 1024).offset == 1024
    with arena.scope("stage"):
        inner = arena.take("c", 50_000, 128)
        assert inner.offset == 2048 and arena.used == 52_048
    assert arena.used == 2024 and arena.peak == 52_048
    assert arena.take("d", 8, 8).offset == 2024
    assert [span.name for span in arena.live] == ["a", "b", "d"]
    arena.reset()
    assert arena.used == 0 and arena.peak == 52_048 and not arena.live


def test_a_full_arena_names_the_sizes():
    arena = SharedArena()
    arena.take("ring", 200_000)
    assert not arena.fits(SHARED_LIMIT - 200_000 + 1)
    with pytest.raises(
        CompileError, match=r"'staging' needs 40000 bytes, 32448 of 232448 are left \(in use, in bytes: ring 200000\)"
    ):
        arena.take("staging", 40_000)
    with pytest.raises(ValueError, match="power of two"):
        arena.take("odd", 8, 24)


@given(st.lists(st.tuples(st.integers(0, 5000), st.sampled_from([1, 8, 16, 128, 1024])), max_size=20))
def test_arena_spans_never_overlap(requests):
    arena = SharedArena()
    spans = [arena.take(str(index), size, align) for index, (size, align) in enumerate(requests)]
    for (_, align), span in zip(requests, spans, strict=True):
        assert span.offset % align == 0
    for first, second in zip(spans, spans[1:], strict=False):
        assert first.end <= second.offset
    assert arena.peak == (spans[-1].end if spans else 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"box": (257, 64)}, "1 to 256"),
        ({"box": (64, 128)}, "at most the swizzle's 128 bytes"),
        ({"box": (64, 4)}, "multiple of 16 bytes"),
        ({"strides_bytes": (500,)}, "multiples of 16 bytes, not 500"),
        ({"strides_bytes": ()}, "1 strides"),
        ({"swizzle": 16}, "0, 32, 64 or 128"),
        ({"dtype": "i32", "fill": "nan", "box": (64, 32), "strides_bytes": (1024,)}, "NaN"),
        ({"shape": (1, 1, 1, 1, 1, 1), "box": (1,) * 6, "strides_bytes": (16,) * 5}, "1 to 5 dimensions"),
        ({"dtype": "f8"}, "no such element type"),
        ({"shape": (0, 256)}, "extents are 1 to"),
    ],
)
def test_tensor_maps_that_the_driver_would_reject(fields, message):
    good = {"dtype": "bf16", "shape": (256, 256), "strides_bytes": (512,), "box": (64, 64)}
    with pytest.raises(CompileError, match=message):
        TensorMap(**{**good, **fields})


def test_tensor_map_of_a_dense_tensor():
    made = TensorMap.contiguous("f32", (3, 5, 8), (1, 5, 8), 32)
    assert made.strides_bytes == (160, 32) and made.box_bytes == 160
    assert TensorMap(**made.manifest()) == made
