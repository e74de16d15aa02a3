// `cut` forms smaller stages than would be: of stage product_0's products at most so many stay together, and the same is so of
// stages like it; `products:2` says it of every stage. Its items count one after the other: the second names a stage of what the first left.
// RUN: kitsune-opt %s --target h200 --kitsune-normalize --kitsune-form-stages='chains=true' | FileCheck %s --check-prefix=WHOLE
// RUN: kitsune-opt %s --target h200 --kitsune-normalize --kitsune-form-stages='chains=true cut=product_0:2' | FileCheck %s --check-prefix=HALVES
// RUN: kitsune-opt %s --target h200 --kitsune-normalize --kitsune-form-stages='chains=true cut=product_0:2,product_1:1' | FileCheck %s --check-prefix=ONE
// RUN: kitsune-opt %s --target h200 --kitsune-normalize --kitsune-form-stages='chains=true cut=products:2' | FileCheck %s --check-prefix=HALVES
// RUN: kitsune-opt %s --target h200 --kitsune-normalize --kitsune-form-stages='chains=true cut=products:4' | FileCheck %s --check-prefix=WHOLE
// RUN: kitsune-opt %s --target h200 --kitsune-normalize --kitsune-form-stages='chains=true cut=product_0:2' --remarks 2>&1 | FileCheck %s --check-prefix=WHY
// RUN: not kitsune-opt %s --target h200 --kitsune-form-stages='cut=product_7:2' 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not kitsune-opt %s --target h200 --kitsune-form-stages='cut=product_0' 2>&1 | FileCheck %s --check-prefix=COUNT
// NONE: error: 'func.func' op has no stage 'product_7', which option 'cut' names
// COUNT: error: option 'cut' of kitsune-form-stages has a stage's name and a number of ops from 1 on, not 'product_0'
// WHY: remark: 'linalg.generic' op not joined with linalg.generic: option 'cut' leaves 2 of their ops in a stage

// WHOLE: sym_name = "product_0"
// WHOLE: sym_name = "product_1"
// WHOLE-NOT: sym_name = "product_2"

// Both chains of four become two of two.
// HALVES-COUNT-4: "kitsune.stage"
// HALVES: sym_name = "product_3"
// HALVES-NOT: sym_name = "product_4"

// All halves are alike, so all are cut again.
// ONE: sym_name = "product_7"
// ONE-NOT: sym_name = "product_8"
func.func @f(%x: tensor<4096x64xf32>, %y: tensor<4096x64xf32>, %w: tensor<64x64xf32>) -> (tensor<4096x64xf32>, tensor<4096x64xf32>) {
  %e = tensor.empty() : tensor<4096x64xf32>
  %zero = arith.constant 0.0 : f32
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<4096x64xf32>) -> tensor<4096x64xf32>
  %a = linalg.matmul ins(%x, %w : tensor<4096x64xf32>, tensor<64x64xf32>) outs(%z : tensor<4096x64xf32>) -> tensor<4096x64xf32>
  %b = linalg.matmul ins(%a, %w : tensor<4096x64xf32>, tensor<64x64xf32>) outs(%z : tensor<4096x64xf32>) -> tensor<4096x64xf32>
  %c = linalg.matmul ins(%b, %w : tensor<4096x64xf32>, tensor<64x64xf32>) outs(%z : tensor<4096x64xf32>) -> tensor<4096x64xf32>
  %d = linalg.matmul ins(%c, %w : tensor<4096x64xf32>, tensor<64x64xf32>) outs(%z : tensor<4096x64xf32>) -> tensor<4096x64xf32>
  %p = linalg.matmul ins(%y, %w : tensor<4096x64xf32>, tensor<64x64xf32>) outs(%z : tensor<4096x64xf32>) -> tensor<4096x64xf32>
  %q = linalg.matmul ins(%p, %w : tensor<4096x64xf32>, tensor<64x64xf32>) outs(%z : tensor<4096x64xf32>) -> tensor<4096x64xf32>
  %r = linalg.matmul ins(%q, %w : tensor<4096x64xf32>, tensor<64x64xf32>) outs(%z : tensor<4096x64xf32>) -> tensor<4096x64xf32>
  %s = linalg.matmul ins(%r, %w : tensor<4096x64xf32>, tensor<64x64xf32>) outs(%z : tensor<4096x64xf32>) -> tensor<4096x64xf32>
  return %d, %s : tensor<4096x64xf32>, tensor<4096x64xf32>
}
