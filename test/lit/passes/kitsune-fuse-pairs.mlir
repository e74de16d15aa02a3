// RUN: kitsune-opt %s --kitsune-fuse-pairs="target=h200" --split-input-file --verify-diagnostics | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --kitsune-fuse-pairs=target=host | FileCheck %s --check-prefix=HOST

// HOST-NOT: kitsune.pairs

// Vectors of a sample, one from memory and four gathered; their products, rounded; some of these by index, after the first
// vector. All of it is marked as one stage.

// CHECK-LABEL: func.func @interaction
// CHECK: linalg.generic {{.*}} attrs =  {kitsune.pairs = 0 : i64}
// CHECK: tensor.concat dim(1) {{.*}} {kitsune.pairs = 0 : i64}
// CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<64x5x5xf32>) {
// CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<64x5x5xf32>) attrs =  {kitsune.pairs = 0 : i64}
// CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<64x5x5xbf16>) attrs =  {kitsune.pairs = 0 : i64}
// CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<64x10xbf16>) attrs =  {kitsune.pairs = 0 : i64}
// CHECK: tensor.concat dim(1) {{.*}} {kitsune.pairs = 0 : i64} : (tensor<64x32xbf16>, tensor<64x10xbf16>) -> tensor<64x42xbf16>
#v = affine_map<(s, v, e) -> (v)>
#sv = affine_map<(s, v, e) -> (s, v)>
#sve = affine_map<(s, v, e) -> (s, v, e)>
#a = affine_map<(s, i, j, k) -> (s, i, k)>
#b = affine_map<(s, i, j, k) -> (s, j, k)>
#c = affine_map<(s, i, j, k) -> (s, i, j)>
#col = affine_map<(s, c) -> (c)>
#both = affine_map<(s, c) -> (s, c)>
func.func @interaction(%x: tensor<64x32xbf16>, %x3: tensor<64x1x32xbf16>, %table: tensor<4x50x32xbf16>, %number: tensor<4xindex>,
    %index: tensor<64x4xindex>, %left: tensor<10xindex>, %right: tensor<10xindex>) -> tensor<64x42xbf16> {
  %zero = arith.constant 0.0 : f32
  %ve = tensor.empty() : tensor<64x4x32xbf16>
  %g = linalg.generic {indexing_maps = [#v, #sv, #sve], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%number, %index : tensor<4xindex>, tensor<64x4xindex>) outs(%ve : tensor<64x4x32xbf16>) {
  ^bb0(%t: index, %r: index, %o: bf16):
    %e = linalg.index 2 : index
    %f = tensor.extract %table[%t, %r, %e] : tensor<4x50x32xbf16>
    linalg.yield %f : bf16
  } -> tensor<64x4x32xbf16>
  %all = tensor.concat dim(1) %x3, %g : (tensor<64x1x32xbf16>, tensor<64x4x32xbf16>) -> tensor<64x5x32xbf16>
  %pe = tensor.empty() : tensor<64x5x5xf32>
  %s = linalg.generic {indexing_maps = [#sve], iterator_types = ["parallel", "parallel", "parallel"]} outs(%pe : tensor<64x5x5xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<64x5x5xf32>
  %p = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%all, %all : tensor<64x5x32xbf16>, tensor<64x5x32xbf16>) outs(%s : tensor<64x5x5xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %h = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %h : f32
    %n = arith.addf %o, %m : f32
    linalg.yield %n : f32
  } -> tensor<64x5x5xf32>
  %re = tensor.empty() : tensor<64x5x5xbf16>
  %r = linalg.generic {indexing_maps = [#sve, #sve], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%p : tensor<64x5x5xf32>) outs(%re : tensor<64x5x5xbf16>) {
  ^bb0(%i: f32, %o: bf16):
    %t = arith.truncf %i : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<64x5x5xbf16>
  %ke = tensor.empty() : tensor<64x10xbf16>
  %k = linalg.generic {indexing_maps = [#col, #col, #both], iterator_types = ["parallel", "parallel"]}
      ins(%left, %right : tensor<10xindex>, tensor<10xindex>) outs(%ke : tensor<64x10xbf16>) {
  ^bb0(%i: index, %j: index, %o: bf16):
    %q = linalg.index 0 : index
    %e = tensor.extract %r[%q, %i, %j] : tensor<64x5x5xbf16>
    linalg.yield %e : bf16
  } -> tensor<64x10xbf16>
  %z = tensor.concat dim(1) %x, %k : (tensor<64x32xbf16>, tensor<64x10xbf16>) -> tensor<64x42xbf16>
  return %z : tensor<64x42xbf16>
}

// -----

// Products picked from another sample are no row-local work.

// CHECK-LABEL: func.func @elsewhere
// CHECK-NOT: kitsune.pairs
#v = affine_map<(s, v, e) -> (v)>
#sv = affine_map<(s, v, e) -> (s, v)>
#sve = affine_map<(s, v, e) -> (s, v, e)>
#a = affine_map<(s, i, j, k) -> (s, i, k)>
#b = affine_map<(s, i, j, k) -> (s, j, k)>
#c = affine_map<(s, i, j, k) -> (s, i, j)>
#col = affine_map<(s, c) -> (c)>
#both = affine_map<(s, c) -> (s, c)>
func.func @elsewhere(%x: tensor<64x32xbf16>, %x3: tensor<64x1x32xbf16>, %table: tensor<4x50x32xbf16>, %number: tensor<4xindex>,
    %index: tensor<64x4xindex>, %left: tensor<10xindex>, %right: tensor<10xindex>) -> tensor<64x42xbf16> {
  %zero = arith.constant 0.0 : f32
  %ve = tensor.empty() : tensor<64x4x32xbf16>
  %g = linalg.generic {indexing_maps = [#v, #sv, #sve], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%number, %index : tensor<4xindex>, tensor<64x4xindex>) outs(%ve : tensor<64x4x32xbf16>) {
  ^bb0(%t: index, %r: index, %o: bf16):
    %e = linalg.index 2 : index
    %f = tensor.extract %table[%t, %r, %e] : tensor<4x50x32xbf16>
    linalg.yield %f : bf16
  } -> tensor<64x4x32xbf16>
  %all = tensor.concat dim(1) %x3, %g : (tensor<64x1x32xbf16>, tensor<64x4x32xbf16>) -> tensor<64x5x32xbf16>
  %pe = tensor.empty() : tensor<64x5x5xf32>
  %s = linalg.generic {indexing_maps = [#sve], iterator_types = ["parallel", "parallel", "parallel"]} outs(%pe : tensor<64x5x5xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<64x5x5xf32>
  %p = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%all, %all : tensor<64x5x32xbf16>, tensor<64x5x32xbf16>) outs(%s : tensor<64x5x5xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %h = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %h : f32
    %n = arith.addf %o, %m : f32
    linalg.yield %n : f32
  } -> tensor<64x5x5xf32>
  %re = tensor.empty() : tensor<64x5x5xbf16>
  %r = linalg.generic {indexing_maps = [#sve, #sve], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%p : tensor<64x5x5xf32>) outs(%re : tensor<64x5x5xbf16>) {
  ^bb0(%i: f32, %o: bf16):
    %t = arith.truncf %i : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<64x5x5xbf16>
  %ke = tensor.empty() : tensor<64x10xbf16>
  %k = linalg.generic {indexing_maps = [#col, #col, #both], iterator_types = ["parallel", "parallel"]}
      ins(%left, %right : tensor<10xindex>, tensor<10xindex>) outs(%ke : tensor<64x10xbf16>) {
  ^bb0(%i: index, %j: index, %o: bf16):
    %q = linalg.index 0 : index
    %e = tensor.extract %r[%i, %i, %j] : tensor<64x5x5xbf16>
    linalg.yield %e : bf16
  } -> tensor<64x10xbf16>
  %z = tensor.concat dim(1) %x, %k : (tensor<64x32xbf16>, tensor<64x10xbf16>) -> tensor<64x42xbf16>
  return %z : tensor<64x42xbf16>
}

// -----

// Something else needs the products.

// CHECK-LABEL: func.func @used
// CHECK-NOT: kitsune.pairs
#v = affine_map<(s, v, e) -> (v)>
#sv = affine_map<(s, v, e) -> (s, v)>
#sve = affine_map<(s, v, e) -> (s, v, e)>
#a = affine_map<(s, i, j, k) -> (s, i, k)>
#b = affine_map<(s, i, j, k) -> (s, j, k)>
#c = affine_map<(s, i, j, k) -> (s, i, j)>
#col = affine_map<(s, c) -> (c)>
#both = affine_map<(s, c) -> (s, c)>
func.func @used(%x: tensor<64x32xbf16>, %x3: tensor<64x1x32xbf16>, %table: tensor<4x50x32xbf16>, %number: tensor<4xindex>,
    %index: tensor<64x4xindex>, %left: tensor<10xindex>, %right: tensor<10xindex>) -> (tensor<64x42xbf16>, tensor<64x5x5xbf16>) {
  %zero = arith.constant 0.0 : f32
  %ve = tensor.empty() : tensor<64x4x32xbf16>
  %g = linalg.generic {indexing_maps = [#v, #sv, #sve], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%number, %index : tensor<4xindex>, tensor<64x4xindex>) outs(%ve : tensor<64x4x32xbf16>) {
  ^bb0(%t: index, %r: index, %o: bf16):
    %e = linalg.index 2 : index
    %f = tensor.extract %table[%t, %r, %e] : tensor<4x50x32xbf16>
    linalg.yield %f : bf16
  } -> tensor<64x4x32xbf16>
  %all = tensor.concat dim(1) %x3, %g : (tensor<64x1x32xbf16>, tensor<64x4x32xbf16>) -> tensor<64x5x32xbf16>
  %pe = tensor.empty() : tensor<64x5x5xf32>
  %s = linalg.generic {indexing_maps = [#sve], iterator_types = ["parallel", "parallel", "parallel"]} outs(%pe : tensor<64x5x5xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<64x5x5xf32>
  %p = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%all, %all : tensor<64x5x32xbf16>, tensor<64x5x32xbf16>) outs(%s : tensor<64x5x5xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %h = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %h : f32
    %n = arith.addf %o, %m : f32
    linalg.yield %n : f32
  } -> tensor<64x5x5xf32>
  %re = tensor.empty() : tensor<64x5x5xbf16>
  %r = linalg.generic {indexing_maps = [#sve, #sve], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%p : tensor<64x5x5xf32>) outs(%re : tensor<64x5x5xbf16>) {
  ^bb0(%i: f32, %o: bf16):
    %t = arith.truncf %i : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<64x5x5xbf16>
  %ke = tensor.empty() : tensor<64x10xbf16>
  %k = linalg.generic {indexing_maps = [#col, #col, #both], iterator_types = ["parallel", "parallel"]}
      ins(%left, %right : tensor<10xindex>, tensor<10xindex>) outs(%ke : tensor<64x10xbf16>) {
  ^bb0(%i: index, %j: index, %o: bf16):
    %q = linalg.index 0 : index
    %e = tensor.extract %r[%q, %i, %j] : tensor<64x5x5xbf16>
    linalg.yield %e : bf16
  } -> tensor<64x10xbf16>
  // expected-remark@+1 {{products of pairs stay apart: something else uses what 'linalg.generic' makes}}
  %z = tensor.concat dim(1) %x, %k : (tensor<64x32xbf16>, tensor<64x10xbf16>) -> tensor<64x42xbf16>
  return %z, %r : tensor<64x42xbf16>, tensor<64x5x5xbf16>
}
