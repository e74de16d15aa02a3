// What comes of a sum is in its stage where it has the columns that are summed, or as many: not where it has more dimensions.
// RUN: kitsune-opt %s --split-input-file --kitsune-form-stages="target=h200" --remarks 2>&1 | FileCheck %s

// A group normalization's gradient: sums of what each of 40 channels has, and images of these channels.
// CHECK: a result that comes of a reduction has other columns
// CHECK-LABEL: func.func @groups
// CHECK: sym_name = "reduce_0"
// CHECK: sym_name = "map_1"
#channels = affine_map<(n, g, c) -> (n, g, c)>
#groups = affine_map<(n, g, c) -> (n, g)>
#image = affine_map<(n, g, c, p) -> (n, g, c, p)>
#of_group = affine_map<(n, g, c, p) -> (n, g)>
func.func @groups(%x: tensor<2x32x40xf32>, %y: tensor<2x32x40x256xf32>, %z: tensor<2x32xf32>) -> tensor<2x32x40x256xf32> {
  %s = linalg.generic {indexing_maps = [#channels, #groups], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x : tensor<2x32x40xf32>) outs(%z : tensor<2x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<2x32xf32>
  %e = tensor.empty() : tensor<2x32x40x256xf32>
  %m = linalg.generic {indexing_maps = [#image, #of_group, #image], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%y, %s : tensor<2x32x40x256xf32>, tensor<2x32xf32>) outs(%e : tensor<2x32x40x256xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %c = arith.mulf %a, %b : f32
    linalg.yield %c : f32
  } -> tensor<2x32x40x256xf32>
  return %m : tensor<2x32x40x256xf32>
}

// -----

// The columns that are summed are scaled.
// CHECK-NOT: has other columns
// CHECK-LABEL: func.func @rows
// CHECK: sym_name = "reduce_0"
// CHECK-NOT: sym_name = "map_1"
#channels = affine_map<(n, g, c) -> (n, g, c)>
#groups = affine_map<(n, g, c) -> (n, g)>
func.func @rows(%x: tensor<2x32x40xf32>, %z: tensor<2x32xf32>) -> tensor<2x32x40xf32> {
  %s = linalg.generic {indexing_maps = [#channels, #groups], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x : tensor<2x32x40xf32>) outs(%z : tensor<2x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<2x32xf32>
  %e = tensor.empty() : tensor<2x32x40xf32>
  %m = linalg.generic {indexing_maps = [#channels, #groups, #channels], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x, %s : tensor<2x32x40xf32>, tensor<2x32xf32>) outs(%e : tensor<2x32x40xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %c = arith.mulf %a, %b : f32
    linalg.yield %c : f32
  } -> tensor<2x32x40xf32>
  return %m : tensor<2x32x40xf32>
}
