// Windows that end before the tensor does stay valid where a dimension of the result has extent 1: the rest is cut off.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize | FileCheck %s

#windows = affine_map<(d0, d1, d2) -> (d2 + d0 * 2, d1)>
#result = affine_map<(d0, d1, d2) -> (d0, d1, d2)>

// CHECK-LABEL: func.func @one_window
// CHECK: tensor.extract_slice %arg0[0, 0] [2, 5] [1, 1] : tensor<3x5xi64> to tensor<2x5xi64>
func.func @one_window(%x: tensor<3x5xi64>) -> tensor<1x5x2xi64> {
  %e = tensor.empty() : tensor<1x5x2xi64>
  %w = linalg.generic {indexing_maps = [#windows, #result], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x : tensor<3x5xi64>) outs(%e : tensor<1x5x2xi64>) {
  ^bb0(%in: i64, %out: i64):
    linalg.yield %in : i64
  } -> tensor<1x5x2xi64>
  return %w : tensor<1x5x2xi64>
}

// -----

#windows = affine_map<(d0, d1, d2) -> (d2 + d0 * 2, d1)>
#result = affine_map<(d0, d1, d2) -> (d0, d1, d2)>

// All of it is read.
// CHECK-LABEL: func.func @to_the_end
// CHECK-NOT: tensor.extract_slice
// CHECK: return
func.func @to_the_end(%x: tensor<2x5xi64>) -> tensor<1x5x2xi64> {
  %e = tensor.empty() : tensor<1x5x2xi64>
  %w = linalg.generic {indexing_maps = [#windows, #result], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x : tensor<2x5xi64>) outs(%e : tensor<1x5x2xi64>) {
  ^bb0(%in: i64, %out: i64):
    linalg.yield %in : i64
  } -> tensor<1x5x2xi64>
  return %w : tensor<1x5x2xi64>
}

// -----

#windows = affine_map<(d0, d1, d2) -> (d2 + d0 * 2, d1)>
#result = affine_map<(d0, d1, d2) -> (d0, d1, d2)>

// Several windows are no concern of this: no dimension is folded.
// CHECK-LABEL: func.func @several
// CHECK-NOT: tensor.extract_slice
// CHECK: return
func.func @several(%x: tensor<5x5xi64>) -> tensor<2x5x2xi64> {
  %e = tensor.empty() : tensor<2x5x2xi64>
  %w = linalg.generic {indexing_maps = [#windows, #result], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x : tensor<5x5xi64>) outs(%e : tensor<2x5x2xi64>) {
  ^bb0(%in: i64, %out: i64):
    linalg.yield %in : i64
  } -> tensor<2x5x2xi64>
  return %w : tensor<2x5x2xi64>
}
