// Edges with several ends: one producer and several consumers, tiles that are made in parts, and sums that several stages or
// tiles make parts of. Each is waited for by counts, and proved.
// RUN: kitsune-opt %s --split-input-file --kitsune-place-buffers --kitsune-synchronize --kitsune-materialize --kitsune-check-progress | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --kitsune-place-buffers=rings=3 --kitsune-synchronize --kitsune-materialize --kitsune-check-progress | FileCheck %s --check-prefix=RING

// One post of a tile serves all of its readers, whatever their tiles are: one waits for a tile, one for two, one for all of them.
// CHECK-LABEL: func.func @fan_p0
// CHECK: %[[S:.*]] = "kitsune.make_semaphore"() {slots = 4 : i64}
// CHECK-NOT: make_semaphore
// CHECK-COUNT-1: "kitsune.post"(%[[S]], %{{.*}})
// CHECK: "kitsune.wait"(%[[S]], %{{.*}}, %{{.*}}) {count = 1 : i64}
// CHECK: grid = array<i64: 4>, sym_name = "b"
// CHECK: arith.constant 31 : index
// CHECK: "kitsune.wait"(%[[S]], %{{.*}}, %{{.*}}) {count = 1 : i64}
// CHECK: grid = array<i64: 2>, sym_name = "c"
// CHECK: %[[ALL:.*]] = arith.constant 4 : index
// CHECK: "kitsune.wait"(%[[S]], %{{.*}}, %[[ALL]]) {count = 1 : i64}
// CHECK: grid = array<i64: 2>, sym_name = "d"
// No ring: a reader of all tiles would never let go of the first one.
// RING-LABEL: func.func @fan_p0
// RING-NOT: make_queue
#id = affine_map<(m, n) -> (m, n)>
#rows = affine_map<(n, m) -> (m, n)>
#column = affine_map<(n, m) -> (n)>
func.func @fan(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %z: tensor<32xf32>) -> (tensor<64x32xf32>, tensor<64x32xf32>, tensor<32xf32>) {
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
    }) {sym_name = "c", engine = "simt", tile = array<i64: 32, 32>, workers = 1 : i64} : () -> tensor<64x32xf32>
    %d = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#rows, #column], iterator_types = ["parallel", "reduction"]} ins(%a : tensor<64x32xf32>) outs(%z : tensor<32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.addf %i, %o : f32
        linalg.yield %v : f32
      } -> tensor<32xf32>
      "kitsune.yield"(%r) : (tensor<32xf32>) -> ()
    }) {sym_name = "d", engine = "simt", tile = array<i64: 16>, workers = 1 : i64} : () -> tensor<32xf32>
    %t = builtin.unrealized_conversion_cast %b, %c, %d : tensor<64x32xf32>, tensor<64x32xf32>, tensor<32xf32> to tuple<tensor<64x32xf32>, tensor<64x32xf32>, tensor<32xf32>>
    "kitsune.yield"(%t) : (tuple<tensor<64x32xf32>, tensor<64x32xf32>, tensor<32xf32>>) -> ()
  }) {sym_name = "fan_p0", mode = "spatial"} : () -> tuple<tensor<64x32xf32>, tensor<64x32xf32>, tensor<32xf32>>
  %q:3 = builtin.unrealized_conversion_cast %p : tuple<tensor<64x32xf32>, tensor<64x32xf32>, tensor<32xf32>> to tensor<64x32xf32>, tensor<64x32xf32>, tensor<32xf32>
  return %q#0, %q#1, %q#2 : tensor<64x32xf32>, tensor<64x32xf32>, tensor<32xf32>
}

// -----

// Two tiles make a row of tiles: it is complete after two posts, or two pushes into its slot.
// CHECK-LABEL: func.func @halves_p0
// CHECK: "kitsune.make_semaphore"() {slots = 4 : i64}
// CHECK: grid = array<i64: 4, 2>, sym_name = "a"
// CHECK: "kitsune.wait"({{.*}}) {count = 2 : i64}
// RING-LABEL: func.func @halves_p0
// RING: %[[Q:.*]] = "kitsune.make_queue"{{.*}} {pops = 1 : i64, pushes = 2 : i64}
// RING: ^bb0(%[[I:.*]]: index, %{{.*}}: index):
// RING: "kitsune.acquire"(%[[Q]], %[[I]])
#id = affine_map<(m, n) -> (m, n)>
func.func @halves(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 16>, workers = 2 : i64} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>, workers = 1 : i64} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "halves_p0", mode = "spatial"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// A tile of two stages' results: a wait for each, or a ring for each.
// CHECK-LABEL: func.func @two_makers_p0
// CHECK: %[[A:.*]] = "kitsune.make_semaphore"
// CHECK: %[[B:.*]] = "kitsune.make_semaphore"
// CHECK: "kitsune.wait"(%[[A]],
// CHECK: "kitsune.wait"(%[[B]],
// CHECK: sym_name = "c"
// RING-LABEL: func.func @two_makers_p0
// RING: %[[A:.*]] = "kitsune.make_queue"
// RING: %[[B:.*]] = "kitsune.make_queue"
// RING: "kitsune.pop"(%[[A]],
// RING: "kitsune.pop"(%[[B]],
// RING: sym_name = "c"
#id = affine_map<(m, n) -> (m, n)>
func.func @two_makers(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>, workers = 1 : i64} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>, workers = 1 : i64} : () -> tensor<64x32xf32>
    %c = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]} ins(%a, %b : tensor<64x32xf32>, tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %j: f32, %o: f32):
        %v = arith.addf %i, %j : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "c", engine = "simt", tile = array<i64: 16, 32>, workers = 1 : i64} : () -> tensor<64x32xf32>
    "kitsune.yield"(%c) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "two_makers_p0", mode = "spatial"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// The parts of a sum and the stage that combines them: a tile of sums waits for the tiles of all parts.
// CHECK-LABEL: func.func @combine_p0
// CHECK: "kitsune.make_semaphore"() {slots = 4 : i64}
// CHECK: grid = array<i64: 4, 4>, sym_name = "parts"
// CHECK: "kitsune.wait"({{.*}}) {count = 4 : i64}
// CHECK: grid = array<i64: 4>, sym_name = "combine"
#parts = affine_map<(s, m, n) -> (s, m, n)>
#in = affine_map<(m, n, s) -> (s, m, n)>
#out = affine_map<(m, n, s) -> (m, n)>
func.func @combine(%x: tensor<4x64x32xf32>, %e: tensor<4x64x32xf32>, %z: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#parts, #parts], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x : tensor<4x64x32xf32>) outs(%e : tensor<4x64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<4x64x32xf32>
      "kitsune.yield"(%r) : (tensor<4x64x32xf32>) -> ()
    }) {sym_name = "parts", engine = "simt", tile = array<i64: 1, 16, 32>} : () -> tensor<4x64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#in, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a : tensor<4x64x32xf32>) outs(%z : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.addf %i, %o : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "combine", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "combine_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}
