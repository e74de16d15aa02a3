// What follows a product with merged rows is merged too, LayerNorm's sums included; a value that lies otherwise stays as it is.
// RUN: kitsune-opt %s --kitsune-merge-rows=target=sm_90a | FileCheck %s
// RUN: kitsune-opt %s --kitsune-merge-rows=target=host | FileCheck %s --check-prefix=HOST

#all = affine_map<(b, t, w) -> (b, t, w)>
#rows = affine_map<(b, t, w) -> (b, t)>
#column = affine_map<(b, t, w) -> (w)>
#turned = affine_map<(b, t, w) -> (t, b, w)>
#two = affine_map<(r, w) -> (r, w)>

// An activation, and the sums of its rows: both over 24 rows, the argument seen so too.
// CHECK-LABEL: func.func @activation
// CHECK: %[[RES:.*]] = tensor.collapse_shape %{{.*}} {{\[\[}}0, 1], [2]] : tensor<4x6x32xf32> into tensor<24x32xf32>
// CHECK: %[[SUM:.*]] = linalg.generic {{.*}} ins(%{{.*}}, %[[RES]], %{{.*}} : tensor<24x32xf32>, tensor<24x32xf32>, tensor<32xf32>)
// CHECK: linalg.generic {{.*}} ["parallel", "reduction"]} ins(%[[SUM]] : tensor<24x32xf32>)
// CHECK: -> tensor<24xf32>
// CHECK: tensor.expand_shape %{{.*}} : tensor<24xf32> into tensor<4x6xf32>
// HOST-LABEL: func.func @activation
// HOST: ins(%{{.*}}, %{{.*}}, %{{.*}} : tensor<4x6x32xf32>, tensor<4x6x32xf32>, tensor<32xf32>)
func.func @activation(%x: tensor<24x32xf32>, %residual: tensor<4x6x32xf32>, %bias: tensor<32xf32>) -> tensor<4x6xf32> {
  %e = tensor.empty() : tensor<24x32xf32>
  %p = linalg.generic {indexing_maps = [#two, #two], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<24x32xf32>) outs(%e : tensor<24x32xf32>) {
  ^bb0(%i: f32, %o: f32):
    %v = math.exp %i : f32
    linalg.yield %v : f32
  } -> tensor<24x32xf32>
  %s = tensor.expand_shape %p [[0, 1], [2]] output_shape [4, 6, 32] : tensor<24x32xf32> into tensor<4x6x32xf32>
  %e3 = tensor.empty() : tensor<4x6x32xf32>
  %a = linalg.generic {indexing_maps = [#all, #all, #column, #all], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s, %residual, %bias : tensor<4x6x32xf32>, tensor<4x6x32xf32>, tensor<32xf32>) outs(%e3 : tensor<4x6x32xf32>) {
  ^bb0(%i: f32, %r: f32, %b: f32, %o: f32):
    %v = arith.addf %i, %r : f32
    %w = arith.addf %v, %b : f32
    linalg.yield %w : f32
  } -> tensor<4x6x32xf32>
  %z = arith.constant 0.0 : f32
  %e2 = tensor.empty() : tensor<4x6xf32>
  %f = linalg.generic {indexing_maps = [affine_map<(b, t) -> (b, t)>], iterator_types = ["parallel", "parallel"]} outs(%e2 : tensor<4x6xf32>) {
  ^bb0(%o: f32):
    linalg.yield %z : f32
  } -> tensor<4x6xf32>
  %n = linalg.generic {indexing_maps = [#all, #rows], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a : tensor<4x6x32xf32>) outs(%f : tensor<4x6xf32>) {
  ^bb0(%i: f32, %o: f32):
    %v = arith.addf %i, %o : f32
    linalg.yield %v : f32
  } -> tensor<4x6xf32>
  return %n : tensor<4x6xf32>
}

// One operand has tokens before batches: its rows cannot be merged.
// CHECK-LABEL: func.func @turned
// CHECK-NOT: tensor.collapse_shape
// CHECK: linalg.generic {{.*}} ["parallel", "parallel", "parallel"]}
func.func @turned(%x: tensor<24x32xf32>, %y: tensor<6x4x32xf32>) -> tensor<4x6x32xf32> {
  %e = tensor.empty() : tensor<24x32xf32>
  %p = linalg.generic {indexing_maps = [#two, #two], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<24x32xf32>) outs(%e : tensor<24x32xf32>) {
  ^bb0(%i: f32, %o: f32):
    %v = math.exp %i : f32
    linalg.yield %v : f32
  } -> tensor<24x32xf32>
  %s = tensor.expand_shape %p [[0, 1], [2]] output_shape [4, 6, 32] : tensor<24x32xf32> into tensor<4x6x32xf32>
  %e3 = tensor.empty() : tensor<4x6x32xf32>
  %a = linalg.generic {indexing_maps = [#all, #turned, #all], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s, %y : tensor<4x6x32xf32>, tensor<6x4x32xf32>) outs(%e3 : tensor<4x6x32xf32>) {
  ^bb0(%i: f32, %r: f32, %o: f32):
    %v = arith.addf %i, %r : f32
    linalg.yield %v : f32
  } -> tensor<4x6x32xf32>
  return %a : tensor<4x6x32xf32>
}

// Nothing beside it has merged rows: nothing is gained.
// CHECK-LABEL: func.func @alone
// CHECK-NOT: tensor.collapse_shape
// CHECK: linalg.generic {{.*}} ["parallel", "parallel", "parallel"]}
func.func @alone(%x: tensor<4x6x32xf32>) -> tensor<4x6x32xf32> {
  %e3 = tensor.empty() : tensor<4x6x32xf32>
  %a = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x : tensor<4x6x32xf32>) outs(%e3 : tensor<4x6x32xf32>) {
  ^bb0(%i: f32, %o: f32):
    %v = math.exp %i : f32
    linalg.yield %v : f32
  } -> tensor<4x6x32xf32>
  return %a : tensor<4x6x32xf32>
}
