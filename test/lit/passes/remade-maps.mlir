// An f32 map that stages of their own read is made again by them, of the 16-bit numbers that it is made of, and is no stage: where
// blocks share the tiles of a column's sum, nothing is stored beside it. Of f32 numbers it stays one, which has as many bytes.
// RUN: kitsune-opt %s --split-input-file --kitsune-form-stages="target=h200" | FileCheck %s

// CHECK-LABEL: func.func @halves
// CHECK-NOT: sym_name = "map_
// CHECK: sym_name = "reduce_4"
#all = affine_map<(n, c) -> (n, c)>
#column = affine_map<(n, c) -> (c)>
func.func @halves(%x: tensor<65536x256xbf16>, %y0: tensor<65536x256xbf16>, %y1: tensor<65536x256xbf16>, %y2: tensor<65536x256xbf16>, %y3: tensor<65536x256xbf16>, %y4: tensor<65536x256xbf16>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>, tensor<256xf32>, tensor<256xf32>, tensor<256xf32>) {
  %e = tensor.empty() : tensor<65536x256xf32>
  %w = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<65536x256xbf16>) outs(%e : tensor<65536x256xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %f = arith.extf %a : bf16 to f32
    %b = arith.addf %f, %f : f32
    linalg.yield %b : f32
  } -> tensor<65536x256xf32>
  %s0 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y0 : tensor<65536x256xf32>, tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: bf16, %o: f32):
    %g = arith.extf %h : bf16 to f32
    %p = arith.mulf %a, %g : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  %s1 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y1 : tensor<65536x256xf32>, tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: bf16, %o: f32):
    %g = arith.extf %h : bf16 to f32
    %p = arith.mulf %a, %g : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  %s2 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y2 : tensor<65536x256xf32>, tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: bf16, %o: f32):
    %g = arith.extf %h : bf16 to f32
    %p = arith.mulf %a, %g : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  %s3 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y3 : tensor<65536x256xf32>, tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: bf16, %o: f32):
    %g = arith.extf %h : bf16 to f32
    %p = arith.mulf %a, %g : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  %s4 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y4 : tensor<65536x256xf32>, tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: bf16, %o: f32):
    %g = arith.extf %h : bf16 to f32
    %p = arith.mulf %a, %g : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  return %s0, %s1, %s2, %s3, %s4 : tensor<256xf32>, tensor<256xf32>, tensor<256xf32>, tensor<256xf32>, tensor<256xf32>
}

// -----

// CHECK-LABEL: func.func @wide
// CHECK: sym_name = "map_0"
// CHECK: sym_name = "reduce_5"
#all = affine_map<(n, c) -> (n, c)>
#column = affine_map<(n, c) -> (c)>
func.func @wide(%x: tensor<65536x256xf32>, %y0: tensor<65536x256xf32>, %y1: tensor<65536x256xf32>, %y2: tensor<65536x256xf32>, %y3: tensor<65536x256xf32>, %y4: tensor<65536x256xf32>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>, tensor<256xf32>, tensor<256xf32>, tensor<256xf32>) {
  %e = tensor.empty() : tensor<65536x256xf32>
  %w = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<65536x256xf32>) outs(%e : tensor<65536x256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %a : f32
    linalg.yield %b : f32
  } -> tensor<65536x256xf32>
  %s0 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y0 : tensor<65536x256xf32>, tensor<65536x256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: f32, %o: f32):
    %p = arith.mulf %a, %h : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  %s1 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y1 : tensor<65536x256xf32>, tensor<65536x256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: f32, %o: f32):
    %p = arith.mulf %a, %h : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  %s2 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y2 : tensor<65536x256xf32>, tensor<65536x256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: f32, %o: f32):
    %p = arith.mulf %a, %h : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  %s3 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y3 : tensor<65536x256xf32>, tensor<65536x256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: f32, %o: f32):
    %p = arith.mulf %a, %h : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  %s4 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y4 : tensor<65536x256xf32>, tensor<65536x256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: f32, %o: f32):
    %p = arith.mulf %a, %h : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  return %s0, %s1, %s2, %s3, %s4 : tensor<256xf32>, tensor<256xf32>, tensor<256xf32>, tensor<256xf32>, tensor<256xf32>
}

// -----

// What it is made of is stored in its place.
// CHECK-LABEL: func.func @rounded
// CHECK: sym_name = "map_0"
// CHECK: sym_name = "reduce_5"
#all = affine_map<(n, c) -> (n, c)>
#column = affine_map<(n, c) -> (c)>
func.func @rounded(%x: tensor<65536x256xbf16>, %y0: tensor<65536x256xbf16>, %y1: tensor<65536x256xbf16>, %y2: tensor<65536x256xbf16>, %y3: tensor<65536x256xbf16>, %y4: tensor<65536x256xbf16>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>, tensor<256xf32>, tensor<256xf32>, tensor<256xf32>) {
  %e = tensor.empty() : tensor<65536x256xf32>
  %n = tensor.empty() : tensor<65536x256xbf16>
  %r = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<65536x256xbf16>) outs(%n : tensor<65536x256xbf16>) {
  ^bb0(%a: bf16, %o: bf16):
    %b = math.exp %a : bf16
    linalg.yield %b : bf16
  } -> tensor<65536x256xbf16>
  %w = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel"]} ins(%r : tensor<65536x256xbf16>) outs(%e : tensor<65536x256xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %f = arith.extf %a : bf16 to f32
    %b = arith.addf %f, %f : f32
    linalg.yield %b : f32
  } -> tensor<65536x256xf32>
  %s0 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y0 : tensor<65536x256xf32>, tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: bf16, %o: f32):
    %g = arith.extf %h : bf16 to f32
    %p = arith.mulf %a, %g : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  %s1 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y1 : tensor<65536x256xf32>, tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: bf16, %o: f32):
    %g = arith.extf %h : bf16 to f32
    %p = arith.mulf %a, %g : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  %s2 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y2 : tensor<65536x256xf32>, tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: bf16, %o: f32):
    %g = arith.extf %h : bf16 to f32
    %p = arith.mulf %a, %g : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  %s3 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y3 : tensor<65536x256xf32>, tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: bf16, %o: f32):
    %g = arith.extf %h : bf16 to f32
    %p = arith.mulf %a, %g : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  %s4 = linalg.generic {indexing_maps = [#all, #all, #column], iterator_types = ["reduction", "parallel"]} ins(%w, %y4 : tensor<65536x256xf32>, tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %h: bf16, %o: f32):
    %g = arith.extf %h : bf16 to f32
    %p = arith.mulf %a, %g : f32
    %b = arith.addf %p, %o : f32
    linalg.yield %b : f32
  } -> tensor<256xf32>
  return %s0, %s1, %s2, %s3, %s4 : tensor<256xf32>, tensor<256xf32>, tensor<256xf32>, tensor<256xf32>, tensor<256xf32>
}

