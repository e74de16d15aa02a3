// A result that only puts the dimensions of a computed tensor in another order is returned as that tensor lies in memory.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize | FileCheck %s

// CHECK-LABEL: func.func @heads
// CHECK-SAME: -> (tensor<6x8x16xf32> {kitsune.dim_order = array<i64: 1, 0, 2>})
// CHECK-NOT: linalg.transpose
// CHECK: return {{.*}} : tensor<6x8x16xf32>
func.func @heads(%x: tensor<6x8x16xf32>) -> tensor<8x6x16xf32> {
  %a = math.absf %x : tensor<6x8x16xf32>
  %n = arith.negf %a : tensor<6x8x16xf32>
  %e = tensor.empty() : tensor<6x8xf32>
  %z = arith.constant 0.0 : f32
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<6x8xf32>) -> tensor<6x8xf32>
  %s = linalg.reduce ins(%n : tensor<6x8x16xf32>) outs(%f : tensor<6x8xf32>) dimensions = [2] (%i: f32, %o: f32) {
    %r = arith.addf %i, %o : f32
    linalg.yield %r : f32
  }
  %b = tensor.empty() : tensor<6x8x16xf32>
  %c = linalg.broadcast ins(%s : tensor<6x8xf32>) outs(%b : tensor<6x8x16xf32>) dimensions = [2]
  %d = arith.addf %c, %n : tensor<6x8x16xf32>
  %t = tensor.empty() : tensor<8x6x16xf32>
  %y = linalg.transpose ins(%d : tensor<6x8x16xf32>) outs(%t : tensor<8x6x16xf32>) permutation = [1, 0, 2]
  return %y : tensor<8x6x16xf32>
}

// -----

// An argument would have to be copied to be returned.
// CHECK-LABEL: func.func @argument
// CHECK-NOT: kitsune.dim_order
// CHECK: linalg.generic
func.func @argument(%x: tensor<6x8xf32>) -> tensor<8x6xf32> {
  %t = tensor.empty() : tensor<8x6xf32>
  %y = linalg.transpose ins(%x : tensor<6x8xf32>) outs(%t : tensor<8x6xf32>) permutation = [1, 0]
  return %y : tensor<8x6xf32>
}
