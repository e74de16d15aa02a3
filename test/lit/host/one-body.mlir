// Two tasks that differ only in the memrefs they use share one body; their drivers wait and post for themselves.
// RUN: kitsune-opt %s --kitsune-to-host=vector-bytes=32 | FileCheck %s

// CHECK: func.func private @f_body0(%{{.*}}: index, %{{.*}}: memref<16xf32> {llvm.noalias}, %{{.*}}: memref<16xf32> {llvm.noalias})
// CHECK: arith.negf {{.*}} : vector<8xf32>
// CHECK-NOT: @f_body1
// CHECK: func.func private @f_task0
// CHECK: call @f_body0
// CHECK: llvm.call @kitsune_post
// CHECK: func.func private @f_task1
// CHECK: %[[THERE:.*]] = llvm.call @kitsune_wait
// CHECK: scf.if %[[THERE]]
// CHECK: call @f_body0
// CHECK-NOT: llvm.call @kitsune_post
// CHECK: func.func @f_worker(%{{.*}}: !llvm.ptr, %{{.*}}: !llvm.ptr, %{{.*}}: memref<1xi8>, %[[REQUESTS:.*]]: index)
// CHECK-SAME: kitsune.slots = 2 : i64
// CHECK-SAME: kitsune.tiles = 4 : i64
// CHECK: arith.muli %[[REQUESTS]], %{{.*}} : index
func.func @f(%x: memref<16xf32>, %out: memref<16xf32>, %arena: memref<256xi8>) attributes {kitsune.program} {
  %c0 = arith.constant 0 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<16xf32>
  %s = "kitsune.make_semaphore"() {slots = 2 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c8 = arith.constant 8 : index
    %o = arith.muli %i, %c8 : index
    %v = memref.subview %x[%o] [8] [1] : memref<16xf32> to memref<8xf32, strided<[1], offset: ?>>
    %t = bufferization.to_tensor %v restrict : memref<8xf32, strided<[1], offset: ?>> to tensor<8xf32>
    %e = tensor.empty() : tensor<8xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
        ins(%t : tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%a: f32, %b: f32):
      %n = arith.negf %a : f32
      linalg.yield %n : f32
    } -> tensor<8xf32>
    %d = memref.subview %h[%o] [8] [1] : memref<16xf32> to memref<8xf32, strided<[1], offset: ?>>
    bufferization.materialize_in_destination %r in restrict writable %d : (tensor<8xf32>, memref<8xf32, strided<[1], offset: ?>>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "first", grid = array<i64: 2>, engine = "simt"} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c1 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    %o = arith.muli %i, %c8 : index
    %next = arith.addi %i, %c1 : index
    "kitsune.wait"(%s, %i, %next) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %v = memref.subview %h[%o] [8] [1] : memref<16xf32> to memref<8xf32, strided<[1], offset: ?>>
    %t = bufferization.to_tensor %v restrict : memref<8xf32, strided<[1], offset: ?>> to tensor<8xf32>
    %e = tensor.empty() : tensor<8xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
        ins(%t : tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%a: f32, %b: f32):
      %n = arith.negf %a : f32
      linalg.yield %n : f32
    } -> tensor<8xf32>
    %d = memref.subview %out[%o] [8] [1] : memref<16xf32> to memref<8xf32, strided<[1], offset: ?>>
    bufferization.materialize_in_destination %r in restrict writable %d : (tensor<8xf32>, memref<8xf32, strided<[1], offset: ?>>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "second", grid = array<i64: 2>, engine = "simt"} : () -> ()
  return
}
