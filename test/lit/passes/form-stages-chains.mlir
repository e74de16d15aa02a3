// `chains` lets a stage hold several products, so that a row goes through all layers without leaving the chip. That is what the
// host's engines can do; the GPU's take one product a stage, and `chains` says otherwise.
// RUN: kitsune-opt %s --kitsune-form-stages='target=h200 chains=true' | FileCheck %s --check-prefixes=ONE,ALL
// RUN: kitsune-opt %s --kitsune-form-stages='target=host' | FileCheck %s --check-prefixes=ONE,ALL
// RUN: kitsune-opt %s --target h200 --kitsune-form-stages | FileCheck %s --check-prefixes=TWO,ALL
// RUN: not kitsune-opt %s --kitsune-form-stages=chains=maybe 2>&1 | FileCheck %s --check-prefix=WRONG
// WRONG: error: option 'chains' of kitsune-form-stages is auto, true, false, cost, not 'maybe'

// ALL-LABEL: func.func @layers
// ONE-COUNT-1: "kitsune.stage"
// ONE: math.tanh
// ONE-NOT: "kitsune.stage"
// TWO: "kitsune.stage"
// TWO: math.tanh
// TWO: sym_name = "product_0"
// TWO: "kitsune.stage"
// TWO: sym_name = "product_1"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
func.func @layers(%x: tensor<4096x64xf32>, %w: tensor<64x64xf32>, %v: tensor<64x64xf32>, %z: tensor<4096x64xf32>) -> tensor<4096x64xf32> {
  %e = tensor.empty() : tensor<4096x64xf32>
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<4096x64xf32>, tensor<64x64xf32>) outs(%z : tensor<4096x64xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x64xf32>
  %t = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%p : tensor<4096x64xf32>) outs(%e : tensor<4096x64xf32>) {
  ^bb0(%a: f32, %c: f32):
    %m = math.tanh %a : f32
    linalg.yield %m : f32
  } -> tensor<4096x64xf32>
  %q = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%t, %v : tensor<4096x64xf32>, tensor<64x64xf32>) outs(%z : tensor<4096x64xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x64xf32>
  return %q : tensor<4096x64xf32>
}
