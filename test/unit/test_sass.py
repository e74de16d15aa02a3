"""Products are counted in the assembled code, because ptxas may drop some."""

import pytest

from kitsune_mlir.codegen.gpu.backend import cubin
from kitsune_mlir.codegen.gpu.backend.cubin import assemble, assemble_best
from kitsune_mlir.codegen.gpu.backend.sass import products_in_cubin, products_in_ptx
from kitsune_mlir.errors import CompileError


def kernel(products: int, registers: bool = False) -> str:
    """A kernel with so many wgmma, of factors in shared memory or with A in registers."""
    factor = "{%r1, %r1, %r1, %r1}" if registers else "%rd1"
    flags = "1, 1, 1, 0" if registers else "1, 1, 1, 0, 0"
    line = f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f0, %f1, %f2, %f3}}, {factor}, %rd1, {flags};"
    # Descriptors move: of equal products in a row ptxas keeps two.
    body = "\n".join(f"add.s64 %rd1, %rd1, 2;\n{line}" for _ in range(products))
    zeros = "\n".join(f"mov.f32 %f{i}, 0f00000000;" for i in range(4))
    stores = "\n".join(f"st.global.f32 [%rd2+{4 * i}], %f{i};" for i in range(4))
    return f""".version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p, .param .u64 q) .reqntid 128
{{
.reg .f32 %f<4>; .reg .b64 %rd<4>; .reg .b32 %r<2>;
ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q]; cvt.u32.u64 %r1, %rd1;
{zeros}
wgmma.fence.sync.aligned;
{body}
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{stores}
ret;
}}
"""


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("products", [1, 2, 7, 12])
def test_each_product_is_one_instruction(products: int, registers: bool) -> None:
    text = kernel(products, registers)
    assert products_in_ptx(text) == products
    assert products_in_cubin(assemble(text).data) == products


def test_code_that_lacks_products_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cubin, "products_in_ptx", lambda ptx: 9)
    with pytest.raises(CompileError, match="ptxas drops 2 of 9 tensor-core products"):
        assemble_best(kernel(7))


def test_what_spills_at_level_3_is_assembled_at_level_1_first(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = []

    def spy(ptx: str, chip: str = "sm_90a", opt: int = 3, seconds: float | None = None) -> cubin.Cubin:
        levels.append(opt)
        return assemble(kernel(7), chip, opt)

    monkeypatch.setattr(cubin, "assemble", spy)
    wide = "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%f0, %f1}, {%r1, %r1, %r1, %r1}, %rd1, 1, 1, 1, 0;"
    monkeypatch.setattr(cubin, "products_in_ptx", lambda ptx: 7)
    assemble_best("\n".join([wide] * cubin.LONG_SEQUENCE))
    assert levels == [1]
    assemble_best("\n".join([wide] * (cubin.LONG_SEQUENCE - 1)))
    assert levels == [1, 3]
    monkeypatch.setattr(cubin, "products_in_ptx", lambda ptx: 8)  # level 1 lacks a product: level 3 is tried
    with pytest.raises(CompileError, match="ptxas drops 1 of 8"):
        assemble_best("\n".join([wide] * cubin.LONG_SEQUENCE))
    assert levels[2:4] == [1, 3]


def test_what_is_no_elf_file_is_an_error() -> None:
    with pytest.raises(ValueError, match="64-bit ELF"):
        products_in_cubin(b"PTX")
