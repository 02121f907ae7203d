"""Attention on the GPU. `paged` needs Triton and `varlen` torch >= 2.12; both are imported only when they are used, so
that the engine runs on a CPU where there is no Triton."""
