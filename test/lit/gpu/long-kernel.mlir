// A program whose kernel would have more operations than it may becomes launches; each but the first waits for the one before.
// RUN: kitsune-opt %s --kitsune-to-gpu=most-operations=100 | FileCheck %s
// RUN: kitsune-opt %s --kitsune-to-gpu | FileCheck %s --check-prefix=ONE

// CHECK: gpu.module @f_0
// CHECK-NOT: nvvm.griddepcontrol wait
// CHECK: llvm.call @task_0_first
// CHECK-NOT: llvm.call @task_1_second
// CHECK: gpu.module @f_1
// CHECK: nvvm.griddepcontrol wait
// CHECK: llvm.call @task_0_second
// ONE: gpu.module @f [
// ONE: llvm.call @task_0_first
// ONE: llvm.call @task_1_second
// ONE-NOT: gpu.module
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %a = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %a : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "first", grid = array<i64: 1>, engine = "generic"} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %a restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "second", grid = array<i64: 1>, engine = "generic"} : () -> ()
  return
}
