// A product of several waves counts its columns in groups, and who sums over them waits for each group by itself.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize --kitsune-form-stages=target=sm_90a --kitsune-partition-streams=target=sm_90a --kitsune-place-buffers --kitsune-synchronize --kitsune-materialize --kitsune-check-progress | FileCheck %s

#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>

// Two waves of 12 x 22 tiles: 11 columns of tiles each. The second product reads them in that order.
// CHECK-LABEL: func.func @two_waves
// CHECK: %[[ROWS:.*]] = "kitsune.make_semaphore"() {slots = 24 : i64}
// CHECK: ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK: %[[GROUP:.*]] = arith.divui %[[J]], %{{.*}} : index
// CHECK: %[[MOVED:.*]] = arith.muli %[[GROUP]], %{{.*}} : index
// CHECK: %[[SLOT:.*]] = arith.addi %[[I]], %[[MOVED]] : index
// CHECK: "kitsune.post"(%[[ROWS]], %[[SLOT]])
// CHECK: }) {engine = "mma", grid = array<i64: 12, 22>
// CHECK: "kitsune.wait"(%[[ROWS]], %[[LO:.*]], %[[HI:.*]]) {count = 11 : i64}
// CHECK: "kitsune.wait"(%[[ROWS]], %{{.*}}, %{{.*}}) {count = 11 : i64}
// CHECK-NOT: kitsune.wait
// CHECK: return
func.func @two_waves(%x: tensor<1536x1024xbf16>, %v: tensor<4096x1024xbf16>, %w: tensor<1024x4096xbf16>) -> tensor<1536x1024xbf16> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1536x4096xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<1536x4096xf32>) -> tensor<1536x4096xf32>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %v : tensor<1536x1024xbf16>, tensor<4096x1024xbf16>) outs(%z : tensor<1536x4096xf32>) {
  ^bb0(%a: bf16, %b: bf16, %c: f32):
    %af = arith.extf %a : bf16 to f32
    %bf = arith.extf %b : bf16 to f32
    %ab = arith.mulf %af, %bf : f32
    %s = arith.addf %c, %ab : f32
    linalg.yield %s : f32
  } -> tensor<1536x4096xf32>
  %he = tensor.empty() : tensor<1536x4096xbf16>
  %h = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%p : tensor<1536x4096xf32>) outs(%he : tensor<1536x4096xbf16>) {
  ^bb0(%a: f32, %c: bf16):
    %r = arith.maximumf %a, %zero : f32
    %t = arith.truncf %r : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<1536x4096xbf16>
  %e2 = tensor.empty() : tensor<1536x1024xf32>
  %z2 = linalg.fill ins(%zero : f32) outs(%e2 : tensor<1536x1024xf32>) -> tensor<1536x1024xf32>
  %q = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%h, %w : tensor<1536x4096xbf16>, tensor<1024x4096xbf16>) outs(%z2 : tensor<1536x1024xf32>) {
  ^bb0(%a: bf16, %b: bf16, %c: f32):
    %af = arith.extf %a : bf16 to f32
    %bf = arith.extf %b : bf16 to f32
    %ab = arith.mulf %af, %bf : f32
    %s = arith.addf %c, %ab : f32
    linalg.yield %s : f32
  } -> tensor<1536x1024xf32>
  %ye = tensor.empty() : tensor<1536x1024xbf16>
  %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%q : tensor<1536x1024xf32>) outs(%ye : tensor<1536x1024xbf16>) {
  ^bb0(%a: f32, %c: bf16):
    %t = arith.truncf %a : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<1536x1024xbf16>
  return %y : tensor<1536x1024xbf16>
}

// -----

#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>

// All tiles of the first product end at about the same time: there is nothing to begin with.
// CHECK-LABEL: func.func @one_wave
// CHECK: make_semaphore"() {slots = 4 : i64}
// CHECK: "kitsune.wait"
// CHECK-NOT: kitsune.wait
// CHECK: return
func.func @one_wave(%x: tensor<512x1024xbf16>, %v: tensor<4096x1024xbf16>, %w: tensor<1024x4096xbf16>) -> tensor<512x1024xbf16> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<512x4096xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<512x4096xf32>) -> tensor<512x4096xf32>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %v : tensor<512x1024xbf16>, tensor<4096x1024xbf16>) outs(%z : tensor<512x4096xf32>) {
  ^bb0(%a: bf16, %b: bf16, %c: f32):
    %af = arith.extf %a : bf16 to f32
    %bf = arith.extf %b : bf16 to f32
    %ab = arith.mulf %af, %bf : f32
    %s = arith.addf %c, %ab : f32
    linalg.yield %s : f32
  } -> tensor<512x4096xf32>
  %he = tensor.empty() : tensor<512x4096xbf16>
  %h = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%p : tensor<512x4096xf32>) outs(%he : tensor<512x4096xbf16>) {
  ^bb0(%a: f32, %c: bf16):
    %r = arith.maximumf %a, %zero : f32
    %t = arith.truncf %r : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<512x4096xbf16>
  %e2 = tensor.empty() : tensor<512x1024xf32>
  %z2 = linalg.fill ins(%zero : f32) outs(%e2 : tensor<512x1024xf32>) -> tensor<512x1024xf32>
  %q = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%h, %w : tensor<512x4096xbf16>, tensor<1024x4096xbf16>) outs(%z2 : tensor<512x1024xf32>) {
  ^bb0(%a: bf16, %b: bf16, %c: f32):
    %af = arith.extf %a : bf16 to f32
    %bf = arith.extf %b : bf16 to f32
    %ab = arith.mulf %af, %bf : f32
    %s = arith.addf %c, %ab : f32
    linalg.yield %s : f32
  } -> tensor<512x1024xf32>
  %ye = tensor.empty() : tensor<512x1024xbf16>
  %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%q : tensor<512x1024xf32>) outs(%ye : tensor<512x1024xbf16>) {
  ^bb0(%a: f32, %c: bf16):
    %t = arith.truncf %a : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<512x1024xbf16>
  return %y : tensor<512x1024xbf16>
}
