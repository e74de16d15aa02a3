// RUN: kitsune-opt %s --split-input-file | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --mlir-print-op-generic | FileCheck %s --check-prefix=GENERIC

// CHECK: func.func @f
// CHECK: // -----
// CHECK: func.func @f
// GENERIC: "func.func"() <{
// GENERIC: // -----
// GENERIC: "func.func"() <{
func.func @f() {
  return
}

// -----

func.func @f() {
  return
}
