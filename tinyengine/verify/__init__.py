"""Batch invariance, proven on the machine at hand: sixteen checks, bit by bit, with the plain engine beside."""
