// A tile of the second stage waits for the tiles of the first that hold its elements; arguments need no waiting.
// RUN: kitsune-opt %s --kitsune-synchronize --split-input-file | FileCheck %s

// CHECK: sym_name = "a", sync = [#kitsune.sync<"none">, #kitsune.sync<"none">]
// CHECK: sym_name = "b", sync = [#kitsune.sync<"tile">, #kitsune.sync<"none">]
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

// (The waits that follow from the policies are enough:)
// RUN: kitsune-opt %s --split-input-file --kitsune-place-buffers --kitsune-synchronize --kitsune-materialize --kitsune-check-progress -o %t

// A producer tiled by rows and columns: a tile that needs some rows waits for all tiles of those rows.
// CHECK-LABEL: func.func @row(
// CHECK: sym_name = "a", sync = [#kitsune.sync<"none">, #kitsune.sync<"none">]
// CHECK: sym_name = "b", sync = [#kitsune.sync<"row">, #kitsune.sync<"none">]
#id = affine_map<(m, n) -> (m, n)>
func.func @row(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
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
    }) {sym_name = "b", tile = array<i64: 16, 8>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "row_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// The consumer's tiles may be of another size: the policy speaks of rows, not of tiles.
// CHECK-LABEL: func.func @other_tiles(
// CHECK: sym_name = "b", sync = [#kitsune.sync<"row">, #kitsune.sync<"none">]
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @other_tiles(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %f: tensor<64xf32>) -> tensor<64xf32> {
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
      %r = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%a : tensor<64x32xf32>) outs(%f : tensor<64xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.maximumf %i, %o : f32
        linalg.yield %v : f32
      } -> tensor<64xf32>
      "kitsune.yield"(%r) : (tensor<64xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 5>} : () -> tensor<64xf32>
    "kitsune.yield"(%b) : (tensor<64xf32>) -> ()
  }) {sym_name = "other_tiles_p0"} : () -> tensor<64xf32>
  return %p : tensor<64xf32>
}

// -----

// A reduction over the rows needs all of them.
// CHECK-LABEL: func.func @columns(
// CHECK: sym_name = "b", sync = [#kitsune.sync<"all">, #kitsune.sync<"none">]
#id = affine_map<(m, n) -> (m, n)>
#column = affine_map<(m, n) -> (n)>
func.func @columns(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %f: tensor<32xf32>) -> tensor<32xf32> {
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
      %r = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%f : tensor<32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.maximumf %i, %o : f32
        linalg.yield %v : f32
      } -> tensor<32xf32>
      "kitsune.yield"(%r) : (tensor<32xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 8>} : () -> tensor<32xf32>
    "kitsune.yield"(%b) : (tensor<32xf32>) -> ()
  }) {sym_name = "columns_p0"} : () -> tensor<32xf32>
  return %p : tensor<32xf32>
}

// -----

// Unless the producer is tiled by columns: then column by column.
// CHECK-LABEL: func.func @column_tiles(
// CHECK: sym_name = "b", sync = [#kitsune.sync<"tile">, #kitsune.sync<"none">]
#id = affine_map<(m, n) -> (m, n)>
#column = affine_map<(m, n) -> (n)>
func.func @column_tiles(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %f: tensor<32xf32>) -> tensor<32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 64, 8>} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%f : tensor<32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = arith.maximumf %i, %o : f32
        linalg.yield %v : f32
      } -> tensor<32xf32>
      "kitsune.yield"(%r) : (tensor<32xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 8>} : () -> tensor<32xf32>
    "kitsune.yield"(%b) : (tensor<32xf32>) -> ()
  }) {sym_name = "column_tiles_p0"} : () -> tensor<32xf32>
  return %p : tensor<32xf32>
}

// -----

// A producer that is one tile is waited for as a whole.
// CHECK-LABEL: func.func @one_tile(
// CHECK: sym_name = "b", sync = [#kitsune.sync<"all">, #kitsune.sync<"none">]
#id = affine_map<(m, n) -> (m, n)>
func.func @one_tile(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 64, 32>} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "one_tile_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// -----

// A 3x3 convolution needs its rows and their neighbours.
// CHECK-LABEL: func.func @halo(
// CHECK: sym_name = "b", sync = [#kitsune.sync<"halo">, #kitsune.sync<"none">, #kitsune.sync<"none">]
#id3 = affine_map<(c, i, j) -> (c, i, j)>
#image = affine_map<(o, i, j, c, u, v) -> (c, i + u, j + v)>
#kernel = affine_map<(o, i, j, c, u, v) -> (o, c, u, v)>
#out = affine_map<(o, i, j, c, u, v) -> (o, i, j)>
func.func @halo(%x: tensor<2x12x6xf32>, %e: tensor<2x12x6xf32>, %w: tensor<3x2x3x3xf32>, %f: tensor<3x10x4xf32>) -> tensor<3x10x4xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x : tensor<2x12x6xf32>) outs(%e : tensor<2x12x6xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
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

// Not when the producer's tiles are parts of channels: every output channel reads all input channels.
// CHECK-LABEL: func.func @channels(
// CHECK: sym_name = "b", sync = [#kitsune.sync<"all">, #kitsune.sync<"none">, #kitsune.sync<"none">]
#id3 = affine_map<(c, i, j) -> (c, i, j)>
#image = affine_map<(o, i, j, c, u, v) -> (c, i + u, j + v)>
#kernel = affine_map<(o, i, j, c, u, v) -> (o, c, u, v)>
#out = affine_map<(o, i, j, c, u, v) -> (o, i, j)>
func.func @channels(%x: tensor<2x12x6xf32>, %e: tensor<2x12x6xf32>, %w: tensor<3x2x3x3xf32>, %f: tensor<3x10x4xf32>) -> tensor<3x10x4xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x : tensor<2x12x6xf32>) outs(%e : tensor<2x12x6xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<2x12x6xf32>
      "kitsune.yield"(%r) : (tensor<2x12x6xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 1, 4, 6>} : () -> tensor<2x12x6xf32>
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
  }) {sym_name = "channels_p0"} : () -> tensor<3x10x4xf32>
  return %p : tensor<3x10x4xf32>
}

// -----

// A 1x1 convolution of stride 2 reads every second row.
// CHECK-LABEL: func.func @strided(
// CHECK: sym_name = "b", sync = [#kitsune.sync<"strided">, #kitsune.sync<"none">, #kitsune.sync<"none">]
#id3 = affine_map<(c, i, j) -> (c, i, j)>
#image = affine_map<(o, i, j, c, u, v) -> (c, i * 2 + u, j * 2 + v)>
#kernel = affine_map<(o, i, j, c, u, v) -> (o, c, u, v)>
#out = affine_map<(o, i, j, c, u, v) -> (o, i, j)>
func.func @strided(%x: tensor<2x12x6xf32>, %e: tensor<2x12x6xf32>, %w: tensor<3x2x1x1xf32>, %f: tensor<3x6x3xf32>) -> tensor<3x6x3xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x : tensor<2x12x6xf32>) outs(%e : tensor<2x12x6xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<2x12x6xf32>
      "kitsune.yield"(%r) : (tensor<2x12x6xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 2, 4, 6>} : () -> tensor<2x12x6xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#image, #kernel, #out], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
          ins(%a, %w : tensor<2x12x6xf32>, tensor<3x2x1x1xf32>) outs(%f : tensor<3x6x3xf32>) {
      ^bb0(%i: f32, %k: f32, %o: f32):
        %v = arith.mulf %i, %k : f32
        %s = arith.addf %o, %v : f32
        linalg.yield %s : f32
      } -> tensor<3x6x3xf32>
      "kitsune.yield"(%r) : (tensor<3x6x3xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 3, 2, 3>} : () -> tensor<3x6x3xf32>
    "kitsune.yield"(%b) : (tensor<3x6x3xf32>) -> ()
  }) {sym_name = "strided_p0"} : () -> tensor<3x6x3xf32>
  return %p : tensor<3x6x3xf32>
}

// -----

// A gather by index may ask for any row.
// CHECK-LABEL: func.func @gather(
// CHECK: sym_name = "b", sync = [#kitsune.sync<"none">, #kitsune.sync<"none">, #kitsune.sync<"all">]
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @gather(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %k: tensor<100xindex>, %f: tensor<100x32xf32>) -> tensor<100x32xf32> {
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
      %r = linalg.generic {indexing_maps = [#row, #id], iterator_types = ["parallel", "parallel"]} ins(%k : tensor<100xindex>) outs(%f : tensor<100x32xf32>) {
      ^bb0(%i: index, %o: f32):
        %c = linalg.index 1 : index
        %v = tensor.extract %a[%i, %c] : tensor<64x32xf32>
        linalg.yield %v : f32
      } -> tensor<100x32xf32>
      "kitsune.yield"(%r) : (tensor<100x32xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 25, 32>} : () -> tensor<100x32xf32>
    "kitsune.yield"(%b) : (tensor<100x32xf32>) -> ()
  }) {sym_name = "gather_p0"} : () -> tensor<100x32xf32>
  return %p : tensor<100x32xf32>
}

// -----

// Rows are told through a view that splits columns.
// CHECK-LABEL: func.func @through_a_view(
// CHECK: sym_name = "b", sync = [#kitsune.sync<"tile">, #kitsune.sync<"none">]
#id = affine_map<(m, n) -> (m, n)>
#id3 = affine_map<(m, h, n) -> (m, h, n)>
func.func @through_a_view(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %f: tensor<64x4x8xf32>) -> tensor<64x4x8xf32> {
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
    }) {sym_name = "b", tile = array<i64: 4, 4, 8>} : () -> tensor<64x4x8xf32>
    "kitsune.yield"(%b) : (tensor<64x4x8xf32>) -> ()
  }) {sym_name = "through_a_view_p0"} : () -> tensor<64x4x8xf32>
  return %p : tensor<64x4x8xf32>
}

// -----

// Through a view that splits the rows themselves nothing can be told.
// CHECK-LABEL: func.func @rows_split(
// CHECK: sym_name = "b", sync = [#kitsune.sync<"all">, #kitsune.sync<"none">]
#id = affine_map<(m, n) -> (m, n)>
#id3 = affine_map<(g, m, n) -> (g, m, n)>
func.func @rows_split(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %f: tensor<8x8x32xf32>) -> tensor<8x8x32xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 16, 32>} : () -> tensor<64x32xf32>
    %view = tensor.expand_shape %a [[0, 1], [2]] output_shape [8, 8, 32] : tensor<64x32xf32> into tensor<8x8x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%view : tensor<8x8x32xf32>) outs(%f : tensor<8x8x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<8x8x32xf32>
      "kitsune.yield"(%r) : (tensor<8x8x32xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 2, 8, 32>} : () -> tensor<8x8x32xf32>
    "kitsune.yield"(%b) : (tensor<8x8x32xf32>) -> ()
  }) {sym_name = "rows_split_p0"} : () -> tensor<8x8x32xf32>
  return %p : tensor<8x8x32xf32>
}

// -----

// One tensor read in two ways: its rows by row and by column of a product with itself.
// CHECK-LABEL: func.func @two_ways(
// CHECK: sym_name = "b", sync = [#kitsune.sync<"all">, #kitsune.sync<"none">]
#id = affine_map<(m, n) -> (m, n)>
func.func @two_ways(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %f: tensor<64x64xf32>) -> tensor<64x64xf32> {
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
      %r = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
          iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %a : tensor<64x32xf32>, tensor<64x32xf32>) outs(%f : tensor<64x64xf32>) {
      ^bb0(%i: f32, %k: f32, %o: f32):
        %v = arith.mulf %i, %k : f32
        %s = arith.addf %o, %v : f32
        linalg.yield %s : f32
      } -> tensor<64x64xf32>
      "kitsune.yield"(%r) : (tensor<64x64xf32>) -> ()
    }) {sym_name = "b", tile = array<i64: 16, 16>} : () -> tensor<64x64xf32>
    "kitsune.yield"(%b) : (tensor<64x64xf32>) -> ()
  }) {sym_name = "two_ways_p0"} : () -> tensor<64x64xf32>
  return %p : tensor<64x64xf32>
}

// -----

// Each result of a stage is an edge of its own.
// CHECK-LABEL: func.func @two_results(
// CHECK: sym_name = "b", sync = [#kitsune.sync<"tile">, #kitsune.sync<"tile">, #kitsune.sync<"none">]
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @two_results(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %f: tensor<64xf32>) -> tensor<64x32xf32> {
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
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "two_results_p0"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}
