// `--emit=ptx` writes the assembly text of lowered kernels, of several one after the other; the target says for which processor.
// RUN: kitsune-opt %s --kitsune-finalize-nvvm --emit=ptx | FileCheck %s
// RUN: not kitsune-opt %s --emit=ptx 2>&1 | FileCheck %s --check-prefix=HIGH
// RUN: not kitsune-opt %s --convert-arith-to-llvm --emit=cubin 2>&1 | FileCheck %s --check-prefix=FORM

// CHECK: // launch 0
// CHECK: .target sm_90a
// CHECK: .entry first(
// CHECK: // launch 1
// CHECK: .target sm_90{{$}}
// CHECK: .entry second(
// HIGH: error: no lowering to LLVM IR for: arith.addi
// FORM: argument --emit: invalid choice: 'cubin' (choose from 'mlir', 'ptx')
gpu.module @a [#nvvm.target<chip = "sm_90a">] {
  llvm.func @first(%p: !llvm.ptr<1>) attributes {nvvm.kernel} {
    %x = llvm.load %p : !llvm.ptr<1> -> i32
    %y = arith.addi %x, %x : i32
    llvm.store %y, %p : i32, !llvm.ptr<1>
    llvm.return
  }
}
gpu.module @b [#nvvm.target<chip = "sm_90">] {
  llvm.func @second(%p: !llvm.ptr<1>) attributes {nvvm.kernel} {
    llvm.return
  }
}
