// Stages that run at the same time write no new value where its argument lies: what the copy takes counts when a mode is chosen.
// RUN: kitsune-opt %s --split-input-file --target h200 --kitsune-form-stages --kitsune-partition-streams | FileCheck %s

#map = affine_map<(d0) -> (d0)>
#map1 = affine_map<(d0, d1) -> (d0, d1)>
#map2 = affine_map<(d0, d1) -> (d0)>

// CHECK-LABEL: func.func @changed(
// CHECK-NOT: mode = "spatial"
// CHECK: mode = "separate"
func.func @changed(%arg0: tensor<1xi32>, %arg1: tensor<2xi32>, %arg2: tensor<64x64xf32>, %arg3: tensor<64x64xf32>) -> (tensor<64x64xf32> {kitsune.mutates = 2 : i64}, tensor<64xf32>) {
  %cst = arith.constant 0.000000e+00 : f32
  %extracted_slice = tensor.extract_slice %arg3[0, 0] [1, 64] [1, 1] : tensor<64x64xf32> to tensor<64xf32>
  %expanded = tensor.expand_shape %extracted_slice [[0, 1, 2]] output_shape [1, 1, 64] : tensor<64xf32> into tensor<1x1x64xf32>
  %expanded_0 = tensor.expand_shape %arg0 [[0, 1]] output_shape [1, 1] : tensor<1xi32> into tensor<1x1xi32>
  %0 = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%expanded, %expanded_0 : tensor<1x1x64xf32>, tensor<1x1xi32>) outs(%arg2 : tensor<64x64xf32>) {
  ^bb0(%arg4: f32, %arg5: f32):
    tm_tensor.yield %arg4 : f32
  } -> tensor<64x64xf32>
  %extracted_slice_1 = tensor.extract_slice %arg3[1, 0] [2, 64] [1, 1] : tensor<64x64xf32> to tensor<2x64xf32>
  %expanded_2 = tensor.expand_shape %extracted_slice_1 [[0, 1], [2]] output_shape [2, 1, 64] : tensor<2x64xf32> into tensor<2x1x64xf32>
  %expanded_3 = tensor.expand_shape %arg1 [[0, 1]] output_shape [2, 1] : tensor<2xi32> into tensor<2x1xi32>
  %1 = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%expanded_2, %expanded_3 : tensor<2x1x64xf32>, tensor<2x1xi32>) outs(%0 : tensor<64x64xf32>) {
  ^bb0(%arg4: f32, %arg5: f32):
    tm_tensor.yield %arg4 : f32
  } -> tensor<64x64xf32>
  %2 = tensor.empty() : tensor<64xf32>
  %3 = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel"]} outs(%2 : tensor<64xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst : f32
  } -> tensor<64xf32>
  %4 = linalg.generic {indexing_maps = [#map1, #map2], iterator_types = ["parallel", "reduction"]} ins(%1 : tensor<64x64xf32>) outs(%3 : tensor<64xf32>) {
  ^bb0(%in: f32, %out: f32):
    %5 = arith.addf %in, %out : f32
    linalg.yield %5 : f32
  } -> tensor<64xf32>
  return %1, %4 : tensor<64x64xf32>, tensor<64xf32>
}

// -----

#map = affine_map<(d0) -> (d0)>
#map1 = affine_map<(d0, d1) -> (d0, d1)>
#map2 = affine_map<(d0, d1) -> (d0)>

// What is returned needs no copy.
// CHECK-LABEL: func.func @returned(
// CHECK: mode = "spatial"
func.func @returned(%arg0: tensor<1xi32>, %arg1: tensor<2xi32>, %arg2: tensor<64x64xf32>, %arg3: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64xf32>) {
  %cst = arith.constant 0.000000e+00 : f32
  %extracted_slice = tensor.extract_slice %arg3[0, 0] [1, 64] [1, 1] : tensor<64x64xf32> to tensor<64xf32>
  %expanded = tensor.expand_shape %extracted_slice [[0, 1, 2]] output_shape [1, 1, 64] : tensor<64xf32> into tensor<1x1x64xf32>
  %expanded_0 = tensor.expand_shape %arg0 [[0, 1]] output_shape [1, 1] : tensor<1xi32> into tensor<1x1xi32>
  %0 = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%expanded, %expanded_0 : tensor<1x1x64xf32>, tensor<1x1xi32>) outs(%arg2 : tensor<64x64xf32>) {
  ^bb0(%arg4: f32, %arg5: f32):
    tm_tensor.yield %arg4 : f32
  } -> tensor<64x64xf32>
  %extracted_slice_1 = tensor.extract_slice %arg3[1, 0] [2, 64] [1, 1] : tensor<64x64xf32> to tensor<2x64xf32>
  %expanded_2 = tensor.expand_shape %extracted_slice_1 [[0, 1], [2]] output_shape [2, 1, 64] : tensor<2x64xf32> into tensor<2x1x64xf32>
  %expanded_3 = tensor.expand_shape %arg1 [[0, 1]] output_shape [2, 1] : tensor<2xi32> into tensor<2x1xi32>
  %1 = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%expanded_2, %expanded_3 : tensor<2x1x64xf32>, tensor<2x1xi32>) outs(%0 : tensor<64x64xf32>) {
  ^bb0(%arg4: f32, %arg5: f32):
    tm_tensor.yield %arg4 : f32
  } -> tensor<64x64xf32>
  %2 = tensor.empty() : tensor<64xf32>
  %3 = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel"]} outs(%2 : tensor<64xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst : f32
  } -> tensor<64xf32>
  %4 = linalg.generic {indexing_maps = [#map1, #map2], iterator_types = ["parallel", "reduction"]} ins(%1 : tensor<64x64xf32>) outs(%3 : tensor<64xf32>) {
  ^bb0(%in: f32, %out: f32):
    %5 = arith.addf %in, %out : f32
    linalg.yield %5 : f32
  } -> tensor<64xf32>
  return %1, %4 : tensor<64x64xf32>, tensor<64xf32>
}
