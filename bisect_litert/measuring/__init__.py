"""Tensors compared, and what every run says of each tap."""
