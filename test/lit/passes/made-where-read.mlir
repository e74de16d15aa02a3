// A cheap map that two stages read is computed by both, where that reads no more than what it would store; maps on both sides of
// a reshape are one stage over dimensions that both shapes are made of.
// RUN: kitsune-opt %s --split-input-file --kitsune-form-stages="target=h200" | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --kitsune-form-stages="target=h200" --remarks 2>&1 | FileCheck %s --check-prefix=SAID
// SAID: computed by each of 2 stages that read it
// SAID: computed by each of 3 stages that read it
// SAID: what makes it and what reads it are one stage

// Rows of 65,536: their mean, the sum of squares of what is centered, and what is scaled by it: three stages, none of which stores
// what is centered.
// CHECK-LABEL: func.func @centered
// CHECK: sym_name = "reduce_0"
// CHECK: arith.subf
// CHECK: sym_name = "reduce_1"
// CHECK: arith.subf
// CHECK: arith.mulf
// CHECK: sym_name = "map_2"
// CHECK-NOT: sym_name = "{{map|reduce}}_3"
#all = affine_map<(n, k) -> (n, k)>
#row = affine_map<(n, k) -> (n)>
func.func @centered(%x: tensor<4x65536xf32>, %z: tensor<4xf32>) -> tensor<4x65536xf32> {
  %e = tensor.empty() : tensor<4x65536xf32>
  %mean = linalg.generic {indexing_maps = [#all, #row], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<4x65536xf32>) outs(%z : tensor<4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<4xf32>
  %centered = linalg.generic {indexing_maps = [#all, #row, #all], iterator_types = ["parallel", "parallel"]} ins(%x, %mean : tensor<4x65536xf32>, tensor<4xf32>) outs(%e : tensor<4x65536xf32>) {
  ^bb0(%a: f32, %m: f32, %o: f32):
    %b = arith.subf %a, %m : f32
    linalg.yield %b : f32
  } -> tensor<4x65536xf32>
  %squares = linalg.generic {indexing_maps = [#all, #row], iterator_types = ["parallel", "reduction"]} ins(%centered : tensor<4x65536xf32>) outs(%z : tensor<4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.mulf %a, %a : f32
    %c = arith.addf %b, %o : f32
    linalg.yield %c : f32
  } -> tensor<4xf32>
  %scaled = linalg.generic {indexing_maps = [#all, #row, #all], iterator_types = ["parallel", "parallel"]} ins(%centered, %squares : tensor<4x65536xf32>, tensor<4xf32>) outs(%e : tensor<4x65536xf32>) {
  ^bb0(%a: f32, %s: f32, %o: f32):
    %b = math.rsqrt %s : f32
    %c = arith.mulf %a, %b : f32
    linalg.yield %c : f32
  } -> tensor<4x65536xf32>
  return %scaled : tensor<4x65536xf32>
}

// -----

// Three stages read what is centered here: the sum of squares, what is scaled by it, and what is divided by the largest of these.
// CHECK-LABEL: func.func @three_readers
// CHECK: sym_name = "reduce_0"
// CHECK: arith.subf
// CHECK: sym_name = "reduce_1"
// CHECK: arith.subf
// CHECK: sym_name = "map_2"
// CHECK: sym_name = "reduce_3"
// CHECK: arith.subf
// CHECK: sym_name = "map_4"
// CHECK-NOT: sym_name = "{{map|reduce}}_5"
#all = affine_map<(n, k) -> (n, k)>
#row = affine_map<(n, k) -> (n)>
func.func @three_readers(%x: tensor<4x65536xf32>, %z: tensor<4xf32>) -> (tensor<4x65536xf32>, tensor<4x65536xf32>) {
  %e = tensor.empty() : tensor<4x65536xf32>
  %mean = linalg.generic {indexing_maps = [#all, #row], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<4x65536xf32>) outs(%z : tensor<4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<4xf32>
  %centered = linalg.generic {indexing_maps = [#all, #row, #all], iterator_types = ["parallel", "parallel"]} ins(%x, %mean : tensor<4x65536xf32>, tensor<4xf32>) outs(%e : tensor<4x65536xf32>) {
  ^bb0(%a: f32, %m: f32, %o: f32):
    %b = arith.subf %a, %m : f32
    linalg.yield %b : f32
  } -> tensor<4x65536xf32>
  %squares = linalg.generic {indexing_maps = [#all, #row], iterator_types = ["parallel", "reduction"]} ins(%centered : tensor<4x65536xf32>) outs(%z : tensor<4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.mulf %a, %a : f32
    %c = arith.addf %b, %o : f32
    linalg.yield %c : f32
  } -> tensor<4xf32>
  %scaled = linalg.generic {indexing_maps = [#all, #row, #all], iterator_types = ["parallel", "parallel"]} ins(%centered, %squares : tensor<4x65536xf32>, tensor<4xf32>) outs(%e : tensor<4x65536xf32>) {
  ^bb0(%a: f32, %s: f32, %o: f32):
    %b = math.rsqrt %s : f32
    %c = arith.mulf %a, %b : f32
    linalg.yield %c : f32
  } -> tensor<4x65536xf32>
  %most = linalg.generic {indexing_maps = [#all, #row], iterator_types = ["parallel", "reduction"]} ins(%scaled : tensor<4x65536xf32>) outs(%z : tensor<4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.maximumf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<4xf32>
  %shifted = linalg.generic {indexing_maps = [#all, #row, #all], iterator_types = ["parallel", "parallel"]} ins(%centered, %most : tensor<4x65536xf32>, tensor<4xf32>) outs(%e : tensor<4x65536xf32>) {
  ^bb0(%a: f32, %s: f32, %o: f32):
    %c = arith.divf %a, %s : f32
    linalg.yield %c : f32
  } -> tensor<4x65536xf32>
  return %scaled, %shifted : tensor<4x65536xf32>, tensor<4x65536xf32>
}

// -----

// An exponential is not computed twice: it is stored.
// CHECK-LABEL: func.func @exponential
// CHECK: sym_name = "map_1"
// CHECK: sym_name = "reduce_2"
// CHECK: sym_name = "map_3"
#all = affine_map<(n, k) -> (n, k)>
#row = affine_map<(n, k) -> (n)>
func.func @exponential(%x: tensor<4x65536xf32>, %z: tensor<4xf32>) -> tensor<4x65536xf32> {
  %e = tensor.empty() : tensor<4x65536xf32>
  %most = linalg.generic {indexing_maps = [#all, #row], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<4x65536xf32>) outs(%z : tensor<4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.maximumf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<4xf32>
  %powers = linalg.generic {indexing_maps = [#all, #row, #all], iterator_types = ["parallel", "parallel"]} ins(%x, %most : tensor<4x65536xf32>, tensor<4xf32>) outs(%e : tensor<4x65536xf32>) {
  ^bb0(%a: f32, %m: f32, %o: f32):
    %b = arith.subf %a, %m : f32
    %c = math.exp %b : f32
    linalg.yield %c : f32
  } -> tensor<4x65536xf32>
  %sum = linalg.generic {indexing_maps = [#all, #row], iterator_types = ["parallel", "reduction"]} ins(%powers : tensor<4x65536xf32>) outs(%z : tensor<4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %c = arith.addf %a, %o : f32
    linalg.yield %c : f32
  } -> tensor<4xf32>
  %scaled = linalg.generic {indexing_maps = [#all, #row, #all], iterator_types = ["parallel", "parallel"]} ins(%powers, %sum : tensor<4x65536xf32>, tensor<4xf32>) outs(%e : tensor<4x65536xf32>) {
  ^bb0(%a: f32, %s: f32, %o: f32):
    %c = arith.divf %a, %s : f32
    linalg.yield %c : f32
  } -> tensor<4x65536xf32>
  return %scaled : tensor<4x65536xf32>
}

// -----

// (2, 4, 16 * 4096) and (2, 64, 4096): both are loops over (2, 4, 16, 4096). The weight of a channel is read as (4, 16).
// CHECK-LABEL: func.func @reshaped
// CHECK: sym_name = "reduce_0"
// CHECK: iterator_types = ["parallel", "parallel", "parallel", "parallel"]
// CHECK: tensor<4x16xf32>
// CHECK: -> tensor<2x4x16x4096xf32>
// CHECK: sym_name = "map_1"
// CHECK-NOT: sym_name = "map_2"
#group = affine_map<(n, g, k) -> (n, g)>
#three = affine_map<(n, g, k) -> (n, g, k)>
#channel = affine_map<(n, c, w) -> (c)>
func.func @reshaped(%x: tensor<2x4x65536xf32>, %z: tensor<2x4xf32>, %weight: tensor<64xf32>) -> tensor<2x64x4096xf32> {
  %most = linalg.generic {indexing_maps = [#three, #group], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x : tensor<2x4x65536xf32>) outs(%z : tensor<2x4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<2x4xf32>
  %e = tensor.empty() : tensor<2x4x65536xf32>
  %a = linalg.generic {indexing_maps = [#three, #group, #three], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x, %most : tensor<2x4x65536xf32>, tensor<2x4xf32>) outs(%e : tensor<2x4x65536xf32>) {
  ^bb0(%i: f32, %m: f32, %o: f32):
    %r = arith.mulf %i, %m : f32
    linalg.yield %r : f32
  } -> tensor<2x4x65536xf32>
  %c = tensor.collapse_shape %a [[0], [1, 2]] : tensor<2x4x65536xf32> into tensor<2x262144xf32>
  %v = tensor.expand_shape %c [[0], [1, 2]] output_shape [2, 64, 4096] : tensor<2x262144xf32> into tensor<2x64x4096xf32>
  %f = tensor.empty() : tensor<2x64x4096xf32>
  %b = linalg.generic {indexing_maps = [#three, #channel, #three], iterator_types = ["parallel", "parallel", "parallel"]} ins(%v, %weight : tensor<2x64x4096xf32>, tensor<64xf32>) outs(%f : tensor<2x64x4096xf32>) {
  ^bb0(%i: f32, %w: f32, %o: f32):
    %r = arith.mulf %i, %w : f32
    linalg.yield %r : f32
  } -> tensor<2x64x4096xf32>
  return %b : tensor<2x64x4096xf32>
}

// -----

// What reads a slice stays as it is: no view can show it with its dimensions split, as it lies in no memory.
// CHECK-LABEL: func.func @of_a_slice
// CHECK: "kitsune.stage"
// CHECK: tensor.extract_slice
// CHECK: sym_name = "map_0"
// CHECK: tensor.expand_shape
// CHECK: sym_name = "map_1"
#id = affine_map<(m, n) -> (m, n)>
#id3 = affine_map<(m, h, n) -> (m, h, n)>
func.func @of_a_slice(%x: tensor<64x24xf32>) -> tensor<64x3x4xf32> {
  %s = tensor.extract_slice %x[0, 0] [64, 12] [1, 1] : tensor<64x24xf32> to tensor<64x12xf32>
  %e = tensor.empty() : tensor<64x12xf32>
  %a = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%s : tensor<64x12xf32>) outs(%e : tensor<64x12xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = math.exp %i : f32
    linalg.yield %m : f32
  } -> tensor<64x12xf32>
  %v = tensor.expand_shape %a [[0], [1, 2]] output_shape [64, 3, 4] : tensor<64x12xf32> into tensor<64x3x4xf32>
  %f = tensor.empty() : tensor<64x3x4xf32>
  %b = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%v : tensor<64x3x4xf32>) outs(%f : tensor<64x3x4xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = math.tanh %i : f32
    linalg.yield %m : f32
  } -> tensor<64x3x4xf32>
  return %b : tensor<64x3x4xf32>
}

// -----

// A scatter begins with what lies in memory: a map that makes it stays a stage of its own.
// CHECK-LABEL: func.func @begun
// CHECK: sym_name = "map_0"
// CHECK: "kitsune.stage"
// CHECK-NOT: linalg.generic
// CHECK: tm_tensor.scatter
// CHECK: sym_name = "scatter_1"
func.func @begun(%x: tensor<4000x64xbf16>, %i: tensor<9000x1xi64>, %u: tensor<9000x1x64xf32>) -> tensor<4000x64xf32> {
  %two = arith.constant 2.0 : f32
  %e = tensor.empty() : tensor<4000x64xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4000x64xbf16>) outs(%e : tensor<4000x64xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %w = arith.extf %a : bf16 to f32
    %m = arith.mulf %w, %two : f32
    linalg.yield %m : f32
  } -> tensor<4000x64xf32>
  %s = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%u, %i : tensor<9000x1x64xf32>, tensor<9000x1xi64>) outs(%y : tensor<4000x64xf32>) {
  ^bb0(%new: f32, %old: f32):
    %m = arith.maximumf %old, %new : f32
    tm_tensor.yield %m : f32
  } -> tensor<4000x64xf32>
  return %s : tensor<4000x64xf32>
}
