// With `deterministic`, one task, whose tile all blocks share, adds rows in order: nothing is added by atomics.
// RUN: kitsune-opt %s --kitsune-form-stages=target=h200 --kitsune-partition-streams="target=h200 deterministic" --kitsune-place-buffers --kitsune-synchronize --kitsune-materialize --kitsune-check-progress --split-input-file | FileCheck %s
// RUN: kitsune-opt %s --kitsune-form-stages --kitsune-partition-streams=deterministic --kitsune-place-buffers --kitsune-synchronize --kitsune-materialize --split-input-file | FileCheck %s --check-prefix=HOST

// CHECK-LABEL: func.func @map_p0
// CHECK: sym_name = "map_0"
// CHECK: "kitsune.wait"
// CHECK: memref.subview %arg2[%[[FIRST:.*]], 0] [201, 32]
// CHECK: %[[SUMS:.*]] = "kitsune.ordered_scatter"(%{{.*}}, %{{.*}}, %{{.*}}, %[[FIRST]]) {kind = "addf"} : (tensor<201x32xf32>, tensor<65500x32xf32>, tensor<65500xi64>, index) -> tensor<201x32xf32>
// CHECK: bufferization.materialize_in_destination %[[SUMS]]
// CHECK: engine = "ordered", grid = array<i64: 1>, {{.*}}sym_name = "scatter_1"
// CHECK-NOT: kitsune.atomic_scatter

// A host's one task adds in order anyway.
// HOST-LABEL: func.func @map_p0
// HOST: tm_tensor.scatter
// HOST-NOT: kitsune.ordered_scatter
#id = affine_map<(m, n) -> (m, n)>
func.func @map(%x: tensor<65500x32xf32>, %i: tensor<65500x1xi64>, %d: tensor<201x32xf32>) -> tensor<201x32xf32> {
  %e = tensor.empty() : tensor<65500x32xf32>
  %q = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<65500x32xf32>) outs(%e : tensor<65500x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = math.tanh %a : f32
    linalg.yield %b : f32
  } -> tensor<65500x32xf32>
  %u = tensor.expand_shape %q [[0], [1, 2]] output_shape [65500, 1, 32] : tensor<65500x32xf32> into tensor<65500x1x32xf32>
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%u, %i : tensor<65500x1x32xf32>, tensor<65500x1xi64>) outs(%d : tensor<201x32xf32>) {
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %b, %a : f32
    tm_tensor.yield %s : f32
  } -> tensor<201x32xf32>
  return %r : tensor<201x32xf32>
}

// -----

// The largest is the same in any order: atomics find it.
// CHECK-LABEL: func.func @maximum_p0
// CHECK: "kitsune.atomic_scatter"{{.*}} {kind = "maximumf"}
// CHECK-NOT: kitsune.ordered_scatter
func.func @maximum(%u: tensor<100x1x32xf32>, %i: tensor<100x1xi64>, %d: tensor<20x32xf32>) -> tensor<20x32xf32> {
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%u, %i : tensor<100x1x32xf32>, tensor<100x1xi64>) outs(%d : tensor<20x32xf32>) {
  ^bb0(%a: f32, %b: f32):
    %s = arith.maximumf %b, %a : f32
    tm_tensor.yield %s : f32
  } -> tensor<20x32xf32>
  return %r : tensor<20x32xf32>
}
