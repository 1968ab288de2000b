// Compiled by `python -m tests.engines.cuda.toolchain programs`, as it is and with -fmad=false;
// tests/ptx/test_programs.py holds them to numpy.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void row_sum_of_squares(const float* x, float* y, int n) {
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i] * x[blockIdx.x * n + i];
  for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(~0u, sum, offset);
  __shared__ float warps[32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (int w = 0; w < blockDim.x / 32; ++w) total += warps[w];
    y[blockIdx.x] = total;
  }
}

extern "C" __global__ void shared_tree(const float* x, float* y) {
  extern __shared__ float part[];
  part[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int half = blockDim.x / 2; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}

// As `shared_tree`, and one barrier is missing: threads read what others may not have written yet.
extern "C" __global__ void missing_barrier(const float* x, float* y) {
  extern __shared__ float part[];
  part[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int half = blockDim.x / 2; half; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}

// Reads one element more than a row has.
extern "C" __global__ void beyond_the_end(const float* x, float* y, int n) {
  float sum = 0;
  for (int i = threadIdx.x; i <= n; i += blockDim.x) sum += x[i];
  y[threadIdx.x] = sum;
}

extern "C" __global__ void row_max(const float* x, float* y, int n) {
  float most = -INFINITY;
  const float4* row = reinterpret_cast<const float4*>(x + blockIdx.x * n);
  for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
    float4 v = row[i];
    most = fmaxf(most, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
  }
  for (int offset = 1; offset < 32; offset *= 2) most = fmaxf(most, __shfl_down_sync(~0u, most, offset));
  if (threadIdx.x == 0) y[blockIdx.x] = most;
}

extern "C" __global__ void contracted(const float* a, const float* b, const float* c, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a[i] * b[i] + c[i];
}

extern "C" __global__ void divergent(const int* x, int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int v = x[i], steps = 0;
  while (v != 1) {
    v = v % 2 ? 3 * v + 1 : v / 2;
    ++steps;
  }
  unsigned together = __ballot_sync(__activemask(), steps % 2);
  y[2 * i] = steps;
  y[2 * i + 1] = __popc(together) >= 0 ? steps : -1;
}

extern "C" __global__ void switched(const int* kind, const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  switch (kind[i]) {
    case 0: v = v + 1; break;
    case 1: v = v * 3; break;
    case 2: v = sqrtf(fabsf(v)); break;
    case 3: v = 1 / v; break;
    case 4: v = -v; break;
    case 5: v = v * v; break;
    default: v = 0;
  }
  y[i] = v;
}

extern "C" __global__ void histogram(const int* x, int* count, float* sum, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  atomicAdd(&count[x[i]], 1);
  atomicAdd(&sum[x[i]], 0.1f * i);
}

extern "C" __global__ void block_count(const float* x, int* y) {
  int more = __syncthreads_count(x[blockIdx.x * blockDim.x + threadIdx.x] > 0);
  int any = __syncthreads_or(x[blockIdx.x * blockDim.x + threadIdx.x] > 2.5f);
  if (threadIdx.x == 0) {
    y[2 * blockIdx.x] = more;
    y[2 * blockIdx.x + 1] = any != 0;
  }
}

extern "C" __global__ void pairs(const __nv_bfloat162* a, const __nv_bfloat162* b, __nv_bfloat162* y, int n) {
  int i = threadIdx.x;
  if (i < n) y[i] = __hfma2(a[i], b[i], __hadd2(a[i], b[i]));
}

extern "C" __global__ void quantised(const float2* x, __nv_fp8x2_storage_t* y, float* back, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  y[i] = __nv_cvt_float2_to_fp8x2(x[i], __NV_SATFINITE, __NV_E4M3);
  __half2 pair(__nv_cvt_fp8x2_to_halfraw2(y[i], __NV_E4M3));
  back[2 * i] = __low2float(pair);
  back[2 * i + 1] = __high2float(pair);
}

extern "C" __global__ void exponentials(const float* x, float* y, int n) {
  int i = threadIdx.x;
  if (i < n) y[i] = expf(x[i]);
}

// The last block to come adds up what all blocks left: a flag in global memory, and blocks in any order.
extern "C" __global__ void last_block(const float* x, float* part, unsigned* come, float* y) {
  float sum = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(~0u, sum, offset);
  __shared__ bool last;
  if (threadIdx.x == 0) {
    part[blockIdx.x] = sum;
    __threadfence();
    last = atomicInc(come, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float total = 0;
    for (int b = 0; b < gridDim.x; ++b) total += part[b];
    y[0] = total;
  }
}
