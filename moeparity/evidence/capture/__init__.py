"""What a running PyTorch program computes, written as a trace (`docs/capture.md`)."""
