"""The Mamba-2 block as its recurrence, position by position, in JAX float64: nothing here knows the dual form or the kernels.

Dao & Gu 2024, "Transformers are SSMs", and the authors' module: projections, causal depthwise convolution, discretized recurrence
with one decay a head, gate, RMS norm, projection; y at the last position, added to the state.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def mamba(p: Any, windows: tuple[Any, Any], x: Any, *, heads: int, head_dim: int, state_dim: int, conv: int,
          name: str = "temporal") -> Any:  # fmt: skip
    """(B, S) of windows (B, L, S), lengths (B,) and the states (B, S)."""
    w = {k.removeprefix(f"{name}."): v for k, v in p.items() if k.startswith(f"{name}.")}
    inner, n = heads * head_dim, state_dim

    def one(states: Any, length: Any, state: Any) -> Any:
        window = states.shape[0]
        u = states @ w["in_proj"]
        here = (jnp.arange(window) >= window - length)[:, None]
        u = jnp.where(here, u, 0.0)  # what precedes the first state is nothing
        xbc, raw = u[:, : inner + 2 * n], u[:, inner + 2 * n :]
        before = jnp.concatenate([jnp.zeros((conv - 1, xbc.shape[1])), xbc])
        out = sum(w["conv.weight"][j] * before[j : j + window] for j in range(conv)) + w["conv.bias"]
        out = jax.nn.silu(out)
        dt, a = jax.nn.softplus(raw + w["dt_bias"]), -jnp.exp(w["a_log"])

        def step(h: Any, at: Any) -> Any:
            xbc, dt, here = at
            x, b, c = xbc[:inner].reshape(heads, head_dim), xbc[inner : inner + n], xbc[inner + n :]
            new = jnp.exp(dt * a)[:, None, None] * h + dt[:, None, None] * b[None, :, None] * x[:, None, :]
            h = jnp.where(here, new, h)
            return h, jnp.einsum("n,hnd->hd", c, h) + w["d"][:, None] * x

        y = jax.lax.scan(step, jnp.zeros((heads, n, head_dim)), (out, dt, here))[1][-1]
        v = y.reshape(-1) * jax.nn.silu(state @ w["z_proj"])
        v = v / jnp.sqrt((v**2).mean() + 1e-5) * w["norm"]
        return state + v @ w["out_proj"]

    return jax.vmap(one)(windows[0], windows[1], x)


__all__ = ["mamba"]
