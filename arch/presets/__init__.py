"""The machine descriptions that ship: a package so that the wheel carries them."""
