"""The converted graph: how it is made, kept, read, edited, cut, and computed as fp16 would."""
