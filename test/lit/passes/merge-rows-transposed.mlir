// Layers over tokens of (batch, tokens, channels) become products of a batch; a residual stays with the product that it follows.
// RUN: kitsune-opt %s --split-input-file --kitsune-merge-rows=target=sm_90a | FileCheck %s

#all = affine_map<(b, t, c) -> (b, t, c)>
#turned = affine_map<(b, t, c) -> (b, c, t)>
#left = affine_map<(m, n, k) -> (m, k)>
#right = affine_map<(m, n, k) -> (n, k)>
#out = affine_map<(m, n, k) -> (m, n)>
#two = affine_map<(r, c) -> (r, c)>

// The first product reads what was transposed as it was, the second one is stored as what reads it is; between them one batch.
// CHECK: #[[ACROSS:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d3, d1)>
// CHECK-LABEL: func.func @mixing
// CHECK-NOT: tensor.collapse_shape
// CHECK: linalg.generic {indexing_maps = [#[[ACROSS]], {{.*}}], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<2x40x64xbf16>, tensor<512x40xbf16>)
// CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<2x64x512xbf16>)
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %arg2 : tensor<2x64x512xbf16>, tensor<40x512xbf16>) outs(%{{.*}} : tensor<2x64x40xf32>)
// CHECK-NOT: tensor.expand_shape
// CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<2x40x64xbf16>)
func.func @mixing(%x: tensor<2x40x64xbf16>, %up: tensor<512x40xbf16>, %down: tensor<40x512xbf16>) -> tensor<2x40x64xbf16> {
  %zero = arith.constant 0.0 : f32
  %e0 = tensor.empty() : tensor<2x64x40xbf16>
  %t = linalg.generic {indexing_maps = [#turned, #all], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x : tensor<2x40x64xbf16>) outs(%e0 : tensor<2x64x40xbf16>) {
  ^bb0(%i: bf16, %o: bf16):
    linalg.yield %i : bf16
  } -> tensor<2x64x40xbf16>
  %rows = tensor.collapse_shape %t [[0, 1], [2]] : tensor<2x64x40xbf16> into tensor<128x40xbf16>
  %e1 = tensor.empty() : tensor<128x512xf32>
  %f1 = linalg.generic {indexing_maps = [#two], iterator_types = ["parallel", "parallel"]} outs(%e1 : tensor<128x512xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<128x512xf32>
  %p = linalg.generic {indexing_maps = [#left, #right, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%rows, %up : tensor<128x40xbf16>, tensor<512x40xbf16>) outs(%f1 : tensor<128x512xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %m = arith.mulf %l, %r : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<128x512xf32>
  %e2 = tensor.empty() : tensor<128x512xbf16>
  %h = linalg.generic {indexing_maps = [#two, #two], iterator_types = ["parallel", "parallel"]} ins(%p : tensor<128x512xf32>) outs(%e2 : tensor<128x512xbf16>) {
  ^bb0(%i: f32, %o: bf16):
    %v = math.tanh %i : f32
    %w = arith.truncf %v : f32 to bf16
    linalg.yield %w : bf16
  } -> tensor<128x512xbf16>
  %e3 = tensor.empty() : tensor<128x40xf32>
  %f3 = linalg.generic {indexing_maps = [#two], iterator_types = ["parallel", "parallel"]} outs(%e3 : tensor<128x40xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<128x40xf32>
  %q = linalg.generic {indexing_maps = [#left, #right, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%h, %down : tensor<128x512xbf16>, tensor<40x512xbf16>) outs(%f3 : tensor<128x40xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %m = arith.mulf %l, %r : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<128x40xf32>
  %e4 = tensor.empty() : tensor<128x40xbf16>
  %g = linalg.generic {indexing_maps = [#two, #two], iterator_types = ["parallel", "parallel"]} ins(%q : tensor<128x40xf32>) outs(%e4 : tensor<128x40xbf16>) {
  ^bb0(%i: f32, %o: bf16):
    %w = arith.truncf %i : f32 to bf16
    linalg.yield %w : bf16
  } -> tensor<128x40xbf16>
  %wide = tensor.expand_shape %g [[0, 1], [2]] output_shape [2, 64, 40] : tensor<128x40xbf16> into tensor<2x64x40xbf16>
  %e5 = tensor.empty() : tensor<2x40x64xbf16>
  %y = linalg.generic {indexing_maps = [#turned, #all], iterator_types = ["parallel", "parallel", "parallel"]} ins(%wide : tensor<2x64x40xbf16>) outs(%e5 : tensor<2x40x64xbf16>) {
  ^bb0(%i: bf16, %o: bf16):
    linalg.yield %i : bf16
  } -> tensor<2x40x64xbf16>
  return %y : tensor<2x40x64xbf16>
}

// -----

#all = affine_map<(b, t, c) -> (b, t, c)>
#turned = affine_map<(b, t, c) -> (b, c, t)>
#left = affine_map<(m, n, k) -> (m, k)>
#right = affine_map<(m, n, k) -> (n, k)>
#out = affine_map<(m, n, k) -> (m, n)>
#two = affine_map<(r, c) -> (r, c)>

// 72 rows a batch would be two tiles of 64: rows stay merged. (So do those of a layer that a chain holds, of 128 columns.)
// CHECK-LABEL: func.func @wasteful
// CHECK: tensor.collapse_shape {{.*}} : tensor<2x72x40xbf16> into tensor<144x40xbf16>
// CHECK: linalg.generic {{.*}} ["parallel", "parallel", "reduction"]} ins(%{{.*}}, %arg1
func.func @wasteful(%x: tensor<2x40x72xbf16>, %up: tensor<512x40xbf16>) -> tensor<144x512xf32> {
  %zero = arith.constant 0.0 : f32
  %e0 = tensor.empty() : tensor<2x72x40xbf16>
  %t = linalg.generic {indexing_maps = [#turned, #all], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x : tensor<2x40x72xbf16>) outs(%e0 : tensor<2x72x40xbf16>) {
  ^bb0(%i: bf16, %o: bf16):
    linalg.yield %i : bf16
  } -> tensor<2x72x40xbf16>
  %rows = tensor.collapse_shape %t [[0, 1], [2]] : tensor<2x72x40xbf16> into tensor<144x40xbf16>
  %e1 = tensor.empty() : tensor<144x512xf32>
  %f1 = linalg.generic {indexing_maps = [#two], iterator_types = ["parallel", "parallel"]} outs(%e1 : tensor<144x512xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<144x512xf32>
  %p = linalg.generic {indexing_maps = [#left, #right, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%rows, %up : tensor<144x40xbf16>, tensor<512x40xbf16>) outs(%f1 : tensor<144x512xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %m = arith.mulf %l, %r : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<144x512xf32>
  return %p : tensor<144x512xf32>
}

// -----

#all = affine_map<(b, t, c) -> (b, t, c)>
#turned = affine_map<(b, t, c) -> (b, c, t)>
#left = affine_map<(m, n, k) -> (m, k)>
#right = affine_map<(m, n, k) -> (n, k)>
#out = affine_map<(m, n, k) -> (m, n)>
#two = affine_map<(r, c) -> (r, c)>

// The residual comes from a stage that keeps its dimensions, and another reader has it in memory: the sum is the product's.
// CHECK-LABEL: func.func @residual
// CHECK: %[[R:.*]] = tensor.collapse_shape {{.*}} : tensor<2x40x64xbf16> into tensor<80x64xbf16>
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %[[R]] : tensor<80x64xf32>, tensor<80x64xbf16>)
// CHECK: tensor.expand_shape
func.func @residual(%x: tensor<2x64x40xbf16>, %rows: tensor<80x300xbf16>, %w: tensor<64x300xbf16>) -> (tensor<2x40x64xbf16>, tensor<2x64x40xbf16>) {
  %zero = arith.constant 0.0 : f32
  %e0 = tensor.empty() : tensor<2x40x64xbf16>
  %t = linalg.generic {indexing_maps = [#turned, #all], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x : tensor<2x64x40xbf16>) outs(%e0 : tensor<2x40x64xbf16>) {
  ^bb0(%i: bf16, %o: bf16):
    %v = arith.addf %i, %i : bf16
    linalg.yield %v : bf16
  } -> tensor<2x40x64xbf16>
  %e1 = tensor.empty() : tensor<80x64xf32>
  %f1 = linalg.generic {indexing_maps = [#two], iterator_types = ["parallel", "parallel"]} outs(%e1 : tensor<80x64xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<80x64xf32>
  %p = linalg.generic {indexing_maps = [#left, #right, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%rows, %w : tensor<80x300xbf16>, tensor<64x300xbf16>) outs(%f1 : tensor<80x64xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %m = arith.mulf %l, %r : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<80x64xf32>
  %wide = tensor.expand_shape %p [[0, 1], [2]] output_shape [2, 40, 64] : tensor<80x64xf32> into tensor<2x40x64xf32>
  %e2 = tensor.empty() : tensor<2x40x64xbf16>
  %sum = linalg.generic {indexing_maps = [#all, #all, #all], iterator_types = ["parallel", "parallel", "parallel"]} ins(%wide, %t : tensor<2x40x64xf32>, tensor<2x40x64xbf16>) outs(%e2 : tensor<2x40x64xbf16>) {
  ^bb0(%i: f32, %r: bf16, %o: bf16):
    %v = arith.truncf %i : f32 to bf16
    %s = arith.addf %v, %r : bf16
    linalg.yield %s : bf16
  } -> tensor<2x40x64xbf16>
  %e3 = tensor.empty() : tensor<2x64x40xbf16>
  %other = linalg.generic {indexing_maps = [#turned, #all], iterator_types = ["parallel", "parallel", "parallel"]} ins(%t : tensor<2x40x64xbf16>) outs(%e3 : tensor<2x64x40xbf16>) {
  ^bb0(%i: bf16, %o: bf16):
    linalg.yield %i : bf16
  } -> tensor<2x64x40xbf16>
  return %sum, %other : tensor<2x40x64xbf16>, tensor<2x64x40xbf16>
}
