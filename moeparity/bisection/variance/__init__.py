"""`moeparity variance`: whether batching the same sequences in several ways (compositions) changes bits."""
