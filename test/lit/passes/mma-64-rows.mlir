// Up to 64 rows: tensor cores' tiles, whatever the weights' size (gpt3_mlp_64 was measured faster so).
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize --kitsune-form-stages="target=h200" --kitsune-partition-streams="target=h200" | FileCheck %s

// CHECK-LABEL: func.func @small_weights
// CHECK: engine = "mma"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @small_weights(%x: tensor<64x1024xbf16>, %w: tensor<4096x1024xbf16>, %z: tensor<64x4096xf32>) -> tensor<64x4096xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<64x1024xbf16>, tensor<4096x1024xbf16>) outs(%z : tensor<64x4096xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<64x4096xf32>
  return %p : tensor<64x4096xf32>
}

// -----

// CHECK-LABEL: func.func @large_weights
// CHECK: engine = "mma"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @large_weights(%x: tensor<64x12288xbf16>, %w: tensor<6144x12288xbf16>, %z: tensor<64x6144xf32>) -> tensor<64x6144xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<64x12288xbf16>, tensor<6144x12288xbf16>) outs(%z : tensor<64x6144xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<64x6144xf32>
  return %p : tensor<64x6144xf32>
}

// -----

// CHECK-LABEL: func.func @fewer_rows
// CHECK: engine = "gemv"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @fewer_rows(%x: tensor<32x1024xbf16>, %w: tensor<4096x1024xbf16>, %z: tensor<32x4096xf32>) -> tensor<32x4096xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<32x1024xbf16>, tensor<4096x1024xbf16>) outs(%z : tensor<32x4096xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<32x4096xf32>
  return %p : tensor<32x4096xf32>
}
