// What a scatter changes lies in memory: a column of a table is copied first, and blocks then add rows side by side. Not a number
// that is everywhere, which the scatter's own stage writes; nor a whole argument.
// RUN: kitsune-opt %s --split-input-file --target h200 --kitsune-form-stages --kitsune-partition-streams | FileCheck %s

// CHECK-LABEL: func.func @column(
// CHECK: "kitsune.stage"
// CHECK: tensor.extract_slice %arg0[0, 1] [5000, 1] [1, 1]
// CHECK: linalg.generic
// CHECK: engine = "simt", {{.*}}sym_name = "map_0"
// CHECK: "kitsune.stage"
// CHECK-NEXT: tm_tensor.scatter
// CHECK-SAME: outs(%{{.*}} : tensor<5000xf32>)
// CHECK: sym_name = "scatter_1", {{.*}}updates =
func.func @column(%x: tensor<5000x3xf32>, %i: tensor<90000x1xi64>, %w: tensor<90000x1xf32>) -> tensor<5000xf32> {
  %c = tensor.extract_slice %x[0, 1] [5000, 1] [1, 1] : tensor<5000x3xf32> to tensor<5000xf32>
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%w, %i : tensor<90000x1xf32>, tensor<90000x1xi64>) outs(%c : tensor<5000xf32>) {
  ^bb0(%new: f32, %old: f32):
    %s = arith.addf %old, %new : f32
    tm_tensor.yield %s : f32
  } -> tensor<5000xf32>
  return %r : tensor<5000xf32>
}

// -----

// CHECK-LABEL: func.func @number(
// CHECK-NOT: sym_name = "map_0"
// CHECK: sym_name = "scatter_0"
func.func @number(%i: tensor<90000x1xi64>, %w: tensor<90000x1xf32>) -> tensor<5000xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<5000xf32>
  %c = linalg.fill ins(%zero : f32) outs(%empty : tensor<5000xf32>) -> tensor<5000xf32>
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%w, %i : tensor<90000x1xf32>, tensor<90000x1xi64>) outs(%c : tensor<5000xf32>) {
  ^bb0(%new: f32, %old: f32):
    %s = arith.addf %old, %new : f32
    tm_tensor.yield %s : f32
  } -> tensor<5000xf32>
  return %r : tensor<5000xf32>
}

// -----

// CHECK-LABEL: func.func @argument(
// CHECK-NOT: sym_name = "map_0"
// CHECK: sym_name = "scatter_0"
func.func @argument(%x: tensor<5000xf32>, %i: tensor<90000x1xi64>, %w: tensor<90000x1xf32>) -> tensor<5000xf32> {
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%w, %i : tensor<90000x1xf32>, tensor<90000x1xi64>) outs(%x : tensor<5000xf32>) {
  ^bb0(%new: f32, %old: f32):
    %s = arith.addf %old, %new : f32
    tm_tensor.yield %s : f32
  } -> tensor<5000xf32>
  return %r : tensor<5000xf32>
}
