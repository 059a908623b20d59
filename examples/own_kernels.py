"""Your own kernels in a step graph, from source to one verified launch: python examples/own_kernels.py

A damped oscillator, advanced by two kernels; a third measures its energy, on the steps on which a device word says so; eight
steps a launch; the damping is a slot that changes without a new capture. Runs on a GPU (needs nvcc) or, where there is none, on
the CPU through hostsim (needs g++). Prints on hostsim:

    ungraphed ... {'cuLaunchKernel': 44}
    child by child ... {'cuGraphLaunch': 44}
    parent ... {'cuGraphLaunch': 20}
    8 per launch ...
    bitwise equal
    after  400 steps, damping 0: energy 0.49...
    after  800 steps, damping 1: energy 0.00...
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import foxhunt_rt as fx
from foxhunt_rt import kernels
from foxhunt_rt.graph import Flag, Slot

HEADER = """
typedef struct {
    float *x;          //@ inout f32[n]
    float *v;          //@ inout f32[n]
    float dt;          //@ time step
    float damping;     //@ 1/s
    int32_t n;         //@ oscillators
    uint32_t pad0_;    //@ pad
} oscillate_args;

typedef struct {
    uint32_t *count;   //@ inout u32[1]   steps begun
    uint32_t *due;     //@ out u32[1]     1 on every period-th step
    uint32_t period;   //@ steps
    uint32_t pad0_;    //@ pad
} tick_args;

typedef struct {
    const float *x;    //@ in f32[n]
    const float *v;    //@ in f32[n]
    float *energy;     //@ out f32[1]     mean of (x^2 + v^2) / 2
    int32_t n;         //@ oscillators
    uint32_t pad0_;    //@ pad
} measure_args;
"""

SOURCE = """
#include "lib/kernel.h"
#include "lib/reduce.h"
#include "abi/types.h"
#include "abi/own.h"

FX_KERNEL(oscillate) {  // x'' = -x - damping x', semi-implicit Euler
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= a.n) return;
    float v = a.v[i] - a.dt * (a.x[i] + a.damping * a.v[i]);
    a.v[i] = v;
    a.x[i] += a.dt * v;
}

FX_KERNEL_ANYBLOCK(tick) {
    FX_FOR(only, 1) {
        a.count[0] += 1;
        a.due[0] = a.count[0] % a.period == 0;
    }
}

FX_KERNEL_ANYBLOCK(measure) {
    float s = fx::block_sum(a.n, [&](int i) { return 0.5f * (a.x[i] * a.x[i] + a.v[i] * a.v[i]); });
    FX_FOR(only, 1) a.energy[0] = s / (float)a.n;
}
"""


def main() -> None:
    rt = fx.Runtime()
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "own.cu"
        source.write_text(SOURCE)
        source.with_suffix(".h").write_text(HEADER)
        kernels.add(kernels.compile(source, rt.device.architecture, folder=Path(name) / "built"))
        run(rt)


def run(rt: fx.Runtime, n: int = 10_000, dt: float = 0.01) -> None:
    x, v = rt.array(np.ones(n, np.float32), "x"), rt.zeros(n, np.float32, "v")
    count, due = rt.zeros(1, np.uint32, "count"), rt.zeros(1, np.uint32, "due")
    energy = rt.zeros(1, np.float32, "energy")

    plan = rt.plan("oscillator")
    with plan.child("clock", reads=[], writes=[count, due]) as child:
        child.launch("tick", (1,), (32,), dict(count=count, due=due, period=5))
    with plan.child("advance", reads=[], writes=[x, v]) as child:
        child.launch("oscillate", ((n + 255) // 256,), (256,), dict(x=x, v=v, dt=dt, damping=Slot(0.0), n=n))
    with plan.child("energy", reads=[x, v], writes=[energy], when=Flag(due)) as child:
        child.launch("measure", (1,), (512,), dict(x=x, v=v, energy=energy, n=n))
    step = plan.build(steps_per_launch=8)

    print(step.verify(steps=20))
    for damping in (0.0, 1.0):
        step.set("advance", "oscillate", damping=damping)
        for _ in range(50):
            step.launch()
        print(f"after {count.to_numpy()[0]:4} steps, damping {damping:g}: energy {energy.to_numpy()[0]:.4f}")
    # Energy is conserved to the order of dt without damping, and falls as exp(-t) with it: t = 4 here.
    assert energy.to_numpy()[0] < 0.02
    step.close()


if __name__ == "__main__":
    sys.exit("own_kernels.py takes no arguments" if sys.argv[1:] else main())
