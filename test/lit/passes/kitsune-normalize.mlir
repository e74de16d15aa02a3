// A transposed weight becomes an indexing map of the product, and named ops become linalg.generic.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize | FileCheck %s

// CHECK: #[[W:.*]] = affine_map<(d0, d1, d2) -> (d1, d2)>
// CHECK-LABEL: func.func @linear
// CHECK-NOT: linalg.transpose
// CHECK: linalg.generic {indexing_maps = [#{{.*}}, #[[W]], #{{.*}}], iterator_types = ["parallel", "parallel", "reduction"]}
// CHECK-SAME: ins(%arg0, %arg1 : tensor<8x16xf32>, tensor<32x16xf32>)
func.func @linear(%x: tensor<8x16xf32>, %w: tensor<32x16xf32>, %z: tensor<8x32xf32>) -> tensor<8x32xf32> {
  %e = tensor.empty() : tensor<16x32xf32>
  %t = linalg.transpose ins(%w : tensor<32x16xf32>) outs(%e : tensor<16x32xf32>) permutation = [1, 0]
  %r = linalg.matmul ins(%x, %t : tensor<8x16xf32>, tensor<16x32xf32>) outs(%z : tensor<8x32xf32>) -> tensor<8x32xf32>
  return %r : tensor<8x32xf32>
}
// -----

// Widening casts of a product's inputs go into it, and so does a transposition: bf16 x bf16 -> f32 reads its operands in place.
// CHECK-DAG: #[[X:map.*]] = affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK-DAG: #[[W:map.*]] = affine_map<(d0, d1, d2) -> (d1, d2)>
// CHECK-LABEL: func.func @widened
// CHECK-NEXT: %[[P:.*]] = linalg.generic {indexing_maps = [#[[X]], #[[W]], #{{.*}}], iterator_types = ["parallel", "parallel", "reduction"]}
// CHECK-SAME: ins(%arg0, %arg1 : tensor<64x32xbf16>, tensor<16x32xbf16>) outs(%arg2 : tensor<64x16xf32>)
// CHECK-NEXT: ^bb0(%[[A:.*]]: bf16, %[[B:.*]]: bf16, %[[C:.*]]: f32):
// CHECK-NEXT: %[[AF:.*]] = arith.extf %[[A]]
// CHECK-NEXT: %[[BF:.*]] = arith.extf %[[B]]
// CHECK-NEXT: arith.mulf %[[AF]], %[[BF]]
// CHECK: return %[[P]]
func.func @widened(%x: tensor<64x32xbf16>, %w: tensor<16x32xbf16>, %acc: tensor<64x16xf32>) -> tensor<64x16xf32> {
  %e = tensor.empty() : tensor<32x16xbf16>
  %t = linalg.transpose ins(%w : tensor<16x32xbf16>) outs(%e : tensor<32x16xbf16>) permutation = [1, 0]
  %xf = arith.extf %x : tensor<64x32xbf16> to tensor<64x32xf32>
  %wf = arith.extf %t : tensor<32x16xbf16> to tensor<32x16xf32>
  %p = linalg.matmul ins(%xf, %wf : tensor<64x32xf32>, tensor<32x16xf32>) outs(%acc : tensor<64x16xf32>) -> tensor<64x16xf32>
  return %p : tensor<64x16xf32>
}

// -----

// The same for products of batches, whatever dimensions change place.
// CHECK-DAG: #[[X:map.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d0, d3)>
// CHECK-DAG: #[[W:map.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
// CHECK-LABEL: func.func @batches
// CHECK-NEXT: linalg.generic {indexing_maps = [#[[X]], #[[W]], #{{.*}}]{{.*}} ins(%arg0, %arg1 : tensor<8x2x4xbf16>, tensor<2x16x4xbf16>)
// CHECK-NOT: linalg.generic
func.func @batches(%x: tensor<8x2x4xbf16>, %w: tensor<2x16x4xbf16>, %acc: tensor<2x8x16xf32>) -> tensor<2x8x16xf32> {
  %ex = tensor.empty() : tensor<2x8x4xbf16>
  %xt = linalg.transpose ins(%x : tensor<8x2x4xbf16>) outs(%ex : tensor<2x8x4xbf16>) permutation = [1, 0, 2]
  %xf = arith.extf %xt : tensor<2x8x4xbf16> to tensor<2x8x4xf32>
  %ew = tensor.empty() : tensor<2x4x16xbf16>
  %wt = linalg.transpose ins(%w : tensor<2x16x4xbf16>) outs(%ew : tensor<2x4x16xbf16>) permutation = [0, 2, 1]
  %wf = arith.extf %wt : tensor<2x4x16xbf16> to tensor<2x4x16xf32>
  %p = linalg.batch_matmul ins(%xf, %wf : tensor<2x8x4xf32>, tensor<2x4x16xf32>) outs(%acc : tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  return %p : tensor<2x8x16xf32>
}

// -----

// And for convolutions, which keep their strides.
// CHECK-DAG: #[[X:map.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d4, d2 * 2 + d5, d3 * 2 + d6)>
// CHECK-LABEL: func.func @convolution
// CHECK-NEXT: linalg.generic {indexing_maps = [#[[X]]{{.*}} ins(%arg0, %arg1 : tensor<1x2x6x6xbf16>, tensor<3x2x3x3xbf16>)
// CHECK-NOT: linalg.generic
func.func @convolution(%x: tensor<1x2x6x6xbf16>, %w: tensor<3x2x3x3xbf16>, %acc: tensor<1x3x2x2xf32>) -> tensor<1x3x2x2xf32> {
  %xf = arith.extf %x : tensor<1x2x6x6xbf16> to tensor<1x2x6x6xf32>
  %wf = arith.extf %w : tensor<3x2x3x3xbf16> to tensor<3x2x3x3xf32>
  %p = linalg.conv_2d_nchw_fchw {strides = dense<2> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
      ins(%xf, %wf : tensor<1x2x6x6xf32>, tensor<3x2x3x3xf32>) outs(%acc : tensor<1x3x2x2xf32>) -> tensor<1x3x2x2xf32>
  return %p : tensor<1x3x2x2xf32>
}

// -----

// A cast that other ops need as well stays for them; the product does not use it.
// CHECK-LABEL: func.func @shared_cast
// CHECK-DAG: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<8x4xbf16>, tensor<4x8xbf16>)
// CHECK-DAG: linalg.generic {{.*}} ins(%arg0 : tensor<8x4xbf16>) outs(%{{.*}} : tensor<8x4xf32>)
func.func @shared_cast(%x: tensor<8x4xbf16>, %w: tensor<4x8xbf16>, %acc: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x4xf32>) {
  %xf = arith.extf %x : tensor<8x4xbf16> to tensor<8x4xf32>
  %wf = arith.extf %w : tensor<4x8xbf16> to tensor<4x8xf32>
  %p = linalg.matmul ins(%xf, %wf : tensor<8x4xf32>, tensor<4x8xf32>) outs(%acc : tensor<8x8xf32>) -> tensor<8x8xf32>
  %y = math.exp %xf : tensor<8x4xf32>
  return %p, %y : tensor<8x8xf32>, tensor<8x4xf32>
}

// -----

// What computes is not folded: exp would be computed again for each column of the product.
// CHECK-LABEL: func.func @arithmetic_stays_out
// CHECK: %[[Y:.*]] = linalg.generic {{.*}} ins(%arg0 : tensor<8x4xf32>)
// CHECK: math.exp
// CHECK: linalg.generic {{.*}} ins(%[[Y]], %arg1 : tensor<8x4xf32>, tensor<4x8xf32>)
// CHECK-NOT: math.exp
func.func @arithmetic_stays_out(%x: tensor<8x4xf32>, %w: tensor<4x8xf32>, %acc: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %y = math.exp %x : tensor<8x4xf32>
  %p = linalg.matmul ins(%y, %w : tensor<8x4xf32>, tensor<4x8xf32>) outs(%acc : tensor<8x8xf32>) -> tensor<8x8xf32>
  return %p : tensor<8x8xf32>
}

// -----

// Nor is a broadcast (no permutation of a tensor; it stays narrow, though), nor a cast of integers (the product would be
// another one).
// CHECK-LABEL: func.func @not_these
// CHECK: %[[B:.*]] = linalg.generic {{.*}} ins(%arg0 : tensor<4xbf16>) outs(%{{.*}} : tensor<8x4xbf16>)
// CHECK: linalg.generic {{.*}} ins(%[[B]], %arg1 : tensor<8x4xbf16>, tensor<4x8xbf16>)
// CHECK: linalg.generic {{.*}} ins(%arg3 : tensor<8x4xi8>) outs(%{{.*}} : tensor<8x4xi32>)
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %arg4 : tensor<8x4xi32>, tensor<4x8xi32>)
func.func @not_these(%v: tensor<4xbf16>, %w: tensor<4x8xbf16>, %acc: tensor<8x8xf32>, %i: tensor<8x4xi8>, %j: tensor<4x8xi32>,
    %sum: tensor<8x8xi32>) -> (tensor<8x8xf32>, tensor<8x8xi32>) {
  %e = tensor.empty() : tensor<8x4xf32>
  %x = linalg.generic {indexing_maps = [affine_map<(m, k) -> (k)>, affine_map<(m, k) -> (m, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%v : tensor<4xbf16>) outs(%e : tensor<8x4xf32>) {
  ^bb0(%a: bf16, %b: f32):
    %c = arith.extf %a : bf16 to f32
    linalg.yield %c : f32
  } -> tensor<8x4xf32>
  %wf = arith.extf %w : tensor<4x8xbf16> to tensor<4x8xf32>
  %p = linalg.matmul ins(%x, %wf : tensor<8x4xf32>, tensor<4x8xf32>) outs(%acc : tensor<8x8xf32>) -> tensor<8x8xf32>
  %wide = arith.extsi %i : tensor<8x4xi8> to tensor<8x4xi32>
  %q = linalg.matmul ins(%wide, %j : tensor<8x4xi32>, tensor<4x8xi32>) outs(%sum : tensor<8x8xi32>) -> tensor<8x8xi32>
  return %p, %q : tensor<8x8xf32>, tensor<8x8xi32>
}

// -----

// A chain of element-wise arithmetic becomes one op.
// CHECK-LABEL: func.func @chain
// CHECK: linalg.generic
// CHECK: %[[E:.*]] = math.exp
// CHECK-NEXT: %[[T:.*]] = math.tanh %[[E]]
// CHECK-NEXT: arith.addf %[[T]]
// CHECK-NOT: linalg.generic
func.func @chain(%x: tensor<8x4xf32>, %b: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %y = math.exp %x : tensor<8x4xf32>
  %z = math.tanh %y : tensor<8x4xf32>
  %s = arith.addf %z, %b : tensor<8x4xf32>
  return %s : tensor<8x4xf32>
}

// -----

// A reshape that splits a dimension stays between the ops on its two sides, and each keeps its own number of loops.
// CHECK-LABEL: func.func @reshape_stays
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel"]}
// CHECK: tensor.expand_shape %{{.*}} {{\[\[}}0], [1, 2]]
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "parallel"]}
// CHECK-NOT: kitsune.reshape
func.func @reshape_stays(%x: tensor<8x12xf32>) -> tensor<8x3x4xf32> {
  %y = math.exp %x : tensor<8x12xf32>
  %r = tensor.expand_shape %y [[0], [1, 2]] output_shape [8, 3, 4] : tensor<8x12xf32> into tensor<8x3x4xf32>
  %z = math.tanh %r : tensor<8x3x4xf32>
  return %z : tensor<8x3x4xf32>
}

// -----

// Asserts about limits of the importer go; those of the program stay.
// CHECK-LABEL: func.func @asserts
// CHECK-NEXT: cf.assert %arg1, "index out of range"
// CHECK-NEXT: return
func.func @asserts(%x: tensor<4xf32>, %c: i1) -> tensor<4xf32> {
  cf.assert %c, "unimplemented: aten.div by zero"
  cf.assert %c, "index out of range"
  return %x : tensor<4xf32>
}

// -----

// Functions that the model calls are inlined; softmax is taken apart.
// CHECK-LABEL: func.func @caller
// CHECK-NOT: call
// CHECK-NOT: linalg.softmax
// CHECK: arith.maxnumf
// CHECK: math.exp
// CHECK: arith.divf
func.func private @callee(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %e = tensor.empty() : tensor<8x4xf32>
  %y = linalg.softmax dimension(1) ins(%x : tensor<8x4xf32>) outs(%e : tensor<8x4xf32>) -> tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}
func.func @caller(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %y = func.call @callee(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}

// -----

// What it does not know it leaves as it is.
// CHECK-LABEL: func.func @unknown
// CHECK: tm_tensor.scatter
// CHECK: tensor.pad
// CHECK: tensor.concat
func.func @unknown(%u: tensor<3x1x4xf32>, %i: tensor<3x1xi64>, %x: tensor<8x4xf32>, %z: f32) -> tensor<20x4xf32> {
  %s = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false)
      ins(%u, %i : tensor<3x1x4xf32>, tensor<3x1xi64>) outs(%x : tensor<8x4xf32>) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.addf %a, %b : f32
    tm_tensor.yield %c : f32
  } -> tensor<8x4xf32>
  %p = tensor.pad %s low[2, 0] high[2, 0] {
  ^bb0(%a: index, %b: index):
    tensor.yield %z : f32
  } : tensor<8x4xf32> to tensor<12x4xf32>
  %c = tensor.concat dim(0) %p, %x : (tensor<12x4xf32>, tensor<8x4xf32>) -> tensor<20x4xf32>
  return %c : tensor<20x4xf32>
}

// -----

// A product finds the narrow tensor behind a concatenation or a reshape of widened ones: what is moved is moved narrow.
// CHECK-LABEL: func.func @behind_movement
// CHECK: %[[C:.*]] = tensor.concat dim(1) %arg0, %arg1 : (tensor<8x4xbf16>, tensor<8x2xbf16>) -> tensor<8x6xbf16>
// CHECK: linalg.generic {{.*}} ins(%[[C]], %{{.*}} : tensor<8x6xbf16>, tensor<6x8xbf16>)
// CHECK-NOT: tensor<8x6xf32>
func.func @behind_movement(%x: tensor<8x4xbf16>, %y: tensor<8x2xbf16>, %w: tensor<48xbf16>, %acc: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %xf = arith.extf %x : tensor<8x4xbf16> to tensor<8x4xf32>
  %yf = arith.extf %y : tensor<8x2xbf16> to tensor<8x2xf32>
  %c = tensor.concat dim(1) %xf, %yf : (tensor<8x4xf32>, tensor<8x2xf32>) -> tensor<8x6xf32>
  %wf = arith.extf %w : tensor<48xbf16> to tensor<48xf32>
  %m = tensor.expand_shape %wf [[0, 1]] output_shape [6, 8] : tensor<48xf32> into tensor<6x8xf32>
  %p = linalg.matmul ins(%c, %m : tensor<8x6xf32>, tensor<6x8xf32>) outs(%acc : tensor<8x8xf32>) -> tensor<8x8xf32>
  return %p : tensor<8x8xf32>
}

// -----

// Not where only a part of it is narrow.
// CHECK-LABEL: func.func @half_narrow
// CHECK: tensor.concat dim(1) %{{.*}}, %arg1 : (tensor<8x4xf32>, tensor<8x2xf32>) -> tensor<8x6xf32>
func.func @half_narrow(%x: tensor<8x4xbf16>, %y: tensor<8x2xf32>, %w: tensor<6x8xf32>, %acc: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %xf = arith.extf %x : tensor<8x4xbf16> to tensor<8x4xf32>
  %c = tensor.concat dim(1) %xf, %y : (tensor<8x4xf32>, tensor<8x2xf32>) -> tensor<8x6xf32>
  %p = linalg.matmul ins(%c, %w : tensor<8x6xf32>, tensor<6x8xf32>) outs(%acc : tensor<8x8xf32>) -> tensor<8x8xf32>
  return %p : tensor<8x8xf32>
}

// -----

// What is rounded to bf16 and widened again for a reduction is passed on as bf16, and the reduction widens it.
// CHECK-LABEL: func.func @rounded
// CHECK: %[[R:.*]] = linalg.generic
// CHECK: linalg.yield %{{.*}} : bf16
// CHECK-NEXT: } -> tensor<8x4xbf16>
// CHECK: linalg.generic {{.*}} ins(%[[R]] : tensor<8x4xbf16>)
// CHECK: arith.extf
// CHECK: arith.addf
func.func @rounded(%x: tensor<8x4xf32>, %z: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %a = math.tanh %x : tensor<8x4xf32>
  %b = arith.truncf %a : tensor<8x4xf32> to tensor<8x4xbf16>
  %c = arith.extf %b : tensor<8x4xbf16> to tensor<8x4xf32>
  %s = linalg.reduce ins(%c : tensor<8x4xf32>) outs(%z : tensor<8xf32>) dimensions = [1]
    (%in: f32, %out: f32) {
      %t = arith.addf %in, %out : f32
      linalg.yield %t : f32
    }
  %m = linalg.reduce ins(%c : tensor<8x4xf32>) outs(%y : tensor<8xf32>) dimensions = [1]
    (%in: f32, %out: f32) {
      %t = arith.maximumf %in, %out : f32
      linalg.yield %t : f32
    }
  return %s, %m : tensor<8xf32>, tensor<8xf32>
}

// -----

// Not where the wide tensor is returned: the caller wants f32.
// CHECK-LABEL: func.func @returned_wide
// CHECK: arith.extf
// CHECK-NEXT: linalg.yield %{{.*}} : f32
// CHECK-NEXT: } -> tensor<8x4xf32>
func.func @returned_wide(%x: tensor<8x4xf32>, %z: tensor<8xf32>) -> (tensor<8xf32>, tensor<8x4xf32>) {
  %a = math.tanh %x : tensor<8x4xf32>
  %b = arith.truncf %a : tensor<8x4xf32> to tensor<8x4xbf16>
  %c = arith.extf %b : tensor<8x4xbf16> to tensor<8x4xf32>
  %s = linalg.reduce ins(%c : tensor<8x4xf32>) outs(%z : tensor<8xf32>) dimensions = [1]
    (%in: f32, %out: f32) {
      %t = arith.addf %in, %out : f32
      linalg.yield %t : f32
    }
  return %s, %c : tensor<8xf32>, tensor<8x4xf32>
}

// -----

// What fusion has put into its readers goes, asserts and all; what is returned as well stays.
// CHECK-LABEL: func.func @unread_rows
// CHECK-COUNT-2: linalg.generic
// CHECK-NOT: linalg.generic
// CHECK: return
#row = affine_map<(m, n) -> (m, n)>
func.func @unread_rows(%t: tensor<13x27xf32>, %x: tensor<7x27xf32>, %i: tensor<7x27xi64>) -> (tensor<7x27xf32>, tensor<7x27xf32>) {
  %c13 = arith.constant 13 : index
  %e = tensor.empty() : tensor<7x27xf32>
  %rows = linalg.generic {indexing_maps = [#row, #row], iterator_types = ["parallel", "parallel"]} ins(%i : tensor<7x27xi64>) outs(%e : tensor<7x27xf32>) {
  ^bb0(%in: i64, %out: f32):
    %at = arith.index_cast %in : i64 to index
    %n = linalg.index 1 : index
    %below = arith.cmpi slt, %at, %c13 : index
    cf.assert %below, "index must be smaller than dim size"
    %v = tensor.extract %t[%at, %n] : tensor<13x27xf32>
    linalg.yield %v : f32
  } -> tensor<7x27xf32>
  %sum = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel", "parallel"]} ins(%rows, %x : tensor<7x27xf32>, tensor<7x27xf32>) outs(%e : tensor<7x27xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %v = arith.addf %a, %b : f32
    linalg.yield %v : f32
  } -> tensor<7x27xf32>
  %other = linalg.generic {indexing_maps = [#row, #row], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<7x27xf32>) outs(%e : tensor<7x27xf32>) {
  ^bb0(%b: f32, %out: f32):
    %v = arith.mulf %b, %b : f32
    linalg.yield %v : f32
  } -> tensor<7x27xf32>
  return %sum, %other : tensor<7x27xf32>, tensor<7x27xf32>
}

// -----

// A sum of what two tensors have side by side is no product, which would keep its operands as they are: what makes them goes into
// it. With rows of its own for one of them it is (@arithmetic_stays_out).
// CHECK-LABEL: func.func @dot
// CHECK-NEXT: %[[D:.*]] = linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<8x4xf32>, tensor<8x4xf32>)
// CHECK: math.exp
// CHECK: arith.mulf
// CHECK: return %[[D]]
#all = affine_map<(b, k) -> (b, k)>
#rows = affine_map<(b, k) -> (b)>
func.func @dot(%x: tensor<8x4xf32>, %w: tensor<8x4xf32>, %acc: tensor<8xf32>) -> tensor<8xf32> {
  %y = math.exp %x : tensor<8x4xf32>
  %p = linalg.generic {indexing_maps = [#all, #all, #rows], iterator_types = ["parallel", "reduction"]}
      ins(%y, %w : tensor<8x4xf32>, tensor<8x4xf32>) outs(%acc : tensor<8xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %m, %o : f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  return %p : tensor<8xf32>
}

// -----

// No engine multiplies bf16 by f32: a factor is widened before such a product.
// CHECK-LABEL: func.func @of_two_types
// CHECK: %[[WIDE:.*]] = linalg.generic
// CHECK-NEXT: ^bb0(%{{.*}}: bf16, %{{.*}}: f32)
// CHECK-NEXT: arith.extf
// CHECK: linalg.generic {{.*}}"reduction"{{.*}} ins(%[[WIDE]], %arg1 : tensor<64x32xf32>, tensor<32x48xf32>)
func.func @of_two_types(%x: tensor<64x32xbf16>, %w: tensor<32x48xf32>) -> tensor<64x48xf32> {
  %e = tensor.empty() : tensor<64x32xf32>
  %wide = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xbf16>) outs(%e : tensor<64x32xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %b = arith.extf %a : bf16 to f32
    linalg.yield %b : f32
  } -> tensor<64x32xf32>
  %zero = arith.constant 0.0 : f32
  %e2 = tensor.empty() : tensor<64x48xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e2 : tensor<64x48xf32>) -> tensor<64x48xf32>
  %y = linalg.matmul ins(%wide, %w : tensor<64x32xf32>, tensor<32x48xf32>) outs(%z : tensor<64x48xf32>) -> tensor<64x48xf32>
  return %y : tensor<64x48xf32>
}
