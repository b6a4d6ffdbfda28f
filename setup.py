"""What pyproject.toml cannot say: a wheel carries notebooks/ and data/ inside the package (see kit/lab/paths.py)."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["kit*"]), "kit._notebooks", "kit._data"],
    package_dir={"kit._notebooks": "notebooks", "kit._data": "data"},
    package_data={
        "kit.report": ["templates/*"],
        "kit.findings.n05_tile_decode": ["decoder.ll"],
        "kit.report.sweep": ["decode.ipynb"],
        "kit._notebooks": ["*.ipynb"],
        "kit._data": ["*.yaml", "*.csv"],
    },
)
