import pytest
from helpers.browser import chromium


@pytest.fixture(scope="session")
def browser():
    try:
        with chromium() as one:
            yield one
    except FileNotFoundError as error:
        pytest.fail(str(error), pytrace=False)
