// A weight's gradient reads the parts of what a layer read, not their concatenation, where the layer does so, too.
// RUN: kitsune-opt %s --split-input-file --kitsune-split-reductions='target=sm_90a parts=1' | FileCheck %s

#row = affine_map<(n, k, m) -> (m, n)>
#col = affine_map<(n, k, m) -> (m, k)>
#out = affine_map<(n, k, m) -> (n, k)>
#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>

// CHECK-LABEL: func.func @layer_and_gradient
// CHECK: %[[X:.*]] = tensor.concat dim(1) %arg0, %arg1
// CHECK: ins(%[[X]], %arg3
// CHECK: %[[A:.*]] = linalg.generic {{.*}} ins(%arg2, %arg0 : tensor<4096x64xbf16>, tensor<4096x96xbf16>)
// CHECK: %[[B:.*]] = linalg.generic {{.*}} ins(%arg2, %arg1 : tensor<4096x64xbf16>, tensor<4096x32xbf16>)
// CHECK: tensor.concat dim(1) %[[A]], %[[B]] : (tensor<64x96xf32>, tensor<64x32xf32>) -> tensor<64x128xf32>
func.func @layer_and_gradient(%a: tensor<4096x96xbf16>, %b: tensor<4096x32xbf16>, %g: tensor<4096x64xbf16>, %w: tensor<64x128xbf16>) -> (tensor<4096x64xf32>, tensor<64x128xf32>) {
  %zero = arith.constant 0.0 : f32
  %x = tensor.concat dim(1) %a, %b : (tensor<4096x96xbf16>, tensor<4096x32xbf16>) -> tensor<4096x128xbf16>
  %e = tensor.empty() : tensor<4096x64xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<4096x64xf32>) -> tensor<4096x64xf32>
  %y = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %w : tensor<4096x128xbf16>, tensor<64x128xbf16>) outs(%s : tensor<4096x64xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %p = arith.extf %i : bf16 to f32
    %q = arith.extf %j : bf16 to f32
    %r = arith.mulf %p, %q : f32
    %t = arith.addf %o, %r : f32
    linalg.yield %t : f32
  } -> tensor<4096x64xf32>
  %f = tensor.empty() : tensor<64x128xf32>
  %u = linalg.fill ins(%zero : f32) outs(%f : tensor<64x128xf32>) -> tensor<64x128xf32>
  %d = linalg.generic {indexing_maps = [#row, #col, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%g, %x : tensor<4096x64xbf16>, tensor<4096x128xbf16>) outs(%u : tensor<64x128xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %p = arith.extf %i : bf16 to f32
    %q = arith.extf %j : bf16 to f32
    %r = arith.mulf %p, %q : f32
    %t = arith.addf %o, %r : f32
    linalg.yield %t : f32
  } -> tensor<64x128xf32>
  return %y, %d : tensor<4096x64xf32>, tensor<64x128xf32>
}

// -----

#row = affine_map<(n, k, m) -> (m, n)>
#col = affine_map<(n, k, m) -> (m, k)>
#out = affine_map<(n, k, m) -> (n, k)>

// The concatenation is a result: it is in memory anyway.
// CHECK-LABEL: func.func @returned
// CHECK: %[[X:.*]] = tensor.concat dim(1) %arg0, %arg1
// CHECK: ins(%arg2, %[[X]]
// CHECK-NOT: tensor.concat
func.func @returned(%a: tensor<4096x96xbf16>, %b: tensor<4096x32xbf16>, %g: tensor<4096x64xbf16>) -> (tensor<4096x128xbf16>, tensor<64x128xf32>) {
  %zero = arith.constant 0.0 : f32
  %x = tensor.concat dim(1) %a, %b : (tensor<4096x96xbf16>, tensor<4096x32xbf16>) -> tensor<4096x128xbf16>
  %f = tensor.empty() : tensor<64x128xf32>
  %u = linalg.fill ins(%zero : f32) outs(%f : tensor<64x128xf32>) -> tensor<64x128xf32>
  %d = linalg.generic {indexing_maps = [#row, #col, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%g, %x : tensor<4096x64xbf16>, tensor<4096x128xbf16>) outs(%u : tensor<64x128xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %p = arith.extf %i : bf16 to f32
    %q = arith.extf %j : bf16 to f32
    %r = arith.mulf %p, %q : f32
    %t = arith.addf %o, %r : f32
    linalg.yield %t : f32
  } -> tensor<64x128xf32>
  return %x, %d : tensor<4096x128xbf16>, tensor<64x128xf32>
}

// -----

#row = affine_map<(n, k, m) -> (m, n)>
#col = affine_map<(n, k, m) -> (m, k)>
#out = affine_map<(n, k, m) -> (n, k)>

// Few rows: the parts of the result are as large as what was joined.
// CHECK-LABEL: func.func @few_rows
// CHECK: %[[X:.*]] = tensor.concat dim(1) %arg0, %arg1
// CHECK: ins(%arg2, %[[X]]
func.func @few_rows(%a: tensor<256x96xbf16>, %b: tensor<256x32xbf16>, %g: tensor<256x64xbf16>) -> tensor<64x128xf32> {
  %zero = arith.constant 0.0 : f32
  %x = tensor.concat dim(1) %a, %b : (tensor<256x96xbf16>, tensor<256x32xbf16>) -> tensor<256x128xbf16>
  %f = tensor.empty() : tensor<64x128xf32>
  %u = linalg.fill ins(%zero : f32) outs(%f : tensor<64x128xf32>) -> tensor<64x128xf32>
  %d = linalg.generic {indexing_maps = [#row, #col, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%g, %x : tensor<256x64xbf16>, tensor<256x128xbf16>) outs(%u : tensor<64x128xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %p = arith.extf %i : bf16 to f32
    %q = arith.extf %j : bf16 to f32
    %r = arith.mulf %p, %q : f32
    %t = arith.addf %o, %r : f32
    linalg.yield %t : f32
  } -> tensor<64x128xf32>
  return %d : tensor<64x128xf32>
}
