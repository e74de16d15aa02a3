// Experts that all see the same tokens: the product reads them where they lie, its sums are rounded and activated in its stage,
// and what is chosen for each token is not chosen again for each element of it.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize --kitsune-form-stages=target=h200 --kitsune-partition-streams=target=h200 | FileCheck %s

// CHECK-DAG: #[[X:map.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d3)>
// CHECK-LABEL: func.func @up
// CHECK: "kitsune.stage"
// CHECK: linalg.generic {indexing_maps = [#[[X]], {{.*}}ins(%arg0, %arg1 : tensor<512x1024xbf16>, tensor<4x1024x2816xbf16>)
// CHECK: math.tanh
// CHECK: engine = "mma", sym_name = "product_0", tile = array<i64: 1, 128, {{.*}}>
// CHECK-NOT: "kitsune.stage"
func.func @up(%x: tensor<512x1024xbf16>, %w: tensor<4x1024x2816xbf16>, %z: tensor<4x512x2816xf32>) -> tensor<4x512x2816xf32> {
  %e = tensor.empty() : tensor<4x512x1024xbf16>
  %b = linalg.broadcast ins(%x : tensor<512x1024xbf16>) outs(%e : tensor<4x512x1024xbf16>) dimensions = [0]
  %bf = arith.extf %b : tensor<4x512x1024xbf16> to tensor<4x512x1024xf32>
  %wf = arith.extf %w : tensor<4x1024x2816xbf16> to tensor<4x1024x2816xf32>
  %p = linalg.batch_matmul ins(%bf, %wf : tensor<4x512x1024xf32>, tensor<4x1024x2816xf32>) outs(%z : tensor<4x512x2816xf32>) -> tensor<4x512x2816xf32>
  %t = math.tanh %p : tensor<4x512x2816xf32>
  return %t : tensor<4x512x2816xf32>
}

// -----

// Where the other factor does not run along the repeated dimension, nothing would give its extent: it is repeated in memory.
// CHECK-LABEL: func.func @nothing_else
// CHECK: linalg.generic {{.*}}ins(%{{.*}}, %arg1 : tensor<4x64x32xbf16>, tensor<32x64xbf16>)
#a = affine_map<(b, m, n, k) -> (b, m, k)>
#w = affine_map<(b, m, n, k) -> (k, n)>
#o = affine_map<(b, m, n, k) -> (b, m, n)>
#few = affine_map<(b, m, k) -> (m, k)>
#all = affine_map<(b, m, k) -> (b, m, k)>
func.func @nothing_else(%x: tensor<64x32xbf16>, %w: tensor<32x64xbf16>, %z: tensor<4x64x64xf32>) -> tensor<4x64x64xf32> {
  %e = tensor.empty() : tensor<4x64x32xbf16>
  %b = linalg.generic {indexing_maps = [#few, #all], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x : tensor<64x32xbf16>) outs(%e : tensor<4x64x32xbf16>) {
  ^bb0(%i: bf16, %u: bf16):
    linalg.yield %i : bf16
  } -> tensor<4x64x32xbf16>
  %p = linalg.generic {indexing_maps = [#a, #w, #o], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%b, %w : tensor<4x64x32xbf16>, tensor<32x64xbf16>) outs(%z : tensor<4x64x64xf32>) {
  ^bb0(%i: bf16, %j: bf16, %u: f32):
    %if = arith.extf %i : bf16 to f32
    %jf = arith.extf %j : bf16 to f32
    %m = arith.mulf %if, %jf : f32
    %s = arith.addf %u, %m : f32
    linalg.yield %s : f32
  } -> tensor<4x64x64xf32>
  return %p : tensor<4x64x64xf32>
}

// -----

// A sum over experts that begins with rounding: the product stores what is rounded.
// CHECK-LABEL: func.func @down
// CHECK: "kitsune.stage"
// CHECK: arith.truncf
// CHECK: sym_name = "product_0"{{.*}} -> tensor<4x512x64xbf16>
// CHECK: "kitsune.stage"
// CHECK-NOT: arith.truncf
// CHECK: sym_name = "reduce_1"
#a = affine_map<(b, m, n, k) -> (b, m, k)>
#w = affine_map<(b, m, n, k) -> (b, k, n)>
#o = affine_map<(b, m, n, k) -> (b, m, n)>
#every = affine_map<(b, m, n) -> (b, m, n)>
#sum = affine_map<(b, m, n) -> (m, n)>
func.func @down(%h: tensor<4x512x128xbf16>, %w: tensor<4x128x64xbf16>, %z: tensor<4x512x64xf32>, %y: tensor<512x64xf32>) -> tensor<512x64xf32> {
  %p = linalg.generic {indexing_maps = [#a, #w, #o], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%h, %w : tensor<4x512x128xbf16>, tensor<4x128x64xbf16>) outs(%z : tensor<4x512x64xf32>) {
  ^bb0(%i: bf16, %j: bf16, %u: f32):
    %if = arith.extf %i : bf16 to f32
    %jf = arith.extf %j : bf16 to f32
    %m = arith.mulf %if, %jf : f32
    %s = arith.addf %u, %m : f32
    linalg.yield %s : f32
  } -> tensor<4x512x64xf32>
  %r = linalg.generic {indexing_maps = [#every, #sum], iterator_types = ["reduction", "parallel", "parallel"]} ins(%p : tensor<4x512x64xf32>) outs(%y : tensor<512x64xf32>) {
  ^bb0(%i: f32, %u: f32):
    %t = arith.truncf %i : f32 to bf16
    %f = arith.extf %t : bf16 to f32
    %s = arith.addf %u, %f : f32
    linalg.yield %s : f32
  } -> tensor<512x64xf32>
  return %r : tensor<512x64xf32>
}

// -----

// The largest of 4 scores of each token, and 1024 elements that are divided by it: two stages; of 8 elements: one.
// CHECK-LABEL: func.func @scores
// CHECK: sym_name = "reduce_0"
// CHECK: sym_name = "reduce_1"
// CHECK: sym_name = "map_2"
// CHECK-NOT: "kitsune.stage"
#row = affine_map<(m, n) -> (m)>
#id = affine_map<(m, n) -> (m, n)>
func.func @scores(%s: tensor<60000x4xf32>, %x: tensor<60000x1024xf32>, %s2: tensor<60000x4xf32>, %x2: tensor<60000x8xf32>, %z: tensor<60000xf32>) -> (tensor<60000x1024xf32>, tensor<60000x8xf32>) {
  %e = tensor.empty() : tensor<60000x1024xf32>
  %e2 = tensor.empty() : tensor<60000x8xf32>
  %m = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%s : tensor<60000x4xf32>) outs(%z : tensor<60000xf32>) {
  ^bb0(%a: f32, %o: f32):
    %c = arith.maximumf %a, %o : f32
    linalg.yield %c : f32
  } -> tensor<60000xf32>
  %d = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]} ins(%x, %m : tensor<60000x1024xf32>, tensor<60000xf32>) outs(%e : tensor<60000x1024xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %c = arith.divf %a, %b : f32
    linalg.yield %c : f32
  } -> tensor<60000x1024xf32>
  %m2 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%s2 : tensor<60000x4xf32>) outs(%z : tensor<60000xf32>) {
  ^bb0(%a: f32, %o: f32):
    %c = arith.maximumf %a, %o : f32
    linalg.yield %c : f32
  } -> tensor<60000xf32>
  %d2 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]} ins(%x2, %m2 : tensor<60000x8xf32>, tensor<60000xf32>) outs(%e2 : tensor<60000x8xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %c = arith.divf %a, %b : f32
    linalg.yield %c : f32
  } -> tensor<60000x8xf32>
  return %d, %d2 : tensor<60000x1024xf32>, tensor<60000x8xf32>
}
