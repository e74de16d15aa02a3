// What is stored and added up by columns is two stages where the sum has few tiles: blocks share them only if nothing else comes of
// the stage. It stays one where nothing is stored, where sums are of rows, where there are many columns, and where it is small.
// RUN: kitsune-opt %s --split-input-file --kitsune-form-stages="target=h200" | FileCheck %s

// CHECK-LABEL: func.func @stored
// CHECK-COUNT-2: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
#id = affine_map<(r, c) -> (r, c)>
#row = affine_map<(r, c) -> (r)>
#column = affine_map<(r, c) -> (c)>
func.func @stored(%x: tensor<65536x256xf32>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<65536x256xf32>) {
  %e = tensor.empty() : tensor<65536x256xf32>
  %t = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<65536x256xf32>) outs(%e : tensor<65536x256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = math.exp %a : f32
    linalg.yield %m : f32
  } -> tensor<65536x256xf32>
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%t : tensor<65536x256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.addf %a, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  return %s, %t : tensor<256xf32>, tensor<65536x256xf32>
}

// -----

// CHECK-LABEL: func.func @not_stored
// CHECK-COUNT-1: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
#id = affine_map<(r, c) -> (r, c)>
#row = affine_map<(r, c) -> (r)>
#column = affine_map<(r, c) -> (c)>
func.func @not_stored(%x: tensor<65536x256xf32>, %z: tensor<256xf32>) -> tensor<256xf32> {
  %e = tensor.empty() : tensor<65536x256xf32>
  %t = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<65536x256xf32>) outs(%e : tensor<65536x256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = math.exp %a : f32
    linalg.yield %m : f32
  } -> tensor<65536x256xf32>
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%t : tensor<65536x256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.addf %a, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  return %s : tensor<256xf32>
}

// -----

// CHECK-LABEL: func.func @rows
// CHECK-COUNT-1: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
#id = affine_map<(r, c) -> (r, c)>
#row = affine_map<(r, c) -> (r)>
#column = affine_map<(r, c) -> (c)>
func.func @rows(%x: tensor<65536x256xf32>, %z: tensor<65536xf32>) -> (tensor<65536xf32>, tensor<65536x256xf32>) {
  %e = tensor.empty() : tensor<65536x256xf32>
  %t = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<65536x256xf32>) outs(%e : tensor<65536x256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = math.exp %a : f32
    linalg.yield %m : f32
  } -> tensor<65536x256xf32>
  %s = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%t : tensor<65536x256xf32>) outs(%z : tensor<65536xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.addf %a, %o : f32
    linalg.yield %m : f32
  } -> tensor<65536xf32>
  return %s, %t : tensor<65536xf32>, tensor<65536x256xf32>
}

// -----

// CHECK-LABEL: func.func @many_columns
// CHECK-COUNT-1: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
#id = affine_map<(r, c) -> (r, c)>
#row = affine_map<(r, c) -> (r)>
#column = affine_map<(r, c) -> (c)>
func.func @many_columns(%x: tensor<4096x8192xf32>, %z: tensor<8192xf32>) -> (tensor<8192xf32>, tensor<4096x8192xf32>) {
  %e = tensor.empty() : tensor<4096x8192xf32>
  %t = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4096x8192xf32>) outs(%e : tensor<4096x8192xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = math.exp %a : f32
    linalg.yield %m : f32
  } -> tensor<4096x8192xf32>
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%t : tensor<4096x8192xf32>) outs(%z : tensor<8192xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.addf %a, %o : f32
    linalg.yield %m : f32
  } -> tensor<8192xf32>
  return %s, %t : tensor<8192xf32>, tensor<4096x8192xf32>
}

// -----

// CHECK-LABEL: func.func @small
// CHECK-COUNT-1: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
#id = affine_map<(r, c) -> (r, c)>
#row = affine_map<(r, c) -> (r)>
#column = affine_map<(r, c) -> (c)>
func.func @small(%x: tensor<64x64xf32>, %z: tensor<64xf32>) -> (tensor<64xf32>, tensor<64x64xf32>) {
  %e = tensor.empty() : tensor<64x64xf32>
  %t = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x64xf32>) outs(%e : tensor<64x64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = math.exp %a : f32
    linalg.yield %m : f32
  } -> tensor<64x64xf32>
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%t : tensor<64x64xf32>) outs(%z : tensor<64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.addf %a, %o : f32
    linalg.yield %m : f32
  } -> tensor<64xf32>
  return %s, %t : tensor<64xf32>, tensor<64x64xf32>
}

// -----

// A sum that another one reads is stored beside it: it is no term of that one.

// CHECK-LABEL: func.func @stored_sum
// CHECK-COUNT-1: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
#id = affine_map<(r, c) -> (r, c)>
#column = affine_map<(r, c) -> (c)>
func.func @stored_sum(%x: tensor<7001x20xf32>, %z: tensor<20xf32>) -> (tensor<20xf32>, tensor<20xf32>) {
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<7001x20xf32>) outs(%z : tensor<20xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.maximumf %a, %o : f32
    linalg.yield %m : f32
  } -> tensor<20xf32>
  %q = linalg.generic {indexing_maps = [#id, #column, #column], iterator_types = ["reduction", "parallel"]} ins(%x, %s : tensor<7001x20xf32>, tensor<20xf32>) outs(%z : tensor<20xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %d = arith.subf %a, %b : f32
    %m = arith.maximumf %d, %o : f32
    linalg.yield %m : f32
  } -> tensor<20xf32>
  return %s, %q : tensor<20xf32>, tensor<20xf32>
}

// -----

// What comes of the sums and has all rows, as of a batch normalisation, is a stage of its own: its tiles are cut along rows.
// CHECK-LABEL: func.func @normalised
// CHECK-COUNT-2: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
#id = affine_map<(r, c) -> (r, c)>
#column = affine_map<(r, c) -> (c)>
func.func @normalised(%x: tensor<65536x1024xf32>, %z: tensor<1024xf32>) -> (tensor<1024xf32>, tensor<65536x1024xf32>) {
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<65536x1024xf32>) outs(%z : tensor<1024xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.addf %a, %o : f32
    linalg.yield %m : f32
  } -> tensor<1024xf32>
  %e = tensor.empty() : tensor<65536x1024xf32>
  %t = linalg.generic {indexing_maps = [#id, #column, #id], iterator_types = ["parallel", "parallel"]} ins(%x, %s : tensor<65536x1024xf32>, tensor<1024xf32>) outs(%e : tensor<65536x1024xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.subf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<65536x1024xf32>
  return %s, %t : tensor<1024xf32>, tensor<65536x1024xf32>
}

// -----

// CHECK-LABEL: func.func @normalised_many_columns
// CHECK-COUNT-1: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
#id = affine_map<(r, c) -> (r, c)>
#column = affine_map<(r, c) -> (c)>
func.func @normalised_many_columns(%x: tensor<4096x8192xf32>, %z: tensor<8192xf32>) -> tensor<4096x8192xf32> {
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<4096x8192xf32>) outs(%z : tensor<8192xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.addf %a, %o : f32
    linalg.yield %m : f32
  } -> tensor<8192xf32>
  %e = tensor.empty() : tensor<4096x8192xf32>
  %t = linalg.generic {indexing_maps = [#id, #column, #id], iterator_types = ["parallel", "parallel"]} ins(%x, %s : tensor<4096x8192xf32>, tensor<8192xf32>) outs(%e : tensor<4096x8192xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.subf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<4096x8192xf32>
  return %t : tensor<4096x8192xf32>
}

// -----

// A pool of what is stored shares images alone with what makes it, as it reads at computed indices: tiles of whole images are few.
// CHECK-LABEL: func.func @pooled
// CHECK-COUNT-2: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
#id = affine_map<(b, i, c) -> (b, i, c)>
#window = affine_map<(b, i, c, k) -> (k)>
#made = affine_map<(b, i, c, k) -> (b, i, c)>
func.func @pooled(%x: tensor<64x4096x64xf32>, %w: tensor<3xf32>, %z: tensor<64x2047x64xf32>) -> (tensor<64x4096x64xf32>, tensor<64x2047x64xf32>) {
  %two = arith.constant 2 : index
  %e = tensor.empty() : tensor<64x4096x64xf32>
  %t = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x : tensor<64x4096x64xf32>) outs(%e : tensor<64x4096x64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = math.exp %a : f32
    linalg.yield %m : f32
  } -> tensor<64x4096x64xf32>
  %p = linalg.generic {indexing_maps = [#window, #made], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%w : tensor<3xf32>) outs(%z : tensor<64x2047x64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = linalg.index 0 : index
    %i = linalg.index 1 : index
    %c = linalg.index 2 : index
    %k = linalg.index 3 : index
    %j = arith.muli %i, %two : index
    %r = arith.addi %j, %k : index
    %v = tensor.extract %t[%b, %r, %c] : tensor<64x4096x64xf32>
    %m = arith.maximumf %v, %o : f32
    linalg.yield %m : f32
  } -> tensor<64x2047x64xf32>
  return %t, %p : tensor<64x4096x64xf32>, tensor<64x2047x64xf32>
}
