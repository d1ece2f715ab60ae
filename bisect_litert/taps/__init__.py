"""Which tensors are looked at, and whether looking changes anything."""
