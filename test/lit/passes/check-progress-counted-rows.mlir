// The count is an i64 that the program is given, of as many rows as there are.
// RUN: kitsune-opt %s --kitsune-check-progress --split-input-file --verify-diagnostics

func.func @f(%x: memref<64x4xf32>, %where: memref<64x1xi64>, %n: memref<i64>, %out: memref<8x4xf32>, %arena: memref<1024xi8>)
    attributes {kitsune.program, kitsune.arguments = 3 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %h = memref.view %arena[%c0][] : memref<1024xi8> to memref<64x4xf32>
  %rows = memref.expand_shape %h [[0, 1], [2]] output_shape [64, 1, 4] : memref<64x4xf32> into memref<64x1x4xf32>
  %s = "kitsune.make_semaphore"() {slots = 4 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c16 = arith.constant 16 : index
    %off = arith.muli %i, %c16 : index
    %xs = memref.subview %x[%off, 0] [16, 4] [1, 1] : memref<64x4xf32> to memref<16x4xf32, strided<[4, 1], offset: ?>>
    %xt = bufferization.to_tensor %xs restrict : memref<16x4xf32, strided<[4, 1], offset: ?>> to tensor<16x4xf32>
    %e = tensor.empty() : tensor<16x4xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%xt : tensor<16x4xf32>) outs(%e : tensor<16x4xf32>) {
    ^bb0(%a: f32, %o: f32):
      %m = arith.negf %a : f32
      linalg.yield %m : f32
    } -> tensor<16x4xf32>
    %hs = memref.subview %h[%off, 0] [16, 4] [1, 1] : memref<64x4xf32> to memref<16x4xf32, strided<[4, 1], offset: ?>>
    bufferization.materialize_in_destination %r in restrict writable %hs : (tensor<16x4xf32>, memref<16x4xf32, strided<[4, 1], offset: ?>>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "rows", grid = array<i64: 4>, engine = "host"} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %first = arith.constant 0 : index
    %last = arith.constant 4 : index
    "kitsune.wait"(%s, %first, %last) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %zero = arith.constant dense<0.0> : tensor<8x4xf32>
    %u = bufferization.to_tensor %rows restrict : memref<64x1x4xf32> to tensor<64x1x4xf32>
    %w = bufferization.to_tensor %where restrict : memref<64x1xi64> to tensor<64x1xi64>
    // expected-error@+1 {{counts rows by argument 1, which is no i64 that the program is given}}
    %r = tm_tensor.scatter {dimension_map = array<i64: 0>, kitsune.counted_rows = array<i64: 1, 64>} unique_indices(false)
        ins(%u, %w : tensor<64x1x4xf32>, tensor<64x1xi64>) outs(%zero : tensor<8x4xf32>) {
    ^bb0(%new: f32, %old: f32):
      %sum = arith.addf %old, %new : f32
      tm_tensor.yield %sum : f32
    } -> tensor<8x4xf32>
    bufferization.materialize_in_destination %r in restrict writable %out : (tensor<8x4xf32>, memref<8x4xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "sums", grid = array<i64: 1>, engine = "host"} : () -> ()
  return
}

// -----

func.func @f(%x: memref<64x4xf32>, %where: memref<64x1xi64>, %n: memref<i64>, %out: memref<8x4xf32>, %arena: memref<1024xi8>)
    attributes {kitsune.program, kitsune.arguments = 3 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %h = memref.view %arena[%c0][] : memref<1024xi8> to memref<64x4xf32>
  %rows = memref.expand_shape %h [[0, 1], [2]] output_shape [64, 1, 4] : memref<64x4xf32> into memref<64x1x4xf32>
  %s = "kitsune.make_semaphore"() {slots = 4 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c16 = arith.constant 16 : index
    %off = arith.muli %i, %c16 : index
    %xs = memref.subview %x[%off, 0] [16, 4] [1, 1] : memref<64x4xf32> to memref<16x4xf32, strided<[4, 1], offset: ?>>
    %xt = bufferization.to_tensor %xs restrict : memref<16x4xf32, strided<[4, 1], offset: ?>> to tensor<16x4xf32>
    %e = tensor.empty() : tensor<16x4xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%xt : tensor<16x4xf32>) outs(%e : tensor<16x4xf32>) {
    ^bb0(%a: f32, %o: f32):
      %m = arith.negf %a : f32
      linalg.yield %m : f32
    } -> tensor<16x4xf32>
    %hs = memref.subview %h[%off, 0] [16, 4] [1, 1] : memref<64x4xf32> to memref<16x4xf32, strided<[4, 1], offset: ?>>
    bufferization.materialize_in_destination %r in restrict writable %hs : (tensor<16x4xf32>, memref<16x4xf32, strided<[4, 1], offset: ?>>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "rows", grid = array<i64: 4>, engine = "host"} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %first = arith.constant 0 : index
    %last = arith.constant 4 : index
    "kitsune.wait"(%s, %first, %last) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %zero = arith.constant dense<0.0> : tensor<8x4xf32>
    %u = bufferization.to_tensor %rows restrict : memref<64x1x4xf32> to tensor<64x1x4xf32>
    %w = bufferization.to_tensor %where restrict : memref<64x1xi64> to tensor<64x1xi64>
    // expected-error@+1 {{counts rows by argument 9, which is no i64 that the program is given}}
    %r = tm_tensor.scatter {dimension_map = array<i64: 0>, kitsune.counted_rows = array<i64: 9, 64>} unique_indices(false)
        ins(%u, %w : tensor<64x1x4xf32>, tensor<64x1xi64>) outs(%zero : tensor<8x4xf32>) {
    ^bb0(%new: f32, %old: f32):
      %sum = arith.addf %old, %new : f32
      tm_tensor.yield %sum : f32
    } -> tensor<8x4xf32>
    bufferization.materialize_in_destination %r in restrict writable %out : (tensor<8x4xf32>, memref<8x4xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "sums", grid = array<i64: 1>, engine = "host"} : () -> ()
  return
}

// -----

func.func @f(%x: memref<64x4xf32>, %where: memref<64x1xi64>, %n: memref<i64>, %out: memref<8x4xf32>, %arena: memref<1024xi8>)
    attributes {kitsune.program, kitsune.arguments = 3 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %h = memref.view %arena[%c0][] : memref<1024xi8> to memref<64x4xf32>
  %rows = memref.expand_shape %h [[0, 1], [2]] output_shape [64, 1, 4] : memref<64x4xf32> into memref<64x1x4xf32>
  %s = "kitsune.make_semaphore"() {slots = 4 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c16 = arith.constant 16 : index
    %off = arith.muli %i, %c16 : index
    %xs = memref.subview %x[%off, 0] [16, 4] [1, 1] : memref<64x4xf32> to memref<16x4xf32, strided<[4, 1], offset: ?>>
    %xt = bufferization.to_tensor %xs restrict : memref<16x4xf32, strided<[4, 1], offset: ?>> to tensor<16x4xf32>
    %e = tensor.empty() : tensor<16x4xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%xt : tensor<16x4xf32>) outs(%e : tensor<16x4xf32>) {
    ^bb0(%a: f32, %o: f32):
      %m = arith.negf %a : f32
      linalg.yield %m : f32
    } -> tensor<16x4xf32>
    %hs = memref.subview %h[%off, 0] [16, 4] [1, 1] : memref<64x4xf32> to memref<16x4xf32, strided<[4, 1], offset: ?>>
    bufferization.materialize_in_destination %r in restrict writable %hs : (tensor<16x4xf32>, memref<16x4xf32, strided<[4, 1], offset: ?>>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "rows", grid = array<i64: 4>, engine = "host"} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %first = arith.constant 0 : index
    %last = arith.constant 4 : index
    "kitsune.wait"(%s, %first, %last) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %zero = arith.constant dense<0.0> : tensor<8x4xf32>
    %u = bufferization.to_tensor %rows restrict : memref<64x1x4xf32> to tensor<64x1x4xf32>
    %w = bufferization.to_tensor %where restrict : memref<64x1xi64> to tensor<64x1xi64>
    // expected-error@+1 {{counts 32 rows, and has 64}}
    %r = tm_tensor.scatter {dimension_map = array<i64: 0>, kitsune.counted_rows = array<i64: 2, 32>} unique_indices(false)
        ins(%u, %w : tensor<64x1x4xf32>, tensor<64x1xi64>) outs(%zero : tensor<8x4xf32>) {
    ^bb0(%new: f32, %old: f32):
      %sum = arith.addf %old, %new : f32
      tm_tensor.yield %sum : f32
    } -> tensor<8x4xf32>
    bufferization.materialize_in_destination %r in restrict writable %out : (tensor<8x4xf32>, memref<8x4xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "sums", grid = array<i64: 1>, engine = "host"} : () -> ()
  return
}

// -----

func.func @f(%x: memref<64x4xf32>, %where: memref<64x1xi64>, %n: memref<i64>, %out: memref<8x4xf32>, %arena: memref<1024xi8>)
    attributes {kitsune.program, kitsune.arguments = 3 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %h = memref.view %arena[%c0][] : memref<1024xi8> to memref<64x4xf32>
  %rows = memref.expand_shape %h [[0, 1], [2]] output_shape [64, 1, 4] : memref<64x4xf32> into memref<64x1x4xf32>
  %s = "kitsune.make_semaphore"() {slots = 4 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c16 = arith.constant 16 : index
    %off = arith.muli %i, %c16 : index
    %xs = memref.subview %x[%off, 0] [16, 4] [1, 1] : memref<64x4xf32> to memref<16x4xf32, strided<[4, 1], offset: ?>>
    %xt = bufferization.to_tensor %xs restrict : memref<16x4xf32, strided<[4, 1], offset: ?>> to tensor<16x4xf32>
    %e = tensor.empty() : tensor<16x4xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%xt : tensor<16x4xf32>) outs(%e : tensor<16x4xf32>) {
    ^bb0(%a: f32, %o: f32):
      %m = arith.negf %a : f32
      linalg.yield %m : f32
    } -> tensor<16x4xf32>
    %hs = memref.subview %h[%off, 0] [16, 4] [1, 1] : memref<64x4xf32> to memref<16x4xf32, strided<[4, 1], offset: ?>>
    bufferization.materialize_in_destination %r in restrict writable %hs : (tensor<16x4xf32>, memref<16x4xf32, strided<[4, 1], offset: ?>>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "rows", grid = array<i64: 4>, engine = "host"} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %first = arith.constant 0 : index
    %last = arith.constant 4 : index
    "kitsune.wait"(%s, %first, %last) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %zero = arith.constant dense<0.0> : tensor<8x4xf32>
    %u = bufferization.to_tensor %rows restrict : memref<64x1x4xf32> to tensor<64x1x4xf32>
    %w = bufferization.to_tensor %where restrict : memref<64x1xi64> to tensor<64x1xi64>
    %r = tm_tensor.scatter {dimension_map = array<i64: 0>, kitsune.counted_rows = array<i64: 2, 64>} unique_indices(false)
        ins(%u, %w : tensor<64x1x4xf32>, tensor<64x1xi64>) outs(%zero : tensor<8x4xf32>) {
    ^bb0(%new: f32, %old: f32):
      %sum = arith.addf %old, %new : f32
      tm_tensor.yield %sum : f32
    } -> tensor<8x4xf32>
    bufferization.materialize_in_destination %r in restrict writable %out : (tensor<8x4xf32>, memref<8x4xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "sums", grid = array<i64: 1>, engine = "host"} : () -> ()
  return
}
