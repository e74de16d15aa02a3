// A tile of the second stage waits for the tiles of the first that hold its elements; arguments need no waiting.
// RUN: kitsune-opt %s --kitsune-synchronize | FileCheck %s

// CHECK: sym_name = "a", sync = [#kitsune.sync<"none">, #kitsune.sync<"none">]
// CHECK: sym_name = "b", sync = [#kitsune.sync<"tile">, #kitsune.sync<"none">]
#id = affine_map<(m, n) -> (m, n)>
func.func @f(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "f_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}
