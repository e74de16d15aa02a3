// Measured times of stages take the place of the model's where the mode is chosen; a stage without one keeps the model's.
// RUN: kitsune-opt %s --kitsune-partition-streams="target=h200" --remarks -o /dev/null 2>&1 | FileCheck %s --check-prefix=MODEL
// RUN: kitsune-opt %s --kitsune-partition-streams="target=h200 times=a:500,no_such_stage:1e9" --remarks -o /dev/null 2>&1 | FileCheck %s --check-prefix=SLOW
// RUN: not kitsune-opt %s --kitsune-partition-streams="target=h200 times=a:soon" 2>&1 | FileCheck %s --check-prefix=SOON
// RUN: not kitsune-opt %s --kitsune-partition-streams="target=host mode=spatial" 2>&1 | FileCheck %s --check-prefix=HOST

// MODEL: mode temporal (temporal {{[0-9][0-9]?\.[0-9]}} us
// SLOW: mode temporal (temporal {{50[0-9]\.[0-9]}} us
// SOON: option 'times' of kitsune-partition-streams has a time that is no number: {{.*}}soon
// HOST: 'kitsune.pipeline' op cannot be spatial: host has no multiprocessors to give to stages
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
