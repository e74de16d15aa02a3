// A convolution is vectorised along its channels, its sums stay in registers; the 3 columns of the kernel are no vector, and a
// fill that walks the same images does not pull it into a loop over images. Weights become panels, and sums images, in squares.
// RUN: kitsune-opt %s --kitsune-to-host=vector-bytes=32 | FileCheck %s

// CHECK-LABEL: func.func private @f_body0(
// CHECK-NOT: vector<3xf32>
// CHECK: vector.shuffle
// CHECK: scf.for {{.*}} iter_args({{.*}}) -> (vector<8xf32>
// CHECK: vector.broadcast %{{.*}} : f32 to vector<8xf32>
// CHECK-NOT: vector<3xf32>
// CHECK: vector.shuffle
// CHECK-LABEL: func.func private @f_task0(
func.func @f(%x: memref<4x16x18x18xf32>, %k: memref<16x16x3x3xf32>, %out: memref<4x16x16x16xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %zero = arith.constant 0.0 : f32
    %xt = bufferization.to_tensor %x restrict : memref<4x16x18x18xf32> to tensor<4x16x18x18xf32>
    %kt = bufferization.to_tensor %k restrict : memref<16x16x3x3xf32> to tensor<16x16x3x3xf32>
    %e = tensor.empty() : tensor<4x16x16x16xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<4x16x16x16xf32>) -> tensor<4x16x16x16xf32>
    %r = linalg.conv_2d_nchw_fchw ins(%xt, %kt : tensor<4x16x18x18xf32>, tensor<16x16x3x3xf32>) outs(%z : tensor<4x16x16x16xf32>) -> tensor<4x16x16x16xf32>
    bufferization.materialize_in_destination %r in restrict writable %out : (tensor<4x16x16x16xf32>, memref<4x16x16x16xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "convolution", grid = array<i64: 1>, engine = "generic"} : () -> ()
  return
}
