"""A trainer of somebody else that embeds a step of ours, when a kernel kills the context in the middle of training.

Prints one JSON object: what each part said. With PyTorch on a GPU its tensors live in the same primary context. Leaves by the
ordinary way out, with objects of the dead context alive: the exit code and stderr are for the caller to look at.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

import numpy as np
import planted_faults

import foxhunt_rt as fx
from foxhunt_rt.driver import ContextDead, DriverError


def their_tensor() -> Any:
    """A CUDA tensor of PyTorch, or None without one."""
    if os.environ.get("FOXHUNT_DRIVER") != "cuda":
        return None
    try:
        import torch
    except ImportError:
        return None
    return torch.ones(1024, device="cuda")


def main() -> None:
    said: dict[str, Any] = {}
    tensor = their_tensor()
    weights = np.zeros(64, np.float32)  # the trainer's own, in host memory
    rt = fx.Runtime()
    step = planted_faults.plan(rt, "none").build()
    features = rt.zeros(64, np.float32, "observations")
    try:
        for epoch in range(5):
            step.launch()
            if epoch == 3:
                far = {"x": features, "y": features, "from": 0, "to": planted_faults.INDEX["far"], "value": 1.0}
                rt.ungraphed("collect").launch("copy_element", (1,), (1,), far)
            rt.synchronize()
            weights += 1
    except DriverError as error:
        said["first"] = {"type": type(error).__name__, "name": error.name, "text": str(error)}
    said["epochs"] = int(weights[0])
    for what, use in {
        "step": step.launch,
        "buffer": features.to_numpy,
        "runtime": lambda: rt.zeros(4, "f4", "z"),
    }.items():
        try:
            use()
        except ContextDead as error:
            said[what] = str(error)
    step.close()
    features.free()
    rt.close()
    gc.collect()
    try:
        fx.Runtime()
    except ContextDead as error:
        said["second runtime"] = str(error)
    if tensor is not None:
        try:
            (tensor + 1).cpu()
        except Exception as error:
            said["torch"] = type(error).__name__
    said["checkpoint"] = float(weights.sum())  # what is in host memory can be saved
    json.dump(said, sys.stdout)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
