"""How an operator becomes a run on a machine: what is computed meets how time passes. A folder each family.

A folder's `__init__.py` declares the family (`arch.families.Family`) and imports nothing else of ours.
"""
