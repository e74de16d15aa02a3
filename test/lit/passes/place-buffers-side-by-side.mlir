// Two chains side by side, in launches that have a stage of each. c1 may lie where a1 lay, for it waits for b1, its reader, in any
// case; b2 may not, though b1 comes before it: it would wait for the other chain.
// RUN: kitsune-opt %s --kitsune-place-buffers | FileCheck %s
// RUN: kitsune-opt %s --kitsune-place-buffers=apart=0 | FileCheck %s --check-prefix=LARGE
// CHECK: after = [], {{.*}} offsets = array<i64: 0>, sym_name = "a1"
// CHECK: after = [], {{.*}} offsets = array<i64: 8192>, sym_name = "a2"
// CHECK: after = [], {{.*}} offsets = array<i64: 16384>, sym_name = "b1"
// CHECK: after = [], {{.*}} offsets = array<i64: 24576>, sym_name = "b2"
// CHECK: after = ["b1"], {{.*}} offsets = array<i64: 0>, sym_name = "c1"
// CHECK: after = ["b2"], {{.*}} offsets = array<i64: 8192>, sym_name = "c2"
// CHECK: arena = 32768
// Where buffers take more than what stays in L2, bytes count for more.
// LARGE: after = ["b1"], {{.*}} offsets = array<i64: 0>, sym_name = "b2"
// LARGE: arena = 24576
#id = affine_map<(m, n) -> (m, n)>
func.func @chains(%x: tensor<64x32xf32>, %y: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a1 = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%p: f32, %o: f32):
        %v = math.tanh %p : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a1", launch = 0, engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %a2 = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%y : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%p: f32, %o: f32):
        %v = math.tanh %p : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a2", launch = 0, engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %b1 = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a1 : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%p: f32, %o: f32):
        %v = math.tanh %p : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b1", launch = 1, engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %b2 = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a2 : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%p: f32, %o: f32):
        %v = math.tanh %p : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b2", launch = 1, engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %c1 = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%b1 : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%p: f32, %o: f32):
        %v = math.tanh %p : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "c1", launch = 2, engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %c2 = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%b2 : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%p: f32, %o: f32):
        %v = math.tanh %p : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "c2", launch = 2, engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %d = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]} ins(%c1, %c2 : tensor<64x32xf32>, tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%p: f32, %q: f32, %o: f32):
        %v = arith.addf %p, %q : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "d", launch = 3, engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%d) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "chains_p0", mode = "separate"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}
