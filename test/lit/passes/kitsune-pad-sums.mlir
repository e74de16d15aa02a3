// RUN: kitsune-opt %s --kitsune-pad-sums="target=h200" --split-input-file | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --kitsune-pad-sums=target=host | FileCheck %s --check-prefix=HOST

// The host reads rows at any address.
// HOST-NOT: x104x

// Joined rows of 99 elements begin at odd addresses: rows and weight get zeros up to 104, a multiple of 16 bytes.

// CHECK-LABEL: func.func @joined
// CHECK: %[[W:.*]] = tensor.concat dim(1) %arg2, %{{.*}} : (tensor<300x99xbf16>, tensor<300x5xbf16>) -> tensor<300x104xbf16>
// CHECK: %[[X:.*]] = tensor.concat dim(1) %arg0, %arg1, %{{.*}} -> tensor<512x104xbf16>
// CHECK: linalg.generic {{.*}} ins(%[[X]], %[[W]] : tensor<512x104xbf16>, tensor<300x104xbf16>)
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @joined(%a: tensor<512x64xbf16>, %b: tensor<512x35xbf16>, %weight: tensor<300x99xbf16>, %start: tensor<512x300xf32>) -> tensor<512x300xf32> {
  %x = tensor.concat dim(1) %a, %b : (tensor<512x64xbf16>, tensor<512x35xbf16>) -> tensor<512x99xbf16>
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<512x99xbf16>, tensor<300x99xbf16>) outs(%start : tensor<512x300xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<512x300xf32>
  return %p : tensor<512x300xf32>
}

// -----

// Rows that are an argument stay as they are (a copy of them would cost more than it saves), and so do few rows.

// CHECK-LABEL: func.func @argument
// CHECK-NOT: tensor.concat
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @argument(%x: tensor<512x99xbf16>, %weight: tensor<300x99xbf16>, %start: tensor<512x300xf32>) -> tensor<512x300xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<512x99xbf16>, tensor<300x99xbf16>) outs(%start : tensor<512x300xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<512x300xf32>
  return %p : tensor<512x300xf32>
}

// CHECK-LABEL: func.func @few
// CHECK: tensor.concat
// CHECK-NOT: tensor.concat
func.func @few(%a: tensor<8x64xbf16>, %b: tensor<8x35xbf16>, %weight: tensor<300x99xbf16>, %start: tensor<8x300xf32>) -> tensor<8x300xf32> {
  %x = tensor.concat dim(1) %a, %b : (tensor<8x64xbf16>, tensor<8x35xbf16>) -> tensor<8x99xbf16>
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<8x99xbf16>, tensor<300x99xbf16>) outs(%start : tensor<8x300xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<8x300xf32>
  return %p : tensor<8x300xf32>
}

// A narrow layer becomes part of a chain, which reads joined rows where they lie.

// CHECK-LABEL: func.func @narrow
// CHECK: tensor.concat
// CHECK-NOT: tensor.concat
func.func @narrow(%a: tensor<512x64xbf16>, %b: tensor<512x35xbf16>, %weight: tensor<128x99xbf16>, %start: tensor<512x128xf32>) -> tensor<512x128xf32> {
  %x = tensor.concat dim(1) %a, %b : (tensor<512x64xbf16>, tensor<512x35xbf16>) -> tensor<512x99xbf16>
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<512x99xbf16>, tensor<128x99xbf16>) outs(%start : tensor<512x128xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<512x128xf32>
  return %p : tensor<512x128xf32>
}

// -----

// A weight of the model is taken with zeros at the end of its rows; one that is read twice is not.

// CHECK-LABEL: func.func @placed
// CHECK-SAME: %arg2: tensor<300x104xbf16> {kitsune.kind = "parameter", kitsune.padded_shape = array<i64: 300, 104>}
// CHECK: %[[X:.*]] = tensor.concat dim(1) %arg0, %arg1, %{{.*}} -> tensor<512x104xbf16>
// CHECK: linalg.generic {{.*}} ins(%[[X]], %arg2 : tensor<512x104xbf16>, tensor<300x104xbf16>)
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @placed(%a: tensor<512x64xbf16>, %b: tensor<512x35xbf16>, %weight: tensor<300x99xbf16> {kitsune.kind = "parameter"}, %start: tensor<512x300xf32>) -> tensor<512x300xf32> {
  %x = tensor.concat dim(1) %a, %b : (tensor<512x64xbf16>, tensor<512x35xbf16>) -> tensor<512x99xbf16>
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<512x99xbf16>, tensor<300x99xbf16>) outs(%start : tensor<512x300xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<512x300xf32>
  return %p : tensor<512x300xf32>
}

// CHECK-LABEL: func.func @shared
// CHECK-SAME: %arg2: tensor<300x99xbf16> {kitsune.kind = "parameter"}
// CHECK: tensor.concat dim(1) %arg2
func.func @shared(%a: tensor<512x64xbf16>, %b: tensor<512x35xbf16>, %weight: tensor<300x99xbf16> {kitsune.kind = "parameter"}, %start: tensor<512x300xf32>) -> (tensor<512x300xf32>, tensor<300x99xbf16>) {
  %x = tensor.concat dim(1) %a, %b : (tensor<512x64xbf16>, tensor<512x35xbf16>) -> tensor<512x99xbf16>
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<512x99xbf16>, tensor<300x99xbf16>) outs(%start : tensor<512x300xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<512x300xf32>
  return %p, %weight : tensor<512x300xf32>, tensor<300x99xbf16>
}

// -----

// A large product: rows that are an input are copied, a weight is taken with wider rows; the sum is as long as before. Whoever
// else reads the weight reads the same part of it.

// CHECK-LABEL: func.func @large
// CHECK-SAME: %arg1: tensor<2048x1680xf32> {kitsune.kind = "parameter", kitsune.name = "w", kitsune.padded_shape = array<i64: 2048, 1680>}
// CHECK-DAG: %[[WIDE:.*]] = tensor.concat dim(1) %arg0, %{{.*}} : (tensor<4096x1677xf32>, tensor<4096x3xf32>) -> tensor<4096x1680xf32>
// CHECK-DAG: %[[W:.*]] = tensor.extract_slice %arg1[0, 0] [2048, 1677] [1, 1]
// CHECK-DAG: %[[X:.*]] = tensor.extract_slice %[[WIDE]][0, 0] [4096, 1677] [1, 1]
// CHECK: linalg.generic {{.*}} ins(%[[X]], %[[W]] : tensor<4096x1677xf32>, tensor<2048x1677xf32>)
// CHECK: return %{{.*}}, %[[W]]
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @large(%x: tensor<4096x1677xf32> {kitsune.kind = "input", kitsune.name = "x"}, %weight: tensor<2048x1677xf32> {kitsune.kind = "parameter", kitsune.name = "w"}, %start: tensor<4096x2048xf32> {kitsune.kind = "input", kitsune.name = "s"}) -> (tensor<4096x2048xf32>, tensor<2048x1677xf32>) {
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<4096x1677xf32>, tensor<2048x1677xf32>) outs(%start : tensor<4096x2048xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.mulf %i, %j : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x2048xf32>
  return %p, %weight : tensor<4096x2048xf32>, tensor<2048x1677xf32>
}

// -----

// The weight alone is odd: it is taken with wider rows though the product is small.

// CHECK-LABEL: func.func @weight_alone
// CHECK: tensor.extract_slice %arg1[0, 0] [384, 196] [1, 1]
// CHECK-NOT: tensor.concat
#x = affine_map<(m, n, k) -> (k, m)>
#w = affine_map<(m, n, k) -> (n, k)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @weight_alone(%x: tensor<196x96xbf16> {kitsune.kind = "input", kitsune.name = "x"}, %weight: tensor<384x196xbf16> {kitsune.kind = "parameter", kitsune.name = "w"}, %start: tensor<96x384xf32> {kitsune.kind = "input", kitsune.name = "s"}) -> tensor<96x384xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<196x96xbf16>, tensor<384x196xbf16>) outs(%start : tensor<96x384xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<96x384xf32>
  return %p : tensor<96x384xf32>
}

// -----

// Rows along the product's own columns: a copy has them along the sum.

// CHECK-LABEL: func.func @columns_last
// CHECK: %[[T:.*]] = linalg.generic {{.*}} ins(%arg1 : tensor<1680x2047xf32>) outs(%{{.*}} : tensor<2047x1680xf32>)
// CHECK: linalg.generic {{.*}}"reduction"]} ins(%arg0, %[[T]] : tensor<4096x1680xf32>, tensor<2047x1680xf32>)
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (k, n)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @columns_last(%x: tensor<4096x1680xf32> {kitsune.kind = "input", kitsune.name = "x"}, %weight: tensor<1680x2047xf32> {kitsune.kind = "parameter", kitsune.name = "w"}, %start: tensor<4096x2047xf32> {kitsune.kind = "input", kitsune.name = "s"}) -> tensor<4096x2047xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<4096x1680xf32>, tensor<1680x2047xf32>) outs(%start : tensor<4096x2047xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.mulf %i, %j : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x2047xf32>
  return %p : tensor<4096x2047xf32>
}

// -----

// The sum is odd, too: the copy has wider rows.

// CHECK-LABEL: func.func @both_odd
// CHECK-DAG: %[[T:.*]] = linalg.generic {{.*}} ins(%arg1 : tensor<1677x2047xf32>) outs(%{{.*}} : tensor<2047x1677xf32>)
// CHECK-DAG: %[[WIDE:.*]] = tensor.concat dim(1) %[[T]], %{{.*}} -> tensor<2047x1680xf32>
// CHECK-DAG: %[[W:.*]] = tensor.extract_slice %[[WIDE]][0, 0] [2047, 1677] [1, 1]
// CHECK: linalg.generic {{.*}}"reduction"]} ins(%{{.*}}, %[[W]] : tensor<4096x1677xf32>, tensor<2047x1677xf32>)
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (k, n)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @both_odd(%x: tensor<4096x1677xf32> {kitsune.kind = "input", kitsune.name = "x"}, %weight: tensor<1677x2047xf32> {kitsune.kind = "parameter", kitsune.name = "w"}, %start: tensor<4096x2047xf32> {kitsune.kind = "input", kitsune.name = "s"}) -> tensor<4096x2047xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<4096x1677xf32>, tensor<1677x2047xf32>) outs(%start : tensor<4096x2047xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.mulf %i, %j : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x2047xf32>
  return %p : tensor<4096x2047xf32>
}

// -----

// A small product is done before its factors are copied.

// CHECK-LABEL: func.func @small_columns_last
// CHECK: linalg.generic {{.*}} ins(%arg0, %arg1 :
// CHECK-NOT: linalg.generic
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (k, n)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @small_columns_last(%x: tensor<128x64xf32> {kitsune.kind = "input", kitsune.name = "x"}, %weight: tensor<64x255xf32> {kitsune.kind = "parameter", kitsune.name = "w"}, %start: tensor<128x255xf32> {kitsune.kind = "input", kitsune.name = "s"}) -> tensor<128x255xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %weight : tensor<128x64xf32>, tensor<64x255xf32>) outs(%start : tensor<128x255xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.mulf %i, %j : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<128x255xf32>
  return %p : tensor<128x255xf32>
}

// -----

// Rows that a chain gathers from a table with odd rows come from a copy with wider ones; of few rows they do not.

// CHECK-LABEL: func.func @gathered
// CHECK: %[[WIDE:.*]] = tensor.concat dim(1) %arg0, %{{.*}} : (tensor<20000x129xbf16>, tensor<20000x7xbf16>) -> tensor<20000x136xbf16>
// CHECK: tensor.extract %[[WIDE]]
// CHECK: tensor.extract %arg3{{.*}} : tensor<500x129xbf16>
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#y = affine_map<(m, n, k) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
#point = affine_map<(m, n) -> (m, n)>
func.func @gathered(%table: tensor<20000x129xbf16>, %edges: tensor<100000xindex>, %weight: tensor<192x129xbf16> {kitsune.kind = "parameter"},
                    %few: tensor<500x129xbf16>, %some: tensor<700xindex>, %start: tensor<100000x192xf32>, %few_start: tensor<700x192xf32>)
    -> (tensor<100000x192xf32>, tensor<700x192xf32>) {
  %e = tensor.empty() : tensor<100000x129xbf16>
  %rows = linalg.generic {indexing_maps = [#row, #point], iterator_types = ["parallel", "parallel"]}
      ins(%edges : tensor<100000xindex>) outs(%e : tensor<100000x129xbf16>) {
  ^bb0(%i: index, %o: bf16):
    %c = linalg.index 1 : index
    %v = tensor.extract %table[%i, %c] : tensor<20000x129xbf16>
    linalg.yield %v : bf16
  } -> tensor<100000x129xbf16>
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%rows, %weight : tensor<100000x129xbf16>, tensor<192x129xbf16>) outs(%start : tensor<100000x192xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<100000x192xf32>
  %e2 = tensor.empty() : tensor<700x129xbf16>
  %rows2 = linalg.generic {indexing_maps = [#row, #point], iterator_types = ["parallel", "parallel"]}
      ins(%some : tensor<700xindex>) outs(%e2 : tensor<700x129xbf16>) {
  ^bb0(%i: index, %o: bf16):
    %c = linalg.index 1 : index
    %v = tensor.extract %few[%i, %c] : tensor<500x129xbf16>
    linalg.yield %v : bf16
  } -> tensor<700x129xbf16>
  %p2 = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%rows2, %weight : tensor<700x129xbf16>, tensor<192x129xbf16>) outs(%few_start : tensor<700x192xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<700x192xf32>
  return %p, %p2 : tensor<100000x192xf32>, tensor<700x192xf32>
}

// -----

// Tensor cores read f32 along the sum: a factor of a large product with rows across it is copied with rows along it, or both are.
// Not of a small product, not of bf16, and not where the copies take longer than threads that copy (a gradient of a weight).

#x = affine_map<(m, n, k) -> (m, k)>
#u = affine_map<(m, n, k) -> (k, m)>
#v = affine_map<(m, n, k) -> (k, n)>
#w = affine_map<(m, n, k) -> (n, k)>
#y = affine_map<(m, n, k) -> (m, n)>
// CHECK-LABEL: func.func @across
// CHECK: %[[TURNED:.*]] = linalg.generic {{.*}} ins(%arg1 : tensor<512x1024xf32>) outs({{.*}} : tensor<1024x512xf32>)
// CHECK: linalg.generic {{.*}} ins(%arg0, %[[TURNED]] : tensor<4096x512xf32>, tensor<1024x512xf32>)
func.func @across(%a: tensor<4096x512xf32>, %b: tensor<512x1024xf32>, %start: tensor<4096x1024xf32>) -> tensor<4096x1024xf32> {
  %p = linalg.generic {indexing_maps = [#x, #v, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<4096x512xf32>, tensor<512x1024xf32>) outs(%start : tensor<4096x1024xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.mulf %i, %j : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x1024xf32>
  return %p : tensor<4096x1024xf32>
}

// CHECK-LABEL: func.func @both_across
// CHECK: %[[A:.*]] = linalg.generic {{.*}} ins(%arg0 : tensor<1024x2000xf32>) outs({{.*}} : tensor<2000x1024xf32>)
// CHECK: %[[B:.*]] = linalg.generic {{.*}} ins(%arg1 : tensor<1024x2000xf32>) outs({{.*}} : tensor<2000x1024xf32>)
// CHECK: linalg.generic {{.*}} ins(%[[A]], %[[B]] : tensor<2000x1024xf32>, tensor<2000x1024xf32>)
func.func @both_across(%a: tensor<1024x2000xf32>, %b: tensor<1024x2000xf32>, %start: tensor<2000x2000xf32>) -> tensor<2000x2000xf32> {
  %p = linalg.generic {indexing_maps = [#u, #v, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<1024x2000xf32>, tensor<1024x2000xf32>) outs(%start : tensor<2000x2000xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.mulf %i, %j : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<2000x2000xf32>
  return %p : tensor<2000x2000xf32>
}

// CHECK-LABEL: func.func @along
// CHECK-NEXT: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<4096x512xf32>, tensor<1024x512xf32>)
func.func @along(%a: tensor<4096x512xf32>, %b: tensor<1024x512xf32>, %start: tensor<4096x1024xf32>) -> tensor<4096x1024xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<4096x512xf32>, tensor<1024x512xf32>) outs(%start : tensor<4096x1024xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.mulf %i, %j : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x1024xf32>
  return %p : tensor<4096x1024xf32>
}

// CHECK-LABEL: func.func @small
// CHECK-NEXT: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<256x256xf32>, tensor<256x256xf32>)
func.func @small(%a: tensor<256x256xf32>, %b: tensor<256x256xf32>, %start: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %p = linalg.generic {indexing_maps = [#x, #v, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<256x256xf32>, tensor<256x256xf32>) outs(%start : tensor<256x256xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.mulf %i, %j : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<256x256xf32>
  return %p : tensor<256x256xf32>
}

// CHECK-LABEL: func.func @half
// CHECK-NEXT: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<4096x512xbf16>, tensor<512x1024xbf16>)
func.func @half(%a: tensor<4096x512xbf16>, %b: tensor<512x1024xbf16>, %start: tensor<4096x1024xf32>) -> tensor<4096x1024xf32> {
  %p = linalg.generic {indexing_maps = [#x, #v, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<4096x512xbf16>, tensor<512x1024xbf16>) outs(%start : tensor<4096x1024xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x1024xf32>
  return %p : tensor<4096x1024xf32>
}

// CHECK-LABEL: func.func @gradient_of_a_weight
// CHECK-NEXT: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<262144x256xf32>, tensor<262144x256xf32>)
func.func @gradient_of_a_weight(%a: tensor<262144x256xf32>, %b: tensor<262144x256xf32>, %start: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %p = linalg.generic {indexing_maps = [#u, #v, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<262144x256xf32>, tensor<262144x256xf32>) outs(%start : tensor<256x256xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.mulf %i, %j : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<256x256xf32>
  return %p : tensor<256x256xf32>
}

// -----

// Both factors of a weight's gradient run across the sum, so it is no layer of a chain, however few columns it has: where rows
// are odd and the sum is long, both are copied with rows along it.

// CHECK-LABEL: func.func @odd_gradient
// CHECK-COUNT-2: -> tensor<129x65536xbf16>
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}} : tensor<129x65536xbf16>, tensor<129x65536xbf16>)
#u = affine_map<(m, n, k) -> (k, m)>
#v = affine_map<(m, n, k) -> (k, n)>
#y = affine_map<(m, n, k) -> (m, n)>
func.func @odd_gradient(%a: tensor<65536x129xbf16>, %b: tensor<65536x129xbf16>, %start: tensor<129x129xf32>) -> tensor<129x129xf32> {
  %p = linalg.generic {indexing_maps = [#u, #v, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<65536x129xbf16>, tensor<65536x129xbf16>) outs(%start : tensor<129x129xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<129x129xf32>
  return %p : tensor<129x129xf32>
}

// CHECK-LABEL: func.func @short_gradient
// CHECK-NEXT: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<1024x129xbf16>, tensor<1024x129xbf16>)
func.func @short_gradient(%a: tensor<1024x129xbf16>, %b: tensor<1024x129xbf16>, %start: tensor<129x129xf32>) -> tensor<129x129xf32> {
  %p = linalg.generic {indexing_maps = [#u, #v, #y], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<1024x129xbf16>, tensor<1024x129xbf16>) outs(%start : tensor<129x129xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %f = arith.extf %i : bf16 to f32
    %g = arith.extf %j : bf16 to f32
    %m = arith.mulf %f, %g : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<129x129xf32>
  return %p : tensor<129x129xf32>
}
