// What a reduction reads may be made of something else that it reads: done in parts, both lose their readers at once.
// RUN: kitsune-opt %s --kitsune-split-reductions="target=h200 parts=50" | FileCheck %s

// CHECK-LABEL: func.func @made_of_each_other(
// CHECK-NOT: tensor<100000x3xf32>) outs
// CHECK: math.exp
// CHECK: -> tensor<50x2000x3xf32>
// CHECK: math.tanh
// CHECK: -> tensor<50x2000x3xf32>
// CHECK: kitsune.partial
// CHECK: kitsune.combine
// CHECK: arith.divf
#p = affine_map<(d0, d1) -> (d0, d1)>
#r = affine_map<(d0, d1) -> (d1)>
func.func @made_of_each_other(%x: tensor<100000x3xf32>, %z: tensor<3xf32>) -> tensor<100000x3xf32> {
  %e = tensor.empty() : tensor<100000x3xf32>
  %a = linalg.generic {indexing_maps = [#p, #p], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<100000x3xf32>) outs(%e : tensor<100000x3xf32>) {
  ^bb0(%in: f32, %out: f32):
    %0 = math.exp %in : f32
    linalg.yield %0 : f32
  } -> tensor<100000x3xf32>
  %b = linalg.generic {indexing_maps = [#p, #p], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<100000x3xf32>) outs(%e : tensor<100000x3xf32>) {
  ^bb0(%in: f32, %out: f32):
    %0 = math.tanh %in : f32
    linalg.yield %0 : f32
  } -> tensor<100000x3xf32>
  %s = linalg.generic {indexing_maps = [#p, #p, #r], iterator_types = ["reduction", "parallel"]} ins(%b, %a : tensor<100000x3xf32>, tensor<100000x3xf32>) outs(%z : tensor<3xf32>) {
  ^bb0(%in: f32, %other: f32, %out: f32):
    %0 = arith.mulf %in, %other : f32
    %1 = arith.addf %out, %0 : f32
    linalg.yield %1 : f32
  } -> tensor<3xf32>
  %q = linalg.generic {indexing_maps = [#p, #r, #p], iterator_types = ["parallel", "parallel"]} ins(%x, %s : tensor<100000x3xf32>, tensor<3xf32>) outs(%e : tensor<100000x3xf32>) {
  ^bb0(%in: f32, %sum: f32, %out: f32):
    %0 = arith.divf %in, %sum : f32
    linalg.yield %0 : f32
  } -> tensor<100000x3xf32>
  return %q : tensor<100000x3xf32>
}
