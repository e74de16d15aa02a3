// RUN: kitsune-opt %s --split-input-file --kitsune-form-stages=target=sm_90a | FileCheck %s
// What follows a convolution in groups is written over groups and their features: one stage.

#conv_image = affine_map<(n, h, w, g, f, y, x, c) -> (n, h + y, w + x, g, c)>
#conv_weight = affine_map<(n, h, w, g, f, y, x, c) -> (g, f, y, x, c)>
#conv_out = affine_map<(n, h, w, g, f, y, x, c) -> (n, h, w, g, f)>
#image = affine_map<(n, h, w, c) -> (n, h, w, c)>
#column = affine_map<(n, h, w, c) -> (c)>

// CHECK-LABEL: func.func @bias
// CHECK: kitsune.stage
// CHECK: linalg.generic {{.*}} outs({{.*}} : tensor<2x14x14x3x64xf32>)
// CHECK: linalg.generic {{.*}} ins({{.*}} : tensor<2x14x14x3x64xf32>, tensor<3x64xf32>) outs({{.*}} : tensor<2x14x14x3x64xbf16>)
// CHECK: kitsune.yield
// CHECK-NOT: kitsune.stage
func.func @bias(%x: tensor<2x16x16x3x64xbf16>, %weight: tensor<3x64x3x3x64xbf16>, %bias: tensor<192xf32>) -> tensor<2x14x14x192xbf16> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<2x14x14x3x64xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x14x14x3x64xf32>) -> tensor<2x14x14x3x64xf32>
  %sums = linalg.generic {indexing_maps = [#conv_image, #conv_weight, #conv_out], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
      ins(%x, %weight : tensor<2x16x16x3x64xbf16>, tensor<3x64x3x3x64xbf16>) outs(%start : tensor<2x14x14x3x64xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %p = arith.mulf %l, %r : f32
    %s = arith.addf %o, %p : f32
    linalg.yield %s : f32
  } -> tensor<2x14x14x3x64xf32>
  %joined = tensor.collapse_shape %sums [[0], [1], [2], [3, 4]] : tensor<2x14x14x3x64xf32> into tensor<2x14x14x192xf32>
  %out = tensor.empty() : tensor<2x14x14x192xbf16>
  %made = linalg.generic {indexing_maps = [#image, #column, #image], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%joined, %bias : tensor<2x14x14x192xf32>, tensor<192xf32>) outs(%out : tensor<2x14x14x192xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %s = arith.addf %a, %b : f32
    %t = arith.truncf %s : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<2x14x14x192xbf16>
  return %made : tensor<2x14x14x192xbf16>
}

// -----

#conv_image = affine_map<(n, h, w, g, f, y, x, c) -> (n, h + y, w + x, g, c)>
#conv_weight = affine_map<(n, h, w, g, f, y, x, c) -> (g, f, y, x, c)>
#conv_out = affine_map<(n, h, w, g, f, y, x, c) -> (n, h, w, g, f)>
#image = affine_map<(n, h, w, c) -> (n, h, w, c)>

// Sums that are returned themselves, too, and another reader: they are stored as they are.
// CHECK-LABEL: func.func @two_readers
// CHECK: kitsune.yield{{.*}} : (tensor<2x14x14x3x64xf32>)
// CHECK: kitsune.stage
// CHECK: linalg.generic {{.*}} ins({{.*}} : tensor<2x14x14x192xf32>) outs({{.*}} : tensor<2x14x14x192xbf16>)
func.func @two_readers(%x: tensor<2x16x16x3x64xbf16>, %weight: tensor<3x64x3x3x64xbf16>) -> (tensor<2x14x14x192xbf16>, tensor<2x14x14x192xf32>) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<2x14x14x3x64xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x14x14x3x64xf32>) -> tensor<2x14x14x3x64xf32>
  %sums = linalg.generic {indexing_maps = [#conv_image, #conv_weight, #conv_out], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
      ins(%x, %weight : tensor<2x16x16x3x64xbf16>, tensor<3x64x3x3x64xbf16>) outs(%start : tensor<2x14x14x3x64xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %p = arith.mulf %l, %r : f32
    %s = arith.addf %o, %p : f32
    linalg.yield %s : f32
  } -> tensor<2x14x14x3x64xf32>
  %joined = tensor.collapse_shape %sums [[0], [1], [2], [3, 4]] : tensor<2x14x14x3x64xf32> into tensor<2x14x14x192xf32>
  %out = tensor.empty() : tensor<2x14x14x192xbf16>
  %made = linalg.generic {indexing_maps = [#image, #image], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%joined : tensor<2x14x14x192xf32>) outs(%out : tensor<2x14x14x192xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %t = arith.truncf %a : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<2x14x14x192xbf16>
  return %made, %joined : tensor<2x14x14x192xbf16>, tensor<2x14x14x192xf32>
}
