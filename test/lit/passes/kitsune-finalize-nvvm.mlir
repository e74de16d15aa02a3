// What is in a gpu.module becomes LLVM dialect; `contract` lets a product and a sum become one fma.
// RUN: kitsune-opt %s --kitsune-finalize-nvvm | FileCheck %s
// RUN: kitsune-opt %s --kitsune-finalize-nvvm=fastmath=contract,afn | FileCheck %s --check-prefix=FAST

// CHECK: llvm.func @k(%[[P:.*]]: !llvm.ptr<1>)
// CHECK: llvm.fmul %{{.*}}, %{{.*}} {fastmathFlags = #llvm.fastmath<contract>} : f32
// CHECK: llvm.call @__nv_expf
// CHECK: nvvm.barrier
// FAST-NOT: __nv_expf
gpu.module @m {
  llvm.func @k(%p: !llvm.ptr<1>) attributes {nvvm.kernel} {
    %v = llvm.load %p : !llvm.ptr<1> -> f32
    %w = arith.mulf %v, %v : f32
    %e = math.exp %w : f32
    nvvm.barrier
    llvm.store %e, %p : f32, !llvm.ptr<1>
    llvm.return
  }
}
