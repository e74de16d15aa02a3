// A product one factor of which is one number everywhere is a sum of the other factor, repeated for all rows.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize | FileCheck %s

// CHECK-LABEL: func.func @zeros
// CHECK: %[[SUM:.*]] = linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]} ins(%arg0 : tensor<32x16xbf16>)
// CHECK: arith.extf
// CHECK: arith.mulf
// CHECK: arith.addf
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel"]} ins(%[[SUM]] : tensor<32xf32>)
// CHECK-NOT: "reduction"
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func @zeros(%w: tensor<32x16xbf16>) -> tensor<8x32xf32> {
  %zero = arith.constant 0.0 : f32
  %h = arith.constant dense<2.5> : tensor<8x16xf32>
  %e = tensor.empty() : tensor<8x32xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<8x32xf32>) -> tensor<8x32xf32>
  %r = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]} ins(%h, %w : tensor<8x16xf32>, tensor<32x16xbf16>) outs(%s : tensor<8x32xf32>) {
  ^bb0(%x: f32, %y: bf16, %o: f32):
    %z = arith.extf %y : bf16 to f32
    %p = arith.mulf %x, %z : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<8x32xf32>
  return %r : tensor<8x32xf32>
}

// -----

// A factor of two numbers is a factor like any other.
// CHECK-LABEL: func.func @two_numbers
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction"]}
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func @two_numbers(%w: tensor<32x2xf32>) -> tensor<2x32xf32> {
  %zero = arith.constant 0.0 : f32
  %h = arith.constant dense<[[1.0, 2.0], [2.0, 1.0]]> : tensor<2x2xf32>
  %e = tensor.empty() : tensor<2x32xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<2x32xf32>) -> tensor<2x32xf32>
  %r = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]} ins(%h, %w : tensor<2x2xf32>, tensor<32x2xf32>) outs(%s : tensor<2x32xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %p = arith.mulf %x, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x32xf32>
  return %r : tensor<2x32xf32>
}

// -----

// Sums that begin with values of their own stay a product.
// CHECK-LABEL: func.func @begins_with_rows
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction"]}
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func @begins_with_rows(%w: tensor<32x16xf32>, %s: tensor<8x32xf32>) -> tensor<8x32xf32> {
  %h = arith.constant dense<2.5> : tensor<8x16xf32>
  %r = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]} ins(%h, %w : tensor<8x16xf32>, tensor<32x16xf32>) outs(%s : tensor<8x32xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %p = arith.mulf %x, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<8x32xf32>
  return %r : tensor<8x32xf32>
}
