"""From MLIR to a cubin without a GPU: LLVM 24's text for LLVM 22, PTX, libdevice, ptxas' report and messages."""

from __future__ import annotations

import re
import struct

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.backend.cubin import assemble, find_ptxas
from kitsune_mlir.codegen.gpu.backend.llvm_compat import downgrade_floats, mark_inline_asm
from kitsune_mlir.codegen.gpu.backend.ptx import to_ptx
from kitsune_mlir.codegen.gpu.backend.to_llvm import to_llvm_ir
from kitsune_mlir.codegen.gpu.emit.control_flow import if_, set_max_registers, thread_id
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import constant, i32
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from kitsune_mlir.errors import CompileError, TargetError


@pytest.fixture
def context():
    with ir.Context() as made, ir.Location.unknown():
        yield made


def module(body: str, arguments: str = "%p: !llvm.ptr<1>, %x: f32, %i: i32") -> ir.Module:
    return ir.Module.parse(f"module {{ llvm.func @k({arguments}) attributes {{nvvm.kernel}} {{\n{body}\nllvm.return }} }}")


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

    kernel = Kernel("k", ["pointer"], threads=256)
    with kernel.body() as arguments:
        build(kernel, *arguments)
    text = kernel.compile().ptx
    assert any("setmaxnreg" in warning for warning in assemble(text, assembler="nvjitlink").warnings)
    assert find_ptxas() is not None, "the extra 'gpu' holds nvidia-cuda-nvcc"
    assert not assemble(text, assembler="ptxas").warnings
