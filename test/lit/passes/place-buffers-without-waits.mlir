// c waits for all of b, whose tiles have waited for all of a: c may lie where a lay, and waits for nothing more for it. d, of which
// each tile waits for one of c, may not lie where b lay.
// RUN: kitsune-opt %s --kitsune-place-buffers | FileCheck %s
// RUN: kitsune-opt %s --kitsune-place-buffers --kitsune-synchronize --kitsune-materialize --kitsune-check-progress | FileCheck %s --check-prefix=WAITS
// CHECK: after = [], {{.*}} offsets = array<i64: 0>, sym_name = "a"
// CHECK: after = [], {{.*}} offsets = array<i64: 16384>, sym_name = "b"
// CHECK: after = ["b"], {{.*}} offsets = array<i64: 0>, sym_name = "c"
// CHECK: after = [], {{.*}} offsets = array<i64: 32768>, sym_name = "d"
// CHECK: arena = 49152
// WAITS: sym_name = "a"
// WAITS-COUNT-1: "kitsune.wait"
// WAITS: sym_name = "b"
// WAITS-COUNT-1: "kitsune.wait"
// WAITS-NOT: "kitsune.wait"
// WAITS: sym_name = "c"
#id = affine_map<(m, n) -> (m, n)>
#turned = affine_map<(m, n) -> (n, m)>
func.func @f(%x: tensor<64x64xf32>, %e: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x64xf32>) outs(%e : tensor<64x64xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x64xf32>
      "kitsune.yield"(%r) : (tensor<64x64xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 64>} : () -> tensor<64x64xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x64xf32>) outs(%e : tensor<64x64xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x64xf32>
      "kitsune.yield"(%r) : (tensor<64x64xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 64>} : () -> tensor<64x64xf32>
    %c = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#turned, #id], iterator_types = ["parallel", "parallel"]} ins(%b : tensor<64x64xf32>) outs(%e : tensor<64x64xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x64xf32>
      "kitsune.yield"(%r) : (tensor<64x64xf32>) -> ()
    }) {sym_name = "c", engine = "simt", tile = array<i64: 16, 64>} : () -> tensor<64x64xf32>
    %d = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%c : tensor<64x64xf32>) outs(%e : tensor<64x64xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x64xf32>
      "kitsune.yield"(%r) : (tensor<64x64xf32>) -> ()
    }) {sym_name = "d", engine = "simt", tile = array<i64: 16, 64>} : () -> tensor<64x64xf32>
    %f = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%d : tensor<64x64xf32>) outs(%e : tensor<64x64xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x64xf32>
      "kitsune.yield"(%r) : (tensor<64x64xf32>) -> ()
    }) {sym_name = "f", engine = "simt", tile = array<i64: 16, 64>} : () -> tensor<64x64xf32>
    "kitsune.yield"(%f) : (tensor<64x64xf32>) -> ()
  }) {sym_name = "f_p0"} : () -> tensor<64x64xf32>
  return %p : tensor<64x64xf32>
}
