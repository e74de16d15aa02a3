// A recurrent layer's operation survives being written and read again; what nobody uses goes away, equal ones become one.
// RUN: kitsune-opt %s | kitsune-opt | FileCheck %s
// RUN: kitsune-opt %s --pass-pipeline="builtin.module(canonicalize,cse)" | FileCheck %s --check-prefix=PURE

// CHECK-LABEL: func.func @lstm
// CHECK: %{{.*}}:3 = "kitsune.recurrence"(%{{.*}}) {cell = "lstm", operandSegmentSizes = array<i32: 1, 1, 1, 2>} : (tensor<5x2x12xf32>, tensor<12x3xbf16>, tensor<12xbf16>, tensor<1x2x3xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>, tensor<1x2x3xbf16>)
func.func @lstm(%g: tensor<5x2x12xf32>, %w: tensor<12x3xbf16>, %b: tensor<12xbf16>, %h: tensor<1x2x3xbf16>, %c: tensor<1x2x3xbf16>) -> tensor<5x2x3xbf16> {
  %o:3 = "kitsune.recurrence"(%g, %w, %b, %h, %c) {cell = "lstm", operandSegmentSizes = array<i32: 1, 1, 1, 2>} : (tensor<5x2x12xf32>, tensor<12x3xbf16>, tensor<12xbf16>, tensor<1x2x3xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>, tensor<1x2x3xbf16>)
  return %o#0 : tensor<5x2x3xbf16>
}

// PURE-LABEL: func.func @both_ways
// PURE-COUNT-1: "kitsune.recurrence"
// PURE-NOT: "kitsune.recurrence"
// CHECK-LABEL: func.func @both_ways
// CHECK: "kitsune.recurrence"(%{{.*}}) {batch_first, cell = "gru", operandSegmentSizes = array<i32: 2, 2, 2, 1>}
func.func @both_ways(%g: tensor<2x5x9xf32>, %w: tensor<9x3xf32>, %b: tensor<9xf32>, %h: tensor<2x2x3xf32>, %k: tensor<2x5x3xf32>) -> (tensor<2x5x6xf32>, tensor<2x2x3xf32>) {
  %o:2 = "kitsune.recurrence"(%g, %g, %w, %w, %b, %b, %h) {batch_first, cell = "gru", operandSegmentSizes = array<i32: 2, 2, 2, 1>} : (tensor<2x5x9xf32>, tensor<2x5x9xf32>, tensor<9x3xf32>, tensor<9x3xf32>, tensor<9xf32>, tensor<9xf32>, tensor<2x2x3xf32>) -> (tensor<2x5x6xf32>, tensor<2x2x3xf32>)
  %p:2 = "kitsune.recurrence"(%g, %g, %w, %w, %b, %b, %h) {batch_first, cell = "gru", operandSegmentSizes = array<i32: 2, 2, 2, 1>} : (tensor<2x5x9xf32>, tensor<2x5x9xf32>, tensor<9x3xf32>, tensor<9x3xf32>, tensor<9xf32>, tensor<9xf32>, tensor<2x2x3xf32>) -> (tensor<2x5x6xf32>, tensor<2x2x3xf32>)
  %q:2 = "kitsune.recurrence"(%g, %g, %w, %w, %b, %b, %k) {cell = "gru", operandSegmentSizes = array<i32: 2, 2, 2, 1>} : (tensor<2x5x9xf32>, tensor<2x5x9xf32>, tensor<9x3xf32>, tensor<9x3xf32>, tensor<9xf32>, tensor<9xf32>, tensor<2x5x3xf32>) -> (tensor<2x5x6xf32>, tensor<2x5x3xf32>)
  return %o#0, %p#1 : tensor<2x5x6xf32>, tensor<2x2x3xf32>
}
