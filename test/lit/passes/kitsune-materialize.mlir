// Stages become tasks over tile coordinates, the edge becomes a semaphore with a slot a tile, the buffer a view of the arena.
// RUN: kitsune-opt %s --kitsune-materialize | FileCheck %s

// CHECK: func.func @f_p0(%[[X:.*]]: memref<64x32xf32>, %{{.*}}: memref<64x32xf32>, %[[OUT:.*]]: memref<64x32xf32>, %[[ARENA:.*]]: memref<8192xi8>)
// CHECK-SAME: kitsune.arguments = 2 : i64, kitsune.program, kitsune.results = 1 : i64
// CHECK: %[[A:.*]] = memref.view %[[ARENA]]
// CHECK: %[[S:.*]] = "kitsune.make_semaphore"() {slots = 4 : i64}
// CHECK: "kitsune.task"() ({
// CHECK: memref.subview %[[X]]{{.*}} [16, 32] [1, 1]
// CHECK: math.exp
// CHECK: %[[T:.*]] = memref.subview %[[A]]
// CHECK: bufferization.materialize_in_destination %{{.*}} in restrict writable %[[T]]
// CHECK: "kitsune.post"(%[[S]], %{{.*}})
// CHECK: }) {engine = "simt", grid = array<i64: 4>, sym_name = "a"}
// CHECK: "kitsune.wait"(%[[S]], %{{.*}}, %{{.*}}) {count = 1 : i64}
// CHECK: memref.subview %[[A]]
// CHECK: math.tanh
// CHECK: }) {engine = "simt", grid = array<i64: 4>, sym_name = "b"}
#id = affine_map<(m, n) -> (m, n)>
func.func @f(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>, after = [],
        buffers = [#kitsune.buffer<"global", 1 : i64>], offsets = array<i64: 0>, sync = [#kitsune.sync<"none">, #kitsune.sync<"none">]} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>, after = [],
        buffers = [#kitsune.buffer<"global", 1 : i64>], offsets = array<i64: -1>, sync = [#kitsune.sync<"tile">, #kitsune.sync<"none">]} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "f_p0", arena = 8192 : i64} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}
