// One persistent kernel: every block takes tiles of the task in turn; after a tile all threads meet and one of them posts.
// RUN: kitsune-opt %s --kitsune-to-gpu | FileCheck %s
// RUN: kitsune-opt %s --kitsune-to-gpu=clusters=false | FileCheck %s

// CHECK: gpu.module @f [#nvvm.target<chip = "sm_90a", features = "+ptx87", flags = {unroll}>] attributes {kitsune.manifest = "{{.*}}"}
// CHECK: llvm.func @f(%{{.*}}: !llvm.ptr<1>, %{{.*}}: !llvm.ptr<1>, %{{.*}}: !llvm.ptr<1>, %{{.*}}: !llvm.ptr<1>) attributes {nvvm.kernel
// CHECK: nvvm.read.ptx.sreg.ctaid.x
// CHECK: %[[BLOCKS:.*]] = nvvm.read.ptx.sreg.nctaid.x
// CHECK: scf.for %{{.*}} = %{{.*}} to %{{.*}} step %[[BLOCKS]]
// CHECK: llvm.call @task_0_copy
// CHECK-NEXT: nvvm.barrier
// CHECK: red.release.gpu.global.add.u32
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "copy", grid = array<i64: 1>, engine = "generic"} : () -> ()
  return
}
