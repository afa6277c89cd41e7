"""How far off simulations of measured rows are, and what that says of others."""
