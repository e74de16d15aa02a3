// Many edges read few nodes: their rows are multiplied once, before they are gathered; the edges' own part stays.
// RUN: kitsune-opt %s --kitsune-hoist-gathers=target=h200 --split-input-file --verify-diagnostics | FileCheck %s
// RUN: kitsune-opt %s --kitsune-hoist-gathers=target=host --split-input-file | FileCheck %s --check-prefix=HOST

// HOST-NOT: tensor.extract_slice
// CHECK-LABEL: func.func @edges
// CHECK: %[[OWN:.*]] = tensor.extract_slice %arg2[0, 0] [512, 512]
// CHECK: ins(%arg0, %[[OWN]] :
// CHECK: %[[THEIRS:.*]] = tensor.extract_slice %arg2[0, 512] [512, 512]
// CHECK: %[[SUMS:.*]] = linalg.generic {{.*}} ins(%arg1, %[[THEIRS]] :
// CHECK: %[[TABLE:.*]] = linalg.generic {{.*}} ins(%[[SUMS]] : tensor<64x512xf32>)
// CHECK: arith.truncf
// CHECK: linalg.generic {{.*}} ins(%arg3, %{{.*}} : tensor<20000xi64>, tensor<20000x512xf32>)
// CHECK: tensor.extract %[[TABLE]]
// CHECK: arith.extf
// CHECK: arith.addf
// CHECK-NOT: tensor.concat
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @edges(%e: tensor<20000x512xbf16>, %v: tensor<64x512xbf16>, %w: tensor<512x1024xbf16>, %i: tensor<20000xi64>, %z: tensor<20000x512xf32>) -> tensor<20000x512xf32> {
  %b = tensor.empty() : tensor<20000x512xbf16>
  %g = linalg.generic {indexing_maps = [#row, #id], iterator_types = ["parallel", "parallel"]} ins(%i : tensor<20000xi64>) outs(%b : tensor<20000x512xbf16>) {
  ^bb0(%a: i64, %c: bf16):
    %r = arith.index_cast %a : i64 to index
    %n = linalg.index 1 : index
    %t = tensor.extract %v[%r, %n] : tensor<64x512xbf16>
    linalg.yield %t : bf16
  } -> tensor<20000x512xbf16>
  %j = tensor.concat dim(1) %e, %g : (tensor<20000x512xbf16>, tensor<20000x512xbf16>) -> tensor<20000x1024xbf16>
  // expected-remark@+1 {{1 of 2 parts of its rows are multiplied before they are gathered}}
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%j, %w : tensor<20000x1024xbf16>, tensor<512x1024xbf16>) outs(%z : tensor<20000x512xf32>) {
  ^bb0(%a: bf16, %c: bf16, %d: f32):
    %a1 = arith.extf %a : bf16 to f32
    %c1 = arith.extf %c : bf16 to f32
    %m = arith.mulf %a1, %c1 : f32
    %s = arith.addf %d, %m : f32
    linalg.yield %s : f32
  } -> tensor<20000x512xf32>
  return %p : tensor<20000x512xf32>
}

// -----

// As many nodes as edges: nothing would be saved.
// CHECK-LABEL: func.func @as_many
// CHECK: tensor.concat
// CHECK-NOT: tensor.extract_slice
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @as_many(%e: tensor<20000x512xbf16>, %v: tensor<20000x512xbf16>, %w: tensor<512x1024xbf16>, %i: tensor<20000xi64>, %z: tensor<20000x512xf32>) -> tensor<20000x512xf32> {
  %b = tensor.empty() : tensor<20000x512xbf16>
  %g = linalg.generic {indexing_maps = [#row, #id], iterator_types = ["parallel", "parallel"]} ins(%i : tensor<20000xi64>) outs(%b : tensor<20000x512xbf16>) {
  ^bb0(%a: i64, %c: bf16):
    %r = arith.index_cast %a : i64 to index
    %n = linalg.index 1 : index
    %t = tensor.extract %v[%r, %n] : tensor<20000x512xbf16>
    linalg.yield %t : bf16
  } -> tensor<20000x512xbf16>
  %j = tensor.concat dim(1) %e, %g : (tensor<20000x512xbf16>, tensor<20000x512xbf16>) -> tensor<20000x1024xbf16>
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%j, %w : tensor<20000x1024xbf16>, tensor<512x1024xbf16>) outs(%z : tensor<20000x512xf32>) {
  ^bb0(%a: bf16, %c: bf16, %d: f32):
    %a1 = arith.extf %a : bf16 to f32
    %c1 = arith.extf %c : bf16 to f32
    %m = arith.mulf %a1, %c1 : f32
    %s = arith.addf %d, %m : f32
    linalg.yield %s : f32
  } -> tensor<20000x512xf32>
  return %p : tensor<20000x512xf32>
}

// -----

// What is gathered depends on the column: no rows, so nothing to multiply before.
// CHECK-LABEL: func.func @elements
// CHECK: tensor.concat
// CHECK-NOT: tensor.extract_slice
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
func.func @elements(%e: tensor<20000x512xbf16>, %v: tensor<64x512xbf16>, %w: tensor<512x1024xbf16>, %i: tensor<20000x512xi64>, %z: tensor<20000x512xf32>) -> tensor<20000x512xf32> {
  %b = tensor.empty() : tensor<20000x512xbf16>
  %g = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%i : tensor<20000x512xi64>) outs(%b : tensor<20000x512xbf16>) {
  ^bb0(%a: i64, %c: bf16):
    %r = arith.index_cast %a : i64 to index
    %n = linalg.index 1 : index
    %t = tensor.extract %v[%r, %n] : tensor<64x512xbf16>
    linalg.yield %t : bf16
  } -> tensor<20000x512xbf16>
  %j = tensor.concat dim(1) %e, %g : (tensor<20000x512xbf16>, tensor<20000x512xbf16>) -> tensor<20000x1024xbf16>
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%j, %w : tensor<20000x1024xbf16>, tensor<512x1024xbf16>) outs(%z : tensor<20000x512xf32>) {
  ^bb0(%a: bf16, %c: bf16, %d: f32):
    %a1 = arith.extf %a : bf16 to f32
    %c1 = arith.extf %c : bf16 to f32
    %m = arith.mulf %a1, %c1 : f32
    %s = arith.addf %d, %m : f32
    linalg.yield %s : f32
  } -> tensor<20000x512xf32>
  return %p : tensor<20000x512xf32>
}

// -----

// Parts that stay, side by side, are joined again.
// CHECK-LABEL: func.func @two_stay
// CHECK: %[[OWN:.*]] = tensor.concat dim(1) %arg0, %arg1 : (tensor<20000x512xbf16>, tensor<20000x64xbf16>) -> tensor<20000x576xbf16>
// CHECK: %[[W:.*]] = tensor.extract_slice %arg3[0, 0] [512, 576]
// CHECK: ins(%[[OWN]], %[[W]] :
// CHECK: tensor.extract_slice %arg3[0, 576] [512, 512]
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @two_stay(%e: tensor<20000x512xbf16>, %f: tensor<20000x64xbf16>, %v: tensor<64x512xbf16>, %w: tensor<512x1088xbf16>, %i: tensor<20000xi64>, %z: tensor<20000x512xf32>) -> tensor<20000x512xf32> {
  %b = tensor.empty() : tensor<20000x512xbf16>
  %g = linalg.generic {indexing_maps = [#row, #id], iterator_types = ["parallel", "parallel"]} ins(%i : tensor<20000xi64>) outs(%b : tensor<20000x512xbf16>) {
  ^bb0(%a: i64, %c: bf16):
    %r = arith.index_cast %a : i64 to index
    %n = linalg.index 1 : index
    %t = tensor.extract %v[%r, %n] : tensor<64x512xbf16>
    linalg.yield %t : bf16
  } -> tensor<20000x512xbf16>
  %j = tensor.concat dim(1) %e, %f, %g : (tensor<20000x512xbf16>, tensor<20000x64xbf16>, tensor<20000x512xbf16>) -> tensor<20000x1088xbf16>
  // expected-remark@+1 {{1 of 3 parts of its rows are multiplied before they are gathered}}
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%j, %w : tensor<20000x1088xbf16>, tensor<512x1088xbf16>) outs(%z : tensor<20000x512xf32>) {
  ^bb0(%a: bf16, %c: bf16, %d: f32):
    %a1 = arith.extf %a : bf16 to f32
    %c1 = arith.extf %c : bf16 to f32
    %m = arith.mulf %a1, %c1 : f32
    %s = arith.addf %d, %m : f32
    linalg.yield %s : f32
  } -> tensor<20000x512xf32>
  return %p : tensor<20000x512xf32>
}
