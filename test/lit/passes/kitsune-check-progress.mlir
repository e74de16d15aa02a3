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
