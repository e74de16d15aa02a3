// RUN: kitsune-opt %s --kitsune-normalize --cse --mlir-timing 2>&1 >/dev/null | FileCheck %s

// CHECK: Execution time report
// CHECK: Total Execution Time: {{[0-9.]+}} seconds
// CHECK: ----Wall Time----  ----Name----
// CHECK-NEXT: {{[0-9.]+ \( *[0-9.]+%\)}}  Normalize (kitsune-normalize)
// CHECK-NEXT: {{[0-9.]+ \( *[0-9.]+%\)}}  cse
// CHECK-NEXT: {{[0-9.]+ \(100.0%\)}}  Total
func.func @f() {
  return
}
