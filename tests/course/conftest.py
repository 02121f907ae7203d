import pytest
from helpers.course import Course, solution, twice


@pytest.fixture
def course(tmp_path):
    return Course(tmp_path, solution(*twice("2.1", title="Double", minutes=5), *twice("2.2")))
