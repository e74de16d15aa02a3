"""GPU primitives without a GPU: IR text rewrites, PTX and cubins of every primitive, arenas, tensor maps, messages."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_mlir import ir

from kitsune_mlir.codegen.gpu import tma, wgmma
from kitsune_mlir.codegen.gpu.barriers import Barrier, NamedBarrier, fence_async_shared
from kitsune_mlir.codegen.gpu.builder import if_, set_max_registers, shuffle_xor, thread_id
from kitsune_mlir.codegen.gpu.convert import pack_pair
from kitsune_mlir.codegen.gpu.cubin import assemble, find_ptxas
from kitsune_mlir.codegen.gpu.elements import _pieces, load_elements, store_elements
from kitsune_mlir.codegen.gpu.fragment import Fragment
from kitsune_mlir.codegen.gpu.kernel import Kernel
from kitsune_mlir.codegen.gpu.llvm_text import downgrade_floats, mark_inline_asm
from kitsune_mlir.codegen.gpu.memory import Cache, load, load_acquire, offset, reduce_add, store, store_release
from kitsune_mlir.codegen.gpu.ptx import to_llvm_ir, to_ptx
from kitsune_mlir.codegen.gpu.semaphore import post, wait_at_least
from kitsune_mlir.codegen.gpu.smem import SHARED_LIMIT, SharedArena
from kitsune_mlir.codegen.gpu.tensor_map import TensorMap
from kitsune_mlir.codegen.gpu.value import Value, cast, constant, i32, maximum, select
from kitsune_mlir.errors import CompileError, TargetError
from kitsune_mlir.layouts import RowLayout, WgmmaAccumulator
from kitsune_mlir.shared_tile import SharedTile

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import cases_products  # noqa: F401
import cases_scalar  # noqa: F401
import cases_tiles  # noqa: F401
from case import CASES


@pytest.fixture
def context():
    with ir.Context() as made, ir.Location.unknown():
        yield made


def module(body: str, arguments: str = "%p: !llvm.ptr<1>, %x: f32, %i: i32") -> ir.Module:
    return ir.Module.parse(f"module {{ llvm.func @k({arguments}) attributes {{nvvm.kernel}} {{\n{body}\nllvm.return }} }}")


def emitted(build, parameters=("pointer",), threads: int = 128) -> str:
    """PTX of a kernel whose body `build(kernel, *arguments)` emits; it is assembled too."""
    kernel = Kernel("k", list(parameters), threads)
    with kernel.body() as arguments:
        build(kernel, *arguments)
    compiled = kernel.compile()
    assert list(compiled.cubin.kernels) == ["k"]
    return compiled.ptx


# --- LLVM 24's text for LLVM 22 ------------------------------------------------------------------------------------------


def bits_read_by_llvm22(type_name: str, literal: str) -> int:
    """Store the rewritten literal, let LLVM 22 parse it, and fold its bits into an integer."""
    bits = {"half": 16, "bfloat": 16, "float": 32, "double": 64}[type_name]
    text = f"define i{bits} @f() {{\n %b = bitcast {type_name} {literal} to i{bits}\n ret i{bits} %b\n}}"
    parsed = llvm.parse_assembly(downgrade_floats(text))
    llvm.initialize_all_targets()
    machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    builder.getModulePassManager().run(parsed, builder)
    value = int(re.search(r"ret i\d+ (-?\d+)", str(parsed))[1])
    return value % (1 << bits)


@pytest.mark.parametrize(
    ("type_name", "literal", "bits"),
    [
        ("float", "f0x3727C5AC", 0x3727C5AC),
        ("float", "1.000000e-01", 0x3DCCCCCD),
        ("float", "-2.500000e-03", 0xBB23D70A),
        ("float", "+inf", 0x7F800000),
        ("float", "-inf", 0xFF800000),
        ("float", "+qnan", 0x7FC00000),
        ("float", "-qnan", 0xFFC00000),
        ("float", "+nan(0x123)", 0x7FC00123),
        ("float", "1.401300e-45", 1),
        ("double", "f0x400921FB54442D18", 0x400921FB54442D18),
        ("double", "1.000000e-05", 0x3EE4F8B588E368F1),
        ("double", "-inf", 0xFFF0000000000000),
        ("double", "+nan(0x7)", 0x7FF8000000000007),
        ("half", "9.997550e-02", 0x2E66),
        ("half", "-inf", 0xFC00),
        ("half", "f0x7BFF", 0x7BFF),
        ("bfloat", "1.000980e-01", 0x3DCD),
        ("bfloat", "+qnan", 0x7FC0),
        ("bfloat", "3.004060e+38", 0x7F62),
    ],
)
def test_llvm22_reads_the_bits_that_llvm24_meant(type_name, literal, bits):
    assert bits_read_by_llvm22(type_name, literal) == bits


@settings(max_examples=60, deadline=None)
@given(st.integers(0, (1 << 32) - 1))
def test_every_float_constant_survives_the_chain(bits):
    value = struct.unpack("<f", struct.pack("<I", bits))[0]
    with ir.Context(), ir.Location.unknown():
        text = to_llvm_ir(module(f"%c = llvm.mlir.constant(0x{bits:08X} : f32) : f32\n llvm.store %c, %p : f32, !llvm.ptr<1>"))
    literal = re.search(r"store float (\S+),", text)[1]
    read = bits_read_by_llvm22("float", literal)
    assert read == bits or (np.isnan(value) and read & ~(1 << 22) == bits & ~(1 << 22))


def test_literals_take_the_type_of_the_line_and_strings_and_comments_stay():
    text = (
        "; 1.5e-01 in a comment\n"
        "define void @f(float %a, double %b) {\n"
        "  %s = fadd float %a, 1.000000e-01\n"
        '  %t = call float asm "mov.f32 $0, 0.1;", "=f"()\n'
        "  %u = fcmp olt double %b, 1.000000e-01\n"
        "}\n"
    )
    rewritten = downgrade_floats(text)
    assert "1.5e-01 in a comment" in rewritten and "0.1;" in rewritten
    assert "fadd float %a, 0x3FB99999A0000000" in rewritten
    assert "fcmp olt double %b, 0x3FB999999999999A" in rewritten


def test_a_literal_without_a_type_is_an_error():
    with pytest.raises(ValueError, match="without a type"):
        downgrade_floats("  1.5e0\n")


def test_inline_asm_is_marked_by_its_side_effects():
    text = (
        'define void @f(i32 %a) #0 {\n  call void asm sideeffect "bar.sync 0;", ""()\n'
        '  %b = call i32 asm "add $0, $1, $1;", "=r,r"(i32 %a), !dbg !3\n  ret void\n}\nattributes #0 = { "x" }\n'
    )
    marked = mark_inline_asm(text)
    assert '"bar.sync 0;", ""() #1\n' in marked
    assert "(i32 %a) #2, !dbg !3" in marked
    assert "attributes #1 = { convergent nounwind }" in marked
    assert "attributes #2 = { nounwind willreturn memory(none) }" in marked
    assert mark_inline_asm("define void @f() {\n}\n") == "define void @f() {\n}\n"


# --- PTX -----------------------------------------------------------------------------------------------------------------


def test_an_operation_without_a_lowering_is_named(context):
    with pytest.raises(CompileError, match=r"tensor\.empty"):
        to_llvm_ir(
            module(
                "%c = arith.constant 0 : index\n %t = tensor.empty() : tensor<4xf32>\n"
                "%e = tensor.extract %t[%c] : tensor<4xf32>\n llvm.store %e, %p : f32, !llvm.ptr<1>"
            )
        )


def test_a_call_that_exists_nowhere_is_named(context):
    text = to_llvm_ir(module("llvm.store %x, %p : f32, !llvm.ptr<1>"))
    text = text.replace("store float %1", "%r = call float @expf(float %1)\n store float %r") + "\ndeclare float @expf(float)\n"
    with pytest.raises(CompileError, match="expf"):
        to_ptx(text)
    unknown = text.replace("@expf", "@llvm.nvvm.cp.nothing.of.this.name")
    with pytest.raises(CompileError, match=r"llvm\.nvvm\.cp\.nothing\.of\.this\.name|llvm_nvvm_cp_nothing"):
        to_ptx(unknown)


def test_text_that_is_not_llvm_ir_is_refused():
    with pytest.raises(CompileError, match="cannot read"):
        to_ptx("define nonsense")


def test_an_unknown_chip_is_refused(context):
    text = to_llvm_ir(module(""))
    with pytest.raises(TargetError, match="sm_9x"):
        assemble(to_ptx(text), "sm_9x")


def test_the_module_is_left_as_it_was(context):
    made = module("%r = math.exp %x : f32\n llvm.store %r, %p : f32, !llvm.ptr<1>")
    before = str(made)
    to_llvm_ir(made)
    assert str(made) == before


def test_multiply_add_contracts_unless_told_not_to(context):
    body = "%q = arith.mulf %x, %x : f32\n%r = arith.addf %q, %x : f32\n llvm.store %r, %p : f32, !llvm.ptr<1>"
    assert "fma.rn.f32" in to_ptx(to_llvm_ir(module(body)))
    assert "fma.rn.f32" not in to_ptx(to_llvm_ir(module(body), fastmath=""))


@pytest.mark.parametrize(
    ("operation", "exact", "fast"),
    [
        ("math.sqrt %x", r"sqrt\.rn\.f32", r"sqrt\.(rn|approx)"),
        ("math.exp %x", r"ex2\.approx", r"ex2\.approx"),
        ("math.tanh %x", r"ex2\.approx", r"tanh\.approx"),
        ("math.rsqrt %x", r"rsqrt\.approx", r"rsqrt\.approx"),
        ("arith.divf %x, %x2", r"div\.rn\.f32", r"div\.(approx|full)"),
    ],
)
def test_math_is_exact_unless_asked_to_be_fast(context, operation, exact, fast):
    arguments = "%p: !llvm.ptr<1>, %x: f32, %x2: f32"
    body = f"%r = {operation} : f32\n llvm.store %r, %p : f32, !llvm.ptr<1>"
    assert re.search(exact, to_ptx(to_llvm_ir(module(body, arguments))))
    assert re.search(fast, to_ptx(to_llvm_ir(module(body, arguments), "contract,afn,arcp")))


# --- cubins --------------------------------------------------------------------------------------------------------------


def test_ptxas_message_and_the_line_it_means():
    text = ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry k() {\n adx.f32 %f1, %f1;\n ret;\n}\n"
    for assembler in ("auto", "nvjitlink"):
        with pytest.raises(CompileError, match=r"adx(.|\n)*5: adx\.f32 %f1, %f1;"):
            assemble(text, assembler=assembler)


def many_live_values(max_registers: int | None) -> str:
    kernel = Kernel("k", ["pointer"], threads=128, max_registers=max_registers)
    with kernel.body() as (pointer,):
        place = offset(pointer, thread_id() * 1024)
        values = [load(offset(place, 4 * index), "f32") for index in range(200)]
        total = sum((value * values[-1 - index] for index, value in enumerate(values)), constant(0.0, "f32"))
        for index, value in enumerate(values):
            store(value * total, offset(place, 4 * index))
    return kernel.compile().ptx


@pytest.mark.parametrize("assembler", ["auto", "nvjitlink"])
def test_spills_are_seen(context, assembler):
    roomy = assemble(many_live_values(None), assembler=assembler).kernels["k"]
    assert not roomy.spills and roomy.registers > 100
    tight = assemble(many_live_values(40), assembler=assembler).kernels["k"]
    assert tight.spills and tight.spill_store_bytes > 0 and tight.stack_bytes > 0 and tight.registers <= 40


def test_nvjitlink_says_that_it_ignores_setmaxnreg(context):
    def build(kernel, pointer):
        grow = thread_id() // 128 == 1
        if_(grow, lambda: set_max_registers(232, True), lambda: set_max_registers(40, False))
        store(i32(1), pointer)

    text = emitted(build, threads=256)
    assert any("setmaxnreg" in warning for warning in assemble(text, assembler="nvjitlink").warnings)
    assert find_ptxas() is not None, "the extra 'gpu' holds nvidia-cuda-nvcc"
    assert not assemble(text, assembler="ptxas").warnings


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_device_case_assembles_without_spills_and_warnings(name):
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
        (lambda k, m: tma.reduce_tile(m, k.shared(0), [0, 8]), [MAP], r"cp\.reduce\.async\.bulk\.tensor\.2d.*\.add"),
        (lambda k, p: tma.reduce_span(p, k.shared(0), 64, "bf16"), ["pointer"], r"bulk_group\.add\.noftz\.bf16"),
        (lambda k, p: post(p, async_writes=True), ["pointer"], r"fence\.proxy\.async;(.|\n)*red\.release\.gpu"),
        (lambda k, p: wait_at_least(p, 3), ["pointer"], r"ld\.acquire\.gpu\.global\.b32"),
        (lambda k, p: NamedBarrier(3, 128).sync(), ["pointer"], r"bar(rier)?\.sync\s+3, 128"),
        (lambda k, p: fence_async_shared(), ["pointer"], r"fence\.proxy\.async\.shared::cta"),
        (lambda k, p: Barrier(k.shared(0)).arrive_remote(1), ["pointer"], r"mbarrier\.arrive\.shared::cluster\.b64 _"),
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
        with pytest.raises(ValueError, match="2, 4 or 8 bf16"):
            reduce_add(pointer, constant(1.0, "bf16"))
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
