// RUN: kitsune-opt %s --pass-pipeline="builtin.module(kitsune-split-reductions{target=h200})" | FileCheck %s
// RUN: kitsune-opt %s --pass-pipeline="builtin.module(kitsune-split-reductions{target=h200})" --remarks -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: kitsune-opt %s --pass-pipeline="builtin.module(kitsune-split-reductions{target=h200 parts=3})" | FileCheck %s --check-prefix=THREE
// RUN: kitsune-opt %s --pass-pipeline="builtin.module(kitsune-split-reductions{target=host})" | FileCheck %s --check-prefix=HOST

// On the host nothing is split unless it is asked for.
// HOST-NOT: kitsune.partial

#mk = affine_map<(m, n, k) -> (k, m)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
#rc = affine_map<(r, c) -> (r, c)>
#c = affine_map<(r, c) -> (c)>

// A product that no tensor core does, of four tiles and a long sum: parts, then their sum on top of what it started from.
// CHECK-LABEL: func.func @gradient
// CHECK: tensor.expand_shape %{{.*}} {{\[}}[0, 1], [2]] output_shape [[[P:[0-9]+]], {{[0-9]+}}, 64] : tensor<16384x64xf64> into
// CHECK: %[[PARTS:.*]] = linalg.generic {{{.*}} iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
// CHECK-SAME: kitsune.partial
// CHECK: linalg.generic {{{.*}} iterator_types = ["reduction", "parallel", "parallel"]} ins(%[[PARTS]]
// CHECK-SAME: kitsune.combine
// REMARK: parts: {{.*}} us instead of
func.func @gradient(%x: tensor<16384x64xf64>, %y: tensor<16384x64xf64>) -> tensor<64x64xf64> {
  %zero = arith.constant 0.0 : f64
  %e = tensor.empty() : tensor<64x64xf64>
  %f = linalg.fill ins(%zero : f64) outs(%e : tensor<64x64xf64>) -> tensor<64x64xf64>
  %r = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %y : tensor<16384x64xf64>, tensor<16384x64xf64>) outs(%f : tensor<64x64xf64>) {
  ^bb0(%a: f64, %b: f64, %o: f64):
    %m = arith.mulf %a, %b : f64
    %s = arith.addf %o, %m : f64
    linalg.yield %s : f64
  } -> tensor<64x64xf64>
  return %r : tensor<64x64xf64>
}

// Enough tiles without: left alone.
// CHECK-LABEL: func.func @busy
// CHECK-NOT: kitsune.partial
// CHECK: return
func.func @busy(%x: tensor<4096x4096xf32>) -> tensor<4096xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4096xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4096xf32>) -> tensor<4096xf32>
  %r = linalg.generic {indexing_maps = [#rc, affine_map<(r, c) -> (r)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<4096x4096xf32>) outs(%f : tensor<4096xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %o, %a : f32
    linalg.yield %s : f32
  } -> tensor<4096xf32>
  return %r : tensor<4096xf32>
}

// Few tiles, but nothing reads the result beside the rows again: the engine shares its tiles among blocks.
// CHECK-LABEL: func.func @alone
// CHECK-NOT: kitsune.partial
// CHECK: return
// REMARK: stays whole: its 2 tiles can be shared by blocks inside one stage
func.func @alone(%x: tensor<65536x64xf32>) -> tensor<64xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<64xf32>) -> tensor<64xf32>
  %r = linalg.generic {indexing_maps = [#rc, #c], iterator_types = ["reduction", "parallel"]}
      ins(%x : tensor<65536x64xf32>) outs(%f : tensor<64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %o, %a : f32
    linalg.yield %s : f32
  } -> tensor<64xf32>
  return %r : tensor<64xf32>
}

// The batch is divided by its maximum: rows are stages of their own then, and blocks share the maximum's two tiles.
// CHECK-LABEL: func.func @batch
// CHECK: arith.constant 0xFF800000
// CHECK-NOT: kitsune.partial
// CHECK: return
// 65536 has no divisor between 1 and 6 but powers of two.
// THREE-LABEL: func.func @batch
// THREE: output_shape [{{2|4}}, {{32768|16384}}, 64]
func.func @batch(%x: tensor<65536x64xf32>) -> tensor<65536x64xf32> {
  %least = arith.constant 0xFF800000 : f32
  %e = tensor.empty() : tensor<64xf32>
  %f = linalg.fill ins(%least : f32) outs(%e : tensor<64xf32>) -> tensor<64xf32>
  %r = linalg.generic {indexing_maps = [#rc, #c], iterator_types = ["reduction", "parallel"]}
      ins(%x : tensor<65536x64xf32>) outs(%f : tensor<64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.maximumf %o, %a : f32
    linalg.yield %s : f32
  } -> tensor<64xf32>
  %e2 = tensor.empty() : tensor<65536x64xf32>
  %n = linalg.generic {indexing_maps = [#rc, #c, #rc], iterator_types = ["parallel", "parallel"]}
      ins(%x, %r : tensor<65536x64xf32>, tensor<64xf32>) outs(%e2 : tensor<65536x64xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %s = arith.divf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<65536x64xf32>
  return %n : tensor<65536x64xf32>
}

// A second sum of the columns reads what the first one gives: one stage would have two tiles for both.
// CHECK-LABEL: func.func @twice
// CHECK: kitsune.partial
// CHECK: kitsune.combine
// CHECK: return
func.func @twice(%x: tensor<65536x64xf32>) -> tensor<64xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<64xf32>) -> tensor<64xf32>
  %r = linalg.generic {indexing_maps = [#rc, #c], iterator_types = ["reduction", "parallel"]}
      ins(%x : tensor<65536x64xf32>) outs(%f : tensor<64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %o, %a : f32
    linalg.yield %s : f32
  } -> tensor<64xf32>
  %n = linalg.generic {indexing_maps = [#rc, #c, #c], iterator_types = ["reduction", "parallel"]}
      ins(%x, %r : tensor<65536x64xf32>, tensor<64xf32>) outs(%f : tensor<64xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<64xf32>
  return %n : tensor<64xf32>
}

// What is no sum of terms must not be split, even if asked: each term depends on the ones before.
// THREE-LABEL: func.func @recurrence
// THREE-NOT: kitsune.partial
// THREE: return
func.func @recurrence(%x: tensor<3000x64xf32>) -> tensor<64xf32> {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant 0.5 : f32
  %e = tensor.empty() : tensor<64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<64xf32>) -> tensor<64xf32>
  %r = linalg.generic {indexing_maps = [#rc, #c], iterator_types = ["reduction", "parallel"]}
      ins(%x : tensor<3000x64xf32>) outs(%f : tensor<64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %d = arith.mulf %o, %half : f32
    %s = arith.addf %d, %a : f32
    linalg.yield %s : f32
  } -> tensor<64xf32>
  return %r : tensor<64xf32>
}

// A convolution of 16-bit numbers, of few tiles: its engine shares them.
// CHECK-LABEL: func.func @convolution
// CHECK-NOT: kitsune.partial
// CHECK: return
// REMARK: stays whole: blocks share the tiles of a convolution inside one stage
func.func @convolution(%x: tensor<1x9x9x512xbf16>, %w: tensor<64x3x3x512xbf16>) -> tensor<1x7x7x64xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x7x7x64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x7x7x64xf32>) -> tensor<1x7x7x64xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(b, y, x, f, i, j, c) -> (b, y + i, x + j, c)>, affine_map<(b, y, x, f, i, j, c) -> (f, i, j, c)>,
      affine_map<(b, y, x, f, i, j, c) -> (b, y, x, f)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
      ins(%x, %w : tensor<1x9x9x512xbf16>, tensor<64x3x3x512xbf16>) outs(%f : tensor<1x7x7x64xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %u = arith.extf %a : bf16 to f32
    %v = arith.extf %b : bf16 to f32
    %m = arith.mulf %u, %v : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<1x7x7x64xf32>
  return %r : tensor<1x7x7x64xf32>
}

// What is made of a product's sums, in no wider type, is read where it lies: made again in parts, the sums had to be stored.
// CHECK-LABEL: func.func @behind_a_product
// CHECK: %[[MADE:.*]] = linalg.generic {{{.*}} iterator_types = ["parallel", "parallel"]}
// CHECK: math.absf
// CHECK: tensor.expand_shape %[[MADE]] {{.*}} : tensor<16384x64xf64> into
// CHECK-NOT: math.absf
// CHECK: kitsune.partial
func.func @behind_a_product(%a: tensor<16384x64xf64>, %b: tensor<64x64xf64>, %y: tensor<16384x64xf64>) -> (tensor<16384x64xf64>, tensor<64x64xf64>) {
  %zero = arith.constant 0.0 : f64
  %w = tensor.empty() : tensor<16384x64xf64>
  %wide = linalg.fill ins(%zero : f64) outs(%w : tensor<16384x64xf64>) -> tensor<16384x64xf64>
  %x = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<16384x64xf64>, tensor<64x64xf64>) outs(%wide : tensor<16384x64xf64>) {
  ^bb0(%p: f64, %q: f64, %o: f64):
    %m = arith.mulf %p, %q : f64
    %s = arith.addf %o, %m : f64
    linalg.yield %s : f64
  } -> tensor<16384x64xf64>
  %h = linalg.generic {indexing_maps = [#rc, #rc], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<16384x64xf64>) outs(%w : tensor<16384x64xf64>) {
  ^bb0(%p: f64, %o: f64):
    %m = math.absf %p : f64
    linalg.yield %m : f64
  } -> tensor<16384x64xf64>
  %e = tensor.empty() : tensor<64x64xf64>
  %f = linalg.fill ins(%zero : f64) outs(%e : tensor<64x64xf64>) -> tensor<64x64xf64>
  %r = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%h, %y : tensor<16384x64xf64>, tensor<16384x64xf64>) outs(%f : tensor<64x64xf64>) {
  ^bb0(%p: f64, %q: f64, %o: f64):
    %m = arith.mulf %p, %q : f64
    %s = arith.addf %o, %m : f64
    linalg.yield %s : f64
  } -> tensor<64x64xf64>
  return %h, %r : tensor<16384x64xf64>, tensor<64x64xf64>
}
