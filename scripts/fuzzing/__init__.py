"""What `scripts/fuzz.py` tries: a frame, and kinds of input, one small function each."""
