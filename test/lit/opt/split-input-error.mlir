// An error in one part leaves the others to run; its line is the line of the file.
// RUN: not kitsune-opt %s --split-input-file 2>&1 | FileCheck %s

// CHECK-DAG: split-input-error.mlir:15:3: error: 'func.return' op has 0 operands, but enclosing function (@broken) returns 1
// CHECK-DAG: func.func @good
// CHECK-DAG: func.func @also_good
func.func @good() {
  return
}

// -----

func.func @broken() -> i32 {
  // the next line is wrong
  return
}

// -----

func.func @also_good() {
  return
}
