"""Attention: softmax(scale q k^T, masked) v with an online softmax."""
