// A map over whole rows is one run of memory for the simt engine: vectors of 16 bytes, though a row has 6 elements.
// RUN: kitsune-opt %s --kitsune-to-gpu | FileCheck %s

// CHECK: gpu.module @scale
// CHECK: llvm.load {{.*}}alignment = 16{{.*}} -> vector<4xf32>
// CHECK: arith.mulf
// CHECK: scf.if
// CHECK: llvm.store {{.*}}alignment = 16{{.*}} : vector<4xf32>

#map = affine_map<(d0, d1) -> (d0, d1)>
func.func @scale(%x: memref<64x6xf32>, %y: memref<64x6xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c32 = arith.constant 32 : index
    %o = arith.muli %i, %c32 : index
    %two = arith.constant 2.0 : f32
    %xv = memref.subview %x[%o, 0] [32, 6] [1, 1] : memref<64x6xf32> to memref<32x6xf32, strided<[6, 1], offset: ?>>
    %t = bufferization.to_tensor %xv restrict : memref<32x6xf32, strided<[6, 1], offset: ?>> to tensor<32x6xf32>
    %f = tensor.empty() : tensor<32x6xf32>
    %q = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
        ins(%t : tensor<32x6xf32>) outs(%f : tensor<32x6xf32>) {
    ^bb0(%a: f32, %c: f32):
      %r = arith.mulf %a, %two : f32
      linalg.yield %r : f32
    } -> tensor<32x6xf32>
    %yv = memref.subview %y[%o, 0] [32, 6] [1, 1] : memref<64x6xf32> to memref<32x6xf32, strided<[6, 1], offset: ?>>
    bufferization.materialize_in_destination %q in restrict writable %yv
      : (tensor<32x6xf32>, memref<32x6xf32, strided<[6, 1], offset: ?>>) -> ()
    "kitsune.yield"() {operandSegmentSizes = array<i32: 0>} : () -> ()
  }) {sym_name = "scale", grid = array<i64: 2>, engine = "simt"} : () -> ()
  return
}
