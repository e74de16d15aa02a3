// RUN: kitsune-opt %s --kitsune-synchronize --kitsune-materialize --kitsune-check-progress --kitsune-to-host --kitsune-finalize-nvvm | FileCheck %s

// A module without pipelines, tile programs and kernels comes out as it went in.

// CHECK: module {
// CHECK-NEXT: func.func @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
// CHECK-NEXT: return %arg0
// CHECK-NEXT: }
// CHECK-NEXT: }
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
