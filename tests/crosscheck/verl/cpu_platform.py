"""A processor as a platform of verl, through verl's own registries; loaded in every process by
VERL_USE_EXTERNAL_MODULES=cpu_platform.
"""

import contextlib
import types

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _nothing(*_, **__):
    return 0


MODULE = types.ModuleType("torch_cpu")
MODULE.__dict__.update(
    dict.fromkeys(
        (
            "max_memory_allocated",
            "max_memory_reserved",
            "memory_allocated",
            "memory_reserved",
            "empty_cache",
            "synchronize",
            "set_device",
            "reset_peak_memory_stats",
            "manual_seed",
            "manual_seed_all",
            "current_device",
            "ipc_collect",
            "get_rng_state",
            "set_rng_state",
        ),
        _nothing,
    )
)
MODULE.__dict__.update(
    is_available=lambda: True,
    get_device_name=lambda *_: "CPU",
    device_count=lambda: 1,
    mem_get_info=lambda *_: (1 << 34, 1 << 34),
    current_stream=_nothing,
)


@PlatformRegistry.register(platform="cpu")
class Cpu(PlatformBase):
    """One device, which Ray counts as a GPU that is not there."""

    device_name = "cpu"
    vendor_name = "none"
    device_module = MODULE
    is_available = device_count = lambda self: 1
    current_device = lambda self: "cpu"  # noqa: E731  # verl moves tensors to what this says
    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing
    get_device_capability = lambda self, device_index=0: (None, None)  # noqa: E731
    communication_backend_name = lambda self: "gloo"  # noqa: E731
    visible_devices_envvar = lambda self: "CUDA_VISIBLE_DEVICES"  # noqa: E731
    ray_resource_name = lambda self: "GPU"  # noqa: E731
    ray_noset_envvars = lambda self: []  # noqa: E731
    is_ipc_supported = lambda self: False  # noqa: E731

    @contextlib.contextmanager
    def nvtx_range(self, msg):
        """Do nothing around the block."""
        yield


def register_engine():
    """verl's FSDP engine, which it registers for accelerators only."""
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    EngineRegistry._engines["language_model"]["fsdp2"].setdefault("cpu", FSDPEngineWithLMHead)


def gloo_alone(start=torch.distributed.init_process_group):
    """verl asks for a backend of the processor and another of the device; here they are one."""
    torch.distributed.init_process_group = lambda backend=None, **options: start(backend="gloo", **options)


torch.set_num_threads(1)
register_engine()
gloo_alone()
