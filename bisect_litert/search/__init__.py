"""Who is wrong: blocks, then ops and lines, and the control runs that prove it."""
