// Where the chain engine of the GPU can hold several products in a tile of rows, and that is faster, they are one stage.
// RUN: kitsune-opt %s --kitsune-form-stages="target=h200 chains=cost" --split-input-file --verify-diagnostics | FileCheck %s

// Many rows, narrow layers: one stage.
// CHECK-LABEL: func.func @many_rows
// CHECK: "kitsune.stage"() ({
// CHECK: arith.mulf
// CHECK: arith.mulf
// CHECK: }) {sym_name = "product_0"}
// CHECK-NOT: "kitsune.stage"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
func.func @many_rows(%x: tensor<65536x64xbf16>, %w: tensor<128x64xbf16>, %v: tensor<32x128xbf16>, %z: tensor<65536x128xf32>, %z2: tensor<65536x32xf32>) -> tensor<65536x32xf32> {
  %zero = arith.constant 0.0 : f32
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %w : tensor<65536x64xbf16>, tensor<128x64xbf16>) outs(%z : tensor<65536x128xf32>) {
  ^bb0(%a: bf16, %b: bf16, %c: f32):
    %a1 = arith.extf %a : bf16 to f32
    %b1 = arith.extf %b : bf16 to f32
    %d = arith.mulf %a1, %b1 : f32
    %s = arith.addf %c, %d : f32
    linalg.yield %s : f32
  } -> tensor<65536x128xf32>
  %h = tensor.empty() : tensor<65536x128xbf16>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%p : tensor<65536x128xf32>) outs(%h : tensor<65536x128xbf16>) {
  ^bb0(%a: f32, %c: bf16):
    %b = arith.maximumf %a, %zero : f32
    %t = arith.truncf %b : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<65536x128xbf16>
  %q = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%r, %v : tensor<65536x128xbf16>, tensor<32x128xbf16>) outs(%z2 : tensor<65536x32xf32>) {
  ^bb0(%a: bf16, %b: bf16, %c: f32):
    %a1 = arith.extf %a : bf16 to f32
    %b1 = arith.extf %b : bf16 to f32
    %d = arith.mulf %a1, %b1 : f32
    %s = arith.addf %c, %d : f32
    linalg.yield %s : f32
  } -> tensor<65536x32xf32>
  return %q : tensor<65536x32xf32>
}

// -----

// f32 is no operand of the tensor cores that chains use; the text says so.
// CHECK-LABEL: func.func @single_precision
// CHECK: sym_name = "product_0"
// CHECK: sym_name = "product_1"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
func.func @single_precision(%x: tensor<65536x64xf32>, %w: tensor<128x64xf32>, %v: tensor<32x128xf32>, %e: tensor<65536x128xf32>, %e2: tensor<65536x32xf32>) -> tensor<65536x32xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %w : tensor<65536x64xf32>, tensor<128x64xf32>) outs(%e : tensor<65536x128xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %d = arith.mulf %a, %b : f32
    %s = arith.addf %c, %d : f32
    linalg.yield %s : f32
  } -> tensor<65536x128xf32>
  // expected-remark@+1 {{not joined with linalg.generic: a chain has products of bf16 or f16, not of f32 and f32}}
  %q = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%p, %v : tensor<65536x128xf32>, tensor<32x128xf32>) outs(%e2 : tensor<65536x32xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %d = arith.mulf %a, %b : f32
    %s = arith.addf %c, %d : f32
    linalg.yield %s : f32
  } -> tensor<65536x32xf32>
  return %q : tensor<65536x32xf32>
}

// -----

// A row does not fit a block: each product stays alone.
// CHECK-LABEL: func.func @wide
// CHECK: sym_name = "product_0"
// CHECK: sym_name = "product_1"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
func.func @wide(%x: tensor<8192x64xbf16>, %w: tensor<4096x64xbf16>, %v: tensor<32x4096xbf16>, %e: tensor<8192x4096xbf16>, %e2: tensor<8192x32xbf16>) -> tensor<8192x32xbf16> {
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %w : tensor<8192x64xbf16>, tensor<4096x64xbf16>) outs(%e : tensor<8192x4096xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %c: bf16):
    %d = arith.mulf %a, %b : bf16
    %s = arith.addf %c, %d : bf16
    linalg.yield %s : bf16
  } -> tensor<8192x4096xbf16>
  // expected-remark@+1 {{not joined with linalg.generic: a layer of 4096 columns}}
  %q = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%p, %v : tensor<8192x4096xbf16>, tensor<32x4096xbf16>) outs(%e2 : tensor<8192x32xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %c: bf16):
    %d = arith.mulf %a, %b : bf16
    %s = arith.addf %c, %d : bf16
    linalg.yield %s : bf16
  } -> tensor<8192x32xbf16>
  return %q : tensor<8192x32xbf16>
}

// -----

// Few rows: one block would read all the weights alone, while apart the columns keep the others busy.
// CHECK-LABEL: func.func @few_rows
// CHECK: sym_name = "product_0"
// CHECK: sym_name = "product_1"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
func.func @few_rows(%x: tensor<16x896xbf16>, %w: tensor<256x896xbf16>, %v: tensor<256x256xbf16>, %e: tensor<16x256xbf16>) -> tensor<16x256xbf16> {
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %w : tensor<16x896xbf16>, tensor<256x896xbf16>) outs(%e : tensor<16x256xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %c: bf16):
    %d = arith.mulf %a, %b : bf16
    %s = arith.addf %c, %d : bf16
    linalg.yield %s : bf16
  } -> tensor<16x256xbf16>
  // expected-remark@+1 {{not joined with linalg.generic: as one chain they would take}}
  %q = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%p, %v : tensor<16x256xbf16>, tensor<256x256xbf16>) outs(%e : tensor<16x256xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %c: bf16):
    %d = arith.mulf %a, %b : bf16
    %s = arith.addf %c, %d : bf16
    linalg.yield %s : bf16
  } -> tensor<16x256xbf16>
  return %q : tensor<16x256xbf16>
}
