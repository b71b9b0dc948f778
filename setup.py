"""Metadata lives in setup.cfg; this shim lets every installer find it."""

from setuptools import setup

setup()
