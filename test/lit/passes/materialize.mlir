// Tile programs from scheduled stage graphs, one rule each. (kitsune-place-buffers gives the offsets.)
// RUN: kitsune-opt %s --split-input-file --kitsune-place-buffers=slack=0 --kitsune-synchronize --kitsune-materialize --kitsune-check-progress | FileCheck %s

// Tile sizes need not divide: the last tile is shifted back, so that all have one size. A reader waits for the tiles in which its
// first and its last row lie, and those between.
// CHECK-LABEL: func.func @ragged_p0
// CHECK: grid = array<i64: 7>, sym_name = "a"
// CHECK: ^bb0(%[[I:.*]]: index):
// CHECK: %[[P:.*]] = arith.muli %[[I]], %c30
// CHECK: %[[OFF:.*]] = arith.minui %[[P]], %c70
// CHECK: %[[LO:.*]] = arith.divui %[[OFF]], %c16
// CHECK: %[[END:.*]] = arith.addi %[[OFF]], %c29
// CHECK: %[[LAST:.*]] = arith.divui %[[END]], %c16
// CHECK: %[[HI:.*]] = arith.addi %[[LAST]], %c1
// CHECK: "kitsune.wait"(%{{.*}}, %[[LO]], %[[HI]]) {count = 1 : i64}
// CHECK: memref.subview %{{.*}}[%[[OFF]], 0] [30, 32] [1, 1]
// CHECK: grid = array<i64: 4>, sym_name = "b"
#id = affine_map<(m, n) -> (m, n)>
func.func @ragged(%x: tensor<100x32xf32>, %e: tensor<100x32xf32>) -> tensor<100x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<100x32xf32>) outs(%e : tensor<100x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<100x32xf32>
      "kitsune.yield"(%r) : (tensor<100x32xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 16, 32>} : () -> tensor<100x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<100x32xf32>) outs(%e : tensor<100x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<100x32xf32>
      "kitsune.yield"(%r) : (tensor<100x32xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 30, 32>} : () -> tensor<100x32xf32>
    "kitsune.yield"(%b) : (tensor<100x32xf32>) -> ()
  }) {sym_name = "ragged_p0"} : () -> tensor<100x32xf32>
  return %p : tensor<100x32xf32>
}

// -----

// A grid of rows and columns: one slot a row of tiles, complete when all of its tiles have posted. Both dimensions are cut.
// CHECK-LABEL: func.func @grid_p0
// CHECK: "kitsune.make_semaphore"() {slots = 4 : i64}
// CHECK: ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK: %[[M:.*]] = arith.muli %[[I]], %c16
// CHECK: %[[N:.*]] = arith.muli %[[J]], %c8
// CHECK: memref.subview %{{.*}}[%[[M]], %[[N]]] [16, 8] [1, 1]
// CHECK: "kitsune.post"(%{{.*}}, %[[I]])
// CHECK: grid = array<i64: 4, 4>, sym_name = "a"
// CHECK: "kitsune.wait"(%{{.*}}, %{{.*}}, %{{.*}}) {count = 4 : i64}
#id = affine_map<(m, n) -> (m, n)>
func.func @grid(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 16, 8>} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 32, 32>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "grid_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// Who waits for all of a stage with many rows of tiles waits for one slot that counts them.
// CHECK-LABEL: func.func @whole_p0
// CHECK: %[[S:.*]] = "kitsune.make_semaphore"() {slots = 1 : i64}
// CHECK-NOT: make_semaphore
// CHECK: "kitsune.post"(%[[S]], %c0
// CHECK: grid = array<i64: 64>, sym_name = "a"
// CHECK: "kitsune.wait"(%[[S]], %c0{{.*}}, %c1{{.*}}) {count = 64 : i64}
// CHECK: bufferization.to_tensor %view restrict : memref<64x32xf32> to tensor<64x32xf32>
// CHECK: grid = array<i64: 1>, sym_name = "b"
#id = affine_map<(m, n) -> (m, n)>
#none = affine_map<(m, n) -> ()>
func.func @whole(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %f: tensor<f32>) -> tensor<f32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 1, 32>} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #none], iterator_types = ["reduction", "reduction"]} ins(%a : tensor<64x32xf32>) outs(%f : tensor<f32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.maximumf %i, %o : f32
        linalg.yield %v : f32
      } -> tensor<f32>
      "kitsune.yield"(%r) : (tensor<f32>) -> ()
    }) {sym_name = "b", tile = array<i64>} : () -> tensor<f32>
    "kitsune.yield"(%b) : (tensor<f32>) -> ()
  }) {sym_name = "whole_p0"} : () -> tensor<f32>
  return %p : tensor<f32>
}

// -----

// A tile of a convolution loads its rows and their neighbours, and waits for the tiles that hold them.
// CHECK-LABEL: func.func @halo_p0
// CHECK: grid = array<i64: 3>, sym_name = "a"
// CHECK: %[[ROW:.*]] = arith.muli %{{.*}}, %c2
// CHECK: %[[LO:.*]] = arith.divui %[[ROW]], %c4
// CHECK: %[[END:.*]] = arith.addi %[[ROW]], %c3
// CHECK: %[[LAST:.*]] = arith.divui %[[END]], %c4
// CHECK: "kitsune.wait"(%{{.*}}, %[[LO]], %{{.*}}) {count = 1 : i64}
// CHECK: memref.subview %{{.*}}[0, %[[ROW]], 0] [2, 4, 6] [1, 1, 1] : memref<2x12x6xf32>
// CHECK: bufferization.to_tensor %{{.*}} : memref<3x2x3x3xf32>
// CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<3x2x4xf32>)
// CHECK: grid = array<i64: 5>, sym_name = "b"
#id3 = affine_map<(c, i, j) -> (c, i, j)>
#image = affine_map<(o, i, j, c, u, v) -> (c, i + u, j + v)>
#kernel = affine_map<(o, i, j, c, u, v) -> (o, c, u, v)>
#out = affine_map<(o, i, j, c, u, v) -> (o, i, j)>
func.func @halo(%x: tensor<2x12x6xf32>, %e: tensor<2x12x6xf32>, %w: tensor<3x2x3x3xf32>, %f: tensor<3x10x4xf32>) -> tensor<3x10x4xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x : tensor<2x12x6xf32>) outs(%e : tensor<2x12x6xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<2x12x6xf32>
      "kitsune.yield"(%r) : (tensor<2x12x6xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 2, 4, 6>} : () -> tensor<2x12x6xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#image, #kernel, #out], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
          ins(%a, %w : tensor<2x12x6xf32>, tensor<3x2x3x3xf32>) outs(%f : tensor<3x10x4xf32>) {
      ^bb0(%i: f32, %k: f32, %o: f32):
        %v = arith.mulf %i, %k : f32
        %s = arith.addf %o, %v : f32
        linalg.yield %s : f32
      } -> tensor<3x10x4xf32>
      "kitsune.yield"(%r) : (tensor<3x10x4xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 3, 2, 4>} : () -> tensor<3x10x4xf32>
    "kitsune.yield"(%b) : (tensor<3x10x4xf32>) -> ()
  }) {sym_name = "halo_p0"} : () -> tensor<3x10x4xf32>
  return %p : tensor<3x10x4xf32>
}

// -----

// What a body reads by index it gets whole; a position in the whole is the position in the tile and the tile's offset.
// CHECK-LABEL: func.func @gather_p0
// CHECK: %[[OFF:.*]] = arith.muli %{{.*}}, %c25
// CHECK: %[[TABLE:.*]] = bufferization.to_tensor %arg0 restrict : memref<64x32xf32> to tensor<64x32xf32>
// CHECK: memref.subview %arg1[%[[OFF]]] [25] [1]
// CHECK: %[[I:.*]] = linalg.index 0
// CHECK-NEXT: %[[M:.*]] = arith.addi %[[I]], %[[OFF]]
// CHECK: arith.addi %{{.*}}, %[[M]]
// CHECK: tensor.extract %[[TABLE]]
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @gather(%x: tensor<64x32xf32>, %k: tensor<100xindex>, %f: tensor<100x32xf32>) -> tensor<100x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %c3 = arith.constant 3 : index
      %r = linalg.generic {indexing_maps = [#row, #id], iterator_types = ["parallel", "parallel"]} ins(%k : tensor<100xindex>) outs(%f : tensor<100x32xf32>) {
      ^bb0(%i: index, %o: f32):
        %m = linalg.index 0 : index
        %c = linalg.index 1 : index
        %n = arith.addi %i, %m : index
        %v = tensor.extract %x[%n, %c] : tensor<64x32xf32>
        linalg.yield %v : f32
      } -> tensor<100x32xf32>
      "kitsune.yield"(%r) : (tensor<100x32xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 25, 32>} : () -> tensor<100x32xf32>
    "kitsune.yield"(%a) : (tensor<100x32xf32>) -> ()
  }) {sym_name = "gather_p0"} : () -> tensor<100x32xf32>
  return %p : tensor<100x32xf32>
}

// -----

// A stage with two results stores both. Results that leave are arguments after the inputs, in the order in which they leave.
// CHECK-LABEL: func.func @two_p0(%arg0: memref<64x32xf32>, %arg1: memref<64x32xf32>, %arg2: memref<64xf32>, %arg3: memref<64xf32>, %arg4: memref<64x32xf32>, %arg5: memref<1xi8>)
// CHECK-SAME: kitsune.arguments = 3 : i64, kitsune.program, kitsune.results = 2 : i64
// CHECK: %[[Q:.*]] = memref.subview %arg4
// CHECK: bufferization.materialize_in_destination %{{.*}} in restrict writable %[[Q]]
// CHECK: %[[S:.*]] = memref.subview %arg3
// CHECK: bufferization.materialize_in_destination %{{.*}} in restrict writable %[[S]]
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @two(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %f: tensor<64xf32>) -> tuple<tensor<64xf32>, tensor<64x32xf32>> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %q = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      %s = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%q : tensor<64x32xf32>) outs(%f : tensor<64xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.addf %i, %o : f32
        linalg.yield %v : f32
      } -> tensor<64xf32>
      %r = builtin.unrealized_conversion_cast %q, %s : tensor<64x32xf32>, tensor<64xf32> to tuple<tensor<64x32xf32>, tensor<64xf32>>
      "kitsune.yield"(%r) : (tuple<tensor<64x32xf32>, tensor<64xf32>>) -> ()
    }) {sym_name = "a", tile = array<i64: 16>} : () -> tuple<tensor<64x32xf32>, tensor<64xf32>>
    %a0, %a1 = builtin.unrealized_conversion_cast %a : tuple<tensor<64x32xf32>, tensor<64xf32>> to tensor<64x32xf32>, tensor<64xf32>
    %both = builtin.unrealized_conversion_cast %a1, %a0 : tensor<64xf32>, tensor<64x32xf32> to tuple<tensor<64xf32>, tensor<64x32xf32>>
    "kitsune.yield"(%both) : (tuple<tensor<64xf32>, tensor<64x32xf32>>) -> ()
  }) {sym_name = "two_p0"} : () -> tuple<tensor<64xf32>, tensor<64x32xf32>>
  return %p : tuple<tensor<64xf32>, tensor<64x32xf32>>
}

// -----

// A result that leaves through views: the stage writes into the caller's memory, seen in the stage's own shape.
// CHECK-LABEL: func.func @view_p0(%arg0: memref<64x32xf32>, %arg1: memref<64x32xf32>, %arg2: memref<8x256xf32>, %arg3: memref<1xi8>)
// CHECK: %[[FLAT:.*]] = memref.collapse_shape %arg2 {{\[\[}}0, 1]] : memref<8x256xf32> into memref<2048xf32>
// CHECK: %[[OWN:.*]] = memref.expand_shape %[[FLAT]] {{\[\[}}0, 1]] output_shape [64, 32] : memref<2048xf32> into memref<64x32xf32>
// CHECK: %[[PART:.*]] = memref.subview %[[OWN]]
// CHECK: bufferization.materialize_in_destination %{{.*}} in restrict writable %[[PART]]
#id = affine_map<(m, n) -> (m, n)>
func.func @view(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<8x256xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %flat = tensor.collapse_shape %a [[0, 1]] : tensor<64x32xf32> into tensor<2048xf32>
    %v = tensor.expand_shape %flat [[0, 1]] output_shape [8, 256] : tensor<2048xf32> into tensor<8x256xf32>
    "kitsune.yield"(%v) : (tensor<8x256xf32>) -> ()
  }) {sym_name = "view_p0"} : () -> tensor<8x256xf32>
  return %p : tensor<8x256xf32>
}

// -----

// A stage that reads through a view gets a view of the buffer.
// CHECK-LABEL: func.func @read_view_p0
// CHECK: %[[A:.*]] = memref.view
// CHECK: %[[V:.*]] = memref.expand_shape %[[A]] {{\[\[}}0], [1, 2]] output_shape [64, 4, 8]
// CHECK: memref.subview %[[V]][%{{.*}}, 0, 0] [16, 4, 8] [1, 1, 1]
#id = affine_map<(m, n) -> (m, n)>
#id3 = affine_map<(m, h, n) -> (m, h, n)>
func.func @read_view(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %f: tensor<64x4x8xf32>) -> tensor<64x4x8xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %view = tensor.expand_shape %a [[0], [1, 2]] output_shape [64, 4, 8] : tensor<64x32xf32> into tensor<64x4x8xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%view : tensor<64x4x8xf32>) outs(%f : tensor<64x4x8xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x4x8xf32>
      "kitsune.yield"(%r) : (tensor<64x4x8xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 16, 4, 8>} : () -> tensor<64x4x8xf32>
    "kitsune.yield"(%b) : (tensor<64x4x8xf32>) -> ()
  }) {sym_name = "read_view_p0"} : () -> tensor<64x4x8xf32>
  return %p : tensor<64x4x8xf32>
}

// -----

// A stage whose buffer takes another's bytes waits for all of the stages that `after` names, and for its own inputs.
// CHECK-LABEL: func.func @reuse_p0
// CHECK: %[[S0:.*]] = "kitsune.make_semaphore"() {slots = 4 : i64}
// CHECK: %[[S1:.*]] = "kitsune.make_semaphore"() {slots = 2 : i64}
// CHECK: %[[S2:.*]] = "kitsune.make_semaphore"() {slots = 4 : i64}
// CHECK: sym_name = "b"
// CHECK-DAG: "kitsune.wait"(%[[S1]], %c0{{.*}}, %c2{{.*}}) {count = 1 : i64}
// CHECK: sym_name = "c"
#id = affine_map<(m, n) -> (m, n)>
func.func @reuse(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 32, 32>} : () -> tensor<64x32xf32>
    %c = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%b : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "c", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %d = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%c : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "d", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%d) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "reuse_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// A slice of an argument that leaves a dimension out is a load of that part alone.
// CHECK-LABEL: func.func @one_of_three_p0
// CHECK: memref.subview %{{.*}}[1, %{{.*}}, 0] [1, 16, 32] [1, 1, 1] : memref<3x64x32xf32> to memref<16x32xf32
// CHECK-NOT: tensor.extract_slice
// CHECK: sym_name = "a"
#id = affine_map<(m, n) -> (m, n)>
func.func @one_of_three(%x: tensor<3x64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %s = tensor.extract_slice %x[1, 0, 0] [1, 64, 32] [1, 1, 1] : tensor<3x64x32xf32> to tensor<64x32xf32>
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%s : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%a) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "one_of_three_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// One with steps reads the whole.
// CHECK-LABEL: func.func @every_other_p0
// CHECK: tensor.extract_slice {{.*}} [1, 2] : tensor<64x32xf32> to tensor<64x16xf32>
// CHECK: sym_name = "a"
#id = affine_map<(m, n) -> (m, n)>
func.func @every_other(%x: tensor<64x32xf32>, %e: tensor<64x16xf32>) -> tensor<64x16xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %s = tensor.extract_slice %x[0, 0] [64, 16] [1, 2] : tensor<64x32xf32> to tensor<64x16xf32>
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%s : tensor<64x16xf32>) outs(%e : tensor<64x16xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x16xf32>
      "kitsune.yield"(%r) : (tensor<64x16xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 64>} : () -> tensor<64x16xf32>
    "kitsune.yield"(%a) : (tensor<64x16xf32>) -> ()
  }) {sym_name = "every_other_p0"} : () -> tensor<64x16xf32>
  return %p : tensor<64x16xf32>
}
