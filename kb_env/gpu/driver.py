"""The CUDA driver API, checked: the one door to cuda-bindings."""

from __future__ import annotations

from typing import Any

from kb_env.gpu.protocol import CudaFault, DeviceFacts
from kb_env.types import KbError

try:
    from cuda.bindings import driver
except ImportError as error:
    raise KbError(f"cannot load cuda-bindings ({error}): pip install 'kb-env[gpu]'") from error


def call(function: Any, *arguments: Any) -> Any:
    """Call a driver function and return its value (a tuple if it has several).

    Raises:
        CudaFault: with the driver's name and text of the error.
    """
    error, *values = function(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(error)
        raise CudaFault(error.name, f"{text.decode() if text else 'unknown error'} in {function.__name__}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def open_device(index: int) -> Any:
    """Initialise the driver and make device ``index``'s primary context current."""
    call(driver.cuInit, 0)
    device = call(driver.cuDeviceGet, index)
    context = call(driver.cuDevicePrimaryCtxRetain, device)
    call(driver.cuCtxSetCurrent, context)
    return device


def facts(device: Any) -> DeviceFacts:
    """What the driver reports about a device."""
    names = driver.CUdevice_attribute

    def attribute(name: str) -> int:
        return int(call(driver.cuDeviceGetAttribute, getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

    major, minor = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    raw = bytes(call(driver.cuDeviceGetUuid, device).bytes)[:16].hex()
    uuid = "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
    return DeviceFacts(
        name=call(driver.cuDeviceGetName, 256, device).split(b"\0")[0].decode(),
        uuid=f"GPU-{uuid}",
        architecture=f"sm_{major}{minor}{'a' if major >= 9 else ''}",
        driver=int(call(driver.cuDriverGetVersion)),
        sm_count=attribute("MULTIPROCESSOR_COUNT"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        memory_bytes=int(call(driver.cuDeviceTotalMem, device)),
        clock_mhz=attribute("CLOCK_RATE") / 1000,
        memory_clock_mhz=attribute("MEMORY_CLOCK_RATE") / 1000,
        bus_bits=attribute("GLOBAL_MEMORY_BUS_WIDTH"),
        shared_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        warps_per_sm=attribute("MAX_THREADS_PER_MULTIPROCESSOR") // 32,
    )


def map_shared(handle: bytes) -> int:
    """Map memory that another process exported, into the current context."""
    struct = driver.CUipcMemHandle()
    struct.reserved = handle
    lazy_peer_access = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.value
    return int(call(driver.cuIpcOpenMemHandle, struct, lazy_peer_access))


def unmap_shared(address: int) -> None:
    call(driver.cuIpcCloseMemHandle, address)
