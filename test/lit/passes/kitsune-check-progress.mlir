// A program in which a task reads what another writes, without waiting for it. The error names both tiles and the memory.
// RUN: kitsune-opt %s --kitsune-check-progress --split-input-file --verify-diagnostics | FileCheck %s

func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %h : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>, engine = "generic"} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    // expected-error@+1 {{of @b tile (0) reads [0:8] of the buffer at arena byte 0 without waiting for @a tile (0), which writes [0:8]}}
    %t = bufferization.to_tensor %h restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 1>, engine = "generic"} : () -> ()
  return
}

// -----

// With the wait there is nothing to say, and the program stays as it is.
// CHECK: "kitsune.wait"
// CHECK: sym_name = "b"
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %h : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>, engine = "generic"} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c1 = arith.constant 1 : index
    "kitsune.wait"(%s, %i, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %h restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 1>, engine = "generic"} : () -> ()
  return
}

// -----

// The producer comes later: with one worker, which takes tiles in order, the wait never ends.
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    // expected-error@+1 {{of @b tile (0) never ends: it waits for 1 post of slot 0, earlier tiles make 0; @a would post it, but no earlier than this tile}}
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %h restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %h : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// More posts than there are.
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %h : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    // expected-error@+1 {{of @b tile (0) never ends: it waits for 2 posts of slot 0, earlier tiles make 1}}
    "kitsune.wait"(%s, %c0, %c1) {count = 2 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %h restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// Slots that the semaphore does not have.
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %h : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    // expected-error@+1 {{of @b tile (2) waits for slots [0, 2); there are [0, 1)}}
    "kitsune.wait"(%s, %c0, %i) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %h restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 4>} : () -> ()
  return
}

// -----

// The same for a post.
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %h : (tensor<8xf32>, memref<8xf32>) -> ()
    // expected-error@+1 {{of @a tile (0) posts slot 1; there are 1}}
    "kitsune.post"(%s, %c1) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %h restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// Three of four posts: any one of the four tiles may be missing.
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %o = arith.muli %i, %c2 : index
    %xs = memref.subview %x[%o] [2] [1] : memref<8xf32> to memref<2xf32, strided<[1], offset: ?>>
    %t = bufferization.to_tensor %xs restrict : memref<2xf32, strided<[1], offset: ?>> to tensor<2xf32>
    %hs = memref.subview %h[%o] [2] [1] : memref<8xf32> to memref<2xf32, strided<[1], offset: ?>>
    bufferization.materialize_in_destination %t in restrict writable %hs : (tensor<2xf32>, memref<2xf32, strided<[1], offset: ?>>) -> ()
    "kitsune.post"(%s, %c0) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 4>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%s, %c0, %c1) {count = 3 : i64} : (!kitsune.semaphore, index, index) -> ()
    // expected-error@+1 {{of @b tile (0) reads [0:8] of the buffer at arena byte 0 without waiting for @a tile (0), which writes [0:2] of the buffer at arena byte 0; its wait for 3 of the 4 posts of slot 0 can end without that tile's}}
    %t = bufferization.to_tensor %h restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// A tile waits for its own rows only, but reads the next one as well.
func.func @f(%x: memref<8xf32>, %out: memref<6xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %s = "kitsune.make_semaphore"() {slots = 4 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %o = arith.muli %i, %c2 : index
    %xs = memref.subview %x[%o] [2] [1] : memref<8xf32> to memref<2xf32, strided<[1], offset: ?>>
    %t = bufferization.to_tensor %xs restrict : memref<2xf32, strided<[1], offset: ?>> to tensor<2xf32>
    %hs = memref.subview %h[%o] [2] [1] : memref<8xf32> to memref<2xf32, strided<[1], offset: ?>>
    bufferization.materialize_in_destination %t in restrict writable %hs : (tensor<2xf32>, memref<2xf32, strided<[1], offset: ?>>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 4>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %o = arith.muli %i, %c2 : index
    %n = arith.addi %i, %c1 : index
    "kitsune.wait"(%s, %i, %n) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %hs = memref.subview %h[%o] [3] [1] : memref<8xf32> to memref<3xf32, strided<[1], offset: ?>>
    // expected-error@+1 {{of @b tile (0) reads [0:3] of the buffer at arena byte 0 without waiting for @a tile (1), which writes [2:4] of the buffer at arena byte 0; it waits for slots [0, 1), that tile posts slot 1}}
    %t = bufferization.to_tensor %hs restrict : memref<3xf32, strided<[1], offset: ?>> to tensor<3xf32>
    %p = tensor.extract_slice %t[0] [2] [1] : tensor<3xf32> to tensor<2xf32>
    %os = memref.subview %out[%o] [2] [1] : memref<6xf32> to memref<2xf32, strided<[1], offset: ?>>
    bufferization.materialize_in_destination %p in restrict writable %os : (tensor<2xf32>, memref<2xf32, strided<[1], offset: ?>>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 3>} : () -> ()
  return
}

// -----

// Order goes through other tasks: c waits for b, and b has waited for a.
// CHECK-LABEL: func.func @through
func.func @through(%x: memref<8xf32>, %y: memref<8xf32>, %z: memref<8xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 2 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  %r = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %h : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %y : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%r, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%r, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %h restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %z : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "c", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// Bytes are used again before their reader is done.
func.func @f(%x: memref<8xf32>, %y: memref<8xf32>, %z: memref<8xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 2 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %g = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %h : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %h restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %y : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    // expected-error@+1 {{of @c tile (0) writes [0:8] of the buffer at arena byte 0 without waiting for @b tile (0), which reads [0:8] of the buffer at arena byte 0; @c waits for nothing that @b posts}}
    bufferization.materialize_in_destination %t in restrict writable %g : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "c", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %z : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "d", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// All tiles are in order, but the bytes have been overwritten in between.
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %g = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  %r = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %h : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %g : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%r, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%r, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    // expected-error@+1 {{of @c tile (0) reads [0:8] of the buffer at arena byte 0 after @b has overwritten it: it writes [0:8] of the buffer at arena byte 0 in the same bytes}}
    %t = bufferization.to_tensor %h restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "c", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// Nobody has written what is read.
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<8xf32>
  "kitsune.task"() ({
  ^bb0(%i: index):
    // expected-error@+1 {{of @a tile (0) reads [0:8] of the buffer at arena byte 0, which no earlier task wrote}}
    %t = bufferization.to_tensor %h restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// A part of a result is never written.
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c2 = arith.constant 2 : index
  "kitsune.task"() ({
  ^bb0(%i: index):
    %o = arith.muli %i, %c2 : index
    %xs = memref.subview %x[%o] [2] [1] : memref<8xf32> to memref<2xf32, strided<[1], offset: ?>>
    %t = bufferization.to_tensor %xs restrict : memref<2xf32, strided<[1], offset: ?>> to tensor<2xf32>
    %os = memref.subview %out[%o] [2] [1] : memref<8xf32> to memref<2xf32, strided<[1], offset: ?>>
    // expected-error@+1 {{of @a leaves element [6] of result 0 unwritten}}
    bufferization.materialize_in_destination %t in restrict writable %os : (tensor<2xf32>, memref<2xf32, strided<[1], offset: ?>>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 3>} : () -> ()
  return
}

// -----

// Nor is a whole one.
// expected-error@+1 {{never writes result 1}}
func.func @f(%x: memref<8xf32>, %y: memref<8xf32>, %z: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 2 : i64} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %y : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// Tiles that do not divide: the last is shifted back and repeats rows of the one before. That is no conflict, neither among the
// tiles nor with a reader of the repeated rows that waits for the tile that wrote them first.
// CHECK-LABEL: func.func @ragged
func.func @ragged(%x: memref<7xf32>, %out: memref<7xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  %h = memref.view %arena[%c0][] : memref<256xi8> to memref<7xf32>
  %s = "kitsune.make_semaphore"() {slots = 3 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %p = arith.muli %i, %c3 : index
    %o = arith.minui %p, %c4 : index
    %xs = memref.subview %x[%o] [3] [1] : memref<7xf32> to memref<3xf32, strided<[1], offset: ?>>
    %t = bufferization.to_tensor %xs restrict : memref<3xf32, strided<[1], offset: ?>> to tensor<3xf32>
    %hs = memref.subview %h[%o] [3] [1] : memref<7xf32> to memref<3xf32, strided<[1], offset: ?>>
    bufferization.materialize_in_destination %t in restrict writable %hs : (tensor<3xf32>, memref<3xf32, strided<[1], offset: ?>>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 3>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %n = arith.addi %i, %c1 : index
    %p = arith.muli %i, %c3 : index
    %o = arith.minui %p, %c4 : index
    %first = arith.divui %o, %c3 : index
    "kitsune.wait"(%s, %first, %n) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %hs = memref.subview %h[%o] [3] [1] : memref<7xf32> to memref<3xf32, strided<[1], offset: ?>>
    %t = bufferization.to_tensor %hs restrict : memref<3xf32, strided<[1], offset: ?>> to tensor<3xf32>
    %os = memref.subview %out[%o] [3] [1] : memref<7xf32> to memref<3xf32, strided<[1], offset: ?>>
    bufferization.materialize_in_destination %t in restrict writable %os : (tensor<3xf32>, memref<3xf32, strided<[1], offset: ?>>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 3>} : () -> ()
  return
}

// -----

// Tiles that differ in a coordinate on which neither what they store nor where depends store the same: no conflict.
// CHECK-LABEL: func.func @same_values
func.func @same_values(%x: memref<8x4xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c4 = arith.constant 4 : index
  "kitsune.task"() ({
  ^bb0(%i: index, %j: index):
    %o = arith.muli %i, %c4 : index
    %xs = memref.subview %x[%o, 0] [4, 1] [1, 1] : memref<8x4xf32> to memref<4xf32, strided<[4], offset: ?>>
    %t = bufferization.to_tensor %xs restrict : memref<4xf32, strided<[4], offset: ?>> to tensor<4xf32>
    %os = memref.subview %out[%o] [4] [1] : memref<8xf32> to memref<4xf32, strided<[1], offset: ?>>
    bufferization.materialize_in_destination %t in restrict writable %os : (tensor<4xf32>, memref<4xf32, strided<[1], offset: ?>>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 2, 4>} : () -> ()
  return
}

// -----

// Where the values depend on it, it is one.
func.func @other_values(%x: memref<8x4xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c4 = arith.constant 4 : index
  "kitsune.task"() ({
  ^bb0(%i: index, %j: index):
    %o = arith.muli %i, %c4 : index
    %xs = memref.subview %x[%o, %j] [4, 1] [1, 1] : memref<8x4xf32> to memref<4xf32, strided<[4], offset: ?>>
    %t = bufferization.to_tensor %xs restrict : memref<4xf32, strided<[4], offset: ?>> to tensor<4xf32>
    %os = memref.subview %out[%o] [4] [1] : memref<8xf32> to memref<4xf32, strided<[1], offset: ?>>
    // expected-error@+1 {{of @a tile (0, 0) writes [0:4] of result 0, and @a tile (0, 1) writes [0:4] of result 0; tiles of one task run in any order}}
    bufferization.materialize_in_destination %t in restrict writable %os : (tensor<4xf32>, memref<4xf32, strided<[1], offset: ?>>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 2, 4>} : () -> ()
  return
}

// -----

// Any other overlap of a task's tiles is one.
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c2 = arith.constant 2 : index
  "kitsune.task"() ({
  ^bb0(%i: index):
    %o = arith.muli %i, %c2 : index
    %xs = memref.subview %x[%o] [4] [1] : memref<8xf32> to memref<4xf32, strided<[1], offset: ?>>
    %t = bufferization.to_tensor %xs restrict : memref<4xf32, strided<[1], offset: ?>> to tensor<4xf32>
    %os = memref.subview %out[%o] [4] [1] : memref<8xf32> to memref<4xf32, strided<[1], offset: ?>>
    // expected-error@+1 {{of @a tile (0) writes [0:4] of result 0, and @a tile (1) writes [2:6] of result 0; tiles of one task run in any order}}
    bufferization.materialize_in_destination %t in restrict writable %os : (tensor<4xf32>, memref<4xf32, strided<[1], offset: ?>>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 3>} : () -> ()
  return
}

// -----

// A tile may not overwrite what it reads: loads are no copies.
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %out restrict : memref<8xf32> to tensor<8xf32>
    // expected-error@+1 {{of @b tile (0) writes [0:8] of result 0, where the same tile reads [0:8] of result 0; loads and stores of a tile must not overlap}}
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// Atomic updates may meet each other, but not what starts the sums or reads them.
// CHECK-LABEL: func.func @sums
func.func @sums(%x: memref<8xf32>, %out: memref<8xf32>, %y: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 2 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  %r = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %lo = arith.constant 0 : index
    %hi = arith.constant 4 : index
    %one = arith.constant 1 : index
    %k = arith.constant 1.0 : f32
    scf.for %j = %lo to %hi step %one {
      %v = memref.atomic_rmw addf %k, %out[%j] : (f32, memref<8xf32>) -> f32
    }
    "kitsune.post"(%r, %c0) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 4>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %lo = arith.constant 0 : index
    %hi = arith.constant 4 : index
    %one = arith.constant 1 : index
    %k = arith.constant 1.0 : f32
    scf.for %j = %lo to %hi step %one {
      %v = memref.atomic_rmw addf %k, %out[%j] : (f32, memref<8xf32>) -> f32
    }
    "kitsune.post"(%r, %c0) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "c", grid = array<i64: 2>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%r, %c0, %c1) {count = 6 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %out restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %y : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "d", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// Here the updates do not wait for the start.
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %lo = arith.constant 0 : index
    %hi = arith.constant 4 : index
    %one = arith.constant 1 : index
    %k = arith.constant 1.0 : f32
    scf.for %j = %lo to %hi step %one {
      // expected-error@+1 {{of @b tile (0) updates [0:8] of result 0 without waiting for @a tile (0), which writes [0:8] of result 0; @b waits for nothing that @a posts}}
      %v = memref.atomic_rmw addf %k, %out[%j] : (f32, memref<8xf32>) -> f32
    }
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 4>} : () -> ()
  return
}

// -----

// What an index reaches cannot be told: it counts as the whole buffer.
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %y: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 2 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %s = "kitsune.make_semaphore"() {slots = 4 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %o = arith.muli %i, %c2 : index
    %xs = memref.subview %x[%o] [2] [1] : memref<8xf32> to memref<2xf32, strided<[1], offset: ?>>
    %t = bufferization.to_tensor %xs restrict : memref<2xf32, strided<[1], offset: ?>> to tensor<2xf32>
    %outs = memref.subview %out[%o] [2] [1] : memref<8xf32> to memref<2xf32, strided<[1], offset: ?>>
    bufferization.materialize_in_destination %t in restrict writable %outs : (tensor<2xf32>, memref<2xf32, strided<[1], offset: ?>>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 4>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %z = arith.constant 7 : index
    // expected-error@+1 {{of @b tile (0) reads [0:8] of result 0 without waiting for @a tile (1), which writes [2:4] of result 0; it waits for slots [0, 1), that tile posts slot 1}}
    %v = memref.load %out[%z] : memref<8xf32>
    %w = tensor.splat %v : tensor<8xf32>
    bufferization.materialize_in_destination %w in restrict writable %y : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// The form of a task: waits first,
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    %h = memref.alloc() : memref<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    // expected-error@+1 {{waits after @b has touched memory; a task waits first}}
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// posts last,
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.post"(%s, %c0) : (!kitsune.semaphore, index) -> ()
    %z = arith.constant 1.0 : f32
    // expected-error@+1 {{touches memory after @b has posted; a task posts last}}
    %v = memref.atomic_rmw addf %z, %out[%c0] : (f32, memref<8xf32>) -> f32
    "kitsune.yield"() : () -> ()
  }) {sym_name = "b", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// neither in loops,
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %s = "kitsune.make_semaphore"() {slots = 4 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    scf.for %j = %c0 to %c1 step %c1 {
      // expected-error@+1 {{is inside another operation; waits and posts stand at the top of a task}}
      "kitsune.post"(%s, %j) : (!kitsune.semaphore, index) -> ()
    }
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// at slots that follow from the tile's coordinates,
func.func @f(%x: memref<8xf32>, %k: memref<1xindex>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 2 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %s = "kitsune.make_semaphore"() {slots = 4 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %j = memref.load %k[%c0] : memref<1xindex>
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    // expected-error@+1 {{operand 1 cannot be computed from the tile's coordinates}}
    "kitsune.post"(%s, %j) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// loads and stores of parts of the program's buffers,
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    %k = arith.constant 8 : index
    %o = arith.muli %i, %k : index
    // expected-error@+1 {{of @a tile (1) takes [8, 12) of a dimension of 8}}
    %os = memref.subview %out[%o] [4] [1] : memref<8xf32> to memref<4xf32, strided<[1], offset: ?>>
    %p = tensor.extract_slice %t[0] [4] [1] : tensor<8xf32> to tensor<4xf32>
    bufferization.materialize_in_destination %p in restrict writable %os : (tensor<4xf32>, memref<4xf32, strided<[1], offset: ?>>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 2>} : () -> ()
  return
}

// -----

// inputs only read,
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    // expected-error@+1 {{writes argument 0, an input}}
    bufferization.materialize_in_destination %t in restrict writable %x : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// the arena only through views,
func.func @f(%x: memref<8xf32>, %out: memref<256xi8>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    // expected-error@+1 {{uses the arena without a memref.view}}
    %t = bufferization.to_tensor %arena restrict : memref<256xi8> to tensor<256xi8>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<256xi8>, memref<256xi8>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// inside of it,
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<256xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  %c256 = arith.constant 256 : index
  // expected-error@+1 {{shows bytes [256, 288) of an arena of 256 bytes}}
  %h = memref.view %arena[%c256][] : memref<256xi8> to memref<8xf32>
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// and nothing that this check does not know.
func.func @f(%x: memref<8xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    // expected-error@+1 {{touches memory in a way that this check does not know}}
    memref.copy %x, %out : memref<8xf32> to memref<8xf32>
    "kitsune.yield"() : () -> ()
  }) {sym_name = "a", grid = array<i64: 1>} : () -> ()
  return
}

// -----

// The attributes say which arguments are inputs and results.
// expected-error@+1 {{is a tile program and needs attribute 'kitsune.results'}}
func.func @attributes(%x: memref<8xf32>, %arena: memref<1xi8>) attributes {kitsune.program, kitsune.arguments = 1 : i64} {
  return
}

// -----

// expected-error@+1 {{has 2 arguments, needs 1 inputs, 1 results and the arena}}
func.func @too_few(%x: memref<8xf32>, %arena: memref<1xi8>) attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  return
}

// -----

// Other functions are none of its business.
// CHECK-LABEL: func.func @other
func.func @other(%x: memref<8xf32>) {
  return
}
