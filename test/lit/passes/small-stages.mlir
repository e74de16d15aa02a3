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
