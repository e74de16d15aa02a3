// In mode `cluster`, layers that follow each other with element-wise steps between them are one stage, whose tiles of 64 rows
// clusters do.
// RUN: kitsune-opt %s --target h200 '--kitsune-form-stages=chains=cluster' '--kitsune-partition-streams=mode=cluster' --split-input-file | FileCheck %s
// RUN: kitsune-opt %s --target h200 '--kitsune-form-stages=chains=cluster' '--kitsune-partition-streams=mode=cluster' --split-input-file --remarks -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// REMARK: mode cluster ({{.*}} us); bottleneck {{.*}} us), the next would be {{.*}} us)

// CHECK-LABEL: func.func @layers
// CHECK: "kitsune.stage"
// CHECK: math.tanh
// CHECK-NOT: "kitsune.stage"
// CHECK: engine = "cluster"
// CHECK-SAME: tile = array<i64: 64>
// CHECK: mode = "cluster"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
func.func @layers(%x: tensor<4096x512xbf16>, %w: tensor<512x512xbf16>, %v: tensor<512x512xbf16>, %z: tensor<4096x512xf32>) -> tensor<4096x512xf32> {
  %e = tensor.empty() : tensor<4096x512xbf16>
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<4096x512xbf16>, tensor<512x512xbf16>) outs(%z : tensor<4096x512xf32>) {
  ^bb0(%a: bf16, %b: bf16, %c: f32):
    %f = arith.extf %a : bf16 to f32
    %g = arith.extf %b : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x512xf32>
  %t = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%p : tensor<4096x512xf32>) outs(%e : tensor<4096x512xbf16>) {
  ^bb0(%a: f32, %c: bf16):
    %m = math.tanh %a : f32
    %r = arith.truncf %m : f32 to bf16
    linalg.yield %r : bf16
  } -> tensor<4096x512xbf16>
  %q = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%t, %v : tensor<4096x512xbf16>, tensor<512x512xbf16>) outs(%z : tensor<4096x512xf32>) {
  ^bb0(%a: bf16, %b: bf16, %c: f32):
    %f = arith.extf %a : bf16 to f32
    %g = arith.extf %b : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x512xf32>
  return %q : tensor<4096x512xf32>
}

// -----

// A row's sum between the layers takes all of its columns, which no block of a cluster has: no chain.
// CHECK-LABEL: func.func @sum_between
// CHECK: "kitsune.stage"
// CHECK: "kitsune.stage"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @sum_between(%x: tensor<4096x512xbf16>, %w: tensor<512x512xbf16>, %z: tensor<4096x512xf32>, %r: tensor<4096xf32>) -> tensor<4096xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<4096x512xbf16>, tensor<512x512xbf16>) outs(%z : tensor<4096x512xf32>) {
  ^bb0(%a: bf16, %b: bf16, %c: f32):
    %f = arith.extf %a : bf16 to f32
    %g = arith.extf %b : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x512xf32>
  %q = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%p : tensor<4096x512xf32>) outs(%r : tensor<4096xf32>) {
  ^bb0(%a: f32, %c: f32):
    %s = arith.addf %c, %a : f32
    linalg.yield %s : f32
  } -> tensor<4096xf32>
  return %q : tensor<4096xf32>
}
