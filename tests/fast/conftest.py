"""The kernels in Triton's interpreter, and on the GPU where there is one: a test that takes `kernels` runs on both."""

import importlib.metadata
import importlib.util
import os

import pytest
from helpers import kernels as cases


def version(package):
    return tuple(int(part) for part in importlib.metadata.version(package).split(".")[:2])


@pytest.fixture(scope="session")
def triton():
    return pytest.importorskip("triton", reason="triton is not installed: pip install 'tinyengine[kernels]'")


@pytest.fixture(scope="session")
def interpreted(triton):
    if version("triton") < (3, 7) and version("numpy") >= (2, 4):
        pytest.skip("Triton's interpreter before 3.7 fails with numpy >= 2.4 (triton #9171)")
    return cases.interpreted()


@pytest.fixture
def compiler(triton, tmp_path, monkeypatch):
    """Kernels are compiled into a folder of the test's own."""
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        pytest.skip("TRITON_INTERPRET=1 is set for the whole run: nothing can be compiled")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # compiled now, not found from an earlier run


@pytest.fixture(scope="session", params=["interpreter", pytest.param("gpu", marks=pytest.mark.cuda)])
def kernels(request, triton):
    return request.getfixturevalue("interpreted") if request.param == "interpreter" else cases.compiled()
