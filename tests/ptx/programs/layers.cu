// Kernels as a user of `moeparity certify` may have them, right and wrong; compiled as `reductions.cu` is.
// tests/probe/kernel_files holds a YAML file for each, tests/probe/test_kernel_files.py holds them to plans and orders.
#include <cuda_bf16.h>

using bf16 = __nv_bfloat16;

__device__ float warp_sum(float sum) {
  for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(~0u, sum, offset);
  return sum;
}

// Sums of warps, added up by the first warp; `part` has 32 places.
__device__ float block_sum(float sum, float* part) {
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f;
  if (threadIdx.x < 32) {
    sum = warp_sum(sum);
    if (threadIdx.x == 0) part[0] = sum;
  }
  __syncthreads();
  return part[0];
}

__device__ void scaled(const bf16* x, const bf16* weight, bf16* out, int hidden, float sum, float eps) {
  float root = __frsqrt_rn(sum / hidden + eps);
  for (int i = threadIdx.x; i < hidden; i += blockDim.x)
    out[i] = __float2bfloat16(__bfloat162float(x[i]) * root * __bfloat162float(weight[i]));
}

// A thread adds every blockDim.x-th square.
extern "C" __global__ void norm_strided(const bf16* x, const bf16* weight, bf16* out, int hidden, float eps) {
  __shared__ float part[32];
  const bf16* row = x + (long)blockIdx.x * hidden;
  float sum = 0;
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
    float v = __bfloat162float(row[i]);
    sum += v * v;
  }
  scaled(row, weight, out + (long)blockIdx.x * hidden, hidden, block_sum(sum, part), eps);
}

// A thread loads eight neighbours at once.
extern "C" __global__ void norm_vectors(const bf16* x, const bf16* weight, bf16* out, int hidden, float eps) {
  __shared__ float part[32];
  const bf16* row = x + (long)blockIdx.x * hidden;
  float sum = 0;
  for (int at = threadIdx.x * 8; at < hidden; at += blockDim.x * 8) {
    uint4 packed = *reinterpret_cast<const uint4*>(row + at);
    const bf16* values = reinterpret_cast<const bf16*>(&packed);
    for (int i = 0; i < 8; ++i) {
      float v = __bfloat162float(values[i]);
      sum += v * v;
    }
  }
  scaled(row, weight, out + (long)blockIdx.x * hidden, hidden, block_sum(sum, part), eps);
}

// As `norm_vectors`, and what is normalised is rounded to bf16 before it meets the weight.
extern "C" __global__ void norm_cast_first(const bf16* x, const bf16* weight, bf16* out, int hidden, float eps) {
  __shared__ float part[32];
  const bf16* row = x + (long)blockIdx.x * hidden;
  float sum = 0;
  for (int at = threadIdx.x * 8; at < hidden; at += blockDim.x * 8)
    for (int i = 0; i < 8; ++i) {
      float v = __bfloat162float(row[at + i]);
      sum += v * v;
    }
  float root = __frsqrt_rn(block_sum(sum, part) / hidden + eps);
  for (int i = threadIdx.x; i < hidden; i += blockDim.x)
    out[(long)blockIdx.x * hidden + i] = __float2bfloat16(__bfloat162float(row[i]) * root) * weight[i];
}

// Faults: the last vector of a row is left out; one vector too many is read; a barrier is missing; squares are added
// in bf16.
extern "C" __global__ void norm_short_tail(const bf16* x, const bf16* weight, bf16* out, int hidden, float eps) {
  __shared__ float part[32];
  const bf16* row = x + (long)blockIdx.x * hidden;
  float sum = 0;
  for (int i = threadIdx.x; i < hidden - 1; i += blockDim.x) {
    float v = __bfloat162float(row[i]);
    sum += v * v;
  }
  scaled(row, weight, out + (long)blockIdx.x * hidden, hidden, block_sum(sum, part), eps);
}

extern "C" __global__ void norm_long_tail(const bf16* x, const bf16* weight, bf16* out, int hidden, float eps) {
  __shared__ float part[32];
  const bf16* row = x + (long)blockIdx.x * hidden;
  float sum = 0;
  for (int i = threadIdx.x; i <= hidden; i += blockDim.x) {
    float v = __bfloat162float(row[i]);
    sum += v * v;
  }
  scaled(row, weight, out + (long)blockIdx.x * hidden, hidden, block_sum(sum, part), eps);
}

extern "C" __global__ void norm_missing_barrier(const bf16* x, const bf16* weight, bf16* out, int hidden, float eps) {
  __shared__ float part[32];
  const bf16* row = x + (long)blockIdx.x * hidden;
  float sum = 0;
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
    float v = __bfloat162float(row[i]);
    sum += v * v;
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  sum = 0;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += part[warp];
  scaled(row, weight, out + (long)blockIdx.x * hidden, hidden, sum, eps);
}

extern "C" __global__ void norm_narrow_sum(const bf16* x, const bf16* weight, bf16* out, int hidden, float eps) {
  __shared__ float part[32];
  const bf16* row = x + (long)blockIdx.x * hidden;
  bf16 sum = __float2bfloat16(0.0f);
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) sum = __hadd(sum, __hmul(row[i], row[i]));
  float total = block_sum(__bfloat162float(sum), part);
  scaled(row, weight, out + (long)blockIdx.x * hidden, hidden, total, eps);
}

// Rows that have met their weights, added up in fp32 by ascending slot.
extern "C" __global__ void combine_wide(const bf16* rows, bf16* out, int tokens, int slots, int hidden) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= tokens * hidden) return;
  const bf16* first = rows + (long)(at / hidden) * slots * hidden + at % hidden;
  float sum = 0;
  for (int slot = 0; slot < slots; ++slot) sum += __bfloat162float(first[(long)slot * hidden]);
  out[at] = __float2bfloat16(sum);
}

// The same from the last slot down.
extern "C" __global__ void combine_down(const bf16* rows, bf16* out, int tokens, int slots, int hidden) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= tokens * hidden) return;
  const bf16* first = rows + (long)(at / hidden) * slots * hidden + at % hidden;
  float sum = 0;
  for (int slot = slots - 1; slot >= 0; --slot) sum += __bfloat162float(first[(long)slot * hidden]);
  out[at] = __float2bfloat16(sum);
}

// Every addition is rounded to bf16.
extern "C" __global__ void combine_narrow(const bf16* rows, bf16* out, int tokens, int slots, int hidden) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= tokens * hidden) return;
  const bf16* first = rows + (long)(at / hidden) * slots * hidden + at % hidden;
  bf16 sum = first[0];
  for (int slot = 1; slot < slots; ++slot) sum = __hadd(sum, first[(long)slot * hidden]);
  out[at] = sum;
}

// Rows meet their weights here, in fp32, and are added up by ascending slot.
extern "C" __global__ void combine_weighted(
    const bf16* rows, const float* weights, bf16* out, int tokens, int slots, int hidden) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= tokens * hidden) return;
  int token = at / hidden;
  float sum = 0;
  for (int slot = 0; slot < slots; ++slot)
    sum += __bfloat162float(rows[((long)token * slots + slot) * hidden + at % hidden]) * weights[token * slots + slot];
  out[at] = __float2bfloat16(sum);
}

// A warp for each token: softmax over all experts, the chosen ones renormalised; equal scores by `later`.
__device__ void route(const bf16* logits, int* ids, float* weights, int experts, int top_k, bool later) {
  extern __shared__ float scores[];
  const bf16* row = logits + (long)blockIdx.x * experts;
  float most = -INFINITY, sum = 0;
  for (int e = threadIdx.x; e < experts; e += 32) most = fmaxf(most, __bfloat162float(row[e]));
  for (int offset = 16; offset; offset >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
  for (int e = threadIdx.x; e < experts; e += 32) sum += scores[e] = expf(__bfloat162float(row[e]) - most);
  sum = warp_sum(sum);
  for (int e = threadIdx.x; e < experts; e += 32) scores[e] = scores[e] / sum;
  __syncwarp();
  if (threadIdx.x) return;
  float total = 0;
  for (int slot = 0; slot < top_k; ++slot) {
    int best = 0;
    for (int e = 1; e < experts; ++e)
      if (scores[e] > scores[best] || (later && scores[e] == scores[best])) best = e;
    ids[blockIdx.x * top_k + slot] = best;
    weights[blockIdx.x * top_k + slot] = scores[best];
    total += scores[best];
    scores[best] = -1;
  }
  for (int slot = 0; slot < top_k; ++slot) weights[blockIdx.x * top_k + slot] /= total;
}

extern "C" __global__ void router(const bf16* logits, int* ids, float* weights, int experts, int top_k) {
  route(logits, ids, weights, experts, top_k, false);
}

extern "C" __global__ void router_later(const bf16* logits, int* ids, float* weights, int experts, int top_k) {
  route(logits, ids, weights, experts, top_k, true);
}

// silu(gate) * up with one rounding, or with silu rounded before it meets up.
extern "C" __global__ void swiglu(const bf16* gate, const bf16* up, bf16* out, int numbers) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= numbers) return;
  float g = __bfloat162float(gate[i]);
  out[i] = __float2bfloat16(g / (1.0f + expf(-g)) * __bfloat162float(up[i]));
}

extern "C" __global__ void swiglu_twice(const bf16* gate, const bf16* up, bf16* out, int numbers) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= numbers) return;
  float g = __bfloat162float(gate[i]);
  out[i] = __float2bfloat16(__bfloat162float(__float2bfloat16(g / (1.0f + expf(-g)))) * __bfloat162float(up[i]));
}

// Products of fp32 rows with a weight, added up by every blockDim.x-th: with -fmad=false other bits.
extern "C" __global__ void dots(const float* x, const float* weight, float* out, int n) {
  __shared__ float part[32];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    sum += x[(long)blockIdx.x * n + i] * weight[(long)blockIdx.y * n + i];
  sum = block_sum(sum, part);
  if (threadIdx.x == 0) out[(long)blockIdx.x * gridDim.y + blockIdx.y] = sum;
}

// In place, by way of scratch memory.
extern "C" __global__ void swiglu_in_place(bf16* gate, const bf16* up, float* silu, int numbers) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= numbers) return;
  float g = __bfloat162float(gate[i]);
  silu[i] = g / (1.0f + expf(-g));
  gate[i] = __float2bfloat16(silu[i] * __bfloat162float(up[i]));
}
