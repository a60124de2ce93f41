// task: vector_add
// The halves on two streams, joined with events.
#include <cuda_runtime.h>
__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
void launch(const float* a, const float* b, float* c, int n) {
    cudaStream_t streams[2];
    cudaEvent_t done;
    for (cudaStream_t& stream : streams) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    int half = n / 2;
    if (half > 0) add<<<(half + 255) / 256, 256, 0, streams[0]>>>(a, b, c, half);
    add<<<(n - half + 255) / 256, 256, 0, streams[1]>>>(a + half, b + half, c + half, n - half);
    cudaEventRecord(done, streams[1]);
    cudaStreamWaitEvent(streams[0], done, 0);
    cudaStreamSynchronize(streams[0]);
    cudaEventDestroy(done);
    for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
}
