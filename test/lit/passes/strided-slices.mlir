// Every other row and column of a large image is a part of it along dimensions of their own; of a slice of a slice, of the whole.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize | FileCheck %s

// CHECK-LABEL: func.func @pixels
// CHECK: %[[E:.*]] = tensor.expand_shape %arg0 {{\[}}[0], [1, 2], [3, 4], [5]] output_shape [64, 28, 2, 28, 2, 64]
// CHECK: %[[S:.*]] = tensor.extract_slice %[[E]][0, 0, 0, 0, 1, 0] [64, 28, 1, 28, 1, 64] [1, 1, 1, 1, 1, 1]
// CHECK: return %[[S]]
func.func @pixels(%x: tensor<64x56x56x64xbf16>) -> tensor<64x28x28x64xbf16> {
  %r = tensor.extract_slice %x[0, 0, 0, 0] [64, 28, 56, 64] [1, 2, 1, 1] : tensor<64x56x56x64xbf16> to tensor<64x28x56x64xbf16>
  %s = tensor.extract_slice %r[0, 0, 1, 0] [64, 28, 28, 64] [1, 1, 2, 1] : tensor<64x28x56x64xbf16> to tensor<64x28x28x64xbf16>
  return %s : tensor<64x28x28x64xbf16>
}

// -----

// Images that are turned, sliced and turned back are sliced as they lie, also where others read them turned.
// CHECK-LABEL: func.func @turned
// CHECK: %[[E:.*]] = tensor.expand_shape %arg0 {{\[}}[0], [1, 2], [3, 4], [5]]
// CHECK: %[[S:.*]] = tensor.extract_slice %[[E]]
// CHECK: return %[[S]], %{{.*}} : tensor<64x28x28x64xbf16>, tensor<64x64x56x56xbf16>
#id = affine_map<(n, a, b, c) -> (n, a, b, c)>
#away = affine_map<(n, c, h, w) -> (n, h, w, c)>
#back = affine_map<(n, h, w, c) -> (n, c, h, w)>
func.func @turned(%x: tensor<64x56x56x64xbf16>) -> (tensor<64x28x28x64xbf16>, tensor<64x64x56x56xbf16>) {
  %e = tensor.empty() : tensor<64x64x56x56xbf16>
  %t = linalg.generic {indexing_maps = [#away, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x : tensor<64x56x56x64xbf16>) outs(%e : tensor<64x64x56x56xbf16>) {
  ^bb0(%a: bf16, %o: bf16):
    linalg.yield %a : bf16
  } -> tensor<64x64x56x56xbf16>
  %r = tensor.extract_slice %t[0, 0, 0, 0] [64, 64, 28, 56] [1, 1, 2, 1] : tensor<64x64x56x56xbf16> to tensor<64x64x28x56xbf16>
  %s = tensor.extract_slice %r[0, 0, 0, 0] [64, 64, 28, 28] [1, 1, 1, 2] : tensor<64x64x28x56xbf16> to tensor<64x64x28x28xbf16>
  %f = tensor.empty() : tensor<64x28x28x64xbf16>
  %u = linalg.generic {indexing_maps = [#back, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%s : tensor<64x64x28x28xbf16>) outs(%f : tensor<64x28x28x64xbf16>) {
  ^bb0(%a: bf16, %o: bf16):
    linalg.yield %a : bf16
  } -> tensor<64x28x28x64xbf16>
  return %u, %t : tensor<64x28x28x64xbf16>, tensor<64x64x56x56xbf16>
}

// -----

// The step does not divide the rows.
// CHECK-LABEL: func.func @odd
// CHECK-NOT: tensor.expand_shape
// CHECK: return
func.func @odd(%x: tensor<64x57x56x256xbf16>) -> tensor<64x29x56x256xbf16> {
  %r = tensor.extract_slice %x[0, 0, 0, 0] [64, 29, 56, 256] [1, 2, 1, 1] : tensor<64x57x56x256xbf16> to tensor<64x29x56x256xbf16>
  return %r : tensor<64x29x56x256xbf16>
}

// -----

// Neighbours in memory.
// CHECK-LABEL: func.func @columns
// CHECK-NOT: tensor.expand_shape
// CHECK: return
func.func @columns(%x: tensor<65536x64xbf16>) -> tensor<65536x32xbf16> {
  %r = tensor.extract_slice %x[0, 0] [65536, 32] [1, 2] : tensor<65536x64xbf16> to tensor<65536x32xbf16>
  return %r : tensor<65536x32xbf16>
}

// -----

// A block walks so few.
// CHECK-LABEL: func.func @small
// CHECK-NOT: tensor.expand_shape
// CHECK: return
func.func @small(%x: tensor<2x56x56x64xbf16>) -> tensor<2x28x56x64xbf16> {
  %r = tensor.extract_slice %x[0, 0, 0, 0] [2, 28, 56, 64] [1, 2, 1, 1] : tensor<2x56x56x64xbf16> to tensor<2x28x56x64xbf16>
  return %r : tensor<2x28x56x64xbf16>
}
