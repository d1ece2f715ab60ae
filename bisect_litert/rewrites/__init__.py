"""Ways out of a fault, each in a file of its own (contract.py says what one is).

Everything here but `contract.py` and this file imports torch at its top: the classes are written into the user's own
file as they stand. So the package is only ever imported inside functions.
"""
