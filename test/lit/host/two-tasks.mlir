// The example of docs/tile-program.md in full. It survives being written and read again.
// RUN: kitsune-opt %s | kitsune-opt | FileCheck %s
// CHECK: %[[SEM:.*]] = "kitsune.make_semaphore"() {slots = 2 : i64} : () -> !kitsune.semaphore
// CHECK: "kitsune.task"() ({
// CHECK-NEXT: ^bb0(%[[I:.*]]: index):
// CHECK: "kitsune.post"(%[[SEM]], %[[I]])
// CHECK: {engine = "simt", grid = array<i64: 2>, sym_name = "relu"}
// CHECK: "kitsune.wait"(%[[SEM]], {{.*}}) {count = 1 : i64}
// CHECK: {engine = "mma", grid = array<i64: 2>, sym_name = "product"}
func.func @main_p0(%x: memref<100x64xf32>, %w: memref<32x64xf32>, %out: memref<100x32xf32>, %arena: memref<25600xi8>)
    attributes {kitsune.program, kitsune.arguments = 2 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %h = memref.view %arena[%c0][] : memref<25600xi8> to memref<100x64xf32>
  %s0 = "kitsune.make_semaphore"() {slots = 2 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c50 = arith.constant 50 : index
    %zero = arith.constant 0.0 : f32
    %off = arith.muli %i, %c50 : index
    %xs = memref.subview %x[%off, 0] [50, 64] [1, 1] : memref<100x64xf32> to memref<50x64xf32, strided<[64, 1], offset: ?>>
    %xt = bufferization.to_tensor %xs restrict : memref<50x64xf32, strided<[64, 1], offset: ?>> to tensor<50x64xf32>
    %e = tensor.empty() : tensor<50x64xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
      ins(%xt : tensor<50x64xf32>) outs(%e : tensor<50x64xf32>) {
    ^bb0(%a: f32, %o: f32):
      %m = arith.maximumf %a, %zero : f32
      linalg.yield %m : f32
    } -> tensor<50x64xf32>
    %hs = memref.subview %h[%off, 0] [50, 64] [1, 1] : memref<100x64xf32> to memref<50x64xf32, strided<[64, 1], offset: ?>>
    bufferization.materialize_in_destination %r in restrict writable %hs : (tensor<50x64xf32>, memref<50x64xf32, strided<[64, 1], offset: ?>>) -> ()
    "kitsune.post"(%s0, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "relu", grid = array<i64: 2>, engine = "simt"} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c50 = arith.constant 50 : index
    %c1 = arith.constant 1 : index
    %zero = arith.constant 0.0 : f32
    %off = arith.muli %i, %c50 : index
    %i1 = arith.addi %i, %c1 : index
    "kitsune.wait"(%s0, %i, %i1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %hs = memref.subview %h[%off, 0] [50, 64] [1, 1] : memref<100x64xf32> to memref<50x64xf32, strided<[64, 1], offset: ?>>
    %ht = bufferization.to_tensor %hs restrict : memref<50x64xf32, strided<[64, 1], offset: ?>> to tensor<50x64xf32>
    %wt = bufferization.to_tensor %w restrict : memref<32x64xf32> to tensor<32x64xf32>
    %e = tensor.empty() : tensor<50x32xf32>
    %z = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} outs(%e : tensor<50x32xf32>) {
    ^bb0(%o: f32):
      linalg.yield %zero : f32
    } -> tensor<50x32xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
        iterator_types = ["parallel", "parallel", "reduction"]} ins(%ht, %wt : tensor<50x64xf32>, tensor<32x64xf32>) outs(%z : tensor<50x32xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %p = arith.mulf %a, %b : f32
      %s = arith.addf %o, %p : f32
      linalg.yield %s : f32
    } -> tensor<50x32xf32>
    %os = memref.subview %out[%off, 0] [50, 32] [1, 1] : memref<100x32xf32> to memref<50x32xf32, strided<[32, 1], offset: ?>>
    bufferization.materialize_in_destination %r in restrict writable %os : (tensor<50x32xf32>, memref<50x32xf32, strided<[32, 1], offset: ?>>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "product", grid = array<i64: 2>, engine = "mma"} : () -> ()
  return
}
