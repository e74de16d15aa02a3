"""How often each of a few numbers comes along a row: reductions that compare with the number of their result."""
