// One row's sum and what is made with it are one stage of one tile: a hand-off would take longer. A long row is cut into tiles.
// RUN: kitsune-opt %s --split-input-file --kitsune-form-stages="target=h200" --kitsune-partition-streams="target=h200" | FileCheck %s

// CHECK-LABEL: func.func @row
// CHECK-COUNT-1: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
// CHECK: engine = "simt"
#id = affine_map<(n) -> (n)>
#none = affine_map<(n) -> ()>
func.func @row(%x: tensor<4096xf32>, %z: tensor<f32>) -> tensor<4096xf32> {
  %e = tensor.empty() : tensor<4096xf32>
  %s = linalg.generic {indexing_maps = [#id, #none], iterator_types = ["reduction"]} ins(%x : tensor<4096xf32>) outs(%z : tensor<f32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<f32>
  %r = linalg.generic {indexing_maps = [#id, #none, #id], iterator_types = ["parallel"]} ins(%x, %s : tensor<4096xf32>, tensor<f32>) outs(%e : tensor<4096xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %c = arith.divf %a, %b : f32
    linalg.yield %c : f32
  } -> tensor<4096xf32>
  return %r : tensor<4096xf32>
}

// -----

// CHECK-LABEL: func.func @long_row
// CHECK-COUNT-2: "kitsune.stage"
#id = affine_map<(n) -> (n)>
#none = affine_map<(n) -> ()>
func.func @long_row(%x: tensor<4194304xf32>, %z: tensor<f32>) -> tensor<4194304xf32> {
  %e = tensor.empty() : tensor<4194304xf32>
  %s = linalg.generic {indexing_maps = [#id, #none], iterator_types = ["reduction"]} ins(%x : tensor<4194304xf32>) outs(%z : tensor<f32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<f32>
  %r = linalg.generic {indexing_maps = [#id, #none, #id], iterator_types = ["parallel"]} ins(%x, %s : tensor<4194304xf32>, tensor<f32>) outs(%e : tensor<4194304xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %c = arith.divf %a, %b : f32
    linalg.yield %c : f32
  } -> tensor<4194304xf32>
  return %r : tensor<4194304xf32>
}

// -----

// A table that is gathered from must be complete, however small it is.
// CHECK-LABEL: func.func @gather
// CHECK-COUNT-2: "kitsune.stage"
#id = affine_map<(n) -> (n)>
func.func @gather(%t: tensor<50xf32>, %i: tensor<100xindex>) -> tensor<100xf32> {
  %et = tensor.empty() : tensor<50xf32>
  %table = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%t : tensor<50xf32>) outs(%et : tensor<50xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = math.exp %a : f32
    linalg.yield %m : f32
  } -> tensor<50xf32>
  %e = tensor.empty() : tensor<100xf32>
  %g = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%i : tensor<100xindex>) outs(%e : tensor<100xf32>) {
  ^bb0(%a: index, %o: f32):
    %v = tensor.extract %table[%a] : tensor<50xf32>
    linalg.yield %v : f32
  } -> tensor<100xf32>
  return %g : tensor<100xf32>
}

// -----

// What is made of the number that everything was reduced to is made where that number is, however long the row.

// CHECK-LABEL: func.func @length
// CHECK-COUNT-1: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
// CHECK: return
#id = affine_map<(n) -> (n)>
#none = affine_map<(n) -> ()>
#number = affine_map<() -> ()>
func.func @length(%x: tensor<4194304xf32>, %z: tensor<f32>) -> tensor<f32> {
  %e = tensor.empty() : tensor<f32>
  %s = linalg.generic {indexing_maps = [#id, #none], iterator_types = ["reduction"]} ins(%x : tensor<4194304xf32>) outs(%z : tensor<f32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.mulf %a, %a : f32
    %b = arith.addf %m, %o : f32
    linalg.yield %b : f32
  } -> tensor<f32>
  %r = linalg.generic {indexing_maps = [#number, #number], iterator_types = []} ins(%s : tensor<f32>) outs(%e : tensor<f32>) {
  ^bb0(%a: f32, %o: f32):
    %c = math.sqrt %a : f32
    linalg.yield %c : f32
  } -> tensor<f32>
  return %r : tensor<f32>
}

// -----

// Two sums of tensors of different lengths have their own tiles: the number that is made of both is made beside one of them.

// CHECK-LABEL: func.func @two_sums
// CHECK-COUNT-2: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
// CHECK: return
#id = affine_map<(n) -> (n)>
#none = affine_map<(n) -> ()>
#number = affine_map<() -> ()>
func.func @two_sums(%x: tensor<4194304xf32>, %y: tensor<3145728xf32>, %z: tensor<f32>) -> tensor<f32> {
  %e = tensor.empty() : tensor<f32>
  %s = linalg.generic {indexing_maps = [#id, #none], iterator_types = ["reduction"]} ins(%x : tensor<4194304xf32>) outs(%z : tensor<f32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<f32>
  %t = linalg.generic {indexing_maps = [#id, #none], iterator_types = ["reduction"]} ins(%y : tensor<3145728xf32>) outs(%z : tensor<f32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<f32>
  %r = linalg.generic {indexing_maps = [#number, #number, #number], iterator_types = []} ins(%s, %t : tensor<f32>, tensor<f32>) outs(%e : tensor<f32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %c = arith.divf %a, %b : f32
    linalg.yield %c : f32
  } -> tensor<f32>
  return %r : tensor<f32>
}

// -----

// So is what is made of the one element of a product.

// CHECK-LABEL: func.func @dot
// CHECK-COUNT-1: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
// CHECK: engine = "simt"
// CHECK: return
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
#c = affine_map<(m, n, k) -> (m, n)>
#number = affine_map<() -> ()>
func.func @dot(%x: tensor<1x256xbf16>, %y: tensor<256x1xbf16>, %z: tensor<1x1xf32>) -> tensor<bf16> {
  %e = tensor.empty() : tensor<bf16>
  %p = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %y : tensor<1x256xbf16>, tensor<256x1xbf16>) outs(%z : tensor<1x1xf32>) {
  ^bb0(%a: bf16, %c: bf16, %o: f32):
    %u = arith.extf %a : bf16 to f32
    %v = arith.extf %c : bf16 to f32
    %m = arith.mulf %u, %v : f32
    %b = arith.addf %o, %m : f32
    linalg.yield %b : f32
  } -> tensor<1x1xf32>
  %s = tensor.collapse_shape %p [] : tensor<1x1xf32> into tensor<f32>
  %r = linalg.generic {indexing_maps = [#number, #number], iterator_types = []} ins(%s : tensor<f32>) outs(%e : tensor<bf16>) {
  ^bb0(%a: f32, %o: bf16):
    %c = arith.truncf %a : f32 to bf16
    linalg.yield %c : bf16
  } -> tensor<bf16>
  return %r : tensor<bf16>
}

// -----

// A row that is scaled by it is not.

// CHECK-LABEL: func.func @scaled
// CHECK-COUNT-2: "kitsune.stage"
// CHECK: return
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
#c = affine_map<(m, n, k) -> (m, n)>
#none = affine_map<(n) -> ()>
#id = affine_map<(n) -> (n)>
func.func @scaled(%x: tensor<1x256xbf16>, %y: tensor<256x1xbf16>, %z: tensor<1x1xf32>, %w: tensor<300xf32>) -> tensor<300xf32> {
  %e = tensor.empty() : tensor<300xf32>
  %p = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %y : tensor<1x256xbf16>, tensor<256x1xbf16>) outs(%z : tensor<1x1xf32>) {
  ^bb0(%a: bf16, %c: bf16, %o: f32):
    %u = arith.extf %a : bf16 to f32
    %v = arith.extf %c : bf16 to f32
    %m = arith.mulf %u, %v : f32
    %b = arith.addf %o, %m : f32
    linalg.yield %b : f32
  } -> tensor<1x1xf32>
  %s = tensor.collapse_shape %p [] : tensor<1x1xf32> into tensor<f32>
  %r = linalg.generic {indexing_maps = [#id, #none, #id], iterator_types = ["parallel"]} ins(%w, %s : tensor<300xf32>, tensor<f32>) outs(%e : tensor<300xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %c = arith.divf %a, %b : f32
    linalg.yield %c : f32
  } -> tensor<300xf32>
  return %r : tensor<300xf32>
}

// -----

// Halves of a row that change places, one negated (rotary embeddings of a single token): joined where they are read.
// CHECK-LABEL: func.func @rotated
// CHECK-COUNT-1: "kitsune.stage"
// CHECK: tensor.concat
// CHECK-NOT: "kitsune.stage"
// CHECK: engine = "simt"
#id = affine_map<(n, m) -> (n, m)>
#row = affine_map<(n, m) -> (m)>
func.func @rotated(%x: tensor<32x64xf32>, %c: tensor<64xf32>, %s: tensor<64xf32>) -> tensor<32x64xf32> {
  %a = tensor.extract_slice %x[0, 0] [32, 32] [1, 1] : tensor<32x64xf32> to tensor<32x32xf32>
  %b = tensor.extract_slice %x[0, 32] [32, 32] [1, 1] : tensor<32x64xf32> to tensor<32x32xf32>
  %h = tensor.empty() : tensor<32x32xf32>
  %n = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%b : tensor<32x32xf32>) outs(%h : tensor<32x32xf32>) {
  ^bb0(%v: f32, %o: f32):
    %w = arith.negf %v : f32
    linalg.yield %w : f32
  } -> tensor<32x32xf32>
  %j = tensor.concat dim(1) %n, %a : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x64xf32>
  %e = tensor.empty() : tensor<32x64xf32>
  %r = linalg.generic {indexing_maps = [#id, #row, #id, #row, #id], iterator_types = ["parallel", "parallel"]} ins(%x, %c, %j, %s : tensor<32x64xf32>, tensor<64xf32>, tensor<32x64xf32>, tensor<64xf32>) outs(%e : tensor<32x64xf32>) {
  ^bb0(%v: f32, %cos: f32, %t: f32, %sin: f32, %o: f32):
    %p = arith.mulf %v, %cos : f32
    %q = arith.mulf %t, %sin : f32
    %z = arith.addf %p, %q : f32
    linalg.yield %z : f32
  } -> tensor<32x64xf32>
  return %r : tensor<32x64xf32>
}
