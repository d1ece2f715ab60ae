"""A .tflite file in place of a PyTorch model: its inputs, blocks and own reference; its partners in a model."""
