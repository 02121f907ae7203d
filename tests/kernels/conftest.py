"""The kernels in Triton's interpreter, and on the GPU where there is one: a test that takes `kernels` runs on both."""

import importlib.metadata
import importlib.util

import kernel_cases
import pytest


def version(package):
    return tuple(int(part) for part in importlib.metadata.version(package).split(".")[:2])


@pytest.fixture(scope="session")
def triton():
    return pytest.importorskip("triton", reason="triton is not installed: pip install 'tinyengine[kernels]'")


@pytest.fixture(scope="session")
def interpreted(triton):
    if version("triton") < (3, 7) and version("numpy") >= (2, 4):
        pytest.skip("Triton's interpreter before 3.7 fails with numpy >= 2.4 (triton #9171)")
    return kernel_cases.interpreted()


@pytest.fixture(scope="session", params=["interpreter", pytest.param("gpu", marks=pytest.mark.cuda)])
def kernels(request, triton):
    return request.getfixturevalue("interpreted") if request.param == "interpreter" else kernel_cases.compiled()
