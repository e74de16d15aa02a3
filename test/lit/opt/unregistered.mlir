// RUN: not kitsune-opt %s 2>&1 | FileCheck %s --check-prefix=REFUSED
// RUN: kitsune-opt %s --allow-unregistered-dialect --mlir-print-debuginfo | FileCheck %s

// REFUSED: unregistered.mlir:9:12: error: operation being parsed with an unregistered dialect
// REFUSED-NEXT: "foo.bar"() : () -> ()
// REFUSED-NEXT: {{^ +\^$}}
// CHECK: "foo.bar"() : () -> () loc(#[[LOC:.*]])
// CHECK: #[[LOC]] = loc("{{.*}}unregistered.mlir":9:3)
  "foo.bar"() : () -> ()
