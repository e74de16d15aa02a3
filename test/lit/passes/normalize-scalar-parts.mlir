// What a body makes of numbers alone, by powers or in f64, is made once and read as a number.
// RUN: kitsune-opt %s --split-input-file --kitsune-normalize | FileCheck %s

// An update scaled by a bias correction: 1 / (1 - beta ** step) in f64.
// CHECK-LABEL: func.func @corrected
// CHECK: %[[N:.*]] = linalg.generic {indexing_maps = [{{.*}}], iterator_types = []} ins(%{{.*}}, %{{.*}} : tensor<f64>, tensor<f64>) outs(%{{.*}} : tensor<f32>)
// CHECK: math.powf
// CHECK: arith.divf
// CHECK: arith.truncf
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel"]} ins(%{{.*}}, %[[N]] : tensor<8x16xf32>, tensor<f32>)
// CHECK-NOT: f64
// CHECK: arith.mulf
// CHECK-NEXT: linalg.yield
#all = affine_map<(m, n) -> (m, n)>
#one = affine_map<(m, n) -> ()>
func.func @corrected(%g: tensor<8x16xf32>, %beta: tensor<f64>, %step: tensor<f64>) -> tensor<8x16xf32> {
  %e = tensor.empty() : tensor<8x16xf32>
  %r = linalg.generic {indexing_maps = [#all, #one, #one, #all], iterator_types = ["parallel", "parallel"]} ins(%g, %beta, %step : tensor<8x16xf32>, tensor<f64>, tensor<f64>) outs(%e : tensor<8x16xf32>) {
  ^bb0(%a: f32, %b: f64, %s: f64, %o: f32):
    %c = arith.constant 1.0 : f64
    %p = math.powf %b, %s : f64
    %d = arith.subf %c, %p : f64
    %q = arith.divf %c, %d : f64
    %t = arith.truncf %q : f64 to f32
    %m = arith.mulf %a, %t : f32
    linalg.yield %m : f32
  } -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// A sum reads its start, which changes, and a number that is made before.
// CHECK-LABEL: func.func @summed
// CHECK: iterator_types = []
// CHECK: math.exp
// CHECK: iterator_types = ["parallel", "reduction"]
// CHECK: arith.mulf
// CHECK: arith.addf
#all = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
#one = affine_map<(m, n) -> ()>
func.func @summed(%x: tensor<8x16xf32>, %n: tensor<f32>, %z: tensor<8xf32>) -> tensor<8xf32> {
  %r = linalg.generic {indexing_maps = [#all, #one, #row], iterator_types = ["parallel", "reduction"]} ins(%x, %n : tensor<8x16xf32>, tensor<f32>) outs(%z : tensor<8xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %p = math.exp %b : f32
    %m = arith.mulf %a, %p : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// A quotient of two numbers is less work than waiting for it, and what an element goes into is made for each.
// CHECK-LABEL: func.func @cheap
// CHECK-NOT: iterator_types = []
// CHECK: iterator_types = ["parallel", "parallel"]
// CHECK: arith.divf
// CHECK: math.powf
#all = affine_map<(m, n) -> (m, n)>
#one = affine_map<(m, n) -> ()>
func.func @cheap(%x: tensor<8x16xf32>, %n: tensor<f32>, %k: tensor<f32>) -> tensor<8x16xf32> {
  %e = tensor.empty() : tensor<8x16xf32>
  %r = linalg.generic {indexing_maps = [#all, #one, #one, #all], iterator_types = ["parallel", "parallel"]} ins(%x, %n, %k : tensor<8x16xf32>, tensor<f32>, tensor<f32>) outs(%e : tensor<8x16xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32, %o: f32):
    %q = arith.divf %b, %c : f32
    %p = math.powf %a, %q : f32
    linalg.yield %p : f32
  } -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}
