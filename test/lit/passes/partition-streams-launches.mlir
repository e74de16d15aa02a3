// Several launches: stages that overlap share one, what waits for them has its own; a forced cut where there is nothing to gain.
// RUN: kitsune-opt %s --split-input-file --pass-pipeline="builtin.module(kitsune-partition-streams{target=h200 mode=separate})" | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --pass-pipeline="builtin.module(kitsune-partition-streams{target=h200 mode=separate})" --remarks -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// REMARK: launches: a b; c
// CHECK-LABEL: func.func @branches
// CHECK: launch = 0 : i64, sym_name = "a"
// CHECK: launch = 0 : i64, sym_name = "b"
// CHECK: launch = 1 : i64, sym_name = "c"
// CHECK: mode = "separate"
#map = affine_map<(m, n) -> (m, n)>
func.func @branches(%x: tensor<64x512xf32>, %y: tensor<64x512xf32>) -> tensor<64x512xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %e = tensor.empty() : tensor<64x512xf32>
      %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
          ins(%x : tensor<64x512xf32>) outs(%e : tensor<64x512xf32>) {
      ^bb0(%v: f32, %o: f32):
        %c = math.exp %v : f32
        linalg.yield %c : f32
      } -> tensor<64x512xf32>
      "kitsune.yield"(%r) : (tensor<64x512xf32>) -> ()
    }) {sym_name = "a"} : () -> tensor<64x512xf32>
    %b = "kitsune.stage"() ({
      %e = tensor.empty() : tensor<64x512xf32>
      %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
          ins(%y : tensor<64x512xf32>) outs(%e : tensor<64x512xf32>) {
      ^bb0(%v: f32, %o: f32):
        %c = math.tanh %v : f32
        linalg.yield %c : f32
      } -> tensor<64x512xf32>
      "kitsune.yield"(%r) : (tensor<64x512xf32>) -> ()
    }) {sym_name = "b"} : () -> tensor<64x512xf32>
    %s = "kitsune.stage"() ({
      %e = tensor.empty() : tensor<64x512xf32>
      %r = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel"]}
          ins(%a, %b : tensor<64x512xf32>, tensor<64x512xf32>) outs(%e : tensor<64x512xf32>) {
      ^bb0(%v: f32, %w: f32, %o: f32):
        %c = arith.addf %v, %w : f32
        linalg.yield %c : f32
      } -> tensor<64x512xf32>
      "kitsune.yield"(%r) : (tensor<64x512xf32>) -> ()
    }) {sym_name = "c"} : () -> tensor<64x512xf32>
    "kitsune.yield"(%s) : (tensor<64x512xf32>) -> ()
  }) {sym_name = "p0"} : () -> tensor<64x512xf32>
  return %p : tensor<64x512xf32>
}

// -----

// One stage is one launch, and says so.
// REMARK: cannot be separate: a is its only stage
// CHECK-LABEL: func.func @alone
// CHECK: launch = 0 : i64, sym_name = "a"
#map = affine_map<(m, n) -> (m, n)>
func.func @alone(%x: tensor<64x512xf32>) -> tensor<64x512xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %e = tensor.empty() : tensor<64x512xf32>
      %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
          ins(%x : tensor<64x512xf32>) outs(%e : tensor<64x512xf32>) {
      ^bb0(%v: f32, %o: f32):
        %c = math.exp %v : f32
        linalg.yield %c : f32
      } -> tensor<64x512xf32>
      "kitsune.yield"(%r) : (tensor<64x512xf32>) -> ()
    }) {sym_name = "a"} : () -> tensor<64x512xf32>
    "kitsune.yield"(%a) : (tensor<64x512xf32>) -> ()
  }) {sym_name = "p0"} : () -> tensor<64x512xf32>
  return %p : tensor<64x512xf32>
}
