// RUN: kitsune-opt %s --split-input-file --kitsune-micro-batches='batches=2' | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --kitsune-micro-batches='batches=2' --remarks -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: kitsune-opt %s --split-input-file --kitsune-micro-batches='target=h200' | FileCheck %s --check-prefix=H200
// RUN: kitsune-opt %s --split-input-file --kitsune-micro-batches='target=host' | FileCheck %s --check-prefix=HOST

// The host does all rows at once.
// HOST-NOT: kitsune.micro_batch

// 262,144 rows of 512 16-bit numbers lie in memory until the gradient has read them: half of them at a time are enough for the
// GPU. What reads the sums comes after the last.

// CHECK-LABEL: func.func @gradient
// CHECK: %[[X0:.*]] = tensor.extract_slice %arg0[0, 0] [131072, 512]
// CHECK: %[[R0:.*]] = linalg.generic {{.*}} ins(%[[X0]] {{.*}} attrs = {kitsune.micro_batch = 0 : i64}
// CHECK: %[[S0:.*]] = linalg.generic {{.*}} ins(%[[R0]], %[[X0]] {{.*}} attrs = {kitsune.micro_batch = 0 : i64}
// CHECK: %[[X1:.*]] = tensor.extract_slice %arg0[131072, 0] [131072, 512]
// CHECK: %[[R1:.*]] = linalg.generic {{.*}} ins(%[[X1]] {{.*}} attrs = {kitsune.micro_batch = 1 : i64}
// CHECK: %[[S1:.*]] = linalg.generic {{.*}} ins(%[[R1]], %[[X1]] {{.*}} attrs = {kitsune.micro_batch = 1 : i64}
// CHECK: %[[S:.*]] = linalg.generic {{.*}} ins(%[[S0]], %[[S1]]
// CHECK: linalg.generic {{.*}} ins(%[[S]]
// H200-LABEL: func.func @gradient
// H200: kitsune.micro_batch = 1
// H200-NOT: kitsune.micro_batch = 2
#id = affine_map<(m, n) -> (m, n)>
#mk = affine_map<(m, n, k) -> (k, m)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func @gradient(%x: tensor<262144x512xbf16>) -> tensor<512x512xbf16> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<262144x512xbf16>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<262144x512xbf16>) outs(%e : tensor<262144x512xbf16>) {
  ^bb0(%i: bf16, %o: bf16):
    %t = math.tanh %i : bf16
    linalg.yield %t : bf16
  } -> tensor<262144x512xbf16>
  %f = tensor.empty() : tensor<512x512xf32>
  %z = linalg.fill ins(%zero : f32) outs(%f : tensor<512x512xf32>) -> tensor<512x512xf32>
  %s = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%r, %x : tensor<262144x512xbf16>, tensor<262144x512xbf16>) outs(%z : tensor<512x512xf32>) {
  ^bb0(%i: bf16, %j: bf16, %o: f32):
    %v = arith.extf %i : bf16 to f32
    %w = arith.extf %j : bf16 to f32
    %p = arith.mulf %v, %w : f32
    %t = arith.addf %o, %p : f32
    linalg.yield %t : f32
  } -> tensor<512x512xf32>
  %h = tensor.empty() : tensor<512x512xbf16>
  %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%s : tensor<512x512xf32>) outs(%h : tensor<512x512xbf16>) {
  ^bb0(%i: f32, %o: bf16):
    %t = arith.truncf %i : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<512x512xbf16>
  return %y : tensor<512x512xbf16>
}

// -----

// Rows that are a result stay together.

// CHECK-LABEL: func.func @returned
// CHECK-NOT: kitsune.micro_batch
// REMARK: 'func.return' op takes all rows: 64 rows stay together
#id = affine_map<(m, n) -> (m, n)>
#n = affine_map<(m, n) -> (n)>
func.func @returned(%x: tensor<64x8xf32>) -> (tensor<64x8xf32>, tensor<8xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x8xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x8xf32>) outs(%e : tensor<64x8xf32>) {
  ^bb0(%i: f32, %o: f32):
    %t = math.tanh %i : f32
    linalg.yield %t : f32
  } -> tensor<64x8xf32>
  %f = tensor.empty() : tensor<8xf32>
  %z = linalg.fill ins(%zero : f32) outs(%f : tensor<8xf32>) -> tensor<8xf32>
  %s = linalg.generic {indexing_maps = [#id, #n], iterator_types = ["reduction", "parallel"]} ins(%r : tensor<64x8xf32>) outs(%z : tensor<8xf32>) {
  ^bb0(%i: f32, %o: f32):
    %t = arith.addf %o, %i : f32
    linalg.yield %t : f32
  } -> tensor<8xf32>
  return %r, %s : tensor<64x8xf32>, tensor<8xf32>
}

// -----

// Rows that a sum over all of them is subtracted from are needed before and after it.

// CHECK-LABEL: func.func @read_again
// CHECK-NOT: kitsune.micro_batch
// REMARK: op works on rows with what is summed over all of them: 64 rows stay together
#id = affine_map<(m, n) -> (m, n)>
#n = affine_map<(m, n) -> (n)>
func.func @read_again(%x: tensor<64x8xf32>) -> tensor<8xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x8xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x8xf32>) outs(%e : tensor<64x8xf32>) {
  ^bb0(%i: f32, %o: f32):
    %t = math.tanh %i : f32
    linalg.yield %t : f32
  } -> tensor<64x8xf32>
  %f = tensor.empty() : tensor<8xf32>
  %z = linalg.fill ins(%zero : f32) outs(%f : tensor<8xf32>) -> tensor<8xf32>
  %s = linalg.generic {indexing_maps = [#id, #n], iterator_types = ["reduction", "parallel"]} ins(%r : tensor<64x8xf32>) outs(%z : tensor<8xf32>) {
  ^bb0(%i: f32, %o: f32):
    %t = arith.addf %o, %i : f32
    linalg.yield %t : f32
  } -> tensor<8xf32>
  %c = linalg.generic {indexing_maps = [#id, #n, #id], iterator_types = ["parallel", "parallel"]} ins(%r, %s : tensor<64x8xf32>, tensor<8xf32>) outs(%e : tensor<64x8xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %t = arith.subf %i, %j : f32
    %u = arith.mulf %t, %t : f32
    linalg.yield %u : f32
  } -> tensor<64x8xf32>
  %v = linalg.generic {indexing_maps = [#id, #n], iterator_types = ["reduction", "parallel"]} ins(%c : tensor<64x8xf32>) outs(%z : tensor<8xf32>) {
  ^bb0(%i: f32, %o: f32):
    %t = arith.addf %o, %i : f32
    linalg.yield %t : f32
  } -> tensor<8xf32>
  return %v : tensor<8xf32>
}
