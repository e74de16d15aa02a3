// In a spatial pipeline an edge whose ends go tile by tile is placed in a queue: a ring of `rings` tiles, in bytes that nobody
// else has. Its tiles are numbered by the first coordinate; both ends of the ring are proved to go on, and to overwrite nothing.
// RUN: kitsune-opt %s --kitsune-place-buffers=rings=3 --kitsune-materialize --kitsune-check-progress --split-input-file | FileCheck %s

// CHECK-LABEL: func.func @pair_p0
// CHECK: %[[RING:.*]] = memref.view {{.*}} to memref<48x32xf32>
// CHECK: %[[Q:.*]] = "kitsune.make_queue"(%[[RING]]) {pops = 1 : i64, pushes = 1 : i64} : (memref<48x32xf32>) -> !kitsune.queue<tensor<16x32xf32>, 3 : i64>
// CHECK-NOT: kitsune.make_semaphore
// CHECK: ^bb0(%[[I:.*]]: index):
// CHECK: %[[SLOT:.*]] = "kitsune.acquire"(%[[Q]], %[[I]])
// CHECK: %[[ROW:.*]] = arith.muli %[[SLOT]], %{{.*}} : index
// CHECK: memref.subview %[[RING]][%[[ROW]], 0] [16, 32]
// CHECK: "kitsune.push"(%[[Q]], %[[SLOT]])
// CHECK: first = 0 : i64, grid = array<i64: 4>, sym_name = "a", workers = 2 : i64
// CHECK: %[[POP:.*]] = "kitsune.pop"(%[[Q]], %{{.*}})
// CHECK: "kitsune.release"(%[[Q]], %[[POP]])
// CHECK: first = 2 : i64, grid = array<i64: 4>, sym_name = "b", workers = 1 : i64
#id = affine_map<(m, n) -> (m, n)>
func.func @pair(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>, workers = 2 : i64} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>, workers = 1 : i64} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "pair_p0", mode = "spatial"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// Two consumers read every tile: a slot is free when both have released it.
// CHECK-LABEL: func.func @fork_p0
// CHECK: "kitsune.make_queue"{{.*}} {pops = 2 : i64, pushes = 1 : i64}
// CHECK-COUNT-2: "kitsune.pop"
#id = affine_map<(m, n) -> (m, n)>
func.func @fork(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> (tensor<64x32xf32>, tensor<64x32xf32>) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>, workers = 2 : i64} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>, workers = 1 : i64} : () -> tensor<64x32xf32>
    %c = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.sin %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "c", engine = "simt", tile = array<i64: 16, 32>, workers = 1 : i64} : () -> tensor<64x32xf32>
    %t = builtin.unrealized_conversion_cast %b, %c : tensor<64x32xf32>, tensor<64x32xf32> to tuple<tensor<64x32xf32>, tensor<64x32xf32>>
    "kitsune.yield"(%t) : (tuple<tensor<64x32xf32>, tensor<64x32xf32>>) -> ()
  }) {sym_name = "fork_p0", mode = "spatial"} : () -> tuple<tensor<64x32xf32>, tensor<64x32xf32>>
  %q:2 = builtin.unrealized_conversion_cast %p : tuple<tensor<64x32xf32>, tensor<64x32xf32>> to tensor<64x32xf32>, tensor<64x32xf32>
  return %q#0, %q#1 : tensor<64x32xf32>, tensor<64x32xf32>
}

// -----

// Tiles of other sizes at the two ends: no queue. Neither where the result is also the pipeline's, or where blocks take turns.
// CHECK-LABEL: func.func @other_tiles_p0
// CHECK-NOT: make_queue
#id = affine_map<(m, n) -> (m, n)>
func.func @other_tiles(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>, workers = 2 : i64} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 32, 32>, workers = 1 : i64} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "other_tiles_p0", mode = "spatial"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// CHECK-LABEL: func.func @leaves_p0
// CHECK-NOT: make_queue
#id = affine_map<(m, n) -> (m, n)>
func.func @leaves(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> (tensor<64x32xf32>, tensor<64x32xf32>) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>, workers = 2 : i64} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>, workers = 1 : i64} : () -> tensor<64x32xf32>
    %t = builtin.unrealized_conversion_cast %a, %b : tensor<64x32xf32>, tensor<64x32xf32> to tuple<tensor<64x32xf32>, tensor<64x32xf32>>
    "kitsune.yield"(%t) : (tuple<tensor<64x32xf32>, tensor<64x32xf32>>) -> ()
  }) {sym_name = "leaves_p0", mode = "spatial"} : () -> tuple<tensor<64x32xf32>, tensor<64x32xf32>>
  %q:2 = builtin.unrealized_conversion_cast %p : tuple<tensor<64x32xf32>, tensor<64x32xf32>> to tensor<64x32xf32>, tensor<64x32xf32>
  return %q#0, %q#1 : tensor<64x32xf32>, tensor<64x32xf32>
}

// -----

// CHECK-LABEL: func.func @temporal_p0
// CHECK-NOT: make_queue
#id = affine_map<(m, n) -> (m, n)>
func.func @temporal(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>, workers = 2 : i64} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>, workers = 1 : i64} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "temporal_p0", mode = "temporal"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}
