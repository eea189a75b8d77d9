"""For torch tensors."""
