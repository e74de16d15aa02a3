// A slice of one repetition is a slice of what is repeated.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize | FileCheck %s

// The index of a scatter, written to 64 columns: one of them is read.
// CHECK-LABEL: func.func @column
// CHECK-NOT: linalg.generic
// CHECK: %[[E:.*]] = tensor.expand_shape %arg0 {{\[}}[0, 1]] output_shape [100, 1]
// CHECK: return %[[E]]
#a = affine_map<(m, n) -> (m)>
#b = affine_map<(m, n) -> (m, n)>
func.func @column(%i: tensor<100xi64>) -> tensor<100x1xi64> {
  %e = tensor.empty() : tensor<100x64xi64>
  %r = linalg.generic {indexing_maps = [#a, #b], iterator_types = ["parallel", "parallel"]} ins(%i : tensor<100xi64>) outs(%e : tensor<100x64xi64>) {
  ^bb0(%x: i64, %o: i64):
    linalg.yield %x : i64
  } -> tensor<100x64xi64>
  %s = tensor.extract_slice %r[0, 7] [100, 1] [1, 1] : tensor<100x64xi64> to tensor<100x1xi64>
  return %s : tensor<100x1xi64>
}

// -----

// Some rows of a repetition.
// CHECK-LABEL: func.func @rows
// CHECK-NOT: linalg.generic
// CHECK: %[[S:.*]] = tensor.extract_slice %arg0[3] [50] [2]
// CHECK: return %[[S]]
#a = affine_map<(m, n) -> (n)>
#b = affine_map<(m, n) -> (m, n)>
func.func @rows(%i: tensor<200xf32>) -> tensor<50xf32> {
  %e = tensor.empty() : tensor<8x200xf32>
  %r = linalg.generic {indexing_maps = [#a, #b], iterator_types = ["parallel", "parallel"]} ins(%i : tensor<200xf32>) outs(%e : tensor<8x200xf32>) {
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  } -> tensor<8x200xf32>
  %s = tensor.extract_slice %r[2, 3] [1, 50] [1, 2] : tensor<8x200xf32> to tensor<50xf32>
  return %s : tensor<50xf32>
}

// -----

// Two repetitions are more than there is to repeat.
// CHECK-LABEL: func.func @two
// CHECK: linalg.generic
// CHECK: tensor.extract_slice
#a = affine_map<(m, n) -> (m)>
#b = affine_map<(m, n) -> (m, n)>
func.func @two(%i: tensor<100xi64>) -> tensor<100x2xi64> {
  %e = tensor.empty() : tensor<100x64xi64>
  %r = linalg.generic {indexing_maps = [#a, #b], iterator_types = ["parallel", "parallel"]} ins(%i : tensor<100xi64>) outs(%e : tensor<100x64xi64>) {
  ^bb0(%x: i64, %o: i64):
    linalg.yield %x : i64
  } -> tensor<100x64xi64>
  %s = tensor.extract_slice %r[0, 0] [100, 2] [1, 1] : tensor<100x64xi64> to tensor<100x2xi64>
  return %s : tensor<100x2xi64>
}
