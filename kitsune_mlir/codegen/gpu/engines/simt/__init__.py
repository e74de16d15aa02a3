"""Maps and reductions over rows, vectorised, without tensor cores."""
