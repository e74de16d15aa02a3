"""The benchmark programs: the zoo of models and what measures them."""
