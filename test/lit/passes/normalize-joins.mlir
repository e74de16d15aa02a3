// Queries, keys and values that one product made, with heads before rows: slices come before the movement, and a join of such after
// it, so that whoever reads or makes the parts has them in the order in which they lie.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize | FileCheck %s

// CHECK-LABEL: func.func @joined
// CHECK-COUNT-3: linalg.generic
// CHECK: tensor.concat dim(2) {{.*}} -> tensor<4x7x18x8xbf16>
// CHECK-NOT: linalg.generic
func.func @joined(%a: tensor<4x6x7x8xbf16>, %b: tensor<4x6x7x8xbf16>, %c: tensor<4x6x7x8xbf16>) -> tensor<28x144xbf16> {
  %j = tensor.concat dim(0) %a, %b, %c : (tensor<4x6x7x8xbf16>, tensor<4x6x7x8xbf16>, tensor<4x6x7x8xbf16>) -> tensor<12x6x7x8xbf16>
  %e = tensor.expand_shape %j [[0, 1], [2], [3], [4]] output_shape [3, 4, 6, 7, 8] : tensor<12x6x7x8xbf16> into tensor<3x4x6x7x8xbf16>
  %o = tensor.empty() : tensor<4x7x3x6x8xbf16>
  %t = linalg.transpose ins(%e : tensor<3x4x6x7x8xbf16>) outs(%o : tensor<4x7x3x6x8xbf16>) permutation = [1, 3, 0, 2, 4]
  %r = tensor.collapse_shape %t [[0, 1], [2, 3, 4]] : tensor<4x7x3x6x8xbf16> into tensor<28x144xbf16>
  return %r : tensor<28x144xbf16>
}

// -----

// Without a view between, and parts of different extents.
// CHECK-LABEL: func.func @plainly_joined
// CHECK-COUNT-2: linalg.generic
// CHECK: tensor.concat dim(1) {{.*}} : (tensor<7x3xf32>, tensor<7x4xf32>) -> tensor<7x7xf32>
// CHECK-NOT: linalg.generic
func.func @plainly_joined(%a: tensor<3x7xf32>, %b: tensor<4x7xf32>) -> tensor<7x7xf32> {
  %j = tensor.concat dim(0) %a, %b : (tensor<3x7xf32>, tensor<4x7xf32>) -> tensor<7x7xf32>
  %o = tensor.empty() : tensor<7x7xf32>
  %t = linalg.transpose ins(%j : tensor<7x7xf32>) outs(%o : tensor<7x7xf32>) permutation = [1, 0]
  return %t : tensor<7x7xf32>
}

// -----

// Not where somebody else reads what was joined.
// CHECK-LABEL: func.func @read_twice
// CHECK: tensor.concat dim(0)
// CHECK: linalg.generic
func.func @read_twice(%a: tensor<3x7xf32>, %b: tensor<4x7xf32>) -> (tensor<7x7xf32>, tensor<7x7xf32>) {
  %j = tensor.concat dim(0) %a, %b : (tensor<3x7xf32>, tensor<4x7xf32>) -> tensor<7x7xf32>
  %o = tensor.empty() : tensor<7x7xf32>
  %t = linalg.transpose ins(%j : tensor<7x7xf32>) outs(%o : tensor<7x7xf32>) permutation = [1, 0]
  return %j, %t : tensor<7x7xf32>, tensor<7x7xf32>
}

// -----

// Not where the parts do not begin where the view parts them.
// CHECK-LABEL: func.func @parted_elsewhere
// CHECK: tensor.concat dim(0)
// CHECK: linalg.generic
func.func @parted_elsewhere(%a: tensor<3x7xf32>, %b: tensor<9x7xf32>) -> tensor<6x7x2xf32> {
  %j = tensor.concat dim(0) %a, %b : (tensor<3x7xf32>, tensor<9x7xf32>) -> tensor<12x7xf32>
  %e = tensor.expand_shape %j [[0, 1], [2]] output_shape [2, 6, 7] : tensor<12x7xf32> into tensor<2x6x7xf32>
  %o = tensor.empty() : tensor<6x7x2xf32>
  %t = linalg.transpose ins(%e : tensor<2x6x7xf32>) outs(%o : tensor<6x7x2xf32>) permutation = [1, 2, 0]
  return %t : tensor<6x7x2xf32>
}

// -----

// CHECK-LABEL: func.func @sliced
// CHECK-COUNT-3: tensor.extract_slice {{.*}} : tensor<4x7x3x6x8xf32> to tensor<4x7x6x8xf32>
// CHECK-NOT: tensor<3x4x6x7x8xf32>
func.func @sliced(%x: tensor<28x144xf32>) -> (tensor<4x6x7x8xf32>, tensor<4x6x7x8xf32>, tensor<4x6x7x8xf32>) {
  %e = tensor.expand_shape %x [[0, 1], [2, 3, 4]] output_shape [4, 7, 3, 6, 8] : tensor<28x144xf32> into tensor<4x7x3x6x8xf32>
  %o = tensor.empty() : tensor<3x4x6x7x8xf32>
  %t = linalg.transpose ins(%e : tensor<4x7x3x6x8xf32>) outs(%o : tensor<3x4x6x7x8xf32>) permutation = [2, 0, 3, 1, 4]
  %a = tensor.extract_slice %t[0, 0, 0, 0, 0] [1, 4, 6, 7, 8] [1, 1, 1, 1, 1] : tensor<3x4x6x7x8xf32> to tensor<4x6x7x8xf32>
  %b = tensor.extract_slice %t[1, 0, 0, 0, 0] [1, 4, 6, 7, 8] [1, 1, 1, 1, 1] : tensor<3x4x6x7x8xf32> to tensor<4x6x7x8xf32>
  %c = tensor.extract_slice %t[2, 0, 0, 0, 0] [1, 4, 6, 7, 8] [1, 1, 1, 1, 1] : tensor<3x4x6x7x8xf32> to tensor<4x6x7x8xf32>
  %f = tensor.empty() : tensor<4x6x7x8xf32>
  %p = linalg.exp ins(%a : tensor<4x6x7x8xf32>) outs(%f : tensor<4x6x7x8xf32>) -> tensor<4x6x7x8xf32>
  %q = linalg.exp ins(%b : tensor<4x6x7x8xf32>) outs(%f : tensor<4x6x7x8xf32>) -> tensor<4x6x7x8xf32>
  %r = linalg.exp ins(%c : tensor<4x6x7x8xf32>) outs(%f : tensor<4x6x7x8xf32>) -> tensor<4x6x7x8xf32>
  return %p, %q, %r : tensor<4x6x7x8xf32>, tensor<4x6x7x8xf32>, tensor<4x6x7x8xf32>
}
