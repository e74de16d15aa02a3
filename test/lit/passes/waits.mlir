// c reads a and b, and b waits for all of a: c waits for b alone.
// RUN: kitsune-opt %s --kitsune-materialize --kitsune-check-progress | FileCheck %s

// CHECK: "kitsune.make_semaphore"() {slots = 4 : i64}
// CHECK: sym_name = "a"
// CHECK-COUNT-1: "kitsune.wait"
// CHECK: sym_name = "b"
// CHECK: "kitsune.wait"(%[[B:.*]], %{{.*}}, %{{.*}}) {count = 1 : i64}
// CHECK-NOT: "kitsune.wait"
// CHECK: sym_name = "c"
#id = affine_map<(m) -> (m)>
#row = affine_map<(m) -> ()>
#none = affine_map<() -> ()>
func.func @f(%x: tensor<64xf32>) -> tensor<64xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %e = tensor.empty() : tensor<64xf32>
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%x : tensor<64xf32>) outs(%e : tensor<64xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64xf32>
      "kitsune.yield"(%r) : (tensor<64xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16>, after = [],
        buffers = [#kitsune.buffer<"global", 1 : i64>], offsets = array<i64: 0>, sync = [#kitsune.sync<"none">]} : () -> tensor<64xf32>
    %b = "kitsune.stage"() ({
      %e = tensor.empty() : tensor<f32>
      %z = arith.constant 0.0 : f32
      %f = linalg.fill ins(%z : f32) outs(%e : tensor<f32>) -> tensor<f32>
      %r = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["reduction"]} ins(%a : tensor<64xf32>) outs(%f : tensor<f32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.addf %i, %o : f32
        linalg.yield %v : f32
      } -> tensor<f32>
      "kitsune.yield"(%r) : (tensor<f32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64>, after = [],
        buffers = [#kitsune.buffer<"global", 1 : i64>], offsets = array<i64: 256>, sync = [#kitsune.sync<"all">]} : () -> tensor<f32>
    %c = "kitsune.stage"() ({
      %e = tensor.empty() : tensor<64xf32>
      %r = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel"]} ins(%a, %b : tensor<64xf32>, tensor<f32>) outs(%e : tensor<64xf32>) {
      ^bb0(%i: f32, %s: f32, %o: f32):
        %v = arith.divf %i, %s : f32
        linalg.yield %v : f32
      } -> tensor<64xf32>
      "kitsune.yield"(%r) : (tensor<64xf32>) -> ()
    }) {sym_name = "c", engine = "simt", tile = array<i64: 16>, after = [],
        buffers = [#kitsune.buffer<"global", 1 : i64>], offsets = array<i64: -1>, sync = [#kitsune.sync<"tile">, #kitsune.sync<"all">]} : () -> tensor<64xf32>
    "kitsune.yield"(%c) : (tensor<64xf32>) -> ()
  }) {sym_name = "f_p0", arena = 512 : i64} : () -> tensor<64xf32>
  return %p : tensor<64xf32>
}
