// Tasks that will be far slower than the chip needs to be are remarks; others are not.
// RUN: kitsune-opt %s --kitsune-to-gpu --split-input-file --verify-diagnostics --remarks

#map = affine_map<(d0, d1) -> (d0, d1)>
// Eight blocks' worth of rows in tiles that suit them: nothing is said.
func.func @fine(%x: memref<4096x256xf32>, %y: memref<4096x256xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %n = arith.constant 16 : index
    %o = arith.muli %i, %n : index
    %xv = memref.subview %x[%o, 0] [16, 256] [1, 1] : memref<4096x256xf32> to memref<16x256xf32, strided<[256, 1], offset: ?>>
    %t = bufferization.to_tensor %xv restrict : memref<16x256xf32, strided<[256, 1], offset: ?>> to tensor<16x256xf32>
    %two = arith.constant 2.0 : f32
    %f = tensor.empty() : tensor<16x256xf32>
    %q = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
        ins(%t : tensor<16x256xf32>) outs(%f : tensor<16x256xf32>) {
    ^bb0(%a: f32, %c: f32):
      %r = arith.mulf %a, %two : f32
      linalg.yield %r : f32
    } -> tensor<16x256xf32>
    %yv = memref.subview %y[%o, 0] [16, 256] [1, 1] : memref<4096x256xf32> to memref<16x256xf32, strided<[256, 1], offset: ?>>
    bufferization.materialize_in_destination %q in restrict writable %yv
      : (tensor<16x256xf32>, memref<16x256xf32, strided<[256, 1], offset: ?>>) -> ()
    "kitsune.yield"() {operandSegmentSizes = array<i32: 0>} : () -> ()
  }) {sym_name = "fine", grid = array<i64: 256>, engine = "simt"} : () -> ()
  return
}

// -----

#map = affine_map<(d0, d1) -> (d0, d1)>
// Little work for one block is as it should be, too.
func.func @little(%x: memref<16x256xf32>, %y: memref<16x256xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %n = arith.constant 16 : index
    %o = arith.muli %i, %n : index
    %xv = memref.subview %x[%o, 0] [16, 256] [1, 1] : memref<16x256xf32> to memref<16x256xf32, strided<[256, 1], offset: ?>>
    %t = bufferization.to_tensor %xv restrict : memref<16x256xf32, strided<[256, 1], offset: ?>> to tensor<16x256xf32>
    %two = arith.constant 2.0 : f32
    %f = tensor.empty() : tensor<16x256xf32>
    %q = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
        ins(%t : tensor<16x256xf32>) outs(%f : tensor<16x256xf32>) {
    ^bb0(%a: f32, %c: f32):
      %r = arith.mulf %a, %two : f32
      linalg.yield %r : f32
    } -> tensor<16x256xf32>
    %yv = memref.subview %y[%o, 0] [16, 256] [1, 1] : memref<16x256xf32> to memref<16x256xf32, strided<[256, 1], offset: ?>>
    bufferization.materialize_in_destination %q in restrict writable %yv
      : (tensor<16x256xf32>, memref<16x256xf32, strided<[256, 1], offset: ?>>) -> ()
    "kitsune.yield"() {operandSegmentSizes = array<i32: 0>} : () -> ()
  }) {sym_name = "little", grid = array<i64: 1>, engine = "simt"} : () -> ()
  return
}

// -----

#map = affine_map<(d0, d1) -> (d0, d1)>
func.func @alone(%x: memref<1024x256xf32>, %y: memref<1024x256xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  // expected-remark @+1 {{alone takes 46 us of which 2 would do (predicted): one block of 132 does all of it}}
  "kitsune.task"() ({
  ^bb0(%i: index):
    %n = arith.constant 1024 : index
    %o = arith.muli %i, %n : index
    %xv = memref.subview %x[%o, 0] [1024, 256] [1, 1] : memref<1024x256xf32> to memref<1024x256xf32, strided<[256, 1], offset: ?>>
    %t = bufferization.to_tensor %xv restrict : memref<1024x256xf32, strided<[256, 1], offset: ?>> to tensor<1024x256xf32>
    %two = arith.constant 2.0 : f32
    %f = tensor.empty() : tensor<1024x256xf32>
    %q = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
        ins(%t : tensor<1024x256xf32>) outs(%f : tensor<1024x256xf32>) {
    ^bb0(%a: f32, %c: f32):
      %r = arith.mulf %a, %two : f32
      linalg.yield %r : f32
    } -> tensor<1024x256xf32>
    %yv = memref.subview %y[%o, 0] [1024, 256] [1, 1] : memref<1024x256xf32> to memref<1024x256xf32, strided<[256, 1], offset: ?>>
    bufferization.materialize_in_destination %q in restrict writable %yv
      : (tensor<1024x256xf32>, memref<1024x256xf32, strided<[256, 1], offset: ?>>) -> ()
    "kitsune.yield"() {operandSegmentSizes = array<i32: 0>} : () -> ()
  }) {sym_name = "alone", grid = array<i64: 1>, engine = "simt"} : () -> ()
  return
}

// -----

#map = affine_map<(d0, d1) -> (d0, d1)>
func.func @wished(%x: memref<256x256xf32>, %y: memref<256x256xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  // expected-remark @+1 {{wished takes 4 us of which 2 would do (predicted): the generic engine does it}}
  "kitsune.task"() ({
  ^bb0(%i: index):
    %n = arith.constant 16 : index
    %o = arith.muli %i, %n : index
    %xv = memref.subview %x[%o, 0] [16, 256] [1, 1] : memref<256x256xf32> to memref<16x256xf32, strided<[256, 1], offset: ?>>
    %t = bufferization.to_tensor %xv restrict : memref<16x256xf32, strided<[256, 1], offset: ?>> to tensor<16x256xf32>
    %two = arith.constant 2.0 : f32
    %f = tensor.empty() : tensor<16x256xf32>
    %q = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
        ins(%t : tensor<16x256xf32>) outs(%f : tensor<16x256xf32>) {
    ^bb0(%a: f32, %c: f32):
      %r = arith.mulf %a, %two : f32
      linalg.yield %r : f32
    } -> tensor<16x256xf32>
    %yv = memref.subview %y[%o, 0] [16, 256] [1, 1] : memref<256x256xf32> to memref<16x256xf32, strided<[256, 1], offset: ?>>
    bufferization.materialize_in_destination %q in restrict writable %yv
      : (tensor<16x256xf32>, memref<16x256xf32, strided<[256, 1], offset: ?>>) -> ()
    "kitsune.yield"() {operandSegmentSizes = array<i32: 0>} : () -> ()
  }) {sym_name = "wished", grid = array<i64: 16>, engine = "generic"} : () -> ()
  return
}

// -----

#map = affine_map<(d0, d1) -> (d0, d1)>
func.func @crumbs(%x: memref<65536x1xf32>, %y: memref<65536x1xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  // expected-remark @+1 {{65536 tiles of engine simt take}}
  "kitsune.task"() ({
  ^bb0(%i: index):
    %n = arith.constant 1 : index
    %o = arith.muli %i, %n : index
    %xv = memref.subview %x[%o, 0] [1, 1] [1, 1] : memref<65536x1xf32> to memref<1x1xf32, strided<[1, 1], offset: ?>>
    %t = bufferization.to_tensor %xv restrict : memref<1x1xf32, strided<[1, 1], offset: ?>> to tensor<1x1xf32>
    %two = arith.constant 2.0 : f32
    %f = tensor.empty() : tensor<1x1xf32>
    %q = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
        ins(%t : tensor<1x1xf32>) outs(%f : tensor<1x1xf32>) {
    ^bb0(%a: f32, %c: f32):
      %r = arith.mulf %a, %two : f32
      linalg.yield %r : f32
    } -> tensor<1x1xf32>
    %yv = memref.subview %y[%o, 0] [1, 1] [1, 1] : memref<65536x1xf32> to memref<1x1xf32, strided<[1, 1], offset: ?>>
    bufferization.materialize_in_destination %q in restrict writable %yv
      : (tensor<1x1xf32>, memref<1x1xf32, strided<[1, 1], offset: ?>>) -> ()
    "kitsune.yield"() {operandSegmentSizes = array<i32: 0>} : () -> ()
  }) {sym_name = "crumbs", grid = array<i64: 65536>, engine = "simt"} : () -> ()
  return
}
