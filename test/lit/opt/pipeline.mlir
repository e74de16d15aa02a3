// A textual pipeline mixes this project's passes with MLIR's, nested ones too.
// RUN: kitsune-opt %s --pass-pipeline="builtin.module(kitsune-normalize,canonicalize,func.func(cse,canonicalize{max-iterations=3}),kitsune-form-stages{target=sm_90a})" | FileCheck %s
// RUN: kitsune-opt %s -kitsune-normalize --canonicalize --cse --kitsune-form-stages=target=sm_90a | FileCheck %s
// RUN: kitsune-opt %s --kitsune-normalize --kitsune-form-stages='{target=sm_90a}' -o %t
// RUN: FileCheck %s < %t

// CHECK-LABEL: func.func @twice
// CHECK: "kitsune.pipeline"
// CHECK: "kitsune.stage"
// CHECK: arith.addf
// CHECK-NOT: arith.addf
func.func @twice(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %a = arith.addf %x, %x : tensor<64x32xf32>
  %b = arith.addf %x, %x : tensor<64x32xf32>
  %c = arith.mulf %a, %b : tensor<64x32xf32>
  return %c : tensor<64x32xf32>
}
