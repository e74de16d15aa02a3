// What no engine can take is an error at the program, with the reason; what engines decline goes to the generic one.
// RUN: kitsune-opt %s --kitsune-to-gpu --split-input-file --verify-diagnostics
func.func @odd(%x: memref<4x4xf32>, %y: memref<4x4xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<4x4xf32> to tensor<4x4xf32>
    bufferization.materialize_in_destination %t in restrict writable %y : (tensor<4x4xf32>, memref<4x4xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "copy", grid = array<i64: 1>, engine = "unheard-of"} : () -> ()
  return
}

// -----

// expected-error @+1 {{'func.call' is not supported here: a tile program holds views, constants, semaphores and tasks}}
func.func @calls(%x: memref<4xf32>, %y: memref<4xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
  func.call @other() : () -> ()
  return
}
func.func private @other()
