"""Networks as lists of layers, read from files, and those that come with the program.

`shipped/` holds the layer shapes of SCALE-Sim's topology files (github scalesim-project/scale-sim-v3 at fab89b7, folder
`topologies`, MIT licence, Copyright 2024 SCALE-Sim Project), in its own format. Values are as they stand there, slips
included: most convolutions lack the padding of the network that they are named after, and some channels are off.
"""
