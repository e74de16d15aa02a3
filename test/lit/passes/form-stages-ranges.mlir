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
