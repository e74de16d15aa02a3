// What is refused of a recurrent layer's operation (dialects/recurrence.py).
// RUN: kitsune-opt %s --split-input-file --verify-diagnostics

// It says what a step does.
func.func @f(%g: tensor<5x2x9xf32>, %w: tensor<9x3xbf16>, %b: tensor<9xbf16>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op needs attribute 'cell'}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<5x2x9xf32>, tensor<9x3xbf16>, tensor<9xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>)
  return
}

// -----

// It is a cell that there is.
func.func @f(%g: tensor<5x2x9xf32>, %w: tensor<9x3xbf16>, %b: tensor<9xbf16>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op 'cell' must be one of lstm, gru, rnn_tanh, rnn_relu, got 'mgu'}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {cell = "mgu", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<5x2x9xf32>, tensor<9x3xbf16>, tensor<9xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>)
  return
}

// -----

// It has no other attributes.
func.func @f(%g: tensor<5x2x9xf32>, %w: tensor<9x3xbf16>, %b: tensor<9xbf16>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op has no attribute 'reverse'; it has cell, batch_first, operandSegmentSizes}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {cell = "gru", operandSegmentSizes = array<i32: 1, 1, 1, 1>, reverse} : (tensor<5x2x9xf32>, tensor<9x3xbf16>, tensor<9xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>)
  return
}

// -----

// An LSTM has two states.
func.func @f(%g: tensor<5x2x9xf32>, %w: tensor<9x3xbf16>, %b: tensor<9xbf16>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op has 1 states, a cell 'lstm' has 2}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {cell = "lstm", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<5x2x9xf32>, tensor<9x3xbf16>, tensor<9xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>)
  return
}

// -----

// As many weights as are given.
func.func @f(%g: tensor<5x2x9xf32>, %w: tensor<9x3xbf16>, %b: tensor<9xbf16>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op has 1, 1 and 2 of 'given', 'weights' and 'biases', needs one or two of each}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %b, %h) {cell = "gru", operandSegmentSizes = array<i32: 1, 1, 2, 1>} : (tensor<5x2x9xf32>, tensor<9x3xbf16>, tensor<9xbf16>, tensor<9xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>)
  return
}

// -----

// What is given has steps, rows and gates.
func.func @f(%g: tensor<5x9xf32>, %w: tensor<9x3xbf16>, %b: tensor<9xbf16>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op 'given' is [steps, batch, gates], got tensor<5x9xf32>}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {cell = "gru", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<5x9xf32>, tensor<9x3xbf16>, tensor<9xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>)
  return
}

// -----

// Weights are matrices.
func.func @f(%g: tensor<5x2x9xf32>, %w: tensor<27xbf16>, %b: tensor<9xbf16>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op 'weights' are matrices, got tensor<27xbf16>}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {cell = "gru", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<5x2x9xf32>, tensor<27xbf16>, tensor<9xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>)
  return
}

// -----

// Weights are floats of up to 32 bits.
func.func @f(%g: tensor<5x2x9xf32>, %w: tensor<9x3xf64>, %b: tensor<9xbf16>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op 'weights' are f32, bf16 or f16, got tensor<9x3xf64>}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {cell = "gru", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<5x2x9xf32>, tensor<9x3xf64>, tensor<9xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>)
  return
}

// -----

// Rows of weights are those of all gates.
func.func @f(%g: tensor<5x2x9xf32>, %w: tensor<12x3xbf16>, %b: tensor<9xbf16>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op has 3 gates: 3 * H columns of 'given', and rows of 'weights' of H elements}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {cell = "gru", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<5x2x9xf32>, tensor<12x3xbf16>, tensor<9xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>)
  return
}

// -----

// What is given is f32.
func.func @f(%g: tensor<5x2x9xbf16>, %w: tensor<9x3xbf16>, %b: tensor<9xbf16>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op 'given' must be tensor<5x2x9xf32>, got tensor<5x2x9xbf16>}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {cell = "gru", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<5x2x9xbf16>, tensor<9x3xbf16>, tensor<9xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>)
  return
}

// -----

// Biases have the weights' type.
func.func @f(%g: tensor<5x2x9xf32>, %w: tensor<9x3xbf16>, %b: tensor<9xf32>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op 'biases' must be tensor<9xbf16>, got tensor<9xf32>}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {cell = "gru", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<5x2x9xf32>, tensor<9x3xbf16>, tensor<9xf32>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>)
  return
}

// -----

// States are those of the batch.
func.func @f(%g: tensor<5x2x9xf32>, %w: tensor<9x3xbf16>, %b: tensor<9xbf16>, %h: tensor<1x5x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op 'states' must be tensor<1x2x3xbf16>, got tensor<1x5x3xbf16>}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {cell = "gru", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<5x2x9xf32>, tensor<9x3xbf16>, tensor<9xbf16>, tensor<1x5x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>)
  return
}

// -----

// With `batch_first` the batch is the first dimension.
func.func @f(%g: tensor<5x2x9xf32>, %w: tensor<9x3xbf16>, %b: tensor<9xbf16>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op 'states' must be tensor<1x5x3xbf16>, got tensor<1x2x3xbf16>}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {batch_first, cell = "gru", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<5x2x9xf32>, tensor<9x3xbf16>, tensor<9xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<1x2x3xbf16>)
  return
}

// -----

// The result has the hidden states of all steps.
func.func @f(%g: tensor<5x2x9xf32>, %w: tensor<9x3xbf16>, %b: tensor<9xbf16>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op 'out' must be tensor<5x2x3xbf16>, got tensor<5x2x3xf32>}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {cell = "gru", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<5x2x9xf32>, tensor<9x3xbf16>, tensor<9xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xf32>, tensor<1x2x3xbf16>)
  return
}

// -----

// Final states are as the first ones.
func.func @f(%g: tensor<5x2x9xf32>, %w: tensor<9x3xbf16>, %b: tensor<9xbf16>, %h: tensor<1x2x3xbf16>) {
  // expected-error@+1 {{'kitsune.recurrence' op 'finals' must be tensor<1x2x3xbf16>, got tensor<2x3xbf16>}}
  %o:2 = "kitsune.recurrence"(%g, %w, %b, %h) {cell = "gru", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<5x2x9xf32>, tensor<9x3xbf16>, tensor<9xbf16>, tensor<1x2x3xbf16>) -> (tensor<5x2x3xbf16>, tensor<2x3xbf16>)
  return
}
