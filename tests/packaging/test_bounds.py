"""A lower bound that another package overrules is found."""

from tests.bounds import untested

PROJECT = """
[project]
dependencies = ["numpy>=1.26"]
[project.optional-dependencies]
train = ["torch>=2.6", "Some_Package>={bound}", "pyarrow>=15"]
lora = ["peft>=0.20"]
"""
RESOLVED = "numpy==1.26.0\npeft==0.20.0\npyarrow==15.0.0\nsome-package==3.10.0\ntorch==2.13.0\n"


def test_a_bound_below_the_tested_version_is_named():
    assert untested(PROJECT.format(bound="3.10"), RESOLVED) == []
    assert untested(PROJECT.format(bound="3"), RESOLVED) == [
        "pyproject.toml: Some_Package>=3 allows what was not tested; write Some_Package>=3.10.0"
    ]
    assert untested(PROJECT.format(bound="3").replace(">=3", ""), RESOLVED)
