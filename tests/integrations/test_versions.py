"""Other trainers are refused in versions that nothing here was written for."""

import pytest

from turnwise.base.errors import IntegrationError
from turnwise.integrations.trainers import check_version

TRL, VERL = ((1, 16), (1, 17)), ((0, 9), (0, 10))


@pytest.mark.parametrize(
    ("name", "version", "supported"),
    [("TRL", "1.16.0", TRL), ("TRL", "1.16.3", TRL), ("TRL", "1.16.0.dev0", TRL), ("verl", "0.9.1", VERL)],
)
def test_versions_in_range(name, version, supported):
    check_version(name, version, supported)


@pytest.mark.parametrize("version", ["0.29.1", "1.15.2", "1.17.0", "2.0", "main"])
def test_versions_out_of_range(version):
    told = (
        rf"^turnwise.integrations.trl: TRL {version} is installed, expected >=1\.16,<1\.17; "
        r"pip install 'trl>=1\.16,<1\.17'$"
    )
    with pytest.raises(IntegrationError, match=told):
        check_version("TRL", version, TRL)


@pytest.mark.parametrize("version", ["0.8.4", "0.10.0", "1.0"])
def test_a_tenth_minor_version_is_above_a_ninth(version):
    with pytest.raises(IntegrationError, match=f"verl {version} is installed, expected >=0.9"):
        check_version("verl", version, VERL)
