"""Networks as lists of layers: what reads them from files, and those that come with the program (`shipped/`)."""
