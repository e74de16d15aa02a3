// Engines and tile sizes, one small stage each. (kitsune-form-stages makes a stage of each function's one op.)
// RUN: kitsune-opt %s --split-input-file --target h200 --kitsune-form-stages --kitsune-partition-streams --remarks 2>%t | FileCheck %s
// RUN: FileCheck %s --check-prefix=WHY < %t
// WHY: remark: 'kitsune.stage' op engine mma, tiles of 128x256 over 4096x2048
// WHY: remark: 'kitsune.stage' op engine generic, tiles of everything over nothing parallel

// A product that the tensor cores can do: 128 rows, and the widest columns that give each multiprocessor a tile.
// CHECK-LABEL: func.func @product(
// CHECK: }) {engine = "mma", groups = 2 : i64, sym_name = "product_0", tile = array<i64: 128, 256>}
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
func.func @product(%x: tensor<4096x512xbf16>, %w: tensor<2048x512xbf16>, %z: tensor<4096x2048xf32>) -> tensor<4096x2048xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<4096x512xbf16>, tensor<2048x512xbf16>) outs(%z : tensor<4096x2048xf32>) {
  ^bb0(%a: bf16, %b: bf16, %c: f32):
    %af = arith.extf %a : bf16 to f32
    %bf = arith.extf %b : bf16 to f32
    %m = arith.mulf %af, %bf : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x2048xf32>
  return %p : tensor<4096x2048xf32>
}

// -----

// A small product takes narrow tiles, to use more multiprocessors. Tiles need not divide the sizes.
// CHECK-LABEL: func.func @narrow(
// CHECK: }) {engine = "mma", sym_name = "product_0", tile = array<i64: 64, 32>}
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
func.func @narrow(%x: tensor<300x512xf32>, %w: tensor<200x512xf32>, %z: tensor<300x200xf32>) -> tensor<300x200xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<300x512xf32>, tensor<200x512xf32>) outs(%z : tensor<300x200xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<300x200xf32>
  return %p : tensor<300x200xf32>
}

// -----

// Batches are tiled one by one.
// CHECK-LABEL: func.func @batches(
// CHECK: }) {engine = "mma", sym_name = "product_0", tile = array<i64: 1, 128, 112>}
#x = affine_map<(b, m, n, k) -> (b, m, k)>
#w = affine_map<(b, m, n, k) -> (b, n, k)>
#o = affine_map<(b, m, n, k) -> (b, m, n)>
func.func @batches(%x: tensor<12x256x64xf32>, %w: tensor<12x512x64xf32>, %z: tensor<12x256x512xf32>) -> tensor<12x256x512xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<12x256x64xf32>, tensor<12x512x64xf32>) outs(%z : tensor<12x256x512xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<12x256x512xf32>
  return %p : tensor<12x256x512xf32>
}

// -----

// Element-wise work alone in its program: a vector for each of 256 threads.
// CHECK-LABEL: func.func @map(
// CHECK: }) {engine = "simt", sym_name = "map_0", tile = array<i64: 1, 1024>}
#id = affine_map<(m, n) -> (m, n)>
func.func @map(%x: tensor<1000x4096xf32>, %e: tensor<1000x4096xf32>) -> tensor<1000x4096xf32> {
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<1000x4096xf32>) outs(%e : tensor<1000x4096xf32>) {
  ^bb0(%a: f32, %c: f32):
    %m = math.tanh %a : f32
    linalg.yield %m : f32
  } -> tensor<1000x4096xf32>
  return %r : tensor<1000x4096xf32>
}

// -----

// A reduction of rows: as many whole rows.
// CHECK-LABEL: func.func @rows(
// CHECK: }) {engine = "simt", sym_name = "reduce_0", tile = array<i64: 16>}
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @rows(%x: tensor<5000x512xf32>, %e: tensor<5000xf32>) -> tensor<5000xf32> {
  %r = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<5000x512xf32>) outs(%e : tensor<5000xf32>) {
  ^bb0(%a: f32, %c: f32):
    %m = arith.maximumf %a, %c : f32
    linalg.yield %m : f32
  } -> tensor<5000xf32>
  return %r : tensor<5000xf32>
}

// -----

// Nothing is parallel in a reduction to one number: one tile.
// CHECK-LABEL: func.func @scalar(
// CHECK: }) {engine = "simt", sym_name = "reduce_0", tile = array<i64>}
#id = affine_map<(m, n) -> (m, n)>
#none = affine_map<(m, n) -> ()>
func.func @scalar(%x: tensor<50x512xf32>, %e: tensor<f32>) -> tensor<f32> {
  %r = linalg.generic {indexing_maps = [#id, #none], iterator_types = ["reduction", "reduction"]} ins(%x : tensor<50x512xf32>) outs(%e : tensor<f32>) {
  ^bb0(%a: f32, %c: f32):
    %m = arith.maximumf %a, %c : f32
    linalg.yield %m : f32
  } -> tensor<f32>
  return %r : tensor<f32>
}

// -----

// A convolution is no product of plain loops: the generic engine takes it, image by image and channel by channel.
// CHECK-LABEL: func.func @convolution(
// CHECK: }) {engine = "generic", sym_name = "product_0", tile = array<i64: 1, 1, 28, 28>}
#x = affine_map<(b, o, i, j, c, u, v) -> (b, c, i + u, j + v)>
#w = affine_map<(b, o, i, j, c, u, v) -> (o, c, u, v)>
#o = affine_map<(b, o, i, j, c, u, v) -> (b, o, i, j)>
func.func @convolution(%x: tensor<8x64x30x30xf32>, %w: tensor<64x64x3x3xf32>, %z: tensor<8x64x28x28xf32>) -> tensor<8x64x28x28xf32> {
  %r = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
      ins(%x, %w : tensor<8x64x30x30xf32>, tensor<64x64x3x3xf32>) outs(%z : tensor<8x64x28x28xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<8x64x28x28xf32>
  return %r : tensor<8x64x28x28xf32>
}

// -----

// Rows that are sorted are tiles: as many as a block's threads hold.
// CHECK-LABEL: func.func @sort(
// CHECK: }) {engine = "sort", sym_name = "sort_0", tile = array<i64: 8>}
func.func @sort(%x: tensor<64x100xf32>) -> tensor<64x100xf32> {
  %r = tm_tensor.sort dimension(1) outs(%x : tensor<64x100xf32>) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.cmpf olt, %a, %b : f32
    tm_tensor.yield %c : i1
  } -> tensor<64x100xf32>
  return %r : tensor<64x100xf32>
}

// -----

// Rows that no block holds are sorted by all blocks together.
// CHECK-LABEL: func.func @sort_of_long_rows(
// CHECK: }) {engine = "radix_sort", sym_name = "sort_0", tile = array<i64: 1>}
func.func @sort_of_long_rows(%x: tensor<64x10000xf32>) -> tensor<64x10000xf32> {
  %r = tm_tensor.sort dimension(1) outs(%x : tensor<64x10000xf32>) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.cmpf olt, %a, %b : f32
    tm_tensor.yield %c : i1
  } -> tensor<64x10000xf32>
  return %r : tensor<64x10000xf32>
}

// -----

// Rows and columns that are scanned are tiles, neighbours in memory together.
// CHECK-LABEL: func.func @scan(
// CHECK: }) {engine = "scan", sym_name = "scan_0", tile = array<i64: 1, 32>}
func.func @scan(%x: tensor<64x100x96xf32>, %y: tensor<64x100x96xf32>, %z: tensor<64x96xf32>) -> tensor<64x100x96xf32> {
  %r:2 = tm_tensor.scan dimension(1) inclusive(true) ins(%x : tensor<64x100x96xf32>) outs(%y, %z : tensor<64x100x96xf32>, tensor<64x96xf32>) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.addf %a, %b : f32
    tm_tensor.yield %c : f32
  } -> tensor<64x100x96xf32>, tensor<64x96xf32>
  return %r#0 : tensor<64x100x96xf32>
}

// -----

// One that leaves the element itself out is not what the engine does.
// CHECK-LABEL: func.func @exclusive(
// CHECK: }) {engine = "generic", sym_name = "scan_0"
func.func @exclusive(%x: tensor<64x100xf32>, %y: tensor<64x100xf32>, %z: tensor<64xf32>) -> tensor<64x100xf32> {
  %r:2 = tm_tensor.scan dimension(1) inclusive(false) ins(%x : tensor<64x100xf32>) outs(%y, %z : tensor<64x100xf32>, tensor<64xf32>) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.addf %a, %b : f32
    tm_tensor.yield %c : f32
  } -> tensor<64x100xf32>, tensor<64xf32>
  return %r#0 : tensor<64x100xf32>
}

// -----

// What nothing is known of is one tile of the generic engine.
// CHECK-LABEL: func.func @topk(
// CHECK: }) {engine = "generic", sym_name = "topk_0", tile = array<i64>}
func.func @topk(%x: tensor<64x100xf32>, %v: tensor<64x3xf32>, %i: tensor<64x3xi32>) -> tensor<64x3xf32> {
  %r:2 = tm_tensor.topk dimension(1) ins(%x : tensor<64x100xf32>) outs(%v, %i : tensor<64x3xf32>, tensor<64x3xi32>) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.cmpf ogt, %a, %b : f32
    tm_tensor.yield %c : i1
  } -> tensor<64x3xf32>, tensor<64x3xi32>
  return %r#0 : tensor<64x3xf32>
}
