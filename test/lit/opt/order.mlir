// Flags run in the order given: after --cse nothing is left to fold, before it the sum is kept.
// RUN: kitsune-opt %s --cse --mlir-print-ir-after-all --canonicalize 2>&1 >/dev/null | FileCheck %s --check-prefix=CSE-FIRST
// RUN: kitsune-opt %s --canonicalize --mlir-print-ir-before-all --cse 2>&1 >/dev/null | FileCheck %s --check-prefix=CSE-LAST
// RUN: kitsune-opt %s --canonicalize --mlir-print-ir-after=cse,foo --cse 2>&1 >/dev/null | FileCheck %s --check-prefix=ONE

// CSE-FIRST: // -----// IR Dump After cse //----- //
// CSE-FIRST: // -----// IR Dump After canonicalize //----- //
// CSE-LAST: // -----// IR Dump Before canonicalize //----- //
// CSE-LAST: // -----// IR Dump Before cse //----- //
// ONE-NOT: canonicalize
// ONE: IR Dump After cse
func.func @f(%x: i32) -> i32 {
  %a = arith.addi %x, %x : i32
  return %a : i32
}
