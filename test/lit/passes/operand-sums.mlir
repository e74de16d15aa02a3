// A bias' gradient beside its weight's: the sum of the operand that has a product's rows, over the product's terms, is done in the same
// parts, and in one stage with it. Its tiles are those of the product; it has no columns.
// RUN: kitsune-opt %s --split-input-file --kitsune-split-reductions='target=sm_90a parts=1' | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --kitsune-split-reductions='target=sm_90a parts=4' | FileCheck %s --check-prefix=PARTS
// RUN: kitsune-opt %s --split-input-file --kitsune-split-reductions='target=sm_90a parts=1' --kitsune-form-stages='target=h200' --kitsune-partition-streams='target=h200' | FileCheck %s --check-prefix=STAGES
// RUN: kitsune-opt %s --split-input-file --kitsune-split-reductions='target=host parts=1' | FileCheck %s --check-prefix=HOST
// HOST-NOT: kitsune.operand_sum

#row = affine_map<(n, k, m) -> (m, n)>
#col = affine_map<(n, k, m) -> (m, k)>
#out = affine_map<(n, k, m) -> (n, k)>
#id = affine_map<(m, n) -> (m, n)>
#fill1 = affine_map<(n) -> (n)>
#fill2 = affine_map<(n, k) -> (n, k)>
#n = affine_map<(m, n) -> (n)>

// CHECK-LABEL: func.func @gradients
// CHECK: linalg.generic {{.*}} ins(%arg0 : tensor<65536x64xbf16>) {{.*}} attrs = {kitsune.operand_sum = 0 : i64}
// CHECK: linalg.generic {{.*}} ins(%arg0, %arg1 : {{.*}} attrs = {kitsune.operand_sum = 0 : i64}
// PARTS-LABEL: func.func @gradients
// PARTS: %[[G:.*]] = tensor.expand_shape %arg0 {{.*}} into tensor<4x16384x64xbf16>
// PARTS: ins(%[[G]] : tensor<4x16384x64xbf16>) outs({{.*}} : tensor<4x64xf32>) attrs = {kitsune.operand_sum = 0 : i64, kitsune.partial}
// PARTS: ins(%[[G]], {{.*}} outs({{.*}} : tensor<4x64x128xf32>) attrs = {kitsune.operand_sum = 0 : i64, kitsune.partial}
// STAGES-LABEL: func.func @gradients
// STAGES-COUNT-1: "kitsune.stage"
// STAGES: engine = "mma", sym_name = "product_0"{{.*}} -> tuple<tensor<64xf32>, tensor<64x128xf32>>
// STAGES-NOT: "kitsune.stage"
func.func @gradients(%g: tensor<65536x64xbf16>, %x: tensor<65536x128xbf16>) -> (tensor<64xf32>, tensor<64x128xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64xf32>
  %z = linalg.generic {indexing_maps = [#fill1], iterator_types = ["parallel"]} outs(%e : tensor<64xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<64xf32>
  %b = linalg.generic {indexing_maps = [#id, #n], iterator_types = ["reduction", "parallel"]} ins(%g : tensor<65536x64xbf16>) outs(%z : tensor<64xf32>) {
  ^bb0(%i: bf16, %o: f32):
    %p = arith.extf %i : bf16 to f32
    %t = arith.addf %p, %o : f32
    linalg.yield %t : f32
  } -> tensor<64xf32>
  %f = tensor.empty() : tensor<64x128xf32>
  %u = linalg.generic {indexing_maps = [#fill2], iterator_types = ["parallel", "parallel"]} outs(%f : tensor<64x128xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<64x128xf32>
  %d = linalg.generic {indexing_maps = [#row, #col, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%g, %x : tensor<65536x64xbf16>, tensor<65536x128xbf16>) outs(%u : tensor<64x128xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %p = arith.extf %i : bf16 to f32
    %q = arith.extf %j : bf16 to f32
    %r = arith.mulf %p, %q : f32
    %t = arith.addf %o, %r : f32
    linalg.yield %t : f32
  } -> tensor<64x128xf32>
  return %b, %d : tensor<64xf32>, tensor<64x128xf32>
}

// -----

#row = affine_map<(n, k, m) -> (m, n)>
#col = affine_map<(n, k, m) -> (m, k)>
#out = affine_map<(n, k, m) -> (n, k)>
#id = affine_map<(m, n) -> (m, n)>
#fill1 = affine_map<(n) -> (n)>
#fill2 = affine_map<(n, k) -> (n, k)>
#m = affine_map<(m, n) -> (m)>
#n = affine_map<(m, n) -> (n)>

// Not: a sum of the other operand, which has the columns; a sum of squares; a sum over the other dimension.
// CHECK-LABEL: func.func @others
// CHECK-NOT: kitsune.operand_sum
// STAGES-LABEL: func.func @others
// STAGES-COUNT-4: "kitsune.stage"
func.func @others(%g: tensor<65536x64xbf16>, %x: tensor<65536x128xbf16>) -> (tensor<128xf32>, tensor<64xf32>, tensor<65536xf32>, tensor<64x128xf32>) {
  %zero = arith.constant 0.0 : f32
  %e0 = tensor.empty() : tensor<128xf32>
  %z0 = linalg.generic {indexing_maps = [#fill1], iterator_types = ["parallel"]} outs(%e0 : tensor<128xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<128xf32>
  %b0 = linalg.generic {indexing_maps = [#id, #n], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<65536x128xbf16>) outs(%z0 : tensor<128xf32>) {
  ^bb0(%i: bf16, %o: f32):
    %p = arith.extf %i : bf16 to f32
    %t = arith.addf %p, %o : f32
    linalg.yield %t : f32
  } -> tensor<128xf32>
  %e1 = tensor.empty() : tensor<64xf32>
  %z1 = linalg.generic {indexing_maps = [#fill1], iterator_types = ["parallel"]} outs(%e1 : tensor<64xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<64xf32>
  %b1 = linalg.generic {indexing_maps = [#id, #n], iterator_types = ["reduction", "parallel"]} ins(%g : tensor<65536x64xbf16>) outs(%z1 : tensor<64xf32>) {
  ^bb0(%i: bf16, %o: f32):
    %p = arith.extf %i : bf16 to f32
    %s = arith.mulf %p, %p : f32
    %t = arith.addf %s, %o : f32
    linalg.yield %t : f32
  } -> tensor<64xf32>
  %e2 = tensor.empty() : tensor<65536xf32>
  %z2 = linalg.generic {indexing_maps = [#fill1], iterator_types = ["parallel"]} outs(%e2 : tensor<65536xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<65536xf32>
  %b2 = linalg.generic {indexing_maps = [#id, #m], iterator_types = ["parallel", "reduction"]} ins(%g : tensor<65536x64xbf16>) outs(%z2 : tensor<65536xf32>) {
  ^bb0(%i: bf16, %o: f32):
    %p = arith.extf %i : bf16 to f32
    %t = arith.addf %p, %o : f32
    linalg.yield %t : f32
  } -> tensor<65536xf32>
  %f = tensor.empty() : tensor<64x128xf32>
  %u = linalg.generic {indexing_maps = [#fill2], iterator_types = ["parallel", "parallel"]} outs(%f : tensor<64x128xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<64x128xf32>
  %d = linalg.generic {indexing_maps = [#row, #col, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%g, %x : tensor<65536x64xbf16>, tensor<65536x128xbf16>) outs(%u : tensor<64x128xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %p = arith.extf %i : bf16 to f32
    %q = arith.extf %j : bf16 to f32
    %r = arith.mulf %p, %q : f32
    %t = arith.addf %o, %r : f32
    linalg.yield %t : f32
  } -> tensor<64x128xf32>
  return %b0, %b1, %b2, %d : tensor<128xf32>, tensor<64xf32>, tensor<65536xf32>, tensor<64x128xf32>
}

// -----

#row = affine_map<(n, k, m) -> (m, n)>
#col = affine_map<(n, k, m) -> (m, k)>
#out = affine_map<(n, k, m) -> (n, k)>
#id = affine_map<(m, n) -> (m, n)>
#fill1 = affine_map<(n) -> (n)>
#fill2 = affine_map<(n, k) -> (n, k)>
#n = affine_map<(m, n) -> (n)>

// Nor where the operand is small: it is read again from L2.
// CHECK-LABEL: func.func @small
// CHECK-NOT: kitsune.operand_sum
func.func @small(%g: tensor<1024x64xbf16>, %x: tensor<1024x128xbf16>) -> (tensor<64xf32>, tensor<64x128xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64xf32>
  %z = linalg.generic {indexing_maps = [#fill1], iterator_types = ["parallel"]} outs(%e : tensor<64xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<64xf32>
  %b = linalg.generic {indexing_maps = [#id, #n], iterator_types = ["reduction", "parallel"]} ins(%g : tensor<1024x64xbf16>) outs(%z : tensor<64xf32>) {
  ^bb0(%i: bf16, %o: f32):
    %p = arith.extf %i : bf16 to f32
    %t = arith.addf %p, %o : f32
    linalg.yield %t : f32
  } -> tensor<64xf32>
  %f = tensor.empty() : tensor<64x128xf32>
  %u = linalg.generic {indexing_maps = [#fill2], iterator_types = ["parallel", "parallel"]} outs(%f : tensor<64x128xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<64x128xf32>
  %d = linalg.generic {indexing_maps = [#row, #col, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%g, %x : tensor<1024x64xbf16>, tensor<1024x128xbf16>) outs(%u : tensor<64x128xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %p = arith.extf %i : bf16 to f32
    %q = arith.extf %j : bf16 to f32
    %r = arith.mulf %p, %q : f32
    %t = arith.addf %o, %r : f32
    linalg.yield %t : f32
  } -> tensor<64x128xf32>
  return %b, %d : tensor<64xf32>, tensor<64x128xf32>
}
