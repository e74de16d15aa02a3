// RUN: kitsune-opt %s --split-input-file --verify-diagnostics --kitsune-materialize

#id = affine_map<(m, n) -> (m, n)>
func.func @no_offset(%x: tensor<8x4xf32>, %e: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %p = "kitsune.pipeline"() ({
    // expected-error@+1 {{'kitsune.stage' op result 0 has no offset in the arena; run kitsune-place-buffers first}}
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<8x4xf32>) outs(%e : tensor<8x4xf32>) {
      ^bb0(%i: f32, %o: f32):
        linalg.yield %i : f32
      } -> tensor<8x4xf32>
      "kitsune.yield"(%r) : (tensor<8x4xf32>) -> ()
    }) {sym_name = "a"} : () -> tensor<8x4xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<8x4xf32>) outs(%e : tensor<8x4xf32>) {
      ^bb0(%i: f32, %o: f32):
        linalg.yield %i : f32
      } -> tensor<8x4xf32>
      "kitsune.yield"(%r) : (tensor<8x4xf32>) -> ()
    }) {sym_name = "b"} : () -> tensor<8x4xf32>
    "kitsune.yield"(%b) : (tensor<8x4xf32>) -> ()
  }) {sym_name = "p"} : () -> tensor<8x4xf32>
  return %p : tensor<8x4xf32>
}

// -----

#id = affine_map<(m, n) -> (m, n)>
func.func @tile_sizes(%x: tensor<8x4xf32>, %e: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %p = "kitsune.pipeline"() ({
    // expected-error@+1 {{'tile' has one size for each parallel dimension that the stage's ops share (here [8, 4]) (found [4])}}
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<8x4xf32>) outs(%e : tensor<8x4xf32>) {
      ^bb0(%i: f32, %o: f32):
        linalg.yield %i : f32
      } -> tensor<8x4xf32>
      "kitsune.yield"(%r) : (tensor<8x4xf32>) -> ()
    }) {sym_name = "a", tile = array<i64: 4>} : () -> tensor<8x4xf32>
    "kitsune.yield"(%a) : (tensor<8x4xf32>) -> ()
  }) {sym_name = "p"} : () -> tensor<8x4xf32>
  return %p : tensor<8x4xf32>
}

// -----

func.func @outside(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %y = math.exp %x : tensor<8x4xf32>
  // expected-error@+1 {{which is made outside it}}
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = math.tanh %y : tensor<8x4xf32>
      "kitsune.yield"(%r) : (tensor<8x4xf32>) -> ()
    }) {sym_name = "a"} : () -> tensor<8x4xf32>
    "kitsune.yield"(%a) : (tensor<8x4xf32>) -> ()
  }) {sym_name = "p"} : () -> tensor<8x4xf32>
  return %p : tensor<8x4xf32>
}

// -----

func.func @two_pipelines(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %p = "kitsune.pipeline"() ({
    "kitsune.yield"(%x) : (tensor<8x4xf32>) -> ()
  }) {sym_name = "p"} : () -> tensor<8x4xf32>
  // expected-error@+1 {{is a second pipeline of one function; one is supported}}
  %q = "kitsune.pipeline"() ({
    "kitsune.yield"(%x) : (tensor<8x4xf32>) -> ()
  }) {sym_name = "q"} : () -> tensor<8x4xf32>
  return %q : tensor<8x4xf32>
}

// -----

// A view of a value that a stage computes inside is no view of memory.
func.func @between_stages(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@+1 {{holds math.exp outside its stages}}
  %p = "kitsune.pipeline"() ({
    %y = math.exp %x : tensor<8x4xf32>
    %a = "kitsune.stage"() ({
      %r = math.tanh %y : tensor<8x4xf32>
      "kitsune.yield"(%r) : (tensor<8x4xf32>) -> ()
    }) {sym_name = "a"} : () -> tensor<8x4xf32>
    "kitsune.yield"(%a) : (tensor<8x4xf32>) -> ()
  }) {sym_name = "p"} : () -> tensor<8x4xf32>
  return %p : tensor<8x4xf32>
}
