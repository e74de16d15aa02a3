// What is expected and does not come, and what comes and is not expected, are errors.
// RUN: not kitsune-opt %s --verify-diagnostics 2>&1 | FileCheck %s

// CHECK-DAG: verify-diagnostics-fails.mlir:8:3: error: unexpected error: 'func.return' op has 0 operands
// CHECK-DAG: verify-diagnostics-fails.mlir:7:6: error: expected error "something else" was not produced
func.func @f() -> i32 {
  // expected-error@+1 {{something else}}
  return
}
