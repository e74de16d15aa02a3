// A sum over a window of few terms is made by one thread (simt); over many channels it is a product of its own kind.
// RUN: kitsune-opt %s --kitsune-partition-streams=target=h200 | FileCheck %s

// CHECK: }) {engine = "simt", sym_name = "depthwise"
// CHECK: }) {engine = "generic", sym_name = "dense"
#image = affine_map<(n, h, w, c, i, j) -> (n, c, h + i, w + j)>
#taps = affine_map<(n, h, w, c, i, j) -> (c, i, j)>
#out = affine_map<(n, h, w, c, i, j) -> (n, c, h, w)>
#wide = affine_map<(n, f, h, w, c, i, j) -> (n, c, h + i, w + j)>
#all = affine_map<(n, f, h, w, c, i, j) -> (f, c, i, j)>
#made = affine_map<(n, f, h, w, c, i, j) -> (n, f, h, w)>
func.func @f(%x: tensor<2x32x18x18xf32>, %k: tensor<32x3x3xf32>, %o: tensor<2x32x16x16xf32>) -> tensor<2x32x16x16xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#image, #taps, #out],
          iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]}
          ins(%x, %k : tensor<2x32x18x18xf32>, tensor<32x3x3xf32>) outs(%o : tensor<2x32x16x16xf32>) {
      ^bb0(%u: f32, %v: f32, %s: f32):
        %m = arith.mulf %u, %v : f32
        %t = arith.addf %s, %m : f32
        linalg.yield %t : f32
      } -> tensor<2x32x16x16xf32>
      "kitsune.yield"(%r) : (tensor<2x32x16x16xf32>) -> ()
    }) {sym_name = "depthwise"} : () -> tensor<2x32x16x16xf32>
    "kitsune.yield"(%a) : (tensor<2x32x16x16xf32>) -> ()
  }) {sym_name = "f_p0"} : () -> tensor<2x32x16x16xf32>
  return %p : tensor<2x32x16x16xf32>
}
func.func @g(%x: tensor<2x32x18x18xf32>, %d: tensor<32x32x3x3xf32>, %o: tensor<2x32x16x16xf32>) -> tensor<2x32x16x16xf32> {
  %p = "kitsune.pipeline"() ({
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#wide, #all, #made],
          iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
          ins(%x, %d : tensor<2x32x18x18xf32>, tensor<32x32x3x3xf32>) outs(%o : tensor<2x32x16x16xf32>) {
      ^bb0(%u: f32, %v: f32, %s: f32):
        %m = arith.mulf %u, %v : f32
        %t = arith.addf %s, %m : f32
        linalg.yield %t : f32
      } -> tensor<2x32x16x16xf32>
      "kitsune.yield"(%r) : (tensor<2x32x16x16xf32>) -> ()
    }) {sym_name = "dense"} : () -> tensor<2x32x16x16xf32>
    "kitsune.yield"(%b) : (tensor<2x32x16x16xf32>) -> ()
  }) {sym_name = "g_p0"} : () -> tensor<2x32x16x16xf32>
  return %p : tensor<2x32x16x16xf32>
}
