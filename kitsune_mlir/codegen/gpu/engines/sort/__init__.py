"""Rows put in order, with what belongs to their elements: `tm_tensor.sort`."""
