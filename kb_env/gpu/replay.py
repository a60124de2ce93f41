"""Replaying launch plans through the driver API: modules, bound plans, one timed run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kb_env.gpu.driver import call, driver
from kb_env.gpu.layout import pack_parameters
from kb_env.gpu.protocol import LaunchFacts
from kb_env.plan import Copy, Fill, KernelAttribute, Launch, LaunchPlan, TensorMap, Upload
from kb_env.types import KbError

_ATTRIBUTES = {
    "max_dynamic_shared": "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
    "shared_carveout": "CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT",
    "non_portable_cluster": "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
}


class Pinned:
    """Page-locked host memory holding fixed bytes, so that an upload never stalls the host."""

    def __init__(self, data: bytes) -> None:
        self.address = int(call(driver.cuMemHostAlloc, max(len(data), 1), 0))
        self.nbytes = len(data)
        ctypes.memmove(self.address, data, len(data))


@dataclass(frozen=True)
class BoundPlan:
    """A plan with every address resolved: ``steps`` queue its operations on the stream, in order.

    Streams of the candidate are replayed in issue order on one stream: any overlap it asked for is
    given up, never the order. ``keep`` owns the memory that the steps point into.
    """

    steps: tuple[Callable[[], None], ...]
    launches: tuple[LaunchFacts, ...]
    keep: tuple[object, ...]


class Module:
    """One loaded cubin. ``uploads`` outlives it: the same bytes are pinned once for all loads."""

    def __init__(self, image: bytes, uploads: dict[bytes, Pinned]) -> None:
        self._uploads = uploads
        self._module = call(driver.cuModuleLoadData, image)

    def unload(self) -> None:
        call(driver.cuModuleUnload, self._module)

    def symbol(self, name: str, nbytes: int) -> int:
        address, size = call(driver.cuModuleGetGlobal, self._module, name.encode())
        if size < nbytes:
            raise KbError(f"symbol {name} has {size} bytes, the plan says {nbytes}")
        return int(address)

    def bind(self, plan: LaunchPlan, bases: list[int | None], stream: Any) -> BoundPlan:
        """Resolve a plan. ``bases`` holds a buffer's address, None for a symbol of this module."""
        addresses = [
            self.symbol(buffer.name, buffer.nbytes) if base is None else base
            for buffer, base in zip(plan.buffers, bases, strict=True)
        ]
        functions: dict[str, Any] = {}
        for name in dict.fromkeys(launch.kernel for launch in plan.launches):
            functions[name] = call(driver.cuModuleGetFunction, self._module, name.encode())
        for attribute in plan.attributes:
            _set_attribute(functions, attribute)
        steps: list[Callable[[], None]] = []
        launches: list[LaunchFacts] = []
        keep: list[object] = []
        for item in plan.operations:
            if isinstance(item, Launch):
                function = functions[item.kernel]
                steps.append(_launch(item, function, addresses, stream, keep))
                launches.append(_facts(item, function))
            else:
                steps.append(_transfer(item, addresses, stream, self._uploads))
        return BoundPlan(tuple(steps), tuple(launches), tuple(keep))


def _set_attribute(functions: dict[str, Any], attribute: KernelAttribute) -> None:
    function = functions.get(attribute.kernel)
    if function is None:
        return  # set for a kernel that this case does not launch
    if attribute.name not in _ATTRIBUTES:
        raise KbError(f"the plan sets an unknown kernel attribute {attribute.name!r}")
    name = getattr(driver.CUfunction_attribute, _ATTRIBUTES[attribute.name])
    call(driver.cuFuncSetAttribute, function, name, attribute.value)


def _check_parameters(launch: Launch, function: Any) -> None:
    """The driver copies as many bytes as the kernel declares: a shorter parameter would be read past its end."""
    for index, parameter in enumerate(launch.parameters):
        _, size = call(driver.cuFuncGetParamInfo, function, index)
        if size != len(parameter):
            raise KbError(
                f"parameter {index} of {launch.kernel} has {size} bytes, the plan gives {len(parameter)}"
            )
    error = driver.cuFuncGetParamInfo(function, len(launch.parameters))[0]
    if error == driver.CUresult.CUDA_SUCCESS:
        raise KbError(f"{launch.kernel} takes more than the plan's {len(launch.parameters)} parameters")


def _launch(
    launch: Launch, function: Any, addresses: list[int], stream: Any, keep: list[object]
) -> Callable[[], None]:
    _check_parameters(launch, function)
    packed = pack_parameters(launch, addresses)
    for tensor in launch.tensor_maps:
        data, end = packed[tensor.parameter], tensor.offset + 128
        packed[tensor.parameter] = data[: tensor.offset] + _encode(tensor, addresses) + data[end:]
    values = [ctypes.create_string_buffer(data, max(len(data), 1)) for data in packed]
    pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared_bytes
    config.hStream = stream
    attributes = _launch_attributes(launch)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    keep += [values, pointers, config, attributes]
    where = ctypes.addressof(pointers)
    return lambda: call(driver.cuLaunchKernelEx, config, function, where, 0)


def _encode(tensor: TensorMap, addresses: list[int]) -> bytes:
    """The descriptor for where the buffer lies now. The driver refuses figures that the hardware cannot take."""
    try:
        modes = (
            driver.CUtensorMapInterleave(tensor.interleave),
            driver.CUtensorMapSwizzle(tensor.swizzle),
            driver.CUtensorMapL2promotion(tensor.promotion),
            driver.CUtensorMapFloatOOBfill(tensor.fill),
        )
    except ValueError as error:
        raise KbError(f"a tensor descriptor asks for what this driver has not: {error}") from error
    made = call(
        driver.cuTensorMapEncodeTiled,
        driver.CUtensorMapDataType(tensor.dtype),
        len(tensor.dims),
        addresses[tensor.buffer] + tensor.addend,
        [driver.cuuint64_t(value) for value in tensor.dims],
        [driver.cuuint64_t(value) for value in tensor.strides],
        [driver.cuuint32_t(value) for value in tensor.box],
        [driver.cuuint32_t(value) for value in tensor.steps],
        *modes,
    )
    return ctypes.string_at(made.getPtr(), 128)


def _launch_attributes(launch: Launch) -> list[Any]:
    ids = driver.CUlaunchAttributeID
    attributes = []
    if launch.cluster is not None:
        attribute = driver.CUlaunchAttribute()
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        shape = attribute.value.clusterDim
        shape.x, shape.y, shape.z = launch.cluster
        attributes.append(attribute)
    if launch.cooperative:
        attribute = driver.CUlaunchAttribute()
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        attributes.append(attribute)
    return attributes


def _transfer(
    item: Fill | Copy | Upload, addresses: list[int], stream: Any, uploads: dict[bytes, Pinned]
) -> Callable[[], None]:
    if isinstance(item, Fill):
        start, byte, size = addresses[item.buffer] + item.offset, item.byte & 255, item.nbytes
        return lambda: call(driver.cuMemsetD8Async, start, byte, size, stream)
    if isinstance(item, Copy):
        target = addresses[item.target] + item.target_offset
        source = addresses[item.source] + item.source_offset
        return lambda: call(driver.cuMemcpyDtoDAsync, target, source, item.nbytes, stream)
    data = item.packed(addresses)
    if data not in uploads:
        uploads[data] = Pinned(data)
    pinned = uploads[data]
    where = addresses[item.target] + item.offset
    return lambda: call(driver.cuMemcpyHtoDAsync, where, pinned.address, pinned.nbytes, stream)


def _facts(launch: Launch, function: Any) -> LaunchFacts:
    names = driver.CUfunction_attribute

    def attribute(name: str) -> int:
        return int(call(driver.cuFuncGetAttribute, getattr(names, f"CU_FUNC_ATTRIBUTE_{name}"), function))

    threads = launch.block[0] * launch.block[1] * launch.block[2]
    blocks = call(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor, function, threads, launch.shared_bytes)
    return LaunchFacts(
        kernel=launch.kernel,
        registers=attribute("NUM_REGS"),
        local_bytes=attribute("LOCAL_SIZE_BYTES"),
        shared_bytes=attribute("SHARED_SIZE_BYTES") + launch.shared_bytes,
        blocks_per_sm=int(blocks),
    )
