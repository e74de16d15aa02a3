// A product of few rows whose columns are read in equal parts is a product for each part; its bias and what is added are read in parts.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize | FileCheck %s

#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (n)>

// CHECK-LABEL: func.func @two_gates
// CHECK-DAG: %[[W:.*]] = tensor.expand_shape %arg1 {{\[}}[0, 1], [2]] output_shape [2, 32, 16]
// CHECK-DAG: %[[B:.*]] = tensor.expand_shape %arg2 {{\[}}[0, 1]] output_shape [2, 32]
// CHECK-DAG: %[[X:.*]] = tensor.expand_shape %arg3 {{\[}}[0], [1], [2, 3]] output_shape [3, 8, 2, 32]
// CHECK-DAG: tensor.extract_slice %[[W]][0, 0, 0] [1, 32, 16] [1, 1, 1] : tensor<2x32x16xf32> to tensor<32x16xf32>
// CHECK-DAG: tensor.extract_slice %[[W]][1, 0, 0] [1, 32, 16] [1, 1, 1] : tensor<2x32x16xf32> to tensor<32x16xf32>
// CHECK-DAG: tensor.extract_slice %[[X]][2, 0, 1, 0] [1, 8, 1, 32] [1, 1, 1, 1] : tensor<3x8x2x32xf32> to tensor<8x32xf32>
// CHECK-NOT: tensor<8x64xf32>
// CHECK: return
func.func @two_gates(%h: tensor<8x16xf32>, %w: tensor<64x16xf32>, %b: tensor<64xf32>, %x: tensor<3x8x64xf32>) -> tensor<8x32xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x64xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<8x64xf32>) -> tensor<8x64xf32>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%h, %w : tensor<8x16xf32>, tensor<64x16xf32>) outs(%s : tensor<8x64xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %a = arith.mulf %i, %j : f32
    %q = arith.addf %o, %a : f32
    linalg.yield %q : f32
  } -> tensor<8x64xf32>
  %step = tensor.extract_slice %x[2, 0, 0] [1, 8, 64] [1, 1, 1] : tensor<3x8x64xf32> to tensor<8x64xf32>
  %g = linalg.generic {indexing_maps = [#id, #row, #id, #id], iterator_types = ["parallel", "parallel"]} ins(%p, %b, %step : tensor<8x64xf32>, tensor<64xf32>, tensor<8x64xf32>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%i: f32, %j: f32, %k: f32, %o: f32):
    %a = arith.addf %i, %j : f32
    %q = arith.addf %a, %k : f32
    linalg.yield %q : f32
  } -> tensor<8x64xf32>
  %l = tensor.extract_slice %g[0, 0] [8, 32] [1, 1] : tensor<8x64xf32> to tensor<8x32xf32>
  %r = tensor.extract_slice %g[0, 32] [8, 32] [1, 1] : tensor<8x64xf32> to tensor<8x32xf32>
  %f = tensor.empty() : tensor<8x32xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]} ins(%l, %r : tensor<8x32xf32>, tensor<8x32xf32>) outs(%f : tensor<8x32xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %t = math.tanh %i : f32
    %q = arith.mulf %t, %j : f32
    linalg.yield %q : f32
  } -> tensor<8x32xf32>
  return %y : tensor<8x32xf32>
}

// -----

#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>

// The whole result is used, too.
// CHECK-LABEL: func.func @whole
// CHECK: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<8x16xf32>, tensor<64x16xf32>)
// CHECK: tensor.extract_slice
func.func @whole(%h: tensor<8x16xf32>, %w: tensor<64x16xf32>) -> (tensor<8x32xf32>, tensor<8x32xf32>, tensor<8x64xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x64xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<8x64xf32>) -> tensor<8x64xf32>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%h, %w : tensor<8x16xf32>, tensor<64x16xf32>) outs(%s : tensor<8x64xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %a = arith.mulf %i, %j : f32
    %q = arith.addf %o, %a : f32
    linalg.yield %q : f32
  } -> tensor<8x64xf32>
  %l = tensor.extract_slice %p[0, 0] [8, 32] [1, 1] : tensor<8x64xf32> to tensor<8x32xf32>
  %r = tensor.extract_slice %p[0, 32] [8, 32] [1, 1] : tensor<8x64xf32> to tensor<8x32xf32>
  return %l, %r, %p : tensor<8x32xf32>, tensor<8x32xf32>, tensor<8x64xf32>
}

// -----

#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>

// Parts of unequal widths.
// CHECK-LABEL: func.func @unequal
// CHECK: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<8x16xf32>, tensor<64x16xf32>)
// CHECK: tensor.extract_slice
func.func @unequal(%h: tensor<8x16xf32>, %w: tensor<64x16xf32>) -> (tensor<8x16xf32>, tensor<8x48xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x64xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<8x64xf32>) -> tensor<8x64xf32>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%h, %w : tensor<8x16xf32>, tensor<64x16xf32>) outs(%s : tensor<8x64xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %a = arith.mulf %i, %j : f32
    %q = arith.addf %o, %a : f32
    linalg.yield %q : f32
  } -> tensor<8x64xf32>
  %l = tensor.extract_slice %p[0, 0] [8, 16] [1, 1] : tensor<8x64xf32> to tensor<8x16xf32>
  %r = tensor.extract_slice %p[0, 16] [8, 48] [1, 1] : tensor<8x64xf32> to tensor<8x48xf32>
  return %l, %r : tensor<8x16xf32>, tensor<8x48xf32>
}

// -----

#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>

// Many rows: one wide product is better.
// CHECK-LABEL: func.func @many_rows
// CHECK: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<65x16xf32>, tensor<64x16xf32>)
// CHECK: tensor.extract_slice
func.func @many_rows(%h: tensor<65x16xf32>, %w: tensor<64x16xf32>) -> (tensor<65x32xf32>, tensor<65x32xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<65x64xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<65x64xf32>) -> tensor<65x64xf32>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%h, %w : tensor<65x16xf32>, tensor<64x16xf32>) outs(%s : tensor<65x64xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %a = arith.mulf %i, %j : f32
    %q = arith.addf %o, %a : f32
    linalg.yield %q : f32
  } -> tensor<65x64xf32>
  %l = tensor.extract_slice %p[0, 0] [65, 32] [1, 1] : tensor<65x64xf32> to tensor<65x32xf32>
  %r = tensor.extract_slice %p[0, 32] [65, 32] [1, 1] : tensor<65x64xf32> to tensor<65x32xf32>
  return %l, %r : tensor<65x32xf32>, tensor<65x32xf32>
}
