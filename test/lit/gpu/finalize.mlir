// Everything in a gpu.module becomes LLVM dialect: memrefs, loops, arithmetic, functions of math.
// RUN: kitsune-opt %s --kitsune-finalize-nvvm | FileCheck %s
// RUN: kitsune-opt %s --kitsune-finalize-nvvm | FileCheck %s --check-prefix=GONE
// RUN: kitsune-opt %s --kitsune-finalize-nvvm="fastmath=contract,afn" | FileCheck %s --check-prefix=FAST
// RUN: not kitsune-opt %s --kitsune-finalize-nvvm="fastmath=contract,quick" 2>&1 | FileCheck %s --check-prefix=QUICK

// CHECK: gpu.module @p attributes {kitsune.manifest = "kept"}
// CHECK: llvm.func @p(%[[X:.*]]: !llvm.ptr<1>, %[[N:.*]]: i64)
// CHECK-SAME: nvvm.kernel
// CHECK: llvm.cond_br
// CHECK: %[[P:[0-9]+]] = llvm.getelementptr {{.*}}%[[X]]
// CHECK: %[[V:[0-9]+]] = llvm.load %[[P]]
// CHECK: %[[E:[0-9]+]] = llvm.call @__nv_expf(%[[V]])
// CHECK: llvm.fmul %[[E]], %{{.*}} {fastmathFlags = #llvm.fastmath<contract>}
// CHECK: nvvm.barrier
// CHECK: llvm.atomicrmw fadd
// CHECK: llvm.return

// GONE-NOT: {{memref\.|scf\.|arith\.|math\.|unrealized_conversion_cast}}

// QUICK: pass 'kitsune-finalize-nvvm': fastmath has flags afn, arcp, {{.*}}, not quick

// FAST-NOT: __nv_expf
// FAST: llvm.fmul %{{.*}} {fastmathFlags = #llvm.fastmath<{{.*}}afn{{.*}}>}
gpu.module @p attributes {kitsune.manifest = "kept"} {
  llvm.func @p(%x: !llvm.ptr<1>, %n: i64) attributes {nvvm.kernel, nvvm.reqntid = array<i32: 256, 1, 1>} {
    %u = llvm.mlir.undef : !llvm.struct<(ptr<1>, ptr<1>, i64, array<1 x i64>, array<1 x i64>)>
    %a = llvm.insertvalue %x, %u[0] : !llvm.struct<(ptr<1>, ptr<1>, i64, array<1 x i64>, array<1 x i64>)>
    %b = llvm.insertvalue %x, %a[1] : !llvm.struct<(ptr<1>, ptr<1>, i64, array<1 x i64>, array<1 x i64>)>
    %m = builtin.unrealized_conversion_cast %b : !llvm.struct<(ptr<1>, ptr<1>, i64, array<1 x i64>, array<1 x i64>)> to memref<64xf32, 1>
    %lo = arith.constant 0 : index
    %one = arith.constant 1 : index
    %hi = arith.index_cast %n : i64 to index
    %two = arith.constant 2.0 : f32
    scf.for %i = %lo to %hi step %one {
      %v = memref.load %m[%i] : memref<64xf32, 1>
      %e = math.exp %v : f32
      %d = arith.mulf %e, %two : f32
      nvvm.barrier
      %old = memref.atomic_rmw addf %d, %m[%lo] : (f32, memref<64xf32, 1>) -> f32
    }
    llvm.return
  }
}
