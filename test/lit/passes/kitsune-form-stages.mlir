// A sum and the maximum of each row share the rows: one stage. The minimum of each column shares no parallel dimension with it.
// RUN: kitsune-opt %s --kitsune-form-stages="target=h200 chains=false" --split-input-file --verify-diagnostics | FileCheck %s

// CHECK: "kitsune.pipeline"() ({
// CHECK: "kitsune.stage"() ({
// CHECK: arith.addf
// CHECK: arith.maximumf
// CHECK: "kitsune.stage"() ({
// CHECK: arith.minimumf
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
#column = affine_map<(m, n) -> (n)>
func.func @f(%x: tensor<64x32xf32>, %er: tensor<64xf32>, %ec: tensor<32xf32>) -> (tensor<64xf32>, tensor<32xf32>) {
  %e = tensor.empty() : tensor<64x32xf32>
  %s = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %a : f32
    linalg.yield %b : f32
  } -> tensor<64x32xf32>
  %r = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%s : tensor<64x32xf32>) outs(%er : tensor<64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.maximumf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<64xf32>
  // expected-remark@+1 {{not joined with linalg.generic: they share no parallel dimension}}
  %c = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%s : tensor<64x32xf32>) outs(%ec : tensor<32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.minimumf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<32xf32>
  return %r, %c : tensor<64xf32>, tensor<32xf32>
}

// -----

// A product takes its epilogue into its stage. Another product is another stage on the GPU. Cheap ops (constants, fills) are
// made again in each stage that needs them.
// CHECK-LABEL: func.func @layers(%arg0: tensor<4096x64xf32>, %arg1: tensor<64x64xf32>, %arg2: tensor<64x64xf32>)
// CHECK-NEXT: %[[P:.*]] = "kitsune.pipeline"() ({
// CHECK-NEXT: %[[A:.*]] = "kitsune.stage"() ({
// CHECK: arith.constant 0.0
// CHECK: ins(%arg0, %arg1 :
// CHECK: %[[R:.*]] = linalg.generic
// CHECK: arith.maximumf
// CHECK: "kitsune.yield"(%[[R]])
// CHECK-NEXT: }) {sym_name = "product_0"} : () -> tensor<4096x64xf32>
// CHECK-NEXT: %[[B:.*]] = "kitsune.stage"() ({
// CHECK: arith.constant 0.0
// CHECK: ins(%[[A]], %arg2 :
// CHECK: }) {sym_name = "product_1"}
// CHECK-NEXT: "kitsune.yield"(%[[B]])
// CHECK: return %[[P]]
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
func.func @layers(%x: tensor<4096x64xf32>, %w: tensor<64x64xf32>, %v: tensor<64x64xf32>) -> tensor<4096x64xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4096x64xf32>
  %z = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel", "parallel"]} outs(%e : tensor<4096x64xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<4096x64xf32>
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<4096x64xf32>, tensor<64x64xf32>) outs(%z : tensor<4096x64xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x64xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%p : tensor<4096x64xf32>) outs(%e : tensor<4096x64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.maximumf %a, %zero : f32
    linalg.yield %m : f32
  } -> tensor<4096x64xf32>
  // expected-remark@+1 {{not joined with linalg.generic: a stage holds one product on this target}}
  %q = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%r, %v : tensor<4096x64xf32>, tensor<64x64xf32>) outs(%z : tensor<4096x64xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x64xf32>
  return %q : tensor<4096x64xf32>
}

// -----

// On the GPU a product keeps both of its parallel dimensions: what needs whole rows after it (a row sum), and what comes before
// it, are stages of their own.
// CHECK-LABEL: func.func @around_a_product
// CHECK: }) {sym_name = "map_0"}
// CHECK: }) {sym_name = "product_1"}
// CHECK: }) {sym_name = "reduce_2"}
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @around_a_product(%x: tensor<4096x64xf32>, %w: tensor<64x64xf32>, %acc: tensor<4096x64xf32>, %sum: tensor<4096xf32>) -> tensor<4096xf32> {
  %e = tensor.empty() : tensor<4096x64xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4096x64xf32>) outs(%e : tensor<4096x64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = math.exp %a : f32
    linalg.yield %m : f32
  } -> tensor<4096x64xf32>
  // expected-remark@+1 {{not joined with linalg.generic: a product's inputs come from memory on this target}}
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%r, %w : tensor<4096x64xf32>, tensor<64x64xf32>) outs(%acc : tensor<4096x64xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x64xf32>
  // expected-remark@+1 {{not joined with linalg.generic: it would take the product's columns away from its tiles}}
  %s = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%p : tensor<4096x64xf32>) outs(%sum : tensor<4096xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.maximumf %a, %o : f32
    linalg.yield %m : f32
  } -> tensor<4096xf32>
  return %s : tensor<4096xf32>
}

// -----

// A table that is gathered from by index must be complete: it is a stage of its own. The gather joins its consumer.
// CHECK-LABEL: func.func @gather
// CHECK: %[[T:.*]] = "kitsune.stage"
// CHECK: math.exp
// CHECK: }) {sym_name = "map_0"}
// CHECK: "kitsune.stage"
// CHECK: tensor.extract %[[T]]
// CHECK: math.tanh
// CHECK: }) {sym_name = "map_1"}
// CHECK-NOT: "kitsune.stage"
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @gather(%t: tensor<50x32xf32>, %i: tensor<100xindex>) -> tensor<100x32xf32> {
  %et = tensor.empty() : tensor<50x32xf32>
  %table = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%t : tensor<50x32xf32>) outs(%et : tensor<50x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = math.exp %a : f32
    linalg.yield %m : f32
  } -> tensor<50x32xf32>
  %e = tensor.empty() : tensor<100x32xf32>
  // expected-remark@+1 {{not joined with linalg.generic: they share no parallel dimension}}
  %g = linalg.generic {indexing_maps = [#row, #id], iterator_types = ["parallel", "parallel"]} ins(%i : tensor<100xindex>) outs(%e : tensor<100x32xf32>) {
  ^bb0(%a: index, %o: f32):
    %n = linalg.index 1 : index
    %v = tensor.extract %table[%a, %n] : tensor<50x32xf32>
    linalg.yield %v : f32
  } -> tensor<100x32xf32>
  %s = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%g : tensor<100x32xf32>) outs(%e : tensor<100x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = math.tanh %a : f32
    linalg.yield %m : f32
  } -> tensor<100x32xf32>
  return %s : tensor<100x32xf32>
}

// -----

// A view between two stages stands in the pipeline: it costs nothing, but no dimension runs through (64, 12) and (12, 64).
// CHECK-LABEL: func.func @view
// CHECK: %[[A:.*]] = "kitsune.stage"
// CHECK: }) {sym_name = "map_0"}
// CHECK-NEXT: %[[F:.*]] = tensor.collapse_shape %[[A]] {{\[\[}}0, 1]]
// CHECK-NEXT: %[[V:.*]] = tensor.expand_shape %[[F]] {{\[\[}}0, 1]]
// CHECK-NEXT: %[[B:.*]] = "kitsune.stage"
// CHECK: ins(%[[V]] :
// CHECK: }) {sym_name = "map_1"}
// CHECK-NEXT: %[[R:.*]] = tensor.collapse_shape %[[B]]
// CHECK-NEXT: "kitsune.yield"(%[[R]])
#id = affine_map<(m, n) -> (m, n)>
func.func @view(%x: tensor<64x12xf32>) -> tensor<768xf32> {
  %e = tensor.empty() : tensor<64x12xf32>
  %a = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x12xf32>) outs(%e : tensor<64x12xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = math.exp %i : f32
    linalg.yield %m : f32
  } -> tensor<64x12xf32>
  %u = tensor.collapse_shape %a [[0, 1]] : tensor<64x12xf32> into tensor<768xf32>
  %v = tensor.expand_shape %u [[0, 1]] output_shape [12, 64] : tensor<768xf32> into tensor<12x64xf32>
  %f = tensor.empty() : tensor<12x64xf32>
  // expected-remark@+1 {{not joined with linalg.generic: a reshape between them splits or merges dimensions}}
  %b = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%v : tensor<12x64xf32>) outs(%f : tensor<12x64xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = math.tanh %i : f32
    linalg.yield %m : f32
  } -> tensor<12x64xf32>
  %r = tensor.collapse_shape %b [[0, 1]] : tensor<12x64xf32> into tensor<768xf32>
  return %r : tensor<768xf32>
}

// -----

// Every result is written by a stage: an argument, a constant, a slice, and a value returned twice are copied.
// CHECK-LABEL: func.func @returned
// CHECK: %[[X:.*]] = "kitsune.stage"
// CHECK: ins(%arg0 :
// CHECK-NEXT: ^bb0(%[[I:.*]]: f32, %{{.*}}: f32):
// CHECK-NEXT: linalg.yield %[[I]]
// CHECK: %[[C:.*]] = "kitsune.stage"
// CHECK: arith.constant 1.0
// CHECK: %[[S:.*]] = "kitsune.stage"
// CHECK: tensor.extract_slice %arg0[2, 0]
// CHECK: %[[T:.*]] = "kitsune.stage"
// CHECK: math.exp
// CHECK: builtin.unrealized_conversion_cast %{{.*}} to tuple<tensor<8x4xf32>, tensor<8x4xf32>>
// CHECK: %[[A:.*]]:2 = builtin.unrealized_conversion_cast %[[T]]
// CHECK: builtin.unrealized_conversion_cast %[[X]], %[[C]], %[[S]], %[[A]]#0, %[[A]]#1
func.func @returned(%x: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<4xf32>, tensor<2x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
  %c = arith.constant dense<1.0> : tensor<4xf32>
  %s = tensor.extract_slice %x[2, 0] [2, 4] [1, 1] : tensor<8x4xf32> to tensor<2x4xf32>
  %e = tensor.empty() : tensor<8x4xf32>
  %a = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<8x4xf32>) outs(%e : tensor<8x4xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = math.exp %i : f32
    linalg.yield %m : f32
  } -> tensor<8x4xf32>
  return %x, %c, %s, %a, %a : tensor<8x4xf32>, tensor<4xf32>, tensor<2x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}

// -----

// Two ops with a third between them that must run alone cannot be one stage.
// CHECK-LABEL: func.func @cycle
// CHECK: sym_name = "map_0"
// CHECK: sym_name = "reduce_1"
// CHECK: sym_name = "map_2"
#id = affine_map<(m, n) -> (m, n)>
#none = affine_map<(m, n) -> ()>
func.func @cycle(%x: tensor<512x512xf32>, %ec: tensor<f32>) -> tensor<512x512xf32> {
  %e = tensor.empty() : tensor<512x512xf32>
  %a = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<512x512xf32>) outs(%e : tensor<512x512xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = math.exp %i : f32
    linalg.yield %m : f32
  } -> tensor<512x512xf32>
  // expected-remark@+1 {{not joined with linalg.generic: they share no parallel dimension}}
  %c = linalg.generic {indexing_maps = [#id, #none], iterator_types = ["reduction", "reduction"]} ins(%a : tensor<512x512xf32>) outs(%ec : tensor<f32>) {
  ^bb0(%i: f32, %o: f32):
    %m = arith.maximumf %i, %o : f32
    linalg.yield %m : f32
  } -> tensor<f32>
  // expected-remark@+2 {{not joined with linalg.generic: they share no parallel dimension}}
  // expected-remark@+1 {{not joined with linalg.generic: another stage runs between them}}
  %s = linalg.generic {indexing_maps = [#id, #none, #id], iterator_types = ["parallel", "parallel"]} ins(%a, %c : tensor<512x512xf32>, tensor<f32>) outs(%e : tensor<512x512xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.divf %i, %j : f32
    linalg.yield %m : f32
  } -> tensor<512x512xf32>
  return %s : tensor<512x512xf32>
}

// -----

// Two rows of 128 KiB are more than a multiprocessor holds, but work without products keeps nothing: it reads a row again.
// CHECK-LABEL: func.func @wide
// CHECK: math.exp
// CHECK: arith.maximumf
// CHECK: arith.divf
// CHECK: sym_name = "reduce_0"
// CHECK-NOT: "kitsune.stage"
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
func.func @wide(%x: tensor<512x32768xf32>, %er: tensor<512xf32>) -> tensor<512x32768xf32> {
  %e = tensor.empty() : tensor<512x32768xf32>
  %a = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<512x32768xf32>) outs(%e : tensor<512x32768xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = math.exp %i : f32
    linalg.yield %m : f32
  } -> tensor<512x32768xf32>
  %r = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%a : tensor<512x32768xf32>) outs(%er : tensor<512xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = arith.maximumf %i, %o : f32
    linalg.yield %m : f32
  } -> tensor<512xf32>
  %s = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]} ins(%a, %r : tensor<512x32768xf32>, tensor<512xf32>) outs(%e : tensor<512x32768xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.divf %i, %j : f32
    linalg.yield %m : f32
  } -> tensor<512x32768xf32>
  return %s : tensor<512x32768xf32>
}

// -----

// Joining must leave tiles for the machine: the reduction over all but two rows would run on two multiprocessors.
// CHECK-LABEL: func.func @few_tiles
// CHECK: sym_name = "map_0"
// CHECK: sym_name = "reduce_1"
#id = affine_map<(m, n, k) -> (m, n, k)>
#row = affine_map<(m, n, k) -> (m)>
func.func @few_tiles(%x: tensor<2x512x512xf32>, %er: tensor<2xf32>) -> tensor<2xf32> {
  %e = tensor.empty() : tensor<2x512x512xf32>
  %a = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x : tensor<2x512x512xf32>) outs(%e : tensor<2x512x512xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = math.exp %i : f32
    linalg.yield %m : f32
  } -> tensor<2x512x512xf32>
  // expected-remark@+1 {{not joined with linalg.generic: too few tiles would be left (2)}}
  %r = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction", "reduction"]} ins(%a : tensor<2x512x512xf32>) outs(%er : tensor<2xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = arith.maximumf %i, %o : f32
    linalg.yield %m : f32
  } -> tensor<2xf32>
  return %r : tensor<2xf32>
}

// -----

// Functions without results, declarations, tile programs and pipelines stay as they are.
// CHECK-LABEL: func.func private @declared
// CHECK-NEXT: func.func @nothing
// CHECK-NEXT: return
// CHECK: func.func @done
// CHECK-NEXT: "kitsune.pipeline"
// CHECK-NEXT: "kitsune.yield"(%arg0)
// CHECK-NEXT: }) {sym_name = "kept"}
func.func private @declared(tensor<4xf32>) -> tensor<4xf32>
func.func @nothing(%x: tensor<4xf32>) {
  return
}
func.func @done(%x: tensor<4xf32>) -> tensor<4xf32> {
  %p = "kitsune.pipeline"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "kept"} : () -> tensor<4xf32>
  return %p : tensor<4xf32>
}

// -----

// Only static shapes.
func.func @dynamic(%x: tensor<?xf32>) -> tensor<?xf32> {
  // expected-error@+1 {{'tensor.cast' op has a result of dynamic shape tensor<?xf32>; only static shapes are supported}}
  %y = tensor.cast %x : tensor<?xf32> to tensor<?xf32>
  return %y : tensor<?xf32>
}

// -----

// Only straight-line functions.
// expected-error@+1 {{'func.func' op has several blocks; only straight-line functions become pipelines}}
func.func @blocks(%x: tensor<4xf32>) -> tensor<4xf32> {
  cf.br ^next
^next:
  return %x : tensor<4xf32>
}
