// The simt engine keeps a row in the registers of its threads: one load of each element, a butterfly of shuffles, one store.
// RUN: kitsune-opt %s --kitsune-to-gpu | FileCheck %s

// CHECK: gpu.module @softmax
// CHECK: llvm.func @softmax
// Eight rows a tile, sixteen lanes each, so that half of the block has work; 256 columns are four vectors a lane.
// CHECK-COUNT-4: llvm.load {{.*}} -> vector<4xf32>
// CHECK-NOT: llvm.load
// CHECK: arith.maximumf
// CHECK-COUNT-4: nvvm.shfl.sync bfly
// CHECK-NOT: nvvm.barrier
// CHECK: nvvm.ex2
// CHECK: arith.addf
// CHECK-COUNT-4: nvvm.shfl.sync bfly
// CHECK-NOT: llvm.load
// CHECK: arith.divf
// CHECK-COUNT-4: llvm.store {{.*}} : vector<4xf32>

#map = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#one = affine_map<(d0) -> (d0)>
func.func @softmax(%x: memref<64x256xf32>, %y: memref<64x256xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c8 = arith.constant 8 : index
    %o = arith.muli %i, %c8 : index
    %low = arith.constant 0xFF800000 : f32
    %zero = arith.constant 0.0 : f32
    %xv = memref.subview %x[%o, 0] [8, 256] [1, 1] : memref<64x256xf32> to memref<8x256xf32, strided<[256, 1], offset: ?>>
    %t = bufferization.to_tensor %xv restrict : memref<8x256xf32, strided<[256, 1], offset: ?>> to tensor<8x256xf32>
    %e = tensor.empty() : tensor<8xf32>
    %lows = linalg.fill ins(%low : f32) outs(%e : tensor<8xf32>) -> tensor<8xf32>
    %zeros = linalg.fill ins(%zero : f32) outs(%e : tensor<8xf32>) -> tensor<8xf32>
    %m = linalg.generic {indexing_maps = [#map, #row], iterator_types = ["parallel", "reduction"]}
        ins(%t : tensor<8x256xf32>) outs(%lows : tensor<8xf32>) {
    ^bb0(%a: f32, %b: f32):
      %r = arith.maximumf %a, %b : f32
      linalg.yield %r : f32
    } -> tensor<8xf32>
    %f = tensor.empty() : tensor<8x256xf32>
    %p = linalg.generic {indexing_maps = [#map, #row, #map], iterator_types = ["parallel", "parallel"]}
        ins(%t, %m : tensor<8x256xf32>, tensor<8xf32>) outs(%f : tensor<8x256xf32>) {
    ^bb0(%a: f32, %b: f32, %c: f32):
      %d = arith.subf %a, %b : f32
      %r = math.exp %d : f32
      linalg.yield %r : f32
    } -> tensor<8x256xf32>
    %s = linalg.generic {indexing_maps = [#map, #row], iterator_types = ["parallel", "reduction"]}
        ins(%p : tensor<8x256xf32>) outs(%zeros : tensor<8xf32>) {
    ^bb0(%a: f32, %b: f32):
      %r = arith.addf %a, %b : f32
      linalg.yield %r : f32
    } -> tensor<8xf32>
    %q = linalg.generic {indexing_maps = [#map, #row, #map], iterator_types = ["parallel", "parallel"]}
        ins(%p, %s : tensor<8x256xf32>, tensor<8xf32>) outs(%f : tensor<8x256xf32>) {
    ^bb0(%a: f32, %b: f32, %c: f32):
      %r = arith.divf %a, %b : f32
      linalg.yield %r : f32
    } -> tensor<8x256xf32>
    %yv = memref.subview %y[%o, 0] [8, 256] [1, 1] : memref<64x256xf32> to memref<8x256xf32, strided<[256, 1], offset: ?>>
    bufferization.materialize_in_destination %q in restrict writable %yv
      : (tensor<8x256xf32>, memref<8x256xf32, strided<[256, 1], offset: ?>>) -> ()
    "kitsune.yield"() {operandSegmentSizes = array<i32: 0>} : () -> ()
  }) {sym_name = "softmax", grid = array<i64: 8>, engine = "simt"} : () -> ()
  return
}
