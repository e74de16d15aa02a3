// Sums of columns that walk the same loops of a large tensor are one reduction. Not where one is made of the other, of other
// tensors, along rows, of small tensors, or in which an index is used.
// RUN: kitsune-opt %s --split-input-file --kitsune-split-reductions="target=h200" | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --kitsune-split-reductions="target=host" | FileCheck %s --check-prefix=HOST

// HOST-NOT: linalg.generic {{.*}}-> (tensor<256xf32>, tensor<256xf32>)

// The loops of the second are in another order, and what is made of the first one's result stands between.
// CHECK-LABEL: func.func @two
// CHECK: %[[SUMS:.*]]:2 = linalg.generic {{.*}} ["reduction", "parallel"]} ins(%arg0, %arg1 :
// CHECK: math.exp
// CHECK: return %{{.*}}, %[[SUMS]]#1
// HOST-LABEL: func.func @two
#id = affine_map<(r, c) -> (r, c)>
#column = affine_map<(r, c) -> (c)>
#turned = affine_map<(c, r) -> (r, c)>
#turned_column = affine_map<(c, r) -> (c)>
#vector = affine_map<(c) -> (c)>
func.func @two(%x: tensor<65536x256xbf16>, %y: tensor<65536x256xbf16>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>) {
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %m = arith.addf %e, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %u = linalg.generic {indexing_maps = [#vector, #vector], iterator_types = ["parallel"]} ins(%s : tensor<256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = math.exp %a : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %t = linalg.generic {indexing_maps = [#turned, #turned, #turned_column], iterator_types = ["parallel", "reduction"]} ins(%y, %x : tensor<65536x256xbf16>, tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %f = arith.extf %b : bf16 to f32
    %p = arith.mulf %e, %f : f32
    %m = arith.addf %p, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  return %u, %t : tensor<256xf32>, tensor<256xf32>
}

// -----

// CHECK-LABEL: func.func @a_variance
// CHECK-NOT: :2 = linalg.generic
// CHECK: return
#id = affine_map<(r, c) -> (r, c)>
#column = affine_map<(r, c) -> (c)>
#turned = affine_map<(c, r) -> (r, c)>
#turned_column = affine_map<(c, r) -> (c)>
#vector = affine_map<(c) -> (c)>
func.func @a_variance(%x: tensor<65536x256xbf16>, %y: tensor<65536x256xbf16>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>) {
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %m = arith.addf %e, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %t = linalg.generic {indexing_maps = [#id, #column, #column], iterator_types = ["reduction", "parallel"]} ins(%x, %s : tensor<65536x256xbf16>, tensor<256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %b: f32, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %d = arith.subf %e, %b : f32
    %p = arith.mulf %d, %d : f32
    %m = arith.addf %p, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  return %s, %t : tensor<256xf32>, tensor<256xf32>
}

// -----

// CHECK-LABEL: func.func @other_tensors
// CHECK-NOT: :2 = linalg.generic
// CHECK: return
#id = affine_map<(r, c) -> (r, c)>
#column = affine_map<(r, c) -> (c)>
#turned = affine_map<(c, r) -> (r, c)>
#turned_column = affine_map<(c, r) -> (c)>
#vector = affine_map<(c) -> (c)>
func.func @other_tensors(%x: tensor<65536x256xbf16>, %y: tensor<65536x256xbf16>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>) {
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %m = arith.addf %e, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %t = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%y : tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %m = arith.addf %e, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  return %s, %t : tensor<256xf32>, tensor<256xf32>
}

// -----

// CHECK-LABEL: func.func @rows
// CHECK-NOT: :2 = linalg.generic
// CHECK: return
#id = affine_map<(r, c) -> (r, c)>
#column = affine_map<(r, c) -> (c)>
#turned = affine_map<(c, r) -> (r, c)>
#turned_column = affine_map<(c, r) -> (c)>
#vector = affine_map<(c) -> (c)>
func.func @rows(%x: tensor<256x65536xbf16>, %y: tensor<256x65536xbf16>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>) {
  %s = linalg.generic {indexing_maps = [#id, affine_map<(r, c) -> (r)>], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<256x65536xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %m = arith.addf %e, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %t = linalg.generic {indexing_maps = [#id, #id, affine_map<(r, c) -> (r)>], iterator_types = ["parallel", "reduction"]} ins(%y, %x : tensor<256x65536xbf16>, tensor<256x65536xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %f = arith.extf %b : bf16 to f32
    %p = arith.mulf %e, %f : f32
    %m = arith.addf %p, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  return %s, %t : tensor<256xf32>, tensor<256xf32>
}

// -----

// CHECK-LABEL: func.func @small
// CHECK-NOT: :2 = linalg.generic
// CHECK: return
#id = affine_map<(r, c) -> (r, c)>
#column = affine_map<(r, c) -> (c)>
#turned = affine_map<(c, r) -> (r, c)>
#turned_column = affine_map<(c, r) -> (c)>
#vector = affine_map<(c) -> (c)>
func.func @small(%x: tensor<1000x256xbf16>, %y: tensor<1000x256xbf16>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>) {
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<1000x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %m = arith.addf %e, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %t = linalg.generic {indexing_maps = [#turned, #turned, #turned_column], iterator_types = ["parallel", "reduction"]} ins(%y, %x : tensor<1000x256xbf16>, tensor<1000x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %f = arith.extf %b : bf16 to f32
    %p = arith.mulf %e, %f : f32
    %m = arith.addf %p, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  return %s, %t : tensor<256xf32>, tensor<256xf32>
}

// -----

// CHECK-LABEL: func.func @an_index
// CHECK-NOT: :2 = linalg.generic
// CHECK: return
#id = affine_map<(r, c) -> (r, c)>
#column = affine_map<(r, c) -> (c)>
#turned = affine_map<(c, r) -> (r, c)>
#turned_column = affine_map<(c, r) -> (c)>
#vector = affine_map<(c) -> (c)>
func.func @an_index(%x: tensor<65536x256xbf16>, %y: tensor<65536x256xbf16>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>) {
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %m = arith.addf %e, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %t = linalg.generic {indexing_maps = [#turned, #turned, #turned_column], iterator_types = ["parallel", "reduction"]} ins(%y, %x : tensor<65536x256xbf16>, tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %f = arith.extf %b : bf16 to f32
    %i = linalg.index 0 : index
    %n = arith.index_cast %i : index to i32
    %g = arith.sitofp %n : i32 to f32
    %p = arith.mulf %e, %g : f32
    %m = arith.addf %p, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  return %s, %t : tensor<256xf32>, tensor<256xf32>
}
