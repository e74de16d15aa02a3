// Each stage gets an engine and tile sizes of its parallel dimensions.
// RUN: kitsune-opt %s --kitsune-partition-streams=target=h200 | FileCheck %s

// CHECK: }) {engine = "simt", sym_name = "a", tile = array<i64: 8, 512>} : () -> tensor<4096x512xf32>
// CHECK: }) {engine = "simt", sym_name = "b", tile = array<i64: 8, 512>} : () -> tensor<4096x512xf32>
#id = affine_map<(m, n) -> (m, n)>
func.func @f(%x: tensor<4096x512xf32>, %e: tensor<4096x512xf32>) -> tensor<4096x512xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4096x512xf32>) outs(%e : tensor<4096x512xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<4096x512xf32>
      "kitsune.yield"(%r) : (tensor<4096x512xf32>) -> ()
    }) {sym_name = "a"} : () -> tensor<4096x512xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<4096x512xf32>) outs(%e : tensor<4096x512xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<4096x512xf32>
      "kitsune.yield"(%r) : (tensor<4096x512xf32>) -> ()
    }) {sym_name = "b"} : () -> tensor<4096x512xf32>
    "kitsune.yield"(%b) : (tensor<4096x512xf32>) -> ()
  }) {sym_name = "f_p0"} : () -> tensor<4096x512xf32>
  return %p : tensor<4096x512xf32>
}