"""What every node computed, as digests that a baseline keeps."""
