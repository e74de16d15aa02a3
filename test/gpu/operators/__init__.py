"""Small models, one for each thing that a model may do, of awkward sizes; `test.gpu.operator_programs` runs them."""
