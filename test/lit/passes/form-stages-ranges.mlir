// RUN: kitsune-opt %s --target h200 --kitsune-form-stages --split-input-file | FileCheck %s
// RUN: kitsune-opt %s --target host --kitsune-form-stages --split-input-file | FileCheck %s --check-prefix=HOST

// A product on a GPU reads what a concatenation joins where it lies: the concatenation is part of the product's stage.

// CHECK-LABEL: func.func @joined
// CHECK-COUNT-1: "kitsune.stage"
// CHECK: tensor.concat dim(1) %arg0, %arg1 {kitsune.in_place}
// CHECK: linalg.generic
// CHECK: sym_name = "product_0"
// CHECK-NOT: "kitsune.stage"
// HOST-NOT: kitsune.in_place
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @joined(%a: tensor<512x64xbf16>, %b: tensor<512x128xbf16>, %weight: tensor<1024x192xbf16>, %start: tensor<512x1024xf32>) -> tensor<512x1024xf32> {
  %x = tensor.concat dim(1) %a, %b : (tensor<512x64xbf16>, tensor<512x128xbf16>) -> tensor<512x192xbf16>
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<512x192xbf16>, tensor<1024x192xbf16>) outs(%start : tensor<512x1024xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<512x1024xf32>
  return %p : tensor<512x1024xf32>
}

// -----

// Not parts whose rows begin at odd addresses, ...

// CHECK-LABEL: func.func @odd
// CHECK: "kitsune.stage"
// CHECK: tensor.concat dim(1) %arg0, %arg1 :
// CHECK: sym_name = "concat_0"
// CHECK: "kitsune.stage"
// CHECK: sym_name = "product_1"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @odd(%a: tensor<512x13xbf16>, %b: tensor<512x128xbf16>, %weight: tensor<1024x141xbf16>, %start: tensor<512x1024xf32>) -> tensor<512x1024xf32> {
  %x = tensor.concat dim(1) %a, %b : (tensor<512x13xbf16>, tensor<512x128xbf16>) -> tensor<512x141xbf16>
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<512x141xbf16>, tensor<1024x141xbf16>) outs(%start : tensor<512x1024xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<512x1024xf32>
  return %p : tensor<512x1024xf32>
}

// -----

// ... and not what the caller gets as well.

// CHECK-LABEL: func.func @returned
// CHECK-NOT: kitsune.in_place
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @returned(%a: tensor<512x64xbf16>, %b: tensor<512x128xbf16>, %weight: tensor<1024x192xbf16>, %start: tensor<512x1024xf32>) -> (tensor<512x1024xf32>, tensor<512x192xbf16>) {
  %x = tensor.concat dim(1) %a, %b : (tensor<512x64xbf16>, tensor<512x128xbf16>) -> tensor<512x192xbf16>
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<512x192xbf16>, tensor<1024x192xbf16>) outs(%start : tensor<512x1024xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<512x1024xf32>
  return %p, %x : tensor<512x1024xf32>, tensor<512x192xbf16>
}

// -----

// Both parts of what the second product reads as one come from the first product's stage: both are its results.
// CHECK-LABEL: func.func @two_parts
// CHECK: math.cos
// CHECK: math.sin
// CHECK: sym_name = "product_0"} : () -> tuple<tensor<16384x64xf32>, tensor<16384x64xf32>>
// CHECK: %[[PARTS:.*]]:2 = builtin.unrealized_conversion_cast
// CHECK: tensor.concat dim(1) %[[PARTS]]#0, %[[PARTS]]#1 {kitsune.in_place}
#id = affine_map<(i, j) -> (i, j)>
#rows = affine_map<(i, j, k) -> (i, k)>
#columns = affine_map<(i, j, k) -> (k, j)>
#out = affine_map<(i, j, k) -> (i, j)>
func.func @two_parts(%x: tensor<16384x3xf32>, %a: tensor<3x64xf32>, %w: tensor<128x65xf32>) -> tensor<16384x65xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<16384x64xf32>
  %z = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel", "parallel"]} outs(%e : tensor<16384x64xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<16384x64xf32>
  %p = linalg.generic {indexing_maps = [#rows, #columns, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %a : tensor<16384x3xf32>, tensor<3x64xf32>) outs(%z : tensor<16384x64xf32>) {
  ^bb0(%l: f32, %r: f32, %o: f32):
    %m = arith.mulf %l, %r : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<16384x64xf32>
  %cos = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%p : tensor<16384x64xf32>) outs(%e : tensor<16384x64xf32>) {
  ^bb0(%in: f32, %o: f32):
    %v = math.cos %in : f32
    linalg.yield %v : f32
  } -> tensor<16384x64xf32>
  %sin = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%p : tensor<16384x64xf32>) outs(%e : tensor<16384x64xf32>) {
  ^bb0(%in: f32, %o: f32):
    %v = math.sin %in : f32
    linalg.yield %v : f32
  } -> tensor<16384x64xf32>
  %both = tensor.concat dim(1) %cos, %sin : (tensor<16384x64xf32>, tensor<16384x64xf32>) -> tensor<16384x128xf32>
  %e2 = tensor.empty() : tensor<16384x65xf32>
  %z2 = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel", "parallel"]} outs(%e2 : tensor<16384x65xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<16384x65xf32>
  %q = linalg.generic {indexing_maps = [#rows, #columns, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%both, %w : tensor<16384x128xf32>, tensor<128x65xf32>) outs(%z2 : tensor<16384x65xf32>) {
  ^bb0(%l: f32, %r: f32, %o: f32):
    %m = arith.mulf %l, %r : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<16384x65xf32>
  return %q : tensor<16384x65xf32>
}
