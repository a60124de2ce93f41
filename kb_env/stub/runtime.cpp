// A CUDA runtime without a GPU: it notes launches, fills, copies and uploads instead of doing them.
#include "recorder.h"

#include <algorithm>
#include <cstring>

namespace kb {
namespace {

struct Function {  // a kernel as the candidate's module registered it
    const void* host;
    std::string name;
};

struct Configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};

// Function-local statics: the candidate's constructors register kernels before ours would run.
std::vector<Function>& functions() {
    static std::vector<Function> all;
    return all;
}
std::vector<Symbol>& symbols() {
    static std::vector<Symbol> all;
    return all;
}

// A managed variable is registered before there is a record to refuse it in.
std::string& managed() {
    static std::string name;
    return name;
}

Configuration configuration;
std::vector<uint64_t> allocations;  // base and size in pairs
std::vector<uint64_t> freed;        // base and size in pairs, to be handed out again
uint64_t allocated = 0;
cudaError_t last_error = cudaSuccess;
uint64_t streams = 0;

cudaError_t fail(cudaError_t error) { return last_error = error; }

uint32_t stream_number(cudaStream_t stream) {
    uint64_t value = reinterpret_cast<uint64_t>(stream);
    if (value <= 2) return 0;  // default, legacy, per-thread
    value >>= 4;               // streams are handed out as multiples of 16, see cudaStreamCreate
    if (value > streams) refuse("a stream that this program did not create");
    return uint32_t(value);
}

Kernel* find_kernel(const void* function, const char* caller) {
    std::string name;
    for (const Function& item : functions())
        if (item.host == function || static_cast<const void*>(&item) == function) name = item.name;
    for (Kernel& kernel : request.kernels) {
        if (kernel.name == name || &kernel == function) return &kernel;
    }
    refuse(std::string(caller) + " of a function that is no kernel of this program");
}

void put_dim(const dim3& value) {
    put_u32(value.x);
    put_u32(value.y);
    put_u32(value.z);
}

int limit(cudaDeviceAttr id) { return request.attribute(id, nullptr); }

// Why the driver would refuse this launch; empty if it would not.
std::string launch_problem(const Kernel& kernel, const dim3& grid, const dim3& block, size_t shared) {
    uint64_t threads = uint64_t(block.x) * block.y * block.z;
    auto text = [](const dim3& d) {
        return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
    };
    if (threads == 0 || threads > 1024 || block.x > 1024 || block.y > 1024 || block.z > 64)
        return "block " + text(block) + " is out of range (1 to 1024 threads)";
    if (int(threads) > kernel.max_threads)
        return "block " + text(block) + " has more than the " + std::to_string(kernel.max_threads) +
               " threads the kernel was compiled for";
    if (uint64_t(kernel.registers) * ((threads + 31) / 32 * 32) > 65536)
        return "block " + text(block) + " needs more registers than a multiprocessor has";
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535)
        return "grid " + text(grid) + " is out of range";
    if (shared + size_t(kernel.static_shared) > size_t(std::max(kernel.max_dynamic_shared + kernel.static_shared, 49152)) ||
        (kernel.max_dynamic_shared <= 49152 && shared + size_t(kernel.static_shared) > 49152))
        return std::to_string(shared) + " bytes of dynamic shared memory exceed what cudaFuncSetAttribute allowed";
    return "";
}

struct Extras {
    dim3 cluster{0, 0, 0};
    bool cooperative = false;
};

cudaError_t launch(Kernel& kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream,
                   const Extras& extras) {
    std::string problem = launch_problem(kernel, grid, block, shared);
    const dim3& c = extras.cluster;
    if (problem.empty() && c.x != 0) {
        uint64_t blocks = uint64_t(c.x) * c.y * c.z;
        if (blocks == 0 || blocks > (kernel.non_portable_cluster ? 16 : 8) || grid.x % c.x || grid.y % c.y || grid.z % c.z)
            problem = "the cluster does not divide the grid or is too large";
    }
    if (!problem.empty()) {
        put_u8(FAILED_LAUNCH);
        put_text(kernel.name);
        put_text(problem);
        return fail(cudaErrorInvalidConfiguration);
    }
    uint32_t number = stream_number(stream);  // may refuse: before the frame begins
    put_u8(LAUNCH);
    put_text(kernel.name);
    put_dim(grid);
    put_dim(block);
    put_dim(extras.cluster);
    put_u8(extras.cooperative);
    put_u64(shared);
    put_u32(number);
    put_u32(uint32_t(kernel.parameters.size()));
    for (size_t i = 0; i < kernel.parameters.size(); i++) {
        put_u32(kernel.parameters[i]);
        put(arguments[i], kernel.parameters[i]);
    }
    return cudaSuccess;
}

uint64_t device_address(const void* pointer, const char* caller) {
    uint64_t address = reinterpret_cast<uint64_t>(pointer);
    if (!is_fake(address)) refuse(std::string(caller) + " of an address that is no device memory");
    return address;
}

cudaError_t copy(void* target, const void* source, size_t count, cudaMemcpyKind kind, cudaStream_t stream,
                 const char* caller) {
    if (count == 0) return cudaSuccess;
    bool to = is_fake(reinterpret_cast<uint64_t>(target)), from = is_fake(reinterpret_cast<uint64_t>(source));
    if (kind == cudaMemcpyDeviceToHost || (!to && from))
        refuse(std::string(caller) + " (device to host): a plan may depend on the sizes alone, not on data");
    if (kind == cudaMemcpyHostToDevice && from) refuse(std::string(caller) + " (host to device) from a device address");
    if (!to && !from) {
        if (kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyHostToDevice)
            refuse(std::string(caller) + " to an address that is no device memory");
        memmove(target, source, count);
        return cudaSuccess;
    }
    uint32_t number = stream_number(stream);
    if (from) {
        put_u8(COPY);
        put_u64(reinterpret_cast<uint64_t>(target));
        put_u64(reinterpret_cast<uint64_t>(source));
        put_u64(count);
    } else {
        put_u8(UPLOAD);
        put_u64(reinterpret_cast<uint64_t>(target));
        put_u64(count);
        put(source, count);
    }
    put_u32(number);
    return cudaSuccess;
}

cudaError_t copy_rows(void* target, size_t tpitch, const void* source, size_t spitch, size_t width, size_t height,
                      cudaMemcpyKind kind, cudaStream_t stream, const char* caller) {
    if (tpitch == width && spitch == width) return copy(target, source, width * height, kind, stream, caller);
    if (height > 65536) refuse(std::string(caller) + " of more than 65536 rows");
    for (size_t row = 0; row < height; row++)
        copy(static_cast<char*>(target) + row * tpitch, static_cast<const char*>(source) + row * spitch, width, kind,
             stream, caller);
    return cudaSuccess;
}

cudaError_t fill(void* target, int value, size_t count, cudaStream_t stream, const char* caller) {
    if (count == 0) return cudaSuccess;
    uint32_t number = stream_number(stream);
    uint64_t address = device_address(target, caller);
    put_u8(FILL);
    put_u64(address);
    put_u8(uint8_t(value));
    put_u64(count);
    put_u32(number);
    return cudaSuccess;
}

cudaError_t allocate(void** out, size_t size) {
    if (size == 0) {
        *out = nullptr;
        return cudaSuccess;
    }
    for (size_t i = 0; i < freed.size(); i += 2)
        if (freed[i + 1] == size) {  // like the real allocator, hand the same memory out again
            *out = reinterpret_cast<void*>(freed[i]);
            allocations.insert(allocations.end(), {freed[i], size});
            freed.erase(freed.begin() + long(i), freed.begin() + long(i) + 2);
            return cudaSuccess;
        }
    if (size > request.workspace_limit || allocated > request.workspace_limit - size)
        refuse("cudaMalloc of " + std::to_string(size) + " bytes: the workspace may have " +
               std::to_string(request.workspace_limit) + " bytes in all");
    allocated += size;
    uint64_t base = next_address();
    allocations.insert(allocations.end(), {base, size});
    put_u8(ALLOC);
    put_u64(base);
    put_u64(size);
    *out = reinterpret_cast<void*>(base);
    return cudaSuccess;
}

cudaError_t release(void* pointer) {
    if (pointer == nullptr) return cudaSuccess;
    for (size_t i = 0; i < allocations.size(); i += 2)
        if (allocations[i] == reinterpret_cast<uint64_t>(pointer)) {
            freed.insert(freed.end(), {allocations[i], allocations[i + 1]});
            allocations.erase(allocations.begin() + long(i), allocations.begin() + long(i) + 2);
            return cudaSuccess;
        }
    return fail(cudaErrorInvalidValue);
}

Symbol& find_symbol(const void* symbol, const char* caller) {
    for (Symbol& item : symbols())
        if (item.host == symbol) return item;
    refuse(std::string(caller) + " of a symbol that is no variable of this program");
}

int blocks_per_multiprocessor(const Kernel& kernel, int threads, size_t shared) {
    int warps = (threads + 31) / 32;
    if (warps < 1 || threads > kernel.max_threads) return 0;
    int per_warp = (std::max(kernel.registers, 1) * 32 + 255) / 256 * 256;
    int by_registers = limit(cudaDevAttrMaxRegistersPerMultiprocessor) / (per_warp * warps);
    size_t reserved = size_t(limit(cudaDevAttrReservedSharedMemoryPerBlock));
    size_t used = (shared + size_t(kernel.static_shared) + reserved + 127) / 128 * 128;
    if (shared + size_t(kernel.static_shared) > size_t(std::max(49152, kernel.max_dynamic_shared + kernel.static_shared))) return 0;
    int by_shared = used ? int(size_t(limit(cudaDevAttrMaxSharedMemoryPerMultiprocessor)) / used) : 1 << 20;
    int by_threads = limit(cudaDevAttrMaxThreadsPerMultiProcessor) / (warps * 32);
    return std::min({by_registers, by_shared, by_threads, limit(cudaDevAttrMaxBlocksPerMultiprocessor)});
}

}  // namespace

void begin_symbols() {
    if (!managed().empty()) refuse("the __managed__ variable " + managed());
    for (Symbol& item : symbols()) {
        item.base = next_address();
        put_u8(SYMBOL);
        put_text(item.name);
        put_u64(item.base);
        put_u64(item.nbytes);
    }
}

}  // namespace kb

using namespace kb;

extern "C" {

// Registration: called by constructors that nvcc generates, before main.

void** __cudaRegisterFatBinary(void*) {
    static void* handle;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
    functions().push_back({host, name});
}
void __cudaRegisterVar(void**, char* host, char*, const char* name, int, size_t size, int, int) {
    Symbol symbol;
    symbol.name = name;
    symbol.nbytes = size;
    symbol.host = host;
    symbols().push_back(symbol);
}
void __cudaRegisterManagedVar(void**, void**, char*, const char* name, int, size_t, int, int) {
    managed() = name;
}

// Launches.

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    configuration = {grid, block, shared, stream};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared = configuration.shared;
    *static_cast<cudaStream_t*>(stream) = configuration.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
    return launch(*find_kernel(kernel, "a launch"), grid, block, arguments, shared, stream, {});
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                                    cudaStream_t stream) {
    return __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* function) { return __cudaGetKernel(kernel, function); }
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                             cudaStream_t stream) {
    return launch(*find_kernel(function, "cudaLaunchKernel"), grid, block, arguments, shared, stream, {});
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                                        cudaStream_t stream) {
    Extras extras;
    extras.cooperative = true;
    return launch(*find_kernel(function, "cudaLaunchCooperativeKernel"), grid, block, arguments, shared, stream, extras);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
    Extras extras;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute& item = config->attrs[i];
        if (item.id == cudaLaunchAttributeClusterDimension)
            extras.cluster = {item.val.clusterDim.x, item.val.clusterDim.y, item.val.clusterDim.z};
        else if (item.id == cudaLaunchAttributeCooperative)
            extras.cooperative = item.val.cooperative != 0;
        else if (item.id == cudaLaunchAttributeProgrammaticStreamSerialization || item.id == cudaLaunchAttributePriority ||
                 item.id == cudaLaunchAttributeIgnore)
            continue;  // only hints: the plan's full order satisfies them
        else
            refuse("cudaLaunchKernelEx with launch attribute " + std::to_string(int(item.id)));
    }
    return launch(*find_kernel(function, "cudaLaunchKernelEx"), config->gridDim, config->blockDim, arguments,
                  config->dynamicSmemBytes, config->stream, extras);
}

// Memory.

cudaError_t cudaMalloc(void** pointer, size_t size) { return allocate(pointer, size); }
cudaError_t cudaMallocAsync(void** pointer, size_t size, cudaStream_t) { return allocate(pointer, size); }
cudaError_t cudaFree(void* pointer) { return release(pointer); }
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return release(pointer); }
cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return allocate(pointer, *pitch * height);
}
cudaError_t cudaMallocHost(void** pointer, size_t size) {
    *pointer = malloc(size);
    return *pointer ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned flags) {
    if (flags & cudaHostAllocMapped) refuse("cudaHostAlloc of mapped memory");
    return cudaMallocHost(pointer, size);
}
cudaError_t cudaFreeHost(void* pointer) {
    free(pointer);
    return cudaSuccess;
}
cudaError_t cudaMemset(void* target, int value, size_t count) { return fill(target, value, count, nullptr, "cudaMemset"); }
cudaError_t cudaMemsetAsync(void* target, int value, size_t count, cudaStream_t stream) {
    return fill(target, value, count, stream, "cudaMemsetAsync");
}
cudaError_t cudaMemset2DAsync(void* target, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
    if (pitch == width) return fill(target, value, width * height, stream, "cudaMemset2D");
    if (height > 65536) refuse("cudaMemset2D of more than 65536 rows");
    for (size_t row = 0; row < height; row++)
        fill(static_cast<char*>(target) + row * pitch, value, width, stream, "cudaMemset2D");
    return cudaSuccess;
}
cudaError_t cudaMemset2D(void* target, size_t pitch, int value, size_t width, size_t height) {
    return cudaMemset2DAsync(target, pitch, value, width, height, nullptr);
}
cudaError_t cudaMemcpy(void* target, const void* source, size_t count, cudaMemcpyKind kind) {
    return copy(target, source, count, kind, nullptr, "cudaMemcpy");
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy(target, source, count, kind, stream, "cudaMemcpyAsync");
}
cudaError_t cudaMemcpy2D(void* target, size_t tpitch, const void* source, size_t spitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
    return copy_rows(target, tpitch, source, spitch, width, height, kind, nullptr, "cudaMemcpy2D");
}
cudaError_t cudaMemcpy2DAsync(void* target, size_t tpitch, const void* source, size_t spitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy_rows(target, tpitch, source, spitch, width, height, kind, stream, "cudaMemcpy2DAsync");
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* source, size_t count, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream) {
    Symbol& found = find_symbol(symbol, "cudaMemcpyToSymbol");
    if (offset > found.nbytes || count > found.nbytes - offset) return fail(cudaErrorInvalidValue);
    return copy(reinterpret_cast<void*>(found.base + offset), source, count, kind, stream, "cudaMemcpyToSymbol");
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* source, size_t count, size_t offset, cudaMemcpyKind kind) {
    return cudaMemcpyToSymbolAsync(symbol, source, count, offset, kind, nullptr);
}
cudaError_t cudaMemcpyFromSymbolAsync(void* target, const void* symbol, size_t count, size_t offset, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
    Symbol& found = find_symbol(symbol, "cudaMemcpyFromSymbol");
    if (offset > found.nbytes || count > found.nbytes - offset) return fail(cudaErrorInvalidValue);
    return copy(target, reinterpret_cast<void*>(found.base + offset), count, kind, stream, "cudaMemcpyFromSymbol");
}
cudaError_t cudaMemcpyFromSymbol(void* target, const void* symbol, size_t count, size_t offset, cudaMemcpyKind kind) {
    return cudaMemcpyFromSymbolAsync(target, symbol, count, offset, kind, nullptr);
}
cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
    *pointer = reinterpret_cast<void*>(find_symbol(symbol, "cudaGetSymbolAddress").base);
    return cudaSuccess;
}
cudaError_t cudaGetSymbolSize(size_t* size, const void* symbol) {
    *size = find_symbol(symbol, "cudaGetSymbolSize").nbytes;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
    memset(out, 0, sizeof *out);
    bool device = is_fake(reinterpret_cast<uint64_t>(pointer));
    out->type = device ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    out->devicePointer = device ? const_cast<void*>(pointer) : nullptr;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
    *total = size_t(request.global_memory);
    *available = *total / 10 * 9;
    return cudaSuccess;
}

// Functions.

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute id, int value) {
    Kernel& kernel = *find_kernel(function, "cudaFuncSetAttribute");
    uint32_t code;
    if (id == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || value + kernel.static_shared > limit(cudaDevAttrMaxSharedMemoryPerBlockOptin))
            return fail(cudaErrorInvalidValue);
        kernel.max_dynamic_shared = value;
        code = 1;
    } else if (id == cudaFuncAttributePreferredSharedMemoryCarveout) {
        if (value < -1 || value > 100) return fail(cudaErrorInvalidValue);
        kernel.carveout = value;
        code = 2;
    } else if (id == cudaFuncAttributeNonPortableClusterSizeAllowed) {
        kernel.non_portable_cluster = value != 0;
        code = 3;
    } else {
        refuse("cudaFuncSetAttribute with attribute " + std::to_string(int(id)));
    }
    put_u8(ATTRIBUTE);
    put_text(kernel.name);
    put_u32(code);
    put_u32(uint32_t(value));
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void* function) {
    Kernel& kernel = *find_kernel(function, "cudaFuncGetAttributes");
    memset(out, 0, sizeof *out);
    out->sharedSizeBytes = size_t(kernel.static_shared);
    out->localSizeBytes = size_t(kernel.local);
    out->maxThreadsPerBlock = kernel.max_threads;
    out->numRegs = kernel.registers;
    int architecture = limit(cudaDevAttrComputeCapabilityMajor) * 10 + limit(cudaDevAttrComputeCapabilityMinor);
    out->ptxVersion = out->binaryVersion = architecture;
    out->maxDynamicSharedSizeBytes = kernel.max_dynamic_shared;
    out->preferredShmemCarveout = kernel.carveout;
    return cudaSuccess;
}
cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads, size_t shared) {
    *blocks = blocks_per_multiprocessor(*find_kernel(function, "cudaOccupancyMaxActiveBlocksPerMultiprocessor"), threads, shared);
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                   size_t shared, unsigned) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}

// Descriptors of the tensor copy engine. The stub writes down what was asked for, in a form of its own that the
// reader of the record knows; replay encodes it for the true address (kb_env/record_frames.py, kb_env/gpu/replay.py).

int cuTensorMapEncodeTiled(void* map, int type, uint32_t rank, void* address, const uint64_t* dims,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave,
                           int swizzle, int promotion, int fill) {
    constexpr int invalid = 1;  // CUDA_ERROR_INVALID_VALUE
    if (map == nullptr || rank < 1 || rank > 5 || dims == nullptr || box == nullptr || steps == nullptr) return invalid;
    if ((rank > 1 && strides == nullptr) || !is_fake(reinterpret_cast<uint64_t>(address))) return invalid;
    unsigned char out[128] = {};
    size_t at = 0;
    auto add = [&](const void* data, size_t size) {
        memcpy(out + at, data, size);
        at += size;
    };
    add("kb tensor map 1", 16);
    uint64_t where = reinterpret_cast<uint64_t>(address);
    add(&where, 8);
    uint64_t wide[9] = {};
    for (uint32_t i = 0; i < rank; i++) wide[i] = dims[i];
    for (uint32_t i = 0; i + 1 < rank; i++) wide[5 + i] = strides[i];
    add(wide, sizeof wide);
    uint16_t boxes[5] = {};
    unsigned char bytes[11] = {};
    for (uint32_t i = 0; i < rank; i++) {
        if (box[i] < 1 || box[i] > 256 || steps[i] < 1 || steps[i] > 8) return invalid;
        boxes[i] = uint16_t(box[i]);
        bytes[i] = (unsigned char)steps[i];
    }
    add(boxes, sizeof boxes);
    const int modes[6] = {type, int(rank), interleave, swizzle, promotion, fill};
    for (int i = 0; i < 6; i++) {
        if (modes[i] < 0 || modes[i] > 255) return invalid;
        bytes[5 + i] = (unsigned char)modes[i];
    }
    add(bytes, sizeof bytes);
    memcpy(map, out, sizeof out);
    return 0;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
    if (strcmp(symbol, "cuTensorMapEncodeTiled") != 0) refuse(std::string("the driver's function ") + symbol);
    *function = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
    if (found) *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* found) {
    return cudaGetDriverEntryPointByVersion(symbol, function, 0, flags, found);
}

// Streams and events. The plan keeps the order of issue, which every dependency allows.

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    *stream = reinterpret_cast<cudaStream_t>(++streams << 4);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    static uint64_t events;
    *event = reinterpret_cast<cudaEvent_t>(++events << 4);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

// Errors.

cudaError_t cudaPeekAtLastError() {
    put_u8(ERROR_READ);
    return last_error;
}
cudaError_t cudaGetLastError() {
    cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}
const char* cudaGetErrorName(cudaError_t error) {
    return error == cudaSuccess ? "cudaSuccess" : error == cudaErrorInvalidConfiguration ? "cudaErrorInvalidConfiguration" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "no error" : error == cudaErrorInvalidConfiguration ? "invalid configuration argument" : "invalid argument";
}

// The device, as the request describes it.

cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr id, int device) {
    if (device != 0) return fail(cudaErrorInvalidDevice);
    bool known;
    *value = request.attribute(id, &known);
    if (!known) refuse("cudaDeviceGetAttribute with attribute " + std::to_string(int(id)));
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
    if (device != 0) return fail(cudaErrorInvalidDevice);
    memset(out, 0, sizeof *out);
    strncpy(out->name, request.device.c_str(), sizeof out->name - 1);
    out->totalGlobalMem = size_t(request.global_memory);
    out->sharedMemPerBlock = size_t(limit(cudaDevAttrMaxSharedMemoryPerBlock));
    out->sharedMemPerBlockOptin = size_t(limit(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    out->sharedMemPerMultiprocessor = size_t(limit(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
    out->reservedSharedMemPerBlock = size_t(limit(cudaDevAttrReservedSharedMemoryPerBlock));
    out->regsPerBlock = limit(cudaDevAttrMaxRegistersPerBlock);
    out->regsPerMultiprocessor = limit(cudaDevAttrMaxRegistersPerMultiprocessor);
    out->warpSize = limit(cudaDevAttrWarpSize);
    out->maxThreadsPerBlock = limit(cudaDevAttrMaxThreadsPerBlock);
    out->maxThreadsPerMultiProcessor = limit(cudaDevAttrMaxThreadsPerMultiProcessor);
    out->maxBlocksPerMultiProcessor = limit(cudaDevAttrMaxBlocksPerMultiprocessor);
    out->multiProcessorCount = limit(cudaDevAttrMultiProcessorCount);
    out->major = limit(cudaDevAttrComputeCapabilityMajor);
    out->minor = limit(cudaDevAttrComputeCapabilityMinor);
    out->l2CacheSize = limit(cudaDevAttrL2CacheSize);
    out->totalConstMem = size_t(limit(cudaDevAttrTotalConstantMemory));
    out->memoryBusWidth = limit(cudaDevAttrGlobalMemoryBusWidth);
    out->cooperativeLaunch = limit(cudaDevAttrCooperativeLaunch);
    int size[3] = {1024, 1024, 64}, grid[3] = {2147483647, 65535, 65535};
    memcpy(out->maxThreadsDim, size, sizeof size);
    memcpy(out->maxGridSize, grid, sizeof grid);
#if CUDART_VERSION < 13000
    out->clockRate = limit(cudaDevAttrClockRate);
    out->memoryClockRate = limit(cudaDevAttrMemoryClockRate);
#endif
    return cudaSuccess;
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
}  // extern "C"
