// RUN: not kitsune-opt %s --kitsune-to-host=vector-bytes=17 2>&1 | FileCheck %s
// CHECK: vector-bytes is 16, 32, 64, or 0 for this processor's width, not 17
module {}
