// What a normalisation makes in f32 of what lies in memory could be made again by what reads it, but a product takes what it
// multiplies from memory: rows and their sums are one stage, the product another.
// RUN: kitsune-opt %s --kitsune-normalize --kitsune-form-stages=target=sm_90a --kitsune-partition-streams="target=sm_90a" --remarks 2>&1 | FileCheck %s

// CHECK-NOT: made again where they are read
// CHECK-LABEL: func.func @normed
// CHECK: "kitsune.stage"
// CHECK: math.rsqrt
// CHECK: engine = "simt"
// CHECK: "kitsune.stage"
// CHECK-NOT: math.rsqrt
// CHECK: engine = "mma"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
#i = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @normed(%x: tensor<64x2048xf32>, %w: tensor<8192x2048xf32>) -> tensor<64x8192xf32> {
  %zero = arith.constant 0.0 : f32
  %sums = tensor.empty() : tensor<64xf32>
  %none = linalg.fill ins(%zero : f32) outs(%sums : tensor<64xf32>) -> tensor<64xf32>
  %s = linalg.generic {indexing_maps = [#i, #row], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<64x2048xf32>) outs(%none : tensor<64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.mulf %a, %a : f32
    %c = arith.addf %b, %o : f32
    linalg.yield %c : f32
  } -> tensor<64xf32>
  %e = tensor.empty() : tensor<64x2048xf32>
  %n = linalg.generic {indexing_maps = [#i, #row, #i], iterator_types = ["parallel", "parallel"]} ins(%x, %s : tensor<64x2048xf32>, tensor<64xf32>) outs(%e : tensor<64x2048xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %r = math.rsqrt %b : f32
    %c = arith.mulf %a, %r : f32
    linalg.yield %c : f32
  } -> tensor<64x2048xf32>
  %f = tensor.empty() : tensor<64x8192xf32>
  %start = linalg.fill ins(%zero : f32) outs(%f : tensor<64x8192xf32>) -> tensor<64x8192xf32>
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%n, %w : tensor<64x2048xf32>, tensor<8192x2048xf32>) outs(%start : tensor<64x8192xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %q = arith.mulf %a, %b : f32
    %t = arith.addf %o, %q : f32
    linalg.yield %t : f32
  } -> tensor<64x8192xf32>
  return %p : tensor<64x8192xf32>
}
