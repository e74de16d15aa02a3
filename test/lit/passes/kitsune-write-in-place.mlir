// RUN: kitsune-opt %s --kitsune-write-in-place=target=sm_90a --split-input-file | FileCheck %s
// RUN: kitsune-opt %s --kitsune-write-in-place=target=host --split-input-file | FileCheck %s --check-prefix=HOST
// RUN: kitsune-opt %s --kitsune-write-in-place=target=sm_90a --split-input-file --remarks 2>&1 | FileCheck %s --check-prefix=WHY

// Result 0 is argument 0's new value: each element of it is made of that element, so it is written there.
// CHECK-LABEL: func.func @added
// CHECK: overwrites = array<i64: 0>
#id = affine_map<(m, n) -> (m, n)>
func.func @added(%x: tensor<64x32xf32>, %y: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> (tensor<64x32xf32> {kitsune.mutates = 0 : i64}) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]} ins(%x, %y : tensor<64x32xf32>, tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %j: f32, %o: f32):
        %v = arith.addf %i, %j : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%a) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "added_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// Tiles of 24 rows of 64 would overlap, and add twice: 16 divide it.
// CHECK-LABEL: func.func @ragged
// CHECK: overwrites = array<i64: 0>, {{.*}}tile = array<i64: 16, 32>
#id = affine_map<(m, n) -> (m, n)>
func.func @ragged(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> (tensor<64x32xf32> {kitsune.mutates = 0 : i64}) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.addf %i, %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 24, 32>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%a) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "ragged_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// A number has no dimension, and its stage one tile: an optimizer's count of steps.
// CHECK-LABEL: func.func @counted
// CHECK: overwrites = array<i64: 0>
// HOST-LABEL: func.func @counted
// HOST: overwrites = array<i64: 0>
#none = affine_map<() -> ()>
func.func @counted(%x: tensor<f32>, %e: tensor<f32>) -> (tensor<f32> {kitsune.mutates = 0 : i64}) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#none, #none], iterator_types = []} ins(%x : tensor<f32>) outs(%e : tensor<f32>) {
      ^bb0(%i: f32, %o: f32):
        %one = arith.constant 1.0 : f32
        %v = arith.addf %i, %one : f32
        linalg.yield %v : f32
      } -> tensor<f32>
      "kitsune.yield"(%r) : (tensor<f32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64>} : () -> tensor<f32>
    "kitsune.yield"(%a) : (tensor<f32>) -> ()
  }) {sym_name = "counted_p0"} : () -> tensor<f32>
  return %p : tensor<f32>
}

// -----

// Nothing but 1 divides 67: it keeps memory of its own, and is copied.
// CHECK-LABEL: func.func @prime
// CHECK-NOT: overwrites
// WHY: result 0 is copied to argument 0: tiles of a overlap, and would change an element twice
#id = affine_map<(m, n) -> (m, n)>
func.func @prime(%x: tensor<67x32xf32>, %e: tensor<67x32xf32>) -> (tensor<67x32xf32> {kitsune.mutates = 0 : i64}) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<67x32xf32>) outs(%e : tensor<67x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.addf %i, %i : f32
        linalg.yield %v : f32
      } -> tensor<67x32xf32>
      "kitsune.yield"(%r) : (tensor<67x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<67x32xf32>
    "kitsune.yield"(%a) : (tensor<67x32xf32>) -> ()
  }) {sym_name = "prime_p0"} : () -> tensor<67x32xf32>
  return %p : tensor<67x32xf32>
}

// -----

// Of 58 rows 29 are the next tile after 2, larger than 10: it has shorter rows.
// CHECK-LABEL: func.func @taller
// CHECK: overwrites = array<i64: 0>, {{.*}}tile = array<i64: 29, 64>
#id = affine_map<(m, n) -> (m, n)>
func.func @taller(%x: tensor<58x256xf32>, %e: tensor<58x256xf32>) -> (tensor<58x256xf32> {kitsune.mutates = 0 : i64}) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<58x256xf32>) outs(%e : tensor<58x256xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.addf %i, %i : f32
        linalg.yield %v : f32
      } -> tensor<58x256xf32>
      "kitsune.yield"(%r) : (tensor<58x256xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 10, 256>} : () -> tensor<58x256xf32>
    "kitsune.yield"(%a) : (tensor<58x256xf32>) -> ()
  }) {sym_name = "taller_p0"} : () -> tensor<58x256xf32>
  return %p : tensor<58x256xf32>
}

// -----

// A part of another tensor, rows of a gradient that were padded, is read where it lies; a part of the old value is not.
// CHECK-LABEL: func.func @part
// CHECK: overwrites = array<i64: 0>
// CHECK-LABEL: func.func @own_part
// CHECK-NOT: overwrites
// WHY: result 0 is copied to argument 0: a reads its old value elsewhere than where it writes
#id = affine_map<(m, n) -> (m, n)>
func.func @part(%x: tensor<64x32xf32>, %g: tensor<72x32xf32>, %e: tensor<64x32xf32>) -> (tensor<64x32xf32> {kitsune.mutates = 0 : i64}) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %s = tensor.extract_slice %g[0, 0] [64, 32] [1, 1] : tensor<72x32xf32> to tensor<64x32xf32>
      %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]} ins(%x, %s : tensor<64x32xf32>, tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %j: f32, %o: f32):
        %v = arith.addf %i, %j : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%a) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "part_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}
func.func @own_part(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> (tensor<64x32xf32> {kitsune.mutates = 0 : i64}) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %s = tensor.extract_slice %x[1, 0] [32, 32] [2, 1] : tensor<64x32xf32> to tensor<32x32xf32>
      %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m floordiv 2, n)>, #id], iterator_types = ["parallel", "parallel"]} ins(%x, %s : tensor<64x32xf32>, tensor<32x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %j: f32, %o: f32):
        %v = arith.addf %i, %j : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%a) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "own_part_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// Elements are made of others (a transposition), and of those in a row (a sum): no.
// CHECK-LABEL: func.func @elsewhere
// CHECK-NOT: overwrites
// WHY: result 0 is copied to argument 0: a reads its old value elsewhere than where it writes
#id = affine_map<(m, n) -> (m, n)>
#tr = affine_map<(m, n) -> (n, m)>
func.func @elsewhere(%x: tensor<64x64xf32>, %e: tensor<64x64xf32>) -> (tensor<64x64xf32> {kitsune.mutates = 0 : i64}) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #tr, #id], iterator_types = ["parallel", "parallel"]} ins(%x, %x : tensor<64x64xf32>, tensor<64x64xf32>) outs(%e : tensor<64x64xf32>) {
      ^bb0(%i: f32, %j: f32, %o: f32):
        %v = arith.addf %i, %j : f32
        linalg.yield %v : f32
      } -> tensor<64x64xf32>
      "kitsune.yield"(%r) : (tensor<64x64xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 64>} : () -> tensor<64x64xf32>
    "kitsune.yield"(%a) : (tensor<64x64xf32>) -> ()
  }) {sym_name = "elsewhere_p0"} : () -> tensor<64x64xf32>
  return %p : tensor<64x64xf32>
}

// -----

// A stage after it still wants the old value: no. One before it does: the writer waits for that.
// CHECK-LABEL: func.func @later
// CHECK-NOT: overwrites
// WHY: result 0 is copied to argument 0: b reads its old value after a has begun
#id = affine_map<(m, n) -> (m, n)>
func.func @later(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> (tensor<64x32xf32> {kitsune.mutates = 0 : i64}, tensor<64x32xf32>) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.addf %i, %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %t = builtin.unrealized_conversion_cast %a, %b : tensor<64x32xf32>, tensor<64x32xf32> to tuple<tensor<64x32xf32>, tensor<64x32xf32>>
    "kitsune.yield"(%t) : (tuple<tensor<64x32xf32>, tensor<64x32xf32>>) -> ()
  }) {sym_name = "later_p0"} : () -> tuple<tensor<64x32xf32>, tensor<64x32xf32>>
  %r:2 = builtin.unrealized_conversion_cast %p : tuple<tensor<64x32xf32>, tensor<64x32xf32>> to tensor<64x32xf32>, tensor<64x32xf32>
  return %r#0, %r#1 : tensor<64x32xf32>, tensor<64x32xf32>
}

// -----

// RUN: kitsune-opt %s --kitsune-write-in-place=target=sm_90a --kitsune-place-buffers --split-input-file | FileCheck %s --check-prefix=AFTER
// CHECK-LABEL: func.func @earlier
// CHECK: overwrites = array<i64: 0>
// AFTER-LABEL: func.func @earlier
// AFTER: after = [], {{.*}}sym_name = "b"
// AFTER: after = ["b"], {{.*}}offsets = array<i64: -1>, overwrites = array<i64: 0>, sym_name = "a"
#id = affine_map<(m, n) -> (m, n)>
func.func @earlier(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> (tensor<64x32xf32> {kitsune.mutates = 0 : i64}, tensor<64x32xf32>) {
  %p = "kitsune.pipeline"() ({
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.addf %i, %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %t = builtin.unrealized_conversion_cast %a, %b : tensor<64x32xf32>, tensor<64x32xf32> to tuple<tensor<64x32xf32>, tensor<64x32xf32>>
    "kitsune.yield"(%t) : (tuple<tensor<64x32xf32>, tensor<64x32xf32>>) -> ()
  }) {sym_name = "earlier_p0"} : () -> tuple<tensor<64x32xf32>, tensor<64x32xf32>>
  %r:2 = builtin.unrealized_conversion_cast %p : tuple<tensor<64x32xf32>, tensor<64x32xf32>> to tensor<64x32xf32>, tensor<64x32xf32>
  return %r#0, %r#1 : tensor<64x32xf32>, tensor<64x32xf32>
}

// -----

// Two scatters of a cache that is seen as rows, one after the other: both write there. On the host each is one tile.
// CHECK-LABEL: func.func @cache
// CHECK: overwrites = array<i64: 0>, sym_name = "first"{{.*}}updates = 1
// CHECK: overwrites = array<i64: 0>, sym_name = "second"{{.*}}updates = 1
// HOST-LABEL: func.func @cache
// HOST: overwrites = array<i64: 0>, sym_name = "first"{{.*}}updates = 2
// HOST: overwrites = array<i64: 0>, sym_name = "second"{{.*}}updates = 2
func.func @cache(%c: tensor<4x16x8xf32>, %k: tensor<2x1x8xf32>, %i: tensor<2x1xi32>, %j: tensor<2x1xi32>) -> (tensor<4x16x8xf32> {kitsune.mutates = 0 : i64}) {
  %p = "kitsune.pipeline"() ({
    %rows = tensor.collapse_shape %c [[0, 1], [2]] : tensor<4x16x8xf32> into tensor<64x8xf32>
    %a = "kitsune.stage"() ({
      %s = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%k, %i : tensor<2x1x8xf32>, tensor<2x1xi32>) outs(%rows : tensor<64x8xf32>) {
      ^bb0(%new: f32, %old: f32):
        tm_tensor.yield %new : f32
      } -> tensor<64x8xf32>
      "kitsune.yield"(%s) : (tensor<64x8xf32>) -> ()
    }) {sym_name = "first", engine = "generic", tile = array<i64>, updates = 1 : i64} : () -> tensor<64x8xf32>
    %b = "kitsune.stage"() ({
      %s = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%k, %j : tensor<2x1x8xf32>, tensor<2x1xi32>) outs(%a : tensor<64x8xf32>) {
      ^bb0(%new: f32, %old: f32):
        tm_tensor.yield %new : f32
      } -> tensor<64x8xf32>
      "kitsune.yield"(%s) : (tensor<64x8xf32>) -> ()
    }) {sym_name = "second", engine = "generic", tile = array<i64>, updates = 1 : i64} : () -> tensor<64x8xf32>
    %r = tensor.expand_shape %b [[0, 1], [2]] output_shape [4, 16, 8] : tensor<64x8xf32> into tensor<4x16x8xf32>
    "kitsune.yield"(%r) : (tensor<4x16x8xf32>) -> ()
  }) {sym_name = "cache_p0"} : () -> tensor<4x16x8xf32>
  return %p : tensor<4x16x8xf32>
}

// -----

// Rows of the argument itself are put there: a row may have been overwritten before it is read.
// CHECK-LABEL: func.func @shifted
// CHECK-NOT: overwrites
// WHY: result 0 is copied to argument 0: a reads its old value beside changing it
func.func @shifted(%x: tensor<64x8xf32>, %i: tensor<64x1xi32>) -> (tensor<64x8xf32> {kitsune.mutates = 0 : i64}) {
  %p = "kitsune.pipeline"() ({
    %u = tensor.expand_shape %x [[0, 1], [2]] output_shape [64, 1, 8] : tensor<64x8xf32> into tensor<64x1x8xf32>
    %a = "kitsune.stage"() ({
      %s = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%u, %i : tensor<64x1x8xf32>, tensor<64x1xi32>) outs(%x : tensor<64x8xf32>) {
      ^bb0(%new: f32, %old: f32):
        tm_tensor.yield %new : f32
      } -> tensor<64x8xf32>
      "kitsune.yield"(%s) : (tensor<64x8xf32>) -> ()
    }) {sym_name = "a", engine = "generic", tile = array<i64>, updates = 1 : i64} : () -> tensor<64x8xf32>
    "kitsune.yield"(%a) : (tensor<64x8xf32>) -> ()
  }) {sym_name = "shifted_p0"} : () -> tensor<64x8xf32>
  return %p : tensor<64x8xf32>
}

// -----

// In another order in memory than the argument, or returned as well: memory of its own.
// CHECK-LABEL: func.func @ordered
// CHECK-NOT: overwrites
// WHY: result 0 is copied to argument 0: they do not lie in memory in the same way
#id = affine_map<(m, n) -> (m, n)>
func.func @ordered(%x: tensor<64x64xf32>, %e: tensor<64x64xf32>) -> (tensor<64x64xf32> {kitsune.mutates = 0 : i64, kitsune.dim_order = array<i64: 1, 0>}) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x64xf32>) outs(%e : tensor<64x64xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.addf %i, %i : f32
        linalg.yield %v : f32
      } -> tensor<64x64xf32>
      "kitsune.yield"(%r) : (tensor<64x64xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 64>} : () -> tensor<64x64xf32>
    "kitsune.yield"(%a) : (tensor<64x64xf32>) -> ()
  }) {sym_name = "ordered_p0"} : () -> tensor<64x64xf32>
  return %p : tensor<64x64xf32>
}

// -----

// CHECK-LABEL: func.func @unmarked
// CHECK-NOT: overwrites
#id = affine_map<(m, n) -> (m, n)>
func.func @unmarked(%x: tensor<64x64xf32>, %e: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x64xf32>) outs(%e : tensor<64x64xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.addf %i, %i : f32
        linalg.yield %v : f32
      } -> tensor<64x64xf32>
      "kitsune.yield"(%r) : (tensor<64x64xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 64>} : () -> tensor<64x64xf32>
    "kitsune.yield"(%a) : (tensor<64x64xf32>) -> ()
  }) {sym_name = "unmarked_p0"} : () -> tensor<64x64xf32>
  return %p : tensor<64x64xf32>
}
