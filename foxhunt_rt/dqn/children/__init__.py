"""The children of the training step, one file each.

A child module has three functions over small frozen dataclasses of buffers: `reads` and `writes` say what the child
declares, `record` lists its launches in order. `add` does all three on a plan.
"""
