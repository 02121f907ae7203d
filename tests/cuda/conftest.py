import pytest


@pytest.fixture(scope="session")
def triton():
    return pytest.importorskip("triton", reason="triton is not installed: pip install 'tinyengine[kernels]'")
