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

// Two repetitions are more than there is to repeat: they are made, and no others.
// CHECK-LABEL: func.func @two
// CHECK-NOT: tensor.extract_slice
// CHECK: linalg.generic {{.*}} outs({{.*}} : tensor<100x2xi64>)
// CHECK-NOT: tensor.extract_slice
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

// -----

// What is repeated over heads and columns: a slice of a slice, and dimensions of extent 1 that were added before it.
// CHECK-LABEL: func.func @heads
// CHECK-NOT: linalg.generic
// CHECK: %[[S:.*]] = tensor.extract_slice %arg0[3] [50] [2]
// CHECK: %[[E:.*]] = tensor.expand_shape %[[S]] {{\[}}[0, 1]] output_shape [50, 1]
// CHECK: return %[[E]]
#a = affine_map<(m, h, n) -> (m)>
#b = affine_map<(m, h, n) -> (m, h, n)>
func.func @heads(%i: tensor<110xi64>) -> tensor<50x1xi64> {
  %e = tensor.empty() : tensor<110x4x16xi64>
  %r = linalg.generic {indexing_maps = [#a, #b], iterator_types = ["parallel", "parallel", "parallel"]} ins(%i : tensor<110xi64>) outs(%e : tensor<110x4x16xi64>) {
  ^bb0(%x: i64, %o: i64):
    linalg.yield %x : i64
  } -> tensor<110x4x16xi64>
  %u = tensor.expand_shape %r [[0, 1], [2], [3]] output_shape [110, 1, 4, 16] : tensor<110x4x16xi64> into tensor<110x1x4x16xi64>
  %f = tensor.extract_slice %u[1, 0, 0, 5] [107, 1, 4, 1] [1, 1, 1, 1] : tensor<110x1x4x16xi64> to tensor<107x1x4xi64>
  %s = tensor.extract_slice %f[2, 0, 3] [50, 1, 1] [2, 1, 1] : tensor<107x1x4xi64> to tensor<50x1xi64>
  return %s : tensor<50x1xi64>
}

// -----

// All heads of one column are still repeated, and no other column is.
// CHECK-LABEL: func.func @every_head
// CHECK-NOT: tensor<110x4x16xi64>
// CHECK: linalg.generic {{.*}} ins(%arg0 : tensor<110xi64>)
// CHECK: -> tensor<110x4xi64>
// CHECK-NOT: tensor.extract_slice
#a = affine_map<(m, h, n) -> (m)>
#b = affine_map<(m, h, n) -> (m, h, n)>
func.func @every_head(%i: tensor<110xi64>) -> tensor<110x4xi64> {
  %e = tensor.empty() : tensor<110x4x16xi64>
  %r = linalg.generic {indexing_maps = [#a, #b], iterator_types = ["parallel", "parallel", "parallel"]} ins(%i : tensor<110xi64>) outs(%e : tensor<110x4x16xi64>) {
  ^bb0(%x: i64, %o: i64):
    linalg.yield %x : i64
  } -> tensor<110x4x16xi64>
  %s = tensor.extract_slice %r[0, 0, 5] [110, 4, 1] [1, 1, 1] : tensor<110x4x16xi64> to tensor<110x4xi64>
  return %s : tensor<110x4xi64>
}
