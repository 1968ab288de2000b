"""Which token of which sequence a program's rows are of, and which forward passes go on from which."""
