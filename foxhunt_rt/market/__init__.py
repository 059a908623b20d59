"""The market: bars, features, folds, costs, metrics, and the environment on the device.

Imports `config` and, for the environment, the runtime; never `dqn` or `train`. Everything but the environment is plain
NumPy and needs no device; the submodules are imported by name, so that reading bars does not load a driver.
"""
