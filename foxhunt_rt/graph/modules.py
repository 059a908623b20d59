"""The module pool: hands each user functions from module instances of its own, so that isolation holds by construction."""

from __future__ import annotations

from foxhunt_rt import kernels
from foxhunt_rt.driver import Context, Function, Module


class ModulePool:
    """Module instances by user.

    A user is a child's name, ``"<child>/ungraphed"`` for the same child outside its capture, or the name of an ungraphed
    user. Two users never share a CUmodule, though they load the same bytes.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.architecture = context.device.architecture
        self._modules: dict[tuple[str, str], Module] = {}

    def function(self, user: str, kernel: str) -> Function:
        """The function ``kernel`` of ``user``'s own instance of its image, loaded, its argument size checked.

        In a capture: refused, where it loads. Synchronizes: no. Allocates: may, the first time for a user and a kernel.

        Raises
        ------
        foxhunt_rt.kernels.ArchitectureError
            No image fits the device.
        foxhunt_rt.kernels.ArgumentError
            The driver's size of the argument struct differs from the header's.
        """
        image = kernels.images.find(kernel, self.architecture)
        key = (user, image.stem)
        with self.context.current():
            if key not in self._modules:
                self._modules[key] = Module(self.context, image.read(), f"{image.stem}@{user}")
            function = self._modules[key].function(kernel)
        if function.param_size is not None:
            kernels.check_param_size(kernel, function.param_size)
        return function

    def modules(self, user: str) -> list[Module]:
        """The module instances of one user."""
        return [m for (name, _), m in self._modules.items() if name == user]

    def drop(self, user: str) -> list[Module]:
        """Unloads a user's modules, but for those of which a built graph holds a function; returns those unloaded.

        In a capture: refused. Synchronizes: no. Allocates: yes.
        """
        dropped = [m for (name, _), m in self._modules.items() if name == user and not m.pins]
        for module in dropped:
            module.unload()
        self._modules = {key: m for key, m in self._modules.items() if m not in dropped}
        return dropped

    def __len__(self) -> int:
        return len(self._modules)
