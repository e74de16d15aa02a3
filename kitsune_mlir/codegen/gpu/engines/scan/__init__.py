"""Running sums, products and extremes along a dimension: `tm_tensor.scan`."""
