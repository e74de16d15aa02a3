// What the verifiers of the tile program refuse.
// RUN: kitsune-opt %s --split-input-file --verify-diagnostics

// A semaphore has slots.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.make_semaphore' op needs attribute 'slots'}}
  %0 = "kitsune.make_semaphore"() : () -> !kitsune.semaphore
  return
}

// -----

// Slots are counted.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.make_semaphore' op 'slots' must be an integer, got "many"}}
  %0 = "kitsune.make_semaphore"() {slots = "many"} : () -> !kitsune.semaphore
  return
}

// -----

// At least one slot.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.make_semaphore' op 'slots' must be at least 1, got 0 : i64}}
  %0 = "kitsune.make_semaphore"() {slots = 0 : i64} : () -> !kitsune.semaphore
  return
}

// -----

// make_semaphore makes a semaphore.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{expected base type 'kitsune.semaphore' but got 'builtin.integer'}}
  %0 = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> i32
  return
}

// -----

// A task has a name.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.task' op needs attribute 'sym_name'}}
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.yield"() : () -> ()
  }) {grid = array<i64: 2>} : () -> ()
  return
}

// -----

// A task has a grid.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.task' op needs attribute 'grid'}}
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.yield"() : () -> ()
  }) {sym_name = "t"} : () -> ()
  return
}

// -----

// A grid is an array of i64.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.task' op 'grid' must be array<i64: ...>, got [2]}}
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.yield"() : () -> ()
  }) {sym_name = "t", grid = [2]} : () -> ()
  return
}

// -----

// A grid has a dimension.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.task' op 'grid' has no extents}}
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.yield"() : () -> ()
  }) {sym_name = "t", grid = array<i64>} : () -> ()
  return
}

// -----

// Extents are positive.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.task' op 'grid' must be at least 1, got array<i64: 2, -1>}}
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.yield"() : () -> ()
  }) {sym_name = "t", grid = array<i64: 2, -1>} : () -> ()
  return
}

// -----

// An engine is a string.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.task' op 'engine' must be a string, got 3 : i64}}
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.yield"() : () -> ()
  }) {sym_name = "t", grid = array<i64: 2>, engine = 3 : i64} : () -> ()
  return
}

// -----

// A task has a body.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.task' op needs one region with one block}}
  "kitsune.task"() ({
  }) {sym_name = "t", grid = array<i64: 2>} : () -> ()
  return
}

// -----

// One coordinate a grid dimension.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.task' op its block needs one index argument a grid dimension (2)}}
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.yield"() : () -> ()
  }) {sym_name = "t", grid = array<i64: 2, 2>} : () -> ()
  return
}

// -----

// Coordinates are of type index.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.task' op its block needs one index argument a grid dimension (1)}}
  "kitsune.task"() ({
  ^bb0(%i: i32):
    "kitsune.yield"() : () -> ()
  }) {sym_name = "t", grid = array<i64: 2>} : () -> ()
  return
}

// -----

// A task yields nothing.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.task' op body must end in 'kitsune.yield' without operands}}
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.yield"(%t) : (tensor<4xf32>) -> ()
  }) {sym_name = "t", grid = array<i64: 2>} : () -> ()
  return
}

// -----

// No wait after a post.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.task' op waits after a post: a task waits first and posts last}}
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.wait"(%s, %i, %i) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "t", grid = array<i64: 2>} : () -> ()
  return
}

// -----

// No store after a post.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.task' op stores after a post: a reader could see the post before the data}}
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    bufferization.materialize_in_destination %t in restrict writable %m : (tensor<4xf32>, memref<4xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "t", grid = array<i64: 2>} : () -> ()
  return
}

// -----

// A wait has a count.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>, %i: index, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>, %big: tensor<8xf32>) {
  // expected-error@+1 {{'kitsune.wait' op needs attribute 'count'}}
  "kitsune.wait"(%s, %i, %i) : (!kitsune.semaphore, index, index) -> ()
  return
}

// -----

// A count is an integer.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>, %i: index, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>, %big: tensor<8xf32>) {
  // expected-error@+1 {{'kitsune.wait' op 'count' must be an integer, got "one"}}
  "kitsune.wait"(%s, %i, %i) {count = "one"} : (!kitsune.semaphore, index, index) -> ()
  return
}

// -----

// A wait is for something.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>, %i: index, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>, %big: tensor<8xf32>) {
  // expected-error@+1 {{'kitsune.wait' op 'count' must be at least 1, got 0 : i64}}
  "kitsune.wait"(%s, %i, %i) {count = 0 : i64} : (!kitsune.semaphore, index, index) -> ()
  return
}

// -----

// Slots are of type index.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>, %i: index, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>, %big: tensor<8xf32>) {
  // expected-error@+1 {{'kitsune.wait' op needs an index, got i32}}
  "kitsune.wait"(%s, %i, %n) {count = 1 : i64} : (!kitsune.semaphore, index, i32) -> ()
  return
}

// -----

// A wait has two bounds.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>, %i: index, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>, %big: tensor<8xf32>) {
  // expected-error@+1 {{op expects exactly 3 operands, but got 2}}
  "kitsune.wait"(%s, %i) {count = 1 : i64} : (!kitsune.semaphore, index) -> ()
  return
}

// -----

// A wait is on a semaphore.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>, %i: index, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>, %big: tensor<8xf32>) {
  // expected-error@+1 {{expected base type 'kitsune.semaphore' but got 'builtin.index'}}
  "kitsune.wait"(%i, %i, %i) {count = 1 : i64} : (index, index, index) -> ()
  return
}

// -----

// A post names a slot.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>, %i: index, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>, %big: tensor<8xf32>) {
  // expected-error@+1 {{op expects exactly 2 operands, but got 1}}
  "kitsune.post"(%s) : (!kitsune.semaphore) -> ()
  return
}

// -----

// A posted slot is an index.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>, %i: index, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>, %big: tensor<8xf32>) {
  // expected-error@+1 {{'kitsune.post' op needs an index, got i32}}
  "kitsune.post"(%s, %n) : (!kitsune.semaphore, i32) -> ()
  return
}

// -----

// A post is on a semaphore.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>, %i: index, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>, %big: tensor<8xf32>) {
  // expected-error@+1 {{expected base type 'kitsune.semaphore' but got 'builtin.memref'}}
  "kitsune.post"(%m, %i) : (memref<4xf32>, index) -> ()
  return
}

// -----

// make_queue makes a queue.
func.func @f(%s: !kitsune.semaphore, %n: i32, %i: index, %m: memref<8xf32>, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>) {
  // expected-error@+1 {{expected base type 'kitsune.queue' but got 'builtin.index'}}
  %0 = "kitsune.make_queue"(%m) {pushes = 1 : i64, pops = 1 : i64} : (memref<8xf32>) -> index
  return
}

// -----

// A queue says how many push a tile.
func.func @f(%s: !kitsune.semaphore, %n: i32, %i: index, %m: memref<8xf32>, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>) {
  // expected-error@+1 {{'kitsune.make_queue' op needs attribute 'pushes'}}
  %0 = "kitsune.make_queue"(%m) {pops = 1 : i64} : (memref<8xf32>) -> !kitsune.queue<tensor<4xf32>, 2 : i64>
  return
}

// -----

// Somebody reads each tile.
func.func @f(%s: !kitsune.semaphore, %n: i32, %i: index, %m: memref<8xf32>, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>) {
  // expected-error@+1 {{'kitsune.make_queue' op 'pops' must be at least 1, got 0 : i64}}
  %0 = "kitsune.make_queue"(%m) {pushes = 1 : i64, pops = 0 : i64} : (memref<8xf32>) -> !kitsune.queue<tensor<4xf32>, 2 : i64>
  return
}

// -----

// The slots fill the memory.
func.func @f(%s: !kitsune.semaphore, %n: i32, %i: index, %m: memref<8xf32>, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>) {
  // expected-error@+1 {{'kitsune.make_queue' op 3 slots of tensor<4xf32> do not fill memref<8xf32>}}
  %0 = "kitsune.make_queue"(%m) {pushes = 1 : i64, pops = 1 : i64} : (memref<8xf32>) -> !kitsune.queue<tensor<4xf32>, 3 : i64>
  return
}

// -----

// A ring has slots.
func.func @f(%s: !kitsune.semaphore, %n: i32, %i: index, %m: memref<8xf32>, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>) {
  // expected-error@+1 {{'kitsune.make_queue' op a ring has at least one slot, not 0}}
  %0 = "kitsune.make_queue"(%m) {pushes = 1 : i64, pops = 1 : i64} : (memref<8xf32>) -> !kitsune.queue<tensor<4xf32>, 0 : i64>
  return
}

// -----

// A ring slot is an index.
func.func @f(%s: !kitsune.semaphore, %n: i32, %i: index, %m: memref<8xf32>, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>) {
  // expected-error@+1 {{'kitsune.acquire' op needs an index, got i32}}
  %0 = "kitsune.acquire"(%q, %i) : (!kitsune.queue<tensor<4xf32>, 2 : i64>, index) -> i32
  return
}

// -----

// The number of a tile is an index.
func.func @f(%s: !kitsune.semaphore, %n: i32, %i: index, %m: memref<8xf32>, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>) {
  // expected-error@+1 {{'kitsune.acquire' op needs an index, got i32}}
  %0 = "kitsune.acquire"(%q, %n) : (!kitsune.queue<tensor<4xf32>, 2 : i64>, i32) -> index
  return
}

// -----

// A queue is acquired from.
func.func @f(%s: !kitsune.semaphore, %n: i32, %i: index, %m: memref<8xf32>, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>) {
  // expected-error@+1 {{expected base type 'kitsune.queue' but got 'kitsune.semaphore'}}
  %0 = "kitsune.acquire"(%s, %i) : (!kitsune.semaphore, index) -> index
  return
}

// -----

// A tile is pushed into a slot.
func.func @f(%s: !kitsune.semaphore, %n: i32, %i: index, %m: memref<8xf32>, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>) {
  // expected-error@+1 {{'kitsune.push' op needs an index, got i32}}
  "kitsune.push"(%q, %n) : (!kitsune.queue<tensor<4xf32>, 2 : i64>, i32) -> ()
  return
}

// -----

// A popped slot is an index.
func.func @f(%s: !kitsune.semaphore, %n: i32, %i: index, %m: memref<8xf32>, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>) {
  // expected-error@+1 {{'kitsune.pop' op needs an index, got i32}}
  %0 = "kitsune.pop"(%q, %i) : (!kitsune.queue<tensor<4xf32>, 2 : i64>, index) -> i32
  return
}

// -----

// Rounds are counted.
func.func @f(%s: !kitsune.semaphore, %n: i32, %i: index, %m: memref<8xf32>, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>) {
  // expected-error@+1 {{'kitsune.wait_rounds' op needs an index, got i32}}
  "kitsune.wait_rounds"(%s, %i, %i, %n) {count = 1 : i64} : (!kitsune.semaphore, index, index, i32) -> ()
  return
}

// -----

// A slot released is an index.
func.func @f(%s: !kitsune.semaphore, %n: i32, %m: memref<4xf32>, %t: tensor<4xf32>, %i: index, %q: !kitsune.queue<tensor<4xf32>, 2 : i64>, %big: tensor<8xf32>) {
  // expected-error@+1 {{'kitsune.release' op needs an index, got i32}}
  "kitsune.release"(%q, %n) : (!kitsune.queue<tensor<4xf32>, 2 : i64>, i32) -> ()
  return
}

// -----

// A queue holds tiles of a type.
// expected-error@+1 {{expected base attribute 'builtin.type' but got 'builtin.integer'}}
func.func private @f(!kitsune.queue<4 : i64, 2 : i64>)

// -----

// A queue's depth is an integer.
// expected-error@+1 {{expected base attribute 'builtin.integer' but got 'builtin.string'}}
func.func private @f(!kitsune.queue<tensor<4xf32>, "deep">)

// -----

// A scatter-add says how it adds.
func.func @f(%u: tensor<4x8xf32>, %i: tensor<4xi64>, %n: index, %m: memref<10x8xf32>) {
  // expected-error@+1 {{'kitsune.atomic_scatter' op needs attribute 'kind'}}
  "kitsune.atomic_scatter"(%u, %i, %n, %m) : (tensor<4x8xf32>, tensor<4xi64>, index, memref<10x8xf32>) -> ()
  return
}

// -----

// Only sums are atomic updates of rows.
func.func @f(%u: tensor<4x8xf32>, %i: tensor<4xi64>, %n: index, %m: memref<10x8xf32>) {
  // expected-error@+1 {{'kitsune.atomic_scatter' op 'kind' must be one of addf, addi, maximumf, maxs, minimumf, mins, mulf, muli, assign, got 'maxf'}}
  "kitsune.atomic_scatter"(%u, %i, %n, %m) {kind = "maxf"} : (tensor<4x8xf32>, tensor<4xi64>, index, memref<10x8xf32>) -> ()
  return
}

// -----

// Rows fit the destination.
func.func @f(%u: tensor<4x8xf32>, %i: tensor<4xi64>, %n: index, %m: memref<10x9xf32>) {
  // expected-error@+1 {{'kitsune.atomic_scatter' op rows of tensor<4x8xf32> do not fit memref<10x9xf32>}}
  "kitsune.atomic_scatter"(%u, %i, %n, %m) {kind = "addf"} : (tensor<4x8xf32>, tensor<4xi64>, index, memref<10x9xf32>) -> ()
  return
}

// -----

// There is one index a row.
func.func @f(%u: tensor<4x8xf32>, %i: tensor<5xi64>, %n: index, %m: memref<10x8xf32>) {
  // expected-error@+1 {{'kitsune.atomic_scatter' op needs one index a row of tensor<4x8xf32>, got tensor<5xi64>}}
  "kitsune.atomic_scatter"(%u, %i, %n, %m) {kind = "addf"} : (tensor<4x8xf32>, tensor<5xi64>, index, memref<10x8xf32>) -> ()
  return
}

// -----

// Indices are integers.
func.func @f(%u: tensor<4x8xf32>, %i: tensor<4xf32>, %n: index, %m: memref<10x8xf32>) {
  // expected-error@+1 {{'kitsune.atomic_scatter' op indices are integers, got tensor<4xf32>}}
  "kitsune.atomic_scatter"(%u, %i, %n, %m) {kind = "addf"} : (tensor<4x8xf32>, tensor<4xf32>, index, memref<10x8xf32>) -> ()
  return
}

// -----

// It adds a tensor to memory.
func.func @f(%u: memref<4x8xf32>, %i: tensor<4xi64>, %n: index, %m: memref<10x8xf32>) {
  // expected-error@+1 {{'kitsune.atomic_scatter' op puts a tensor into a memref, not memref<4x8xf32> into memref<10x8xf32>}}
  "kitsune.atomic_scatter"(%u, %i, %n, %m) {kind = "addf"} : (memref<4x8xf32>, tensor<4xi64>, index, memref<10x8xf32>) -> ()
  return
}
