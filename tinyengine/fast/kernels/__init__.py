"""What torch does not do in one call, or not as fast: `cpu` needs numba, `cuda` Triton (its `varlen` torch >= 2.12).
Every module is imported only where it is used, so that the engine runs where they are missing."""
