"""Access the private parts of Flower: modules, log texts, codes, paths and environment variables.

Names outside of Flower's public packages may change in any release. All those that Atoll needs are in this package, one
file for each part of Flower; ``private_names`` lists them with the versions of Flower that were tested.
:func:`.private_names.check` looks for each one when a server or a site starts, so that an unknown version of Flower
gives an error message at the start instead of a failure in the middle of a run.
"""
