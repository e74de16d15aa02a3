// Who runs the stages of a pipeline: `mode` on the pipeline, `workers` or `launch` on its stages, and both in the tile program.
// RUN: kitsune-opt %s --pass-pipeline="builtin.module(kitsune-partition-streams{target=h200})" | FileCheck %s --check-prefix=TEMPORAL
// RUN: kitsune-opt %s --pass-pipeline="builtin.module(kitsune-partition-streams{target=h200 mode=spatial},kitsune-place-buffers,kitsune-synchronize,kitsune-materialize)" | FileCheck %s --check-prefix=SPATIAL
// RUN: kitsune-opt %s --pass-pipeline="builtin.module(kitsune-partition-streams{target=h200})" --remarks -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: kitsune-opt %s --pass-pipeline="builtin.module(kitsune-partition-streams{target=h200 mode=spatial})" --remarks -o /dev/null 2>&1 | FileCheck %s --check-prefix=SHARES
// RUN: not kitsune-opt %s --pass-pipeline="builtin.module(kitsune-partition-streams{target=h200 mode=steam})" 2>&1 | FileCheck %s --check-prefix=STEAM
// RUN: kitsune-opt %s --pass-pipeline="builtin.module(kitsune-partition-streams{target=h200 mode=separate},kitsune-place-buffers,kitsune-synchronize,kitsune-materialize)" | FileCheck %s --check-prefix=SEPARATE

// TEMPORAL-NOT: workers
// TEMPORAL-NOT: launch
// TEMPORAL: mode = "temporal", sym_name = "p0"

// SPATIAL: func.func @p0
// SPATIAL-SAME: kitsune.mode = "spatial"
// SPATIAL: sym_name = "a", workers = {{[0-9]+}} : i64
// SPATIAL: sym_name = "b", workers = {{[0-9]+}} : i64

// REMARK: mode temporal (temporal {{.*}} us, separate {{.*}} us{{.*}}); bottleneck {{.*}} us), the next would be {{.*}} us)
// SHARES: multiprocessors: a {{[0-9]+}}, b {{[0-9]+}} of 132; {{[01]}} of 1 edges in rings
// STEAM: option 'mode' of kitsune-partition-streams is auto, temporal, {{.*}}, not 'steam'

// SEPARATE: func.func @p0
// SEPARATE-SAME: kitsune.mode = "separate"
// SEPARATE: launch = 0 : i64, sym_name = "a"
// SEPARATE: launch = 1 : i64, sym_name = "b"
#map = affine_map<(m, n) -> (m, n)>
func.func @main(%x: tensor<4096x512xf32>) -> tensor<4096x512xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %e = tensor.empty() : tensor<4096x512xf32>
      %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
          ins(%x : tensor<4096x512xf32>) outs(%e : tensor<4096x512xf32>) {
      ^bb0(%v: f32, %o: f32):
        %c = math.exp %v : f32
        linalg.yield %c : f32
      } -> tensor<4096x512xf32>
      "kitsune.yield"(%r) : (tensor<4096x512xf32>) -> ()
    }) {sym_name = "a"} : () -> tensor<4096x512xf32>
    %b = "kitsune.stage"() ({
      %e = tensor.empty() : tensor<4096x512xf32>
      %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
          ins(%a : tensor<4096x512xf32>) outs(%e : tensor<4096x512xf32>) {
      ^bb0(%v: f32, %o: f32):
        %c = math.tanh %v : f32
        linalg.yield %c : f32
      } -> tensor<4096x512xf32>
      "kitsune.yield"(%r) : (tensor<4096x512xf32>) -> ()
    }) {sym_name = "b"} : () -> tensor<4096x512xf32>
    "kitsune.yield"(%b) : (tensor<4096x512xf32>) -> ()
  }) {sym_name = "p0"} : () -> tensor<4096x512xf32>
  return %p : tensor<4096x512xf32>
}
