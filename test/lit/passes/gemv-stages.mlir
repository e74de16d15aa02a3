// Products of few rows: tiles of all rows and a multiprocessor's share of the columns, and products of one input together.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize --kitsune-form-stages="target=h200" --kitsune-partition-streams="target=h200" | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize --kitsune-form-stages="target=h200" --kitsune-partition-streams="target=h200 without=gemv" | FileCheck %s --check-prefix=WITHOUT
// An engine that is not asked does nothing; the next one does.
// WITHOUT-NOT: engine = "gemv"
// WITHOUT: engine = "mma"
// WITHOUT-NOT: engine = "gemv"

// CHECK-LABEL: func.func @share_of_columns
// CHECK: engine = "gemv", {{.*}}tile = array<i64: 7, 32>
func.func @share_of_columns(%x: tensor<7x512xbf16>, %w: tensor<4096x512xbf16>, %z: tensor<7x4096xf32>) -> tensor<7x4096xf32> {
  %e = tensor.empty() : tensor<512x4096xbf16>
  %t = linalg.transpose ins(%w : tensor<4096x512xbf16>) outs(%e : tensor<512x4096xbf16>) permutation = [1, 0]
  %xf = arith.extf %x : tensor<7x512xbf16> to tensor<7x512xf32>
  %tf = arith.extf %t : tensor<512x4096xbf16> to tensor<512x4096xf32>
  %r = linalg.matmul ins(%xf, %tf : tensor<7x512xf32>, tensor<512x4096xf32>) outs(%z : tensor<7x4096xf32>) -> tensor<7x4096xf32>
  return %r : tensor<7x4096xf32>
}

// -----

// More rows than the weights' time covers.
// CHECK-LABEL: func.func @many_rows
// CHECK: engine = "mma"
func.func @many_rows(%x: tensor<65x512xf32>, %w: tensor<4096x512xf32>, %z: tensor<65x4096xf32>) -> tensor<65x4096xf32> {
  %e = tensor.empty() : tensor<512x4096xf32>
  %t = linalg.transpose ins(%w : tensor<4096x512xf32>) outs(%e : tensor<512x4096xf32>) permutation = [1, 0]
  %r = linalg.matmul ins(%x, %t : tensor<65x512xf32>, tensor<512x4096xf32>) outs(%z : tensor<65x4096xf32>) -> tensor<65x4096xf32>
  return %r : tensor<65x4096xf32>
}

// -----

// Weights that lie along the columns, and runs of 52 bytes: nothing for this engine.
// CHECK-LABEL: func.func @along_columns
// CHECK: engine = "mma"
func.func @along_columns(%x: tensor<7x512xf32>, %w: tensor<512x4096xf32>, %z: tensor<7x4096xf32>) -> tensor<7x4096xf32> {
  %r = linalg.matmul ins(%x, %w : tensor<7x512xf32>, tensor<512x4096xf32>) outs(%z : tensor<7x4096xf32>) -> tensor<7x4096xf32>
  return %r : tensor<7x4096xf32>
}

// -----

// CHECK-LABEL: func.func @odd_sum
// CHECK: engine = "mma"
func.func @odd_sum(%x: tensor<7x13xf32>, %w: tensor<4096x13xf32>, %z: tensor<7x4096xf32>) -> tensor<7x4096xf32> {
  %e = tensor.empty() : tensor<13x4096xf32>
  %t = linalg.transpose ins(%w : tensor<4096x13xf32>) outs(%e : tensor<13x4096xf32>) permutation = [1, 0]
  %r = linalg.matmul ins(%x, %t : tensor<7x13xf32>, tensor<13x4096xf32>) outs(%z : tensor<7x4096xf32>) -> tensor<7x4096xf32>
  return %r : tensor<7x4096xf32>
}

// -----

// Two products of one input that meet: one stage.
// CHECK-LABEL: func.func @gate_and_up
// CHECK-COUNT-1: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
func.func @gate_and_up(%x: tensor<7x512xf32>, %g: tensor<1024x512xf32>, %u: tensor<1024x512xf32>, %z: tensor<7x1024xf32>) -> tensor<7x1024xf32> {
  %e = tensor.empty() : tensor<512x1024xf32>
  %gt = linalg.transpose ins(%g : tensor<1024x512xf32>) outs(%e : tensor<512x1024xf32>) permutation = [1, 0]
  %ut = linalg.transpose ins(%u : tensor<1024x512xf32>) outs(%e : tensor<512x1024xf32>) permutation = [1, 0]
  %a = linalg.matmul ins(%x, %gt : tensor<7x512xf32>, tensor<512x1024xf32>) outs(%z : tensor<7x1024xf32>) -> tensor<7x1024xf32>
  %b = linalg.matmul ins(%x, %ut : tensor<7x512xf32>, tensor<512x1024xf32>) outs(%z : tensor<7x1024xf32>) -> tensor<7x1024xf32>
  %r = arith.mulf %a, %b : tensor<7x1024xf32>
  return %r : tensor<7x1024xf32>
}

// -----

// Two products of two inputs: two stages.
// CHECK-LABEL: func.func @two_inputs
// CHECK-COUNT-2: "kitsune.stage"
func.func @two_inputs(%x: tensor<7x512xf32>, %y: tensor<7x512xf32>, %g: tensor<1024x512xf32>, %u: tensor<1024x512xf32>, %z: tensor<7x1024xf32>) -> tensor<7x1024xf32> {
  %e = tensor.empty() : tensor<512x1024xf32>
  %gt = linalg.transpose ins(%g : tensor<1024x512xf32>) outs(%e : tensor<512x1024xf32>) permutation = [1, 0]
  %ut = linalg.transpose ins(%u : tensor<1024x512xf32>) outs(%e : tensor<512x1024xf32>) permutation = [1, 0]
  %a = linalg.matmul ins(%x, %gt : tensor<7x512xf32>, tensor<512x1024xf32>) outs(%z : tensor<7x1024xf32>) -> tensor<7x1024xf32>
  %b = linalg.matmul ins(%y, %ut : tensor<7x512xf32>, tensor<512x1024xf32>) outs(%z : tensor<7x1024xf32>) -> tensor<7x1024xf32>
  %r = arith.mulf %a, %b : tensor<7x1024xf32>
  return %r : tensor<7x1024xf32>
}
