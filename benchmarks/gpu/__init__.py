"""What only a GPU can show, in one command and on one page: `python -m benchmarks.gpu --out FOLDER`."""
