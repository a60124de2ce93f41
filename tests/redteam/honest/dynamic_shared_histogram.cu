// task: histogram
// Private counts in dynamic shared memory sized by the number of bins, over 48 KB where needed.
#include <cuda_runtime.h>
__global__ void count(const int* keys, int* counts, int n, int bins) {
    extern __shared__ int own[];
    for (int b = threadIdx.x; b < bins; b += blockDim.x) own[b] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[keys[i]], 1);
    __syncthreads();
    for (int b = threadIdx.x; b < bins; b += blockDim.x)
        if (own[b]) atomicAdd(&counts[b], own[b]);
}
void launch(const int* keys, int* counts, int n, int bins) {
    int bytes = bins * int(sizeof(int)) < 60000 ? 60000 : bins * int(sizeof(int));
    cudaFuncSetAttribute(count, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaFuncSetAttribute(count, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    cudaMemsetAsync(counts, 0, sizeof(int) * bins);
    count<<<264, 512, bytes>>>(keys, counts, n, bins);
}
