// A task becomes a body (plain loops and vectors), a driver for one tile (waits, body, posts), and a worker that hands tiles out.
// RUN: kitsune-opt %s --kitsune-to-host | FileCheck %s

// CHECK: func.func private @f_body0(%{{.*}}: index, %[[IN:.*]]: memref<8xf32> {llvm.noalias}, %[[OUT:.*]]: memref<8xf32> {llvm.noalias})
// CHECK: %[[V:.*]] = vector.load %[[IN]]
// CHECK: vector.store %[[V]], %[[OUT]]
// CHECK: func.func private @f_task0
// CHECK: call @f_body0
// CHECK: llvm.call @kitsune_post
// CHECK: func.func @f_worker
// CHECK-SAME: kitsune.tiles = 1 : i64
// CHECK: scf.while
// CHECK: llvm.call @kitsune_next
// CHECK: func.call @f_task0
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
