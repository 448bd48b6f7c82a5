"""Workers are processes here."""

import pytest

from tests.bridge.host_env.conftest import Processes


@pytest.fixture
def workers():
    return Processes()
