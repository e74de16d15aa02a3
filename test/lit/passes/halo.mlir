// Padding that only a convolution reads needs no stage: on a GPU each tile of the convolution takes its window of the padded
// whole, which engines read as the image and zeros around it.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize --kitsune-form-stages=target=sm_90a --kitsune-partition-streams=target=sm_90a --kitsune-place-buffers --kitsune-synchronize --kitsune-materialize | FileCheck %s

// CHECK-LABEL: func.func @main_p0
// CHECK: "kitsune.task"
// CHECK: %[[X:.*]] = bufferization.to_tensor {{.*}} to tensor<1x28x28x64xbf16>
// CHECK: %[[P:.*]] = tensor.pad %[[X]] low[0, 1, 1, 0] high[0, 1, 1, 0]
// CHECK: %[[S:.*]] = tensor.extract_slice %[[P]][0, %{{.*}}, 0, 0]
// CHECK: linalg.generic {{.*}} ins(%[[S]], %{{.*}} : tensor<1x{{.*}}x30x64xbf16>, tensor<64x3x3x64xbf16>)
// CHECK: engine = "conv"
// CHECK-NOT: "kitsune.task"
func.func @main(%x: tensor<8x28x28x64xbf16>, %w: tensor<64x3x3x64xbf16>) -> tensor<8x28x28x64xf32> {
  %zero = arith.constant 0.0 : bf16
  %padded = tensor.pad %x low[0, 1, 1, 0] high[0, 1, 1, 0] {
  ^bb0(%i: index, %j: index, %k: index, %l: index):
    tensor.yield %zero : bf16
  } : tensor<8x28x28x64xbf16> to tensor<8x30x30x64xbf16>
  %f = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x28x28x64xf32>
  %z = linalg.fill ins(%f : f32) outs(%e : tensor<8x28x28x64xf32>) -> tensor<8x28x28x64xf32>
  %c = linalg.conv_2d_nhwc_fhwc {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>} ins(%padded, %w : tensor<8x30x30x64xbf16>, tensor<64x3x3x64xbf16>) outs(%z : tensor<8x28x28x64xf32>) -> tensor<8x28x28x64xf32>
  return %c : tensor<8x28x28x64xf32>
}

// -----

// Padding with another number than zero is a stage of its own, which reads by index and can be cut along every dimension.
// CHECK-LABEL: func.func @main_p0
// CHECK-NOT: tensor.pad
// CHECK: tensor.extract
// CHECK: sym_name = "map_0"
// CHECK: engine = "conv"
func.func @main(%x: tensor<8x28x28x64xbf16>, %w: tensor<64x3x3x64xbf16>) -> tensor<8x28x28x64xf32> {
  %one = arith.constant 1.0 : bf16
  %padded = tensor.pad %x low[0, 1, 1, 0] high[0, 1, 1, 0] {
  ^bb0(%i: index, %j: index, %k: index, %l: index):
    tensor.yield %one : bf16
  } : tensor<8x28x28x64xbf16> to tensor<8x30x30x64xbf16>
  %f = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x28x28x64xf32>
  %z = linalg.fill ins(%f : f32) outs(%e : tensor<8x28x28x64xf32>) -> tensor<8x28x28x64xf32>
  %c = linalg.conv_2d_nhwc_fhwc {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>} ins(%padded, %w : tensor<8x30x30x64xbf16>, tensor<64x3x3x64xbf16>) outs(%z : tensor<8x28x28x64xf32>) -> tensor<8x28x28x64xf32>
  return %c : tensor<8x28x28x64xf32>
}
