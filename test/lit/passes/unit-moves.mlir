// A transposition that only moves dimensions of extent 1 is a reshape; any other one stays a movement of data.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize | FileCheck %s

// CHECK-LABEL: func.func @one_token
// CHECK-NOT: linalg.generic
// CHECK: tensor.collapse_shape %arg0 {{.*}} : tensor<2x1x4x8xf32> into tensor<2x4x8xf32>
// CHECK: tensor.expand_shape {{.*}} : tensor<2x4x8xf32> into tensor<2x4x1x8xf32>
func.func @one_token(%x: tensor<2x1x4x8xf32>) -> tensor<2x4x1x8xf32> {
  %e = tensor.empty() : tensor<2x4x1x8xf32>
  %t = linalg.transpose ins(%x : tensor<2x1x4x8xf32>) outs(%e : tensor<2x4x1x8xf32>) permutation = [0, 2, 1, 3]
  return %t : tensor<2x4x1x8xf32>
}

// -----

// CHECK-LABEL: func.func @two_tokens
// CHECK: linalg.generic
func.func @two_tokens(%x: tensor<2x2x4x8xf32>) -> tensor<2x4x2x8xf32> {
  %e = tensor.empty() : tensor<2x4x2x8xf32>
  %t = linalg.transpose ins(%x : tensor<2x2x4x8xf32>) outs(%e : tensor<2x4x2x8xf32>) permutation = [0, 2, 1, 3]
  return %t : tensor<2x4x2x8xf32>
}

// -----

// CHECK-LABEL: func.func @column
// CHECK-NOT: linalg.generic
// CHECK: tensor.collapse_shape %arg0 {{.*}} : tensor<8x1xf32> into tensor<8xf32>
// CHECK: tensor.expand_shape {{.*}} : tensor<8xf32> into tensor<1x8xf32>
func.func @column(%x: tensor<8x1xf32>) -> tensor<1x8xf32> {
  %e = tensor.empty() : tensor<1x8xf32>
  %t = linalg.transpose ins(%x : tensor<8x1xf32>) outs(%e : tensor<1x8xf32>) permutation = [1, 0]
  return %t : tensor<1x8xf32>
}

// -----

// Dimensions of extent 1 that come before and go after (torch.einsum): a product reads the operand where it lies.

// CHECK-LABEL: func.func @outer_sum
// CHECK-NOT: tensor.expand_shape
// CHECK-COUNT-2: linalg.generic
// CHECK-NOT: linalg.generic
func.func @outer_sum(%a: tensor<3x7x5xf32>, %b: tensor<3x7x4xf32>) -> tensor<3x5x4xf32> {
  %zero = arith.constant 0.0 : f32
  %x = tensor.expand_shape %a [[0], [1], [2, 3]] output_shape [3, 7, 5, 1] : tensor<3x7x5xf32> into tensor<3x7x5x1xf32>
  %e = tensor.empty() : tensor<3x5x7x1xf32>
  %t = linalg.transpose ins(%x : tensor<3x7x5x1xf32>) outs(%e : tensor<3x5x7x1xf32>) permutation = [0, 2, 1, 3]
  %c = tensor.collapse_shape %t [[0], [1], [2, 3]] : tensor<3x5x7x1xf32> into tensor<3x5x7xf32>
  %s = tensor.empty() : tensor<3x5x4xf32>
  %f = linalg.fill ins(%zero : f32) outs(%s : tensor<3x5x4xf32>) -> tensor<3x5x4xf32>
  %p = linalg.batch_matmul ins(%c, %b : tensor<3x5x7xf32>, tensor<3x7x4xf32>) outs(%f : tensor<3x5x4xf32>) -> tensor<3x5x4xf32>
  return %p : tensor<3x5x4xf32>
}
