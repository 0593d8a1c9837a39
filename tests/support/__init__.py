"""Helpers of the tests, one module for each topic."""
