"""`moeparity sweep --from A --to B`: the settings in which two launch configurations differ, each put alone."""
