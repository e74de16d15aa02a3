// RUN: kitsune-opt --show-passes | FileCheck %s

// CHECK: --kitsune-normalize
// CHECK: --kitsune-form-stages
// CHECK-NEXT: target=<string>  (default: host)
