// A product with a sum of one term is a multiplication, made where it is read.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize | FileCheck %s

#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>

// CHECK-LABEL: func.func @outer
// CHECK-DAG: %[[A:.*]] = tensor.collapse_shape %arg0 {{\[}}[0, 1]] : tensor<40x1xbf16> into tensor<40xbf16>
// CHECK-DAG: %[[B:.*]] = tensor.collapse_shape %arg1 {{\[}}[0, 1]] : tensor<1x16xbf16> into tensor<16xbf16>
// CHECK: linalg.generic {{.*}}iterator_types = ["parallel", "parallel"]} ins(%[[A]], %[[B]]
// CHECK: arith.mulf
// CHECK-NOT: arith.addf
// CHECK: return
func.func @outer(%a: tensor<40x1xbf16>, %b: tensor<1x16xbf16>) -> tensor<40x16xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<40x16xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<40x16xf32>) -> tensor<40x16xf32>
  %p = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<40x1xbf16>, tensor<1x16xbf16>) outs(%s : tensor<40x16xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %x = arith.extf %i : bf16 to f32
    %y = arith.extf %j : bf16 to f32
    %m = arith.mulf %x, %y : f32
    %q = arith.addf %o, %m : f32
    linalg.yield %q : f32
  } -> tensor<40x16xf32>
  return %p : tensor<40x16xf32>
}

// -----

#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>

// Two terms are a sum.
// CHECK-LABEL: func.func @two
// CHECK: iterator_types = ["parallel", "parallel", "reduction"]
// CHECK: arith.addf
func.func @two(%a: tensor<40x2xbf16>, %b: tensor<2x16xbf16>) -> tensor<40x16xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<40x16xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<40x16xf32>) -> tensor<40x16xf32>
  %p = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<40x2xbf16>, tensor<2x16xbf16>) outs(%s : tensor<40x16xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %x = arith.extf %i : bf16 to f32
    %y = arith.extf %j : bf16 to f32
    %m = arith.mulf %x, %y : f32
    %q = arith.addf %o, %m : f32
    linalg.yield %q : f32
  } -> tensor<40x16xf32>
  return %p : tensor<40x16xf32>
}

// -----

#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>

// It is added to something.
// CHECK-LABEL: func.func @added
// CHECK: arith.addf
func.func @added(%a: tensor<40x1xf32>, %b: tensor<1x16xf32>, %s: tensor<40x16xf32>) -> tensor<40x16xf32> {
  %p = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<40x1xf32>, tensor<1x16xf32>) outs(%s : tensor<40x16xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.mulf %i, %j : f32
    %q = arith.addf %o, %m : f32
    linalg.yield %q : f32
  } -> tensor<40x16xf32>
  return %p : tensor<40x16xf32>
}
