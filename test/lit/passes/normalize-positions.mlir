// Positions that are read along two loops, or by two ops, become each reader's own `linalg.index`; other tensors stay as they are.
// RUN: kitsune-opt %s --kitsune-normalize | FileCheck %s

#row = affine_map<(d0, d1) -> (d0)>
#col = affine_map<(d0, d1) -> (d1)>
#both = affine_map<(d0, d1) -> (d0, d1)>
#one = affine_map<(d0) -> (d0)>

// CHECK-LABEL: func.func @mask
// CHECK: linalg.generic {{.*}}ins(%arg0 : tensor<64x64xf32>)
// CHECK-DAG: linalg.index 0
// CHECK-DAG: linalg.index 1
// CHECK-NOT: linalg.generic
func.func @mask(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64xi64>
  %place = linalg.generic {indexing_maps = [#one], iterator_types = ["parallel"]} outs(%empty : tensor<64xi64>) {
  ^bb0(%out: i64):
    %i = linalg.index 0 : index
    %n = arith.index_cast %i : index to i64
    linalg.yield %n : i64
  } -> tensor<64xi64>
  %init = tensor.empty() : tensor<64x64xf32>
  %masked = linalg.generic {indexing_maps = [#col, #row, #both, #both], iterator_types = ["parallel", "parallel"]}
      ins(%place, %place, %x : tensor<64xi64>, tensor<64xi64>, tensor<64x64xf32>) outs(%init : tensor<64x64xf32>) {
  ^bb0(%c: i64, %r: i64, %in: f32, %out: f32):
    %keep = arith.cmpi sle, %c, %r : i64
    %kept = arith.select %keep, %in, %zero : f32
    linalg.yield %kept : f32
  } -> tensor<64x64xf32>
  return %masked : tensor<64x64xf32>
}

// What is computed of a tensor is computed once.
// CHECK-LABEL: func.func @shared
// CHECK-COUNT-1: math.exp
// CHECK-NOT: math.exp
func.func @shared(%v: tensor<64xf32>) -> tensor<64x64xf32> {
  %empty = tensor.empty() : tensor<64xf32>
  %e = linalg.generic {indexing_maps = [#one, #one], iterator_types = ["parallel"]} ins(%v : tensor<64xf32>) outs(%empty : tensor<64xf32>) {
  ^bb0(%in: f32, %out: f32):
    %r = math.exp %in : f32
    linalg.yield %r : f32
  } -> tensor<64xf32>
  %init = tensor.empty() : tensor<64x64xf32>
  %sum = linalg.generic {indexing_maps = [#col, #row, #both], iterator_types = ["parallel", "parallel"]}
      ins(%e, %e : tensor<64xf32>, tensor<64xf32>) outs(%init : tensor<64x64xf32>) {
  ^bb0(%c: f32, %r: f32, %out: f32):
    %s = arith.addf %c, %r : f32
    linalg.yield %s : f32
  } -> tensor<64x64xf32>
  return %sum : tensor<64x64xf32>
}
