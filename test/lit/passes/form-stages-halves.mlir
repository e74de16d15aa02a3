// What a product's stage would store in 16 bits, and is made of what it stores anyway, is made again by what reads it: of four
// matrices (the product, two functions of it and their product) two are stored. A product reads what it multiplies from memory.
// RUN: kitsune-opt %s --kitsune-normalize --kitsune-form-stages=target=sm_90a --remarks 2>&1 | FileCheck %s

// CHECK: remark: {{.*}}2 of its results are made again where they are read
// CHECK-LABEL: func.func @back
// CHECK: "kitsune.stage"
// CHECK: math.tanh
// CHECK: to tuple<tensor<4096x3072xbf16>, tensor<4096x3072xbf16>>
// CHECK: sym_name = "product_0"
// CHECK: sym_name = "product_1"
// CHECK: "kitsune.stage"
// CHECK-DAG: math.tanh
// CHECK-DAG: math.exp
// CHECK: sym_name = "product_2"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (k, n)>
#t = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
#i = affine_map<(m, n) -> (m, n)>
func.func @back(%x: tensor<4096x768xbf16>, %w: tensor<768x3072xbf16>, %v: tensor<3072x768xbf16>, %given: tensor<4096x768xbf16>)
    -> (tensor<4096x768xbf16>, tensor<4096x3072xbf16>) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4096x3072xbf16>
  %hidden_empty = tensor.empty() : tensor<4096x3072xf32>
  %hidden_start = linalg.fill ins(%zero : f32) outs(%hidden_empty : tensor<4096x3072xf32>) -> tensor<4096x3072xf32>
  %hidden_half = tensor.empty() : tensor<4096x3072xbf16>
  %out_empty = tensor.empty() : tensor<4096x768xf32>
  %out_start = linalg.fill ins(%zero : f32) outs(%out_empty : tensor<4096x768xf32>) -> tensor<4096x768xf32>
  %out_half = tensor.empty() : tensor<4096x768xbf16>
  %change_empty = tensor.empty() : tensor<4096x3072xf32>
  %change_start = linalg.fill ins(%zero : f32) outs(%change_empty : tensor<4096x3072xf32>) -> tensor<4096x3072xf32>
  %change_half = tensor.empty() : tensor<4096x3072xbf16>
  %hidden_sum = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<4096x768xbf16>, tensor<768x3072xbf16>) outs(%hidden_start : tensor<4096x3072xf32>) {
  ^bb0(%a: bf16, %b: bf16, %s: f32):
    %p = arith.extf %a : bf16 to f32
    %q = arith.extf %b : bf16 to f32
    %r = arith.mulf %p, %q : f32
    %t = arith.addf %s, %r : f32
    linalg.yield %t : f32
  } -> tensor<4096x3072xf32>
  %hidden = linalg.generic {indexing_maps = [#i, #i], iterator_types = ["parallel", "parallel"]}
      ins(%hidden_sum : tensor<4096x3072xf32>) outs(%hidden_half : tensor<4096x3072xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %y = arith.truncf %a : f32 to bf16
    linalg.yield %y : bf16
  } -> tensor<4096x3072xbf16>
  %tangent = linalg.generic {indexing_maps = [#i, #i], iterator_types = ["parallel", "parallel"]}
      ins(%hidden : tensor<4096x3072xbf16>) outs(%empty : tensor<4096x3072xbf16>) {
  ^bb0(%a: bf16, %o: bf16):
    %y = math.tanh %a : bf16
    linalg.yield %y : bf16
  } -> tensor<4096x3072xbf16>
  %power = linalg.generic {indexing_maps = [#i, #i], iterator_types = ["parallel", "parallel"]}
      ins(%hidden : tensor<4096x3072xbf16>) outs(%empty : tensor<4096x3072xbf16>) {
  ^bb0(%a: bf16, %o: bf16):
    %y = math.exp %a : bf16
    linalg.yield %y : bf16
  } -> tensor<4096x3072xbf16>
  %gate = linalg.generic {indexing_maps = [#i, #i, #i], iterator_types = ["parallel", "parallel"]}
      ins(%tangent, %power : tensor<4096x3072xbf16>, tensor<4096x3072xbf16>) outs(%empty : tensor<4096x3072xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %o: bf16):
    %z = arith.mulf %a, %b : bf16
    linalg.yield %z : bf16
  } -> tensor<4096x3072xbf16>
  %out_sum = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%gate, %v : tensor<4096x3072xbf16>, tensor<3072x768xbf16>) outs(%out_start : tensor<4096x768xf32>) {
  ^bb0(%a: bf16, %b: bf16, %s: f32):
    %p = arith.extf %a : bf16 to f32
    %q = arith.extf %b : bf16 to f32
    %r = arith.mulf %p, %q : f32
    %t = arith.addf %s, %r : f32
    linalg.yield %t : f32
  } -> tensor<4096x768xf32>
  %out = linalg.generic {indexing_maps = [#i, #i], iterator_types = ["parallel", "parallel"]}
      ins(%out_sum : tensor<4096x768xf32>) outs(%out_half : tensor<4096x768xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %y = arith.truncf %a : f32 to bf16
    linalg.yield %y : bf16
  } -> tensor<4096x768xbf16>
  %change_sum = linalg.generic {indexing_maps = [#x, #t, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%given, %v : tensor<4096x768xbf16>, tensor<3072x768xbf16>) outs(%change_start : tensor<4096x3072xf32>) {
  ^bb0(%a: bf16, %b: bf16, %s: f32):
    %p = arith.extf %a : bf16 to f32
    %q = arith.extf %b : bf16 to f32
    %r = arith.mulf %p, %q : f32
    %t = arith.addf %s, %r : f32
    linalg.yield %t : f32
  } -> tensor<4096x3072xf32>
  %change = linalg.generic {indexing_maps = [#i, #i], iterator_types = ["parallel", "parallel"]}
      ins(%change_sum : tensor<4096x3072xf32>) outs(%change_half : tensor<4096x3072xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %y = arith.truncf %a : f32 to bf16
    linalg.yield %y : bf16
  } -> tensor<4096x3072xbf16>
  %first = linalg.generic {indexing_maps = [#i, #i, #i], iterator_types = ["parallel", "parallel"]}
      ins(%change, %tangent : tensor<4096x3072xbf16>, tensor<4096x3072xbf16>) outs(%empty : tensor<4096x3072xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %o: bf16):
    %z = arith.mulf %a, %b : bf16
    linalg.yield %z : bf16
  } -> tensor<4096x3072xbf16>
  %second = linalg.generic {indexing_maps = [#i, #i, #i], iterator_types = ["parallel", "parallel"]}
      ins(%first, %power : tensor<4096x3072xbf16>, tensor<4096x3072xbf16>) outs(%empty : tensor<4096x3072xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %o: bf16):
    %z = arith.subf %a, %b : bf16
    linalg.yield %z : bf16
  } -> tensor<4096x3072xbf16>
  %slope = linalg.generic {indexing_maps = [#i, #i, #i], iterator_types = ["parallel", "parallel"]}
      ins(%second, %hidden : tensor<4096x3072xbf16>, tensor<4096x3072xbf16>) outs(%empty : tensor<4096x3072xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %o: bf16):
    %z = arith.addf %a, %b : bf16
    linalg.yield %z : bf16
  } -> tensor<4096x3072xbf16>
  return %out, %slope : tensor<4096x768xbf16>, tensor<4096x3072xbf16>
}
