// The result of the first stage lives in the arena, at an offset in bytes; the last one's is the pipeline's result (-1).
// RUN: kitsune-opt %s --kitsune-place-buffers=apart=0 --split-input-file | FileCheck %s

// CHECK: buffers = [#kitsune.buffer<"global", 1 : i64>], engine = "simt", offsets = array<i64: 0>, sym_name = "a"
// CHECK: buffers = [#kitsune.buffer<"global", 1 : i64>], engine = "simt", offsets = array<i64: -1>, sym_name = "b"
// CHECK: }) {arena = 8192 : i64, sym_name = "f_p0"}
#id = affine_map<(m, n) -> (m, n)>
func.func @f(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "f_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// RUN: kitsune-opt %s --kitsune-place-buffers="slack=0 apart=0" --split-input-file | FileCheck %s --check-prefix=TIGHT
// RUN: kitsune-opt %s --kitsune-place-buffers --split-input-file | FileCheck %s --check-prefix=APART
// Rows take the place of rows that a tile's own waits say nobody reads any more (c of a, d of b, f of c): nobody waits for that.
// Without `slack` buffers as a whole share bytes, and the writer waits for their readers (d for c, in whose place b lay).
// CHECK-LABEL: func.func @chain
// CHECK: after = [], {{.*}} offsets = array<i64: 0>, sym_name = "a"
// CHECK: after = [], {{.*}} offsets = array<i64: 8192>, sym_name = "b"
// CHECK: after = [], {{.*}} offsets = array<i64: 0>, sym_name = "c"
// CHECK: after = [], {{.*}} offsets = array<i64: 8192>, sym_name = "d"
// CHECK: after = [], {{.*}} offsets = array<i64: 0>, sym_name = "f"
// CHECK: after = [], {{.*}} offsets = array<i64: -1>, sym_name = "g"
// CHECK: arena = 16384
// TIGHT-LABEL: func.func @chain
// TIGHT: after = [], {{.*}} offsets = array<i64: 0>, sym_name = "a"
// TIGHT: after = [], {{.*}} offsets = array<i64: 8192>, sym_name = "b"
// TIGHT: after = ["b"], {{.*}} offsets = array<i64: 0>, sym_name = "c"
// TIGHT: after = ["c"], {{.*}} offsets = array<i64: 8192>, sym_name = "d"
// TIGHT: after = ["d"], {{.*}} offsets = array<i64: 0>, sym_name = "f"
// TIGHT: after = [], {{.*}} offsets = array<i64: -1>, sym_name = "g"
// TIGHT: arena = 16384
// So little has all its bytes to itself, and nobody waits for them.
// APART-LABEL: func.func @chain
// APART-COUNT-4: after = []
// APART: after = [], {{.*}} offsets = array<i64: 32768>, sym_name = "f"
// APART: arena = 40960
#id = affine_map<(m, n) -> (m, n)>
func.func @chain(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %c = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%b : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "c", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %d = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%c : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "d", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %f = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%d : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "f", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %g = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%f : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "g", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%g) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "chain_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// Every result of a stage has a place of its own, a multiple of 256 bytes. One that leaves the pipeline needs none: it is written
// where the caller wants it, while the other stays in the arena.
// CHECK-LABEL: func.func @two_results
// CHECK: buffers = [#kitsune.buffer<"global", 1 : i64>, #kitsune.buffer<"global", 1 : i64>], offsets = array<i64: -1, 0>, sym_name = "a"
// CHECK: arena = 256
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @two_results(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %f: tensor<64xf32>) -> tuple<tensor<64x32xf32>, tensor<64x32xf32>> {
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
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]} ins(%a0, %a1 : tensor<64x32xf32>, tensor<64xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %j: f32, %o: f32):
        %v = arith.divf %i, %j : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 8, 32>} : () -> tensor<64x32xf32>
    %both = builtin.unrealized_conversion_cast %a0, %b : tensor<64x32xf32>, tensor<64x32xf32> to tuple<tensor<64x32xf32>, tensor<64x32xf32>>
    "kitsune.yield"(%both) : (tuple<tensor<64x32xf32>, tensor<64x32xf32>>) -> ()
  }) {sym_name = "two_results_p0"} : () -> tuple<tensor<64x32xf32>, tensor<64x32xf32>>
  return %p : tuple<tensor<64x32xf32>, tensor<64x32xf32>>
}

// -----

// A result that leaves through a view leaves.
// CHECK-LABEL: func.func @view
// CHECK: offsets = array<i64: -1>, sym_name = "a"
// CHECK: arena = 0
#id = affine_map<(m, n) -> (m, n)>
func.func @view(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<2048xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %v = tensor.collapse_shape %a [[0, 1]] : tensor<64x32xf32> into tensor<2048xf32>
    "kitsune.yield"(%v) : (tensor<2048xf32>) -> ()
  }) {sym_name = "view_p0"} : () -> tensor<2048xf32>
  return %p : tensor<2048xf32>
}

// -----

// A reader through a view keeps a buffer alive.
// CHECK-LABEL: func.func @read_through_a_view
// CHECK: offsets = array<i64: 0>, sym_name = "a"
// CHECK: offsets = array<i64: 8192>, sym_name = "b"
// CHECK: offsets = array<i64: 16384>, sym_name = "c"
// CHECK: arena = 24576
#id = affine_map<(m, n) -> (m, n)>
func.func @read_through_a_view(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tuple<tensor<64x32xf32>, tensor<64x32xf32>> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %c = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%b : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "c", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %flat = tensor.collapse_shape %a [[0, 1]] : tensor<64x32xf32> into tensor<2048xf32>
    %again = tensor.expand_shape %flat [[0, 1]] output_shape [64, 32] : tensor<2048xf32> into tensor<64x32xf32>
    %d = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%c : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "d", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %f = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%again : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "f", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %both = builtin.unrealized_conversion_cast %d, %f : tensor<64x32xf32>, tensor<64x32xf32> to tuple<tensor<64x32xf32>, tensor<64x32xf32>>
    "kitsune.yield"(%both) : (tuple<tensor<64x32xf32>, tensor<64x32xf32>>) -> ()
  }) {sym_name = "read_through_a_view_p0"} : () -> tuple<tensor<64x32xf32>, tensor<64x32xf32>>
  return %p : tuple<tensor<64x32xf32>, tensor<64x32xf32>>
}
