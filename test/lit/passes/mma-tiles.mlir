// Tiles of products on tensor cores: as large as fit where there are many, smaller where multiprocessors would be idle.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize --kitsune-form-stages="target=h200" --kitsune-partition-streams="target=h200" | FileCheck %s

// CHECK-LABEL: func.func @large
// CHECK: engine = "mma", {{.*}}tile = array<i64: 128, 256>
func.func @large(%x: tensor<8192x4096xbf16>, %w: tensor<4096x8192xbf16>, %z: tensor<8192x8192xf32>) -> tensor<8192x8192xf32> {
  %xf = arith.extf %x : tensor<8192x4096xbf16> to tensor<8192x4096xf32>
  %wf = arith.extf %w : tensor<4096x8192xbf16> to tensor<4096x8192xf32>
  %r = linalg.matmul ins(%xf, %wf : tensor<8192x4096xf32>, tensor<4096x8192xf32>) outs(%z : tensor<8192x8192xf32>) -> tensor<8192x8192xf32>
  return %r : tensor<8192x8192xf32>
}

// -----

// One tile of 128 x 64 for each of 128 multiprocessors.
// CHECK-LABEL: func.func @one_wave
// CHECK: engine = "mma", {{.*}}tile = array<i64: 128, 64>
func.func @one_wave(%x: tensor<1024x1024xbf16>, %w: tensor<1024x1024xbf16>, %z: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
  %xf = arith.extf %x : tensor<1024x1024xbf16> to tensor<1024x1024xf32>
  %wf = arith.extf %w : tensor<1024x1024xbf16> to tensor<1024x1024xf32>
  %r = linalg.matmul ins(%xf, %wf : tensor<1024x1024xf32>, tensor<1024x1024xf32>) outs(%z : tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
  return %r : tensor<1024x1024xf32>
}

// -----

// f32: the sums of at most 128 columns fit the registers.
// CHECK-LABEL: func.func @single_precision
// CHECK: engine = "mma", {{.*}}tile = array<i64: 128, 128>
func.func @single_precision(%x: tensor<8192x4096xf32>, %w: tensor<4096x8192xf32>, %z: tensor<8192x8192xf32>) -> tensor<8192x8192xf32> {
  %r = linalg.matmul ins(%x, %w : tensor<8192x4096xf32>, tensor<4096x8192xf32>) outs(%z : tensor<8192x8192xf32>) -> tensor<8192x8192xf32>
  return %r : tensor<8192x8192xf32>
}

// -----

// No product that tensor cores do: integers.
// CHECK-LABEL: func.func @integers
// CHECK-NOT: tile = array<i64: 128, 256>
func.func @integers(%x: tensor<256x64xi32>, %w: tensor<64x256xi32>, %z: tensor<256x256xi32>) -> tensor<256x256xi32> {
  %r = linalg.matmul ins(%x, %w : tensor<256x64xi32>, tensor<64x256xi32>) outs(%z : tensor<256x256xi32>) -> tensor<256x256xi32>
  return %r : tensor<256x256xi32>
}
