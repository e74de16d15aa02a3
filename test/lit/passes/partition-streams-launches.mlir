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

// -----

// Casts of weights that do not wait for each other are one launch, whose blocks share multiprocessors; beside the product that
// waits for one of them they would have a multiprocessor each.
// REMARK: launches: a b c; d
// CHECK-LABEL: func.func @casts
// CHECK: launch = 0 : i64, sym_name = "a"
// CHECK: launch = 0 : i64, sym_name = "b"
// CHECK: launch = 0 : i64, sym_name = "c"
// CHECK: launch = 1 : i64, sym_name = "d"
#map = affine_map<(m, n) -> (m, n)>
#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func @casts(%x: tensor<2048x512xf32>, %y: tensor<2048x512xf32>, %z: tensor<2048x512xf32>, %i: tensor<4096x512xbf16>, %s: tensor<4096x2048xf32>) -> tuple<tensor<2048x512xbf16>, tensor<2048x512xbf16>, tensor<4096x2048xf32>> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %e = tensor.empty() : tensor<2048x512xbf16>
      %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
          ins(%x : tensor<2048x512xf32>) outs(%e : tensor<2048x512xbf16>) {
      ^bb0(%v: f32, %o: bf16):
        %t = arith.truncf %v : f32 to bf16
        linalg.yield %t : bf16
      } -> tensor<2048x512xbf16>
      "kitsune.yield"(%r) : (tensor<2048x512xbf16>) -> ()
    }) {sym_name = "a"} : () -> tensor<2048x512xbf16>
    %b = "kitsune.stage"() ({
      %e = tensor.empty() : tensor<2048x512xbf16>
      %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
          ins(%y : tensor<2048x512xf32>) outs(%e : tensor<2048x512xbf16>) {
      ^bb0(%v: f32, %o: bf16):
        %t = arith.truncf %v : f32 to bf16
        linalg.yield %t : bf16
      } -> tensor<2048x512xbf16>
      "kitsune.yield"(%r) : (tensor<2048x512xbf16>) -> ()
    }) {sym_name = "b"} : () -> tensor<2048x512xbf16>
    %c = "kitsune.stage"() ({
      %e = tensor.empty() : tensor<2048x512xbf16>
      %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
          ins(%z : tensor<2048x512xf32>) outs(%e : tensor<2048x512xbf16>) {
      ^bb0(%v: f32, %o: bf16):
        %t = arith.truncf %v : f32 to bf16
        linalg.yield %t : bf16
      } -> tensor<2048x512xbf16>
      "kitsune.yield"(%r) : (tensor<2048x512xbf16>) -> ()
    }) {sym_name = "c"} : () -> tensor<2048x512xbf16>
    %d = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%i, %c : tensor<4096x512xbf16>, tensor<2048x512xbf16>) outs(%s : tensor<4096x2048xf32>) {
      ^bb0(%v: bf16, %w: bf16, %o: f32):
        %vf = arith.extf %v : bf16 to f32
        %wf = arith.extf %w : bf16 to f32
        %t = arith.mulf %vf, %wf : f32
        %u = arith.addf %o, %t : f32
        linalg.yield %u : f32
      } -> tensor<4096x2048xf32>
      "kitsune.yield"(%r) : (tensor<4096x2048xf32>) -> ()
    }) {sym_name = "d"} : () -> tensor<4096x2048xf32>
    %all = builtin.unrealized_conversion_cast %a, %b, %d : tensor<2048x512xbf16>, tensor<2048x512xbf16>, tensor<4096x2048xf32> to tuple<tensor<2048x512xbf16>, tensor<2048x512xbf16>, tensor<4096x2048xf32>>
    "kitsune.yield"(%all) : (tuple<tensor<2048x512xbf16>, tensor<2048x512xbf16>, tensor<4096x2048xf32>>) -> ()
  }) {sym_name = "p0"} : () -> tuple<tensor<2048x512xbf16>, tensor<2048x512xbf16>, tensor<4096x2048xf32>>
  return %p : tuple<tensor<2048x512xbf16>, tensor<2048x512xbf16>, tensor<4096x2048xf32>>
}
