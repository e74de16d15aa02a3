// Products of one input that meet share a stage and a tile of the mma engine where TMA can load their weights.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize --kitsune-form-stages="target=h200" --kitsune-partition-streams="target=h200" | FileCheck %s

// CHECK-LABEL: func.func @gate_and_up
// CHECK: "kitsune.stage"
// CHECK: engine = "mma", sym_name = "product_0", tile = array<i64: 128, 96>
// CHECK-NEXT: "kitsune.yield"
func.func @gate_and_up(%x: tensor<300x512xbf16>, %g: tensor<4096x512xbf16>, %u: tensor<4096x512xbf16>, %z: tensor<300x4096xf32>) -> tensor<300x4096xf32> {
  %e = tensor.empty() : tensor<512x4096xbf16>
  %xf = arith.extf %x : tensor<300x512xbf16> to tensor<300x512xf32>
  %gt = linalg.transpose ins(%g : tensor<4096x512xbf16>) outs(%e : tensor<512x4096xbf16>) permutation = [1, 0]
  %gf = arith.extf %gt : tensor<512x4096xbf16> to tensor<512x4096xf32>
  %ut = linalg.transpose ins(%u : tensor<4096x512xbf16>) outs(%e : tensor<512x4096xbf16>) permutation = [1, 0]
  %uf = arith.extf %ut : tensor<512x4096xbf16> to tensor<512x4096xf32>
  %a = linalg.matmul ins(%xf, %gf : tensor<300x512xf32>, tensor<512x4096xf32>) outs(%z : tensor<300x4096xf32>) -> tensor<300x4096xf32>
  %b = linalg.matmul ins(%xf, %uf : tensor<300x512xf32>, tensor<512x4096xf32>) outs(%z : tensor<300x4096xf32>) -> tensor<300x4096xf32>
  %r = arith.mulf %a, %b : tensor<300x4096xf32>
  return %r : tensor<300x4096xf32>
}

// -----

// Rows of 260 bytes, no multiple of 16: copied by threads, which do one product.

// CHECK-LABEL: func.func @odd_sums
// CHECK-COUNT-2: "kitsune.stage"
func.func @odd_sums(%x: tensor<300x130xbf16>, %g: tensor<4096x130xbf16>, %u: tensor<4096x130xbf16>, %z: tensor<300x4096xf32>) -> tensor<300x4096xf32> {
  %e = tensor.empty() : tensor<130x4096xbf16>
  %xf = arith.extf %x : tensor<300x130xbf16> to tensor<300x130xf32>
  %gt = linalg.transpose ins(%g : tensor<4096x130xbf16>) outs(%e : tensor<130x4096xbf16>) permutation = [1, 0]
  %gf = arith.extf %gt : tensor<130x4096xbf16> to tensor<130x4096xf32>
  %ut = linalg.transpose ins(%u : tensor<4096x130xbf16>) outs(%e : tensor<130x4096xbf16>) permutation = [1, 0]
  %uf = arith.extf %ut : tensor<130x4096xbf16> to tensor<130x4096xf32>
  %a = linalg.matmul ins(%xf, %gf : tensor<300x130xf32>, tensor<130x4096xf32>) outs(%z : tensor<300x4096xf32>) -> tensor<300x4096xf32>
  %b = linalg.matmul ins(%xf, %uf : tensor<300x130xf32>, tensor<130x4096xf32>) outs(%z : tensor<300x4096xf32>) -> tensor<300x4096xf32>
  %r = arith.mulf %a, %b : tensor<300x4096xf32>
  return %r : tensor<300x4096xf32>
}

// -----

// Twice as many weights in one: two stages.
// CHECK-LABEL: func.func @sizes
// CHECK-COUNT-2: "kitsune.stage"
func.func @sizes(%x: tensor<300x512xf16>, %g: tensor<4096x512xf16>, %u: tensor<1x512xf16>, %z: tensor<300x4096xf32>, %y: tensor<300x1xf32>) -> tensor<300x4096xf32> {
  %a = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %g : tensor<300x512xf16>, tensor<4096x512xf16>) outs(%z : tensor<300x4096xf32>) {
  ^bb0(%i: f16, %j: f16, %o: f32):
    %p = arith.extf %i : f16 to f32
    %q = arith.extf %j : f16 to f32
    %r = arith.mulf %p, %q : f32
    %s = arith.addf %o, %r : f32
    linalg.yield %s : f32
  } -> tensor<300x4096xf32>
  %b = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %u : tensor<300x512xf16>, tensor<1x512xf16>) outs(%y : tensor<300x1xf32>) {
  ^bb0(%i: f16, %j: f16, %o: f32):
    %p = arith.extf %i : f16 to f32
    %q = arith.extf %j : f16 to f32
    %r = arith.mulf %p, %q : f32
    %s = arith.addf %o, %r : f32
    linalg.yield %s : f32
  } -> tensor<300x1xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, 0)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]} ins(%a, %b : tensor<300x4096xf32>, tensor<300x1xf32>) outs(%z : tensor<300x4096xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %r = arith.mulf %i, %j : f32
    linalg.yield %r : f32
  } -> tensor<300x4096xf32>
  return %r : tensor<300x4096xf32>
}
