// Of a product, and of element-wise work on it, only the columns are computed that something reads.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize | FileCheck %s

#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>

// CHECK-LABEL: func.func @first_columns
// CHECK: %[[W:.*]] = tensor.extract_slice %arg1[0, 0] [16, 64] [1, 1] : tensor<16x96xbf16> to tensor<16x64xbf16>
// CHECK: linalg.generic {{.*}} ins(%arg0, %[[W]] : tensor<200x16xbf16>, tensor<16x64xbf16>)
// CHECK-NOT: 200x96
// CHECK: return
func.func @first_columns(%g: tensor<200x16xbf16>, %w: tensor<16x96xbf16>) -> tensor<200x64xbf16> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<200x96xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<200x96xf32>) -> tensor<200x96xf32>
  %p = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%g, %w : tensor<200x16xbf16>, tensor<16x96xbf16>) outs(%s : tensor<200x96xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %x = arith.extf %i : bf16 to f32
    %y = arith.extf %j : bf16 to f32
    %m = arith.mulf %x, %y : f32
    %q = arith.addf %o, %m : f32
    linalg.yield %q : f32
  } -> tensor<200x96xf32>
  %f = tensor.empty() : tensor<200x96xbf16>
  %t = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%p : tensor<200x96xf32>) outs(%f : tensor<200x96xbf16>) {
  ^bb0(%i: f32, %o: bf16):
    %r = arith.truncf %i : f32 to bf16
    linalg.yield %r : bf16
  } -> tensor<200x96xbf16>
  %l = tensor.extract_slice %t[0, 0] [200, 64] [1, 1] : tensor<200x96xbf16> to tensor<200x64xbf16>
  return %l : tensor<200x64xbf16>
}

// -----

#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>

// Two slices leave out what is before the first.
// CHECK-LABEL: func.func @last_columns
// CHECK: tensor.extract_slice %arg1[0, 32] [16, 64] [1, 1] : tensor<16x96xf32> to tensor<16x64xf32>
// CHECK-DAG: tensor.extract_slice %{{.*}}[0, 0] [200, 32] [1, 1] : tensor<200x64xf32> to tensor<200x32xf32>
// CHECK-DAG: tensor.extract_slice %{{.*}}[0, 24] [200, 40] [1, 1] : tensor<200x64xf32> to tensor<200x40xf32>
func.func @last_columns(%g: tensor<200x16xf32>, %w: tensor<16x96xf32>) -> (tensor<200x32xf32>, tensor<200x40xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<200x96xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<200x96xf32>) -> tensor<200x96xf32>
  %p = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%g, %w : tensor<200x16xf32>, tensor<16x96xf32>) outs(%s : tensor<200x96xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.mulf %i, %j : f32
    %q = arith.addf %o, %m : f32
    linalg.yield %q : f32
  } -> tensor<200x96xf32>
  %a = tensor.extract_slice %p[0, 32] [200, 32] [1, 1] : tensor<200x96xf32> to tensor<200x32xf32>
  %b = tensor.extract_slice %p[0, 56] [200, 40] [1, 1] : tensor<200x96xf32> to tensor<200x40xf32>
  return %a, %b : tensor<200x32xf32>, tensor<200x40xf32>
}

// -----

#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>

// All of it is returned, too.
// CHECK-LABEL: func.func @all
// CHECK: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<200x16xf32>, tensor<16x96xf32>)
func.func @all(%g: tensor<200x16xf32>, %w: tensor<16x96xf32>) -> (tensor<200x32xf32>, tensor<200x96xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<200x96xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<200x96xf32>) -> tensor<200x96xf32>
  %p = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%g, %w : tensor<200x16xf32>, tensor<16x96xf32>) outs(%s : tensor<200x96xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.mulf %i, %j : f32
    %q = arith.addf %o, %m : f32
    linalg.yield %q : f32
  } -> tensor<200x96xf32>
  %a = tensor.extract_slice %p[0, 32] [200, 32] [1, 1] : tensor<200x96xf32> to tensor<200x32xf32>
  return %a, %p : tensor<200x32xf32>, tensor<200x96xf32>
}

// -----

#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>

// Rows of 16-bit numbers would begin anywhere.
// CHECK-LABEL: func.func @odd
// CHECK: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<200x16xf32>, tensor<16x96xf32>)
func.func @odd(%g: tensor<200x16xf32>, %w: tensor<16x96xf32>) -> tensor<200x31xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<200x96xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<200x96xf32>) -> tensor<200x96xf32>
  %p = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%g, %w : tensor<200x16xf32>, tensor<16x96xf32>) outs(%s : tensor<200x96xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.mulf %i, %j : f32
    %q = arith.addf %o, %m : f32
    linalg.yield %q : f32
  } -> tensor<200x96xf32>
  %a = tensor.extract_slice %p[0, 0] [200, 31] [1, 1] : tensor<200x96xf32> to tensor<200x31xf32>
  return %a : tensor<200x31xf32>
}
