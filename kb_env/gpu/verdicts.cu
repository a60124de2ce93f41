// The oracle's own kernels: what it does to every run, in few launches. verdicts.ptx beside this file is made from it:
//   nvcc -ptx -arch=compute_75 -std=c++17 -o verdicts.ptx verdicts.cu
// They can only let a run pass; whatever is not plainly right is looked at again, slowly (oracle.py).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

struct Span {
    unsigned char* start;
    unsigned long long nbytes;
};

__device__ unsigned long long first() { return blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; }
__device__ unsigned long long step() { return gridDim.x * (unsigned long long)blockDim.x; }

// Bytes before the first 16-byte boundary, at most all.
__device__ unsigned long long head(const Span& span) {
    unsigned long long odd = (16 - (unsigned long long)span.start % 16) % 16;
    return odd < span.nbytes ? odd : span.nbytes;
}

// Largest |r| as bits (they order as the numbers do, from 0 up), sum of r * r, and whether any r is NaN.
template <class T>
__device__ void compare(const T* output, const double* value, const double* bound, unsigned long long count,
                        double* result) {
    double largest = 0.0, sum = 0.0;
    bool nan = false;
    for (unsigned long long i = first(); i < count; i += step()) {
        double r = (value[i] - double(float(output[i]))) / bound[i];
        nan = nan || r != r;
        largest = fmax(largest, fabs(r));
        sum += r * r;
    }
    for (int lane = 16; lane > 0; lane /= 2) {
        largest = fmax(largest, __shfl_xor_sync(0xffffffffu, largest, lane));
        sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    }
    if (threadIdx.x % 32 == 0) {
        atomicMax(reinterpret_cast<unsigned long long*>(result), (unsigned long long)__double_as_longlong(largest));
        atomicAdd(result + 1, sum);
    }
    if (nan) result[2] = 1.0;
}

}  // namespace

// Every byte of each span (one row of blocks a span).
extern "C" __global__ void kb_fill(const Span* spans, unsigned int byte) {
    Span span = spans[blockIdx.y];
    unsigned int word = byte * 0x01010101u;
    unsigned long long odd = head(span), words = (span.nbytes - odd) / 16, end = odd + words * 16;
    uint4* body = reinterpret_cast<uint4*>(span.start + odd);
    for (unsigned long long i = first(); i < words; i += step()) body[i] = make_uint4(word, word, word, word);
    if (first() < odd) span.start[first()] = (unsigned char)byte;
    if (first() < span.nbytes - end) span.start[end + first()] = (unsigned char)byte;
}

// Sets the flag if any byte of any span is another one.
extern "C" __global__ void kb_differs(const Span* spans, unsigned int byte, double* flag) {
    Span span = spans[blockIdx.y];
    unsigned int word = byte * 0x01010101u;
    unsigned long long odd = head(span), words = (span.nbytes - odd) / 16, end = odd + words * 16;
    const uint4* body = reinterpret_cast<const uint4*>(span.start + odd);
    bool bad = false;
    for (unsigned long long i = first(); i < words; i += step()) {
        uint4 v = body[i];
        bad = bad || ((v.x ^ word) | (v.y ^ word) | (v.z ^ word) | (v.w ^ word)) != 0;
    }
    if (first() < odd) bad = bad || span.start[first()] != byte;
    if (first() < span.nbytes - end) bad = bad || span.start[end + first()] != byte;
    if (bad) *flag = 1.0;
}

// Sets the flag if two stretches of memory, both at 16-byte boundaries, are not the same.
extern "C" __global__ void kb_unequal(const uint4* one, const uint4* two, unsigned long long nbytes, double* flag) {
    bool bad = false;
    for (unsigned long long i = first(); i < nbytes / 16; i += step()) {
        uint4 a = one[i], b = two[i];
        bad = bad || ((a.x ^ b.x) | (a.y ^ b.y) | (a.z ^ b.z) | (a.w ^ b.w)) != 0;
    }
    unsigned long long at = nbytes / 16 * 16 + first();
    if (at < nbytes)
        bad = bad || reinterpret_cast<const unsigned char*>(one)[at] != reinterpret_cast<const unsigned char*>(two)[at];
    if (bad) *flag = 1.0;
}

extern "C" __global__ void kb_compare_float32(const float* output, const double* value, const double* bound,
                                              unsigned long long count, double* result) {
    compare(output, value, bound, count, result);
}
extern "C" __global__ void kb_compare_float16(const __half* output, const double* value, const double* bound,
                                              unsigned long long count, double* result) {
    compare(output, value, bound, count, result);
}
extern "C" __global__ void kb_compare_bfloat16(const __nv_bfloat16* output, const double* value, const double* bound,
                                               unsigned long long count, double* result) {
    compare(output, value, bound, count, result);
}
