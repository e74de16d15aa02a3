// Rows named by indices are gathered by each operation that reads them, where their table is small beside them.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize | FileCheck %s

// A sum and a map read a row of each edge: each gathers it, and the rows of all edges are not stored.
// CHECK-LABEL: func.func @twice
// CHECK: tensor.extract %arg0
// CHECK: linalg.generic {{.*}}"reduction"
// CHECK: tensor.extract %arg0
// CHECK-NOT: tensor.extract
// CHECK: return
func.func @twice(%table: tensor<100x64xf32>, %index: tensor<1000xi64>, %zero: tensor<1000xf32>) -> (tensor<1000xf32>, tensor<1000x64xf32>) {
  %e = tensor.empty() : tensor<1000x64xf32>
  %rows = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
      ins(%index : tensor<1000xi64>) outs(%e : tensor<1000x64xf32>) {
  ^bb0(%i: i64, %o: f32):
    %a = arith.index_cast %i : i64 to index
    %b = linalg.index 1 : index
    %x = tensor.extract %table[%a, %b] : tensor<100x64xf32>
    linalg.yield %x : f32
  } -> tensor<1000x64xf32>
  %sum = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
      ins(%rows : tensor<1000x64xf32>) outs(%zero : tensor<1000xf32>) {
  ^bb0(%x: f32, %o: f32):
    %s = arith.addf %x, %o : f32
    linalg.yield %s : f32
  } -> tensor<1000xf32>
  %scaled = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
      ins(%rows, %sum : tensor<1000x64xf32>, tensor<1000xf32>) outs(%e : tensor<1000x64xf32>) {
  ^bb0(%x: f32, %s: f32, %o: f32):
    %m = arith.mulf %x, %s : f32
    linalg.yield %m : f32
  } -> tensor<1000x64xf32>
  return %sum, %scaled : tensor<1000xf32>, tensor<1000x64xf32>
}

// -----

// A table that is as large as what is gathered comes from memory: once.
// CHECK-LABEL: func.func @large_table
// CHECK-COUNT-1: tensor.extract
// CHECK-NOT: tensor.extract
// CHECK: return
func.func @large_table(%table: tensor<1000x64xf32>, %index: tensor<1000xi64>, %zero: tensor<1000xf32>) -> (tensor<1000xf32>, tensor<1000x64xf32>) {
  %e = tensor.empty() : tensor<1000x64xf32>
  %rows = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
      ins(%index : tensor<1000xi64>) outs(%e : tensor<1000x64xf32>) {
  ^bb0(%i: i64, %o: f32):
    %a = arith.index_cast %i : i64 to index
    %b = linalg.index 1 : index
    %x = tensor.extract %table[%a, %b] : tensor<1000x64xf32>
    linalg.yield %x : f32
  } -> tensor<1000x64xf32>
  %sum = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
      ins(%rows : tensor<1000x64xf32>) outs(%zero : tensor<1000xf32>) {
  ^bb0(%x: f32, %o: f32):
    %s = arith.addf %x, %o : f32
    linalg.yield %s : f32
  } -> tensor<1000xf32>
  %scaled = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
      ins(%rows, %sum : tensor<1000x64xf32>, tensor<1000xf32>) outs(%e : tensor<1000x64xf32>) {
  ^bb0(%x: f32, %s: f32, %o: f32):
    %m = arith.mulf %x, %s : f32
    linalg.yield %m : f32
  } -> tensor<1000x64xf32>
  return %sum, %scaled : tensor<1000xf32>, tensor<1000x64xf32>
}

// -----

// Single numbers of a table are a sector of memory each, and are gathered once; so are rows that a product takes.
// CHECK-LABEL: func.func @numbers_and_products
// CHECK-COUNT-2: tensor.extract
// CHECK-NOT: tensor.extract
// CHECK: return
func.func @numbers_and_products(%table: tensor<100xf32>, %wide: tensor<100x64xf32>, %index: tensor<1000xi64>, %w: tensor<64x32xf32>, %z: tensor<1000x32xf32>)
    -> (tensor<1000xf32>, tensor<1000xf32>, tensor<1000x32xf32>, tensor<1000x64xf32>) {
  %e = tensor.empty() : tensor<1000xf32>
  %numbers = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
      ins(%index : tensor<1000xi64>) outs(%e : tensor<1000xf32>) {
  ^bb0(%i: i64, %o: f32):
    %a = arith.index_cast %i : i64 to index
    %x = tensor.extract %table[%a] : tensor<100xf32>
    linalg.yield %x : f32
  } -> tensor<1000xf32>
  %one = math.exp %numbers : tensor<1000xf32>
  %two = arith.mulf %numbers, %one : tensor<1000xf32>
  %er = tensor.empty() : tensor<1000x64xf32>
  %rows = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
      ins(%index : tensor<1000xi64>) outs(%er : tensor<1000x64xf32>) {
  ^bb0(%i: i64, %o: f32):
    %a = arith.index_cast %i : i64 to index
    %b = linalg.index 1 : index
    %x = tensor.extract %wide[%a, %b] : tensor<100x64xf32>
    linalg.yield %x : f32
  } -> tensor<1000x64xf32>
  %p = linalg.matmul ins(%rows, %w : tensor<1000x64xf32>, tensor<64x32xf32>) outs(%z : tensor<1000x32xf32>) -> tensor<1000x32xf32>
  %m = arith.mulf %rows, %rows : tensor<1000x64xf32>
  return %one, %two, %p, %m : tensor<1000xf32>, tensor<1000xf32>, tensor<1000x32xf32>, tensor<1000x64xf32>
}
