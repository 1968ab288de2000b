"""Reports as one self-contained page: what the terminal prints, with pictures; opens offline, asks for nothing."""
