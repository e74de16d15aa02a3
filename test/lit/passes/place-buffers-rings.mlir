// A stage's `ring` is as many tiles of its result, where the pipeline is spatial; all rings fit their part of L2.
// RUN: kitsune-opt %s --kitsune-place-buffers | FileCheck %s
// RUN: kitsune-opt %s --kitsune-place-buffers=ring_limit=4096 | FileCheck %s
// RUN: kitsune-opt %s --kitsune-place-buffers=ring_limit=4095 --verify-diagnostics
// RUN: kitsune-opt %s --kitsune-place-buffers=rings=3 | FileCheck %s --check-prefix=THREE

// Two tiles of 16 rows of 128 bytes.
// CHECK: buffers = [#kitsune.buffer<"queue", 2 : i64>]
// A ring of all four tiles would be no ring.
// CHECK: buffers = [#kitsune.buffer<"global", 1 : i64>]
// CHECK: arena = 12288
// THREE: buffers = [#kitsune.buffer<"queue", 3 : i64>]
// THREE: buffers = [#kitsune.buffer<"queue", 3 : i64>]
#id = affine_map<(m, n) -> (m, n)>
func.func @f(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    // expected-error@+1 {{rings need 4096 bytes of L2, the limit is 4095; the largest is that of result 0 of this stage with 4096 bytes}}
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>, workers = 2 : i64, ring = 2 : i64} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>, workers = 2 : i64, ring = 4 : i64} : () -> tensor<64x32xf32>
    %c = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%b : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "c", engine = "simt", tile = array<i64: 16, 32>, workers = 2 : i64} : () -> tensor<64x32xf32>
    "kitsune.yield"(%c) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "f_p0", mode = "spatial"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}
