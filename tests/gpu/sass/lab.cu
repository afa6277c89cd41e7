// Small kernels of the kinds that courses and labs have: control flow, intrinsics, atomics, votes, shared memory, products.
// scripts/lab/lab_kernels.py compiles them for each architecture, runs them and compares what they write with NumPy.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>
#include <mma.h>

#include <cassert>

namespace cg = cooperative_groups;
typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;
#define KERNEL extern "C" __global__ void
#define I int i = blockIdx.x * blockDim.x + threadIdx.x

// ---- math in fp32

KERNEL f_divide(float* y, const float* x) { I; y[i] = x[i] / x[i + 1]; }
KERNEL f_roots(float* y, const float* x) { I; float v = fabsf(x[i]); y[i] = sqrtf(v) + rsqrtf(v) + cbrtf(v) + hypotf(v, 2); }
KERNEL f_powers(float* y, const float* x) { I; float v = fabsf(x[i]); y[i] = powf(v, 2.3f) + expf(-v) + exp2f(v) + exp10f(-v) + expm1f(-v); }
KERNEL f_logs(float* y, const float* x) { I; float v = fabsf(x[i]); y[i] = logf(v) + log2f(v) + log10f(v) + log1pf(v); }
KERNEL f_trig(float* y, const float* x) { I; float v = x[i], s, c; sincosf(v, &s, &c); y[i] = s + 2 * c + tanf(v) + sinpif(v) + cospif(v); }
KERNEL f_large_angles(float* y, const float* x) { I; float v = 1e6f * x[i]; y[i] = sinf(v) + cosf(v); }
KERNEL f_inverse(float* y, const float* x) { I; float v = x[i] / (1 + fabsf(x[i])); y[i] = asinf(v) + acosf(v) + atanf(v) + atan2f(v, x[i + 1]); }
KERNEL f_hyperbolic(float* y, const float* x) { I; float v = x[i]; y[i] = sinhf(v) + coshf(v) + tanhf(v) + asinhf(v) + acoshf(1 + v * v) + atanhf(v / (1 + fabsf(v))); }
KERNEL f_special(float* y, const float* x) { I; float v = fabsf(x[i]) + .5f; y[i] = erff(v) + erfcf(v) + lgammaf(v) + tgammaf(v); }
KERNEL f_rounding(float* y, const float* x) { I; float v = 10 * x[i]; y[i] = floorf(v) + 2 * ceilf(v) + 3 * truncf(v) + 5 * rintf(v) + 7 * roundf(v) + fmodf(v, 3) + remainderf(v, 3); }
KERNEL f_parts(float* y, const float* x) { I; int e; float w, m = frexpf(x[i], &e), f = modff(x[i], &w); y[i] = m + e + 2 * w + f + ldexpf(m, 3) + scalbnf(m, 2) + copysignf(2, x[i]) + fdimf(x[i], .1f) + ilogbf(x[i]); }
KERNEL f_directed(float* y, const float* x) { I; float v = x[i], w = x[i + 1]; y[4 * i] = __fadd_rd(v, w); y[4 * i + 1] = __fmul_ru(v, w); y[4 * i + 2] = __fmaf_rz(v, w, v); y[4 * i + 3] = __fdiv_rn(v, w); }
KERNEL f_fast(float* y, const float* x) { I; float v = x[i]; y[i] = __sinf(v) + __cosf(v) + __expf(v) + __logf(fabsf(v)) + __fdividef(v, 3) + __saturatef(v) + __powf(fabsf(v), 2) + __tanf(v) + __frcp_rn(v) + __fsqrt_rn(fabsf(v)); }
KERNEL f_conversions(int* y, const float* x) { I; float v = 100 * x[i]; y[i] = __float2int_rn(v) + 3 * __float2int_rd(v) + 5 * __float2int_ru(v) + (int)(u32)fabsf(v) + (int)(i64)v + (int)__int2float_rn(i) + __float_as_int(v); }
KERNEL f_classes(int* y, const float* x) { I; float v = i % 5 == 0 ? 1 / (x[i] - x[i]) : i % 5 == 1 ? nanf("") : x[i]; y[i] = isnan(v) + 2 * isinf(v) + 4 * isfinite(v) + 8 * signbit(v) + 16 * (v < 0) + 32 * (fminf(v, 1) == 1) + 64 * (fmaxf(v, 0) == 0); }
KERNEL f_norm(float* y, const float4* x) { I; float4 v = x[i]; float n = norm3df(v.x, v.y, v.z), r = rnorm4df(v.x, v.y, v.z, v.w); y[i] = n + r + normcdff(v.x); }

// ---- fp64

KERNEL d_arithmetic(double* y, const double* x) { I; double v = x[i], w = x[i + 1]; y[i] = fma(v, w, v) - v * w + (v > w ? v : -w) + fabs(v) + fmin(v, w) + 2 * fmax(v, w); }
KERNEL d_divide(double* y, const double* x) { I; y[i] = x[i] / x[i + 1] + 1 / x[i]; }
KERNEL d_roots(double* y, const double* x) { I; y[i] = sqrt(fabs(x[i])) + rsqrt(fabs(x[i])) + cbrt(x[i]); }
KERNEL d_functions(double* y, const double* x) { I; double v = x[i]; y[i] = exp(v) + log(fabs(v)) + sin(v) + cos(v) + tanh(v) + pow(fabs(v), 1.5); }
KERNEL d_conversions(i64* y, const double* x) { I; double v = 1000 * x[i]; y[i] = (i64)v + __double2ll_rn(v) + (int)v + (u32)fabs(v) + (i64)floor(v) + (i64)(double)(float)v + (i64)(double)i + (i64)rint(v) + (i64)(double)(i64)i; }

// ---- integers

KERNEL i_divide32(int* y, const int* x) { I; int v = x[i], w = x[i + 1] | 1; y[i] = v / w + v % w + (int)((u32)v / (u32)w) + (int)((u32)v % (u32)w) + v / 7; }
KERNEL i_divide64(i64* y, const i64* x) { I; i64 v = x[i], w = x[i + 1] | 1; y[i] = v / w + v % w + (i64)((u64)v / (u64)w) + (i64)((u64)v % (u64)w); }
KERNEL i_multiply(i64* y, const i64* x) { I; i64 v = x[i], w = x[i + 1]; y[i] = v * w + __mul64hi(v, w) + (i64)__umul64hi(v, w) + __mulhi((int)v, (int)w) + __umulhi((u32)v, (u32)w) + __mul24((int)v, (int)w); }
KERNEL i_128bits(u64* y, const u64* x) { I; unsigned __int128 v = (unsigned __int128)x[i] * x[i + 1] + x[i]; y[2 * i] = (u64)v; y[2 * i + 1] = (u64)(v >> 64); }
KERNEL i_bits(int* y, const int* x) { I; int v = x[i]; y[i] = __clz(v) + __ffs(v) + __popc(v) + (int)__brev(v) + __clzll((i64)v << 9) + __ffsll((i64)v << 7) + __popcll((i64)v) + (int)__brevll((i64)v); }
KERNEL i_bytes(u32* y, const u32* x) { I; u32 v = x[i], w = x[i + 1]; y[i] = __byte_perm(v, w, 0x3614) + __funnelshift_l(v, w, i) + __funnelshift_r(v, w, 5) + __funnelshift_lc(v, w, i) + __sad((int)v, (int)w, 3) + __usad(v, w, 5) + __hadd((int)v, (int)w) + __rhadd((int)v, (int)w) + __uhadd(v, w); }
KERNEL i_fields(u32* y, const u32* x) { I; u32 v = x[i], a, b; int c; asm("bfe.u32 %0, %1, %2, 9;" : "=r"(a) : "r"(v), "r"(i & 31)); asm("bfe.s32 %0, %1, 5, %2;" : "=r"(c) : "r"(v), "r"(i & 15)); asm("bfi.b32 %0, %1, %2, 7, 11;" : "=r"(b) : "r"(v), "r"(x[i + 1])); y[i] = a + 3 * b + 5 * c; }
KERNEL i_shifts64(u64* y, const u64* x) { I; u64 v = x[i]; y[i] = (v << (i & 63)) + (v >> (i & 63)) + (u64)((i64)v >> (i & 63)) + (v << 33 | v >> 31); }
KERNEL i_minmax(i64* y, const i64* x) { I; i64 v = x[i], w = x[i + 1]; y[i] = min(v, w) + max((u64)v, (u64)w) + min((int)v, (int)w) + max((u32)v, (u32)w) + llabs(v) + abs((int)w); }
KERNEL i_carries(u32* y, const u32* x) { I; u32 a = x[2 * i], b = x[2 * i + 1], c = x[2 * i + 2], d = x[2 * i + 3], s, t; asm("add.cc.u32 %0, %2, %4; addc.u32 %1, %3, %5;" : "=r"(s), "=r"(t) : "r"(a), "r"(b), "r"(c), "r"(d)); y[2 * i] = s; y[2 * i + 1] = t; asm("sub.cc.u32 %0, %2, %4; subc.u32 %1, %3, %5;" : "=r"(s), "=r"(t) : "r"(a), "r"(b), "r"(c), "r"(d)); y[2 * i] ^= s; y[2 * i + 1] ^= t; }
KERNEL i_simd2(u32* y, const u32* x) { I; u32 v = x[i], w = x[i + 1]; y[i] = __vadd2(v, w) ^ __vsub2(v, w) ^ __vmaxs2(v, w) ^ __vminu2(v, w) ^ __vabs2(v) ^ __vavgu2(v, w) ^ __vcmpgts2(v, w) ^ __vabsdiffs2(v, w) ^ __vseteq2(v, w) ^ __vaddss2(v, w); }
KERNEL i_simd4(u32* y, const u32* x) { I; u32 v = x[i], w = x[i + 1]; y[i] = __vadd4(v, w) ^ __vsub4(v, w) ^ __vmaxs4(v, w) ^ __vminu4(v, w) ^ __vabsdiffu4(v, w) ^ __vavgu4(v, w) ^ __vcmpeq4(v, w & 0xff) ^ __vsadu4(v, w) ^ __vneg4(v) ^ __vaddus4(v, w); }
KERNEL i_dots(int* y, const int* x) { I; int v = x[i], w = x[i + 1]; y[i] = __dp4a(v, w, i) + 3 * (int)__dp4a((u32)v, (u32)w, (u32)i) + 5 * __dp2a_lo(v, w, i) + 7 * __dp2a_hi(v, w, i); }
KERNEL i_dynamic_programming(int* y, const int* x) { I; int v = x[i], w = x[i + 1]; y[i] = __viaddmax_s32(v, w, 5) + __vimax3_s32(v, w, i) + (int)__vimin3_u32(v, w, 1u << 30) + __vimax_s32_relu(v, w) + (int)__viaddmax_s16x2(v, w, 5) + (int)__vimax3_s16x2(v, w, i) + (int)__viaddmin_u16x2(v, w, 7); }

// ---- control flow

KERNEL c_while(int* y, const int* x) { I; int n = 0, v = x[i]; while (v != 1 && n < 1000) { v = v & 1 ? 3 * v + 1 : v / 2; n++; if (n == 50) break; } y[i] = n; }
KERNEL c_switch(float* y, const int* x) { I; float v = i; switch (x[i]) { case 0: v *= 2; break; case 1: v = sqrtf(v); break; case 2: v += 3; break; case 3: v = v * v; break; case 4: v = 1 - v; break; case 5: v = v / 3; break; case 6: v = -v; break; case 7: v += 8; } y[i] = v; }
KERNEL c_jump_table(int* y, const int* x) { I; int v = 0; for (int k = 0; k < 4; k++) switch ((x[i] + 3 * k) % 13) { case 0: v += 7; break; case 1: v ^= 99; case 2: v = v * 3 + 1; break; case 3: v -= k; break; case 4: v <<= 1; break; case 5: v = ~v; break; case 6: y[i] = v; v += 2; break; case 7: v |= 64; break; case 8: v &= 0xffff; break; case 9: v = v / 3; break; default: v += 1000; } y[i] = v; }
KERNEL c_nested(int* y, const int* x) { I; int s = 0; for (int a = 0; a < (x[i] & 7); a++) { if (a == 3) continue; for (int b = a; b < 9; b++) { if (b * a > 20) break; s += a ^ b; if (s > 60) goto out; } } out: y[i] = s; }
__device__ __noinline__ float helper(float a, int n) { float s = 0; for (int j = 0; j < n; j++) s += a / (j + 1); return s; }
KERNEL c_calls(float* y, const float* x, int n) { I; float v = helper(x[i], n); if (i & 1) v += helper(x[i + 1], n + 1); y[i] = v; }
__device__ __noinline__ int inner(int v, int n) { while (v < n) v = 2 * v + 1; return v; }
__device__ __noinline__ int outer(int v, int n) { return inner(v, n) + inner(v + 3, 2 * n); }
KERNEL c_nested_calls(int* y, const int* x) { I; y[i] = x[i] & 4 ? outer(x[i], 50) : inner(x[i], 9); }
__device__ __noinline__ float twice(float v) { return v + v; }
__device__ __noinline__ float square(float v) { return v * v; }
__device__ __noinline__ float third(float v) { return v * 0.25f; }
KERNEL c_pointers(float* y, const float* x, const int* which) { I; float (*f[])(float) = {twice, square, third}; y[i] = f[which[i]](x[i]); }
struct Shape { __device__ virtual float area() = 0; };
struct Square : Shape { float a; __device__ Square(float a) : a(a) {} __device__ float area() override { return a * a; } };
struct Circle : Shape { float r; __device__ Circle(float r) : r(r) {} __device__ float area() override { return 3 * r * r; } };
KERNEL c_virtual(float* y, const float* x) { I; Square s(x[i]); Circle c(x[i]); Shape* p = i & 1 ? (Shape*)&s : (Shape*)&c; y[i] = p->area(); }
__device__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
KERNEL c_recursion(int* y, const int* x) { I; y[i] = fibonacci(x[i] & 7); }
KERNEL c_early_exit(int* y, const int* x, int n) { I; if (i >= n) return; if (x[i] < 0) { y[i] = -1; return; } for (int k = 0;; k++) if (k * k >= x[i]) { y[i] = k; return; } }
KERNEL c_assert(int* y, const int* x) { I; assert(x[i] >= 0); y[i] = 2 * x[i]; }
KERNEL c_newton(float* y, const float* x) { I; float a = fabsf(x[i]) + 1, r = a; int n = 0; while (fabsf(r * r - a) > 1e-4f * a && n < 40) { r = .5f * (r + a / r); n++; } y[i] = r + n; }
KERNEL c_gcd(int* y, const int* x) { I; int a = x[i] + 1, b = x[i + 1] + 1; while (b) { int t = a % b; a = b; b = t; } y[i] = a; }
KERNEL c_mandelbrot(int* y, int width) { I; float cr = -2 + 3.f * (i % width) / width, ci = -1 + 2.f * (i / width) / width, r = 0, m = 0; int n = 0; for (; n < 60 && r * r + m * m < 4; n++) { float t = r * r - m * m + cr; m = 2 * r * m + ci; r = t; } y[i] = n; }
KERNEL c_local_stack(int* y, const int* x) { I; int stack[16], top = 0, s = 0; stack[top++] = x[i] & 31; while (top) { int v = stack[--top]; s += v; if (v > 3) { stack[top++] = v / 2; stack[top++] = v / 3; } } y[i] = s; }

// ---- warps

KERNEL w_votes(u32* y, const int* x) { I; bool p = x[i] & 1; u32 m = 0xffffffff; y[i] = __ballot_sync(m, p) + __all_sync(m, x[i] < 1000) + 2 * __any_sync(m, x[i] == 3) + 4 * __popc(__activemask()); }
KERNEL w_shuffles(float* y, const float* x) { I; float v = x[i]; u32 m = 0xffffffff; v += __shfl_down_sync(m, v, 16); v += __shfl_xor_sync(m, v, 8); v += __shfl_up_sync(m, v, 4, 16); v += __shfl_sync(m, v, 3, 8); y[i] = v; }
KERNEL w_shuffle64(double* y, const double* x) { I; double v = x[i]; for (int o = 16; o; o /= 2) v += __shfl_xor_sync(0xffffffff, v, o); y[i] = v; }
KERNEL w_match(u32* y, const int* x) { I; int p; u32 a = __match_any_sync(0xffffffff, x[i] & 3), b = __match_all_sync(0xffffffff, x[i] >> 20, &p), c = __match_any_sync(0xffffffff, (u64)(x[i] & 7) << 33); y[i] = a + b + p + 3 * c; }
KERNEL w_masked(int* y, const int* x) { I; int v = 0; if (threadIdx.x & 4) { u32 m = __activemask(); v = __shfl_sync(m, x[i], 5) + __popc(__ballot_sync(m, x[i] & 1)); __syncwarp(m); } else __syncwarp(0x0f0f0f0f); __syncwarp(); y[i] = v; }
KERNEL w_tiles(int* y, const int* x) { I; auto t = cg::tiled_partition<8>(cg::this_thread_block()); int v = x[i]; for (int o = 4; o; o /= 2) v += t.shfl_down(v, o); y[i] = t.shfl(v, 0) + t.thread_rank() + t.any(x[i] == 3); }
KERNEL w_groups(int* y, int* count, const int* x) { I; y[i] = cg::reduce(cg::tiled_partition<32>(cg::this_thread_block()), x[i], cg::plus<int>()); if (x[i] & 1) { auto g = cg::coalesced_threads(); if (g.thread_rank() == 0) atomicAdd(count, g.size()); y[i] += g.thread_rank(); } }
#if __CUDA_ARCH__ >= 800
KERNEL w_reduce(int* y, const int* x) { I; u32 m = 0xffffffff; y[i] = __reduce_add_sync(m, x[i]) + __reduce_min_sync(m, x[i]) + (int)__reduce_max_sync(m, (u32)x[i]) + (int)__reduce_xor_sync(m, x[i]) + (int)__reduce_or_sync(m, x[i]) + (int)__reduce_and_sync(m, x[i]); }
#endif
KERNEL w_scan(int* y, const int* x) { I; int v = x[i], lane = threadIdx.x & 31; for (int o = 1; o < 32; o *= 2) { int t = __shfl_up_sync(0xffffffff, v, o); if (lane >= o) v += t; } y[i] = v; }

// ---- atomics

KERNEL a_integers(int* y, const int* x) { I; int v = x[i]; atomicAdd(y, v); atomicSub(y + 1, v); atomicMin(y + 2, v); atomicMax(y + 3, v); atomicAnd(y + 4, v | 1 << 20); atomicOr(y + 5, v); atomicXor(y + 6, v); atomicInc((u32*)y + 7, 1000); atomicDec((u32*)y + 8, 1000); atomicMin((u32*)y + 9, (u32)v); }
KERNEL a_answers(int* y, int* n, const int* x) { I; if (x[i] & 1) y[atomicAdd(n, 1)] = x[i]; if (atomicExch(n + 1, i) == 1000000) n[2] = 1; atomicCAS(n + 3, 0, i + 1); }
KERNEL a_floats(float* y, double* z, __half2* h, const float* x) { I; atomicAdd(y, x[i]); atomicAdd(y + 1 + (i & 3), 1.f); atomicAdd(z, (double)x[i]); atomicAdd(h, __floats2half2_rn(1, 2)); y[8 + i] = atomicExch(y + 6, 2.f); }
KERNEL a_wide(u64* y, const u64* x) { I; u64 v = x[i]; atomicAdd(y, v); atomicMax(y + 1, v); atomicMin((i64*)y + 2, (i64)v); atomicAnd(y + 3, v | 3); atomicOr(y + 4, v); atomicXor(y + 5, v); atomicCAS(y + 6, 0, 9); atomicExch(y + 7, 5); }
KERNEL a_scopes(int* y) { atomicAdd_block(y, 1); atomicAdd_system(y + 1, 2); atomicMax_block(y + 2, (int)threadIdx.x); }
KERNEL a_float_max(float* y, const float* x) { I; int* p = (int*)y; int old = *p, seen; do { seen = old; old = atomicCAS(p, seen, __float_as_int(fmaxf(x[i], __int_as_float(seen)))); } while (seen != old); }
KERNEL a_short(unsigned short* y) { unsigned short old = *y, seen; do { seen = old; old = atomicCAS(y, seen, (unsigned short)(seen + 1)); } while (seen != old); }
KERNEL a_histogram(int* y, const int* x) { __shared__ int h[32]; int t = threadIdx.x; if (t < 32) h[t] = 0; __syncthreads(); I; atomicAdd(h + (x[i] & 31), 1); __syncthreads(); if (t < 32) atomicAdd(y + t, h[t]); }
KERNEL a_shared(int* y, float* z, const int* x) { __shared__ int s[8]; __shared__ float f; __shared__ u64 w; int t = threadIdx.x; if (t < 8) s[t] = t == 2 ? 1 << 30 : 0; if (!t) f = 0, w = 0; __syncthreads(); int v = x[t]; atomicAdd(s, v); atomicMax(s + 1, v); atomicMin(s + 2, v); atomicOr(s + 3, v); atomicXor(s + 4, v); atomicInc((u32*)s + 5, 40); atomicExch(s + 6, 7); atomicAdd(&f, 1.f); atomicAdd(&w, (u64)v << 8); y[8 + t] = atomicSub(s + 7, 1) <= 0; __syncthreads(); if (t < 8) y[t] = s[t] + (t ? 0 : (int)w); if (!t) z[0] = f; }
KERNEL a_lock(int* lock, int* y) { if (threadIdx.x == 0) { while (atomicCAS(lock, 0, 1)) __nanosleep(20); __threadfence(); y[0] += 1; __threadfence(); atomicExch(lock, 0); } }
KERNEL a_last_block(int* y, int* count, const int* x) { I; __shared__ bool last; atomicAdd(y, x[i]); __threadfence(); __syncthreads(); if (threadIdx.x == 0) last = atomicAdd(count, 1) == gridDim.x - 1; __syncthreads(); if (last && threadIdx.x == 0) { y[1] = *(volatile int*)y * 2; *count = 0; } }

// ---- memory

KERNEL m_hints(float* y, const float* x) { I; float v = __ldg(x + i) + __ldca(x + i) + __ldcg(x + i) + __ldcs(x + i) + __ldlu(x + i) + __ldcv(x + i); __stwb(y + 4 * i, v); __stcg(y + 4 * i + 1, v); __stcs(y + 4 * i + 2, v); __stwt(y + 4 * i + 3, v); asm volatile("prefetch.global.L2 [%0];" ::"l"(x + i)); }
KERNEL m_fences(int* y, volatile int* x) { I; x[i] = i; __threadfence_block(); x[i] += 1; __threadfence(); x[i] += 2; __threadfence_system(); y[i] = x[i]; }
KERNEL m_barriers(int* y, const int* x) { I; int v = __syncthreads_count(x[i] & 1) + 100 * __syncthreads_and(x[i] < 1 << 30) + 1000 * __syncthreads_or(x[i] == -5); asm volatile("bar.sync 3, 64;"); y[i] = v; }
KERNEL m_clock(i64* y) { I; i64 a = clock64(); int b = clock(); __nanosleep(100); u64 g; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(g)); y[i] = (clock64() >= a) + 2 * (clock() - b >= 0) + 4 * (g + 1 > 0); }
KERNEL m_specials(u32* y) { I; u32 lane, warp, lt, ge, nw; asm("mov.u32 %0, %%laneid;" : "=r"(lane)); asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp)); asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lt)); asm("mov.u32 %0, %%lanemask_ge;" : "=r"(ge)); asm("mov.u32 %0, %%nctaid.x;" : "=r"(nw)); y[i] = lane + (warp < 64) + lt + 3 * ge + nw * blockDim.x + warpSize; }
__constant__ float table[8] = {1, 2, 4, 8, 16, 32, 64, 128};
KERNEL m_constants(float* y, const int* x) { I; y[i] = table[x[i] & 7] + table[3]; }
__device__ int cell[4] = {5, 6, 7, 8};
KERNEL m_globals(int* y) { I; y[i] = cell[i & 3]; }
struct Pack { int n; float scale; float v[5]; };
KERNEL m_structure(float* y, Pack p) { I; y[i] = i < p.n ? p.scale * p.v[i % 5] : 0; }
KERNEL m_bytes(short* y, const signed char* a, const unsigned char* b, const unsigned short* c) { I; y[i] = a[i] * 2 + b[i] - c[i]; }
KERNEL m_vectors(float4* y, const float4* x, const uchar4* z) { I; float4 v = x[i]; uchar4 w = z[i]; y[i] = make_float4(v.w + w.x, v.z + w.y, v.y + w.z, v.x + w.w); }
KERNEL m_local(int* y, const int* x) { I; int a[32]; for (int k = 0; k < 32; k++) a[k] = k * k; a[x[i] & 31] = -1; y[i] = a[i & 31] + a[(x[i] + 1) & 31]; }
KERNEL m_gather(float* y, const float* x, const int* at) { I; y[i] = x[at[i]]; }
KERNEL m_csr(float* y, const int* first, const int* column, const float* value, const float* x, int n) { I; if (i >= n) return; float s = 0; for (int k = first[i]; k < first[i + 1]; k++) s += value[k] * x[column[k]]; y[i] = s; }
KERNEL m_search(int* y, const int* sorted, const int* x, int n) { I; int low = 0, high = n; while (low < high) { int middle = (low + high) / 2; if (sorted[middle] < x[i]) low = middle + 1; else high = middle; } y[i] = low; }

// ---- shared memory

KERNEL s_transpose(float* y, const float* x, int n) { __shared__ float t[32][33]; int a = blockIdx.x * 32 + threadIdx.x, b = blockIdx.y * 32 + threadIdx.y; for (int k = 0; k < 32; k += 8) t[threadIdx.y + k][threadIdx.x] = x[(b + k) * n + a]; __syncthreads(); a = blockIdx.y * 32 + threadIdx.x; b = blockIdx.x * 32 + threadIdx.y; for (int k = 0; k < 32; k += 8) y[(b + k) * n + a] = t[threadIdx.x][threadIdx.y + k]; }
KERNEL s_reduce(float* y, const float* x) { extern __shared__ float d[]; int t = threadIdx.x; I; d[t] = x[i]; __syncthreads(); for (int o = blockDim.x / 2; o; o /= 2) { if (t < o) d[t] += d[t + o]; __syncthreads(); } if (!t) y[blockIdx.x] = d[0]; }
KERNEL s_scan(int* y, const int* x) { __shared__ int d[2][128]; int t = threadIdx.x, p = 0; d[0][t] = x[t]; __syncthreads(); for (int o = 1; o < 128; o *= 2) { d[1 - p][t] = d[p][t] + (t >= o ? d[p][t - o] : 0); p = 1 - p; __syncthreads(); } y[t] = d[p][t]; }
KERNEL s_bitonic(int* y, const int* x) { __shared__ int d[128]; int t = threadIdx.x; d[t] = x[t]; __syncthreads(); for (int k = 2; k <= 128; k *= 2) for (int j = k / 2; j; j /= 2) { int o = t ^ j; if (o > t) { bool up = !(t & k); if ((d[t] > d[o]) == up) { int v = d[t]; d[t] = d[o]; d[o] = v; } } __syncthreads(); } y[t] = d[t]; }
KERNEL s_stencil(float* y, const float* x, int n) { __shared__ float d[130]; I; int t = threadIdx.x; d[t + 1] = x[i]; if (!t) d[0] = i ? x[i - 1] : 0; if (t == 127) d[129] = i + 1 < n ? x[i + 1] : 0; __syncthreads(); y[i] = .25f * d[t] + .5f * d[t + 1] + .25f * d[t + 2]; }
KERNEL s_matmul(float* c, const float* a, const float* b, int n) { __shared__ float s[16][16], t[16][16]; int x = threadIdx.x, y = threadIdx.y, r = blockIdx.y * 16 + y, q = blockIdx.x * 16 + x; float v = 0; for (int k = 0; k < n; k += 16) { s[y][x] = a[r * n + k + x]; t[y][x] = b[(k + y) * n + q]; __syncthreads(); for (int j = 0; j < 16; j++) v += s[y][j] * t[j][x]; __syncthreads(); } c[r * n + q] = v; }
KERNEL s_permute(int* y, const int* x) { __shared__ int d[64]; int t = threadIdx.x; d[t] = x[t]; __syncthreads(); int p = t; for (int k = 0; k < 5; k++) p = d[p]; y[t] = p; }
KERNEL s_queue(int* y, const int* x, int n) { __shared__ int q[64], head; int t = threadIdx.x; if (!t) head = 0; __syncthreads(); if (x[t] < n) q[atomicAdd(&head, 1)] = x[t]; __syncthreads(); if (!t) { int s = 0; for (int k = 0; k < head; k++) s += q[k]; y[0] = s; y[1] = head; } }
#if __CUDA_ARCH__ >= 800
KERNEL s_copies(float* y, const float* x) { __shared__ __align__(16) float d[128]; int t = threadIdx.x; __pipeline_memcpy_async(d + t, x + t, 4); if (t < 16) __pipeline_memcpy_async((float4*)d + 16 + t, (const float4*)x + 16 + t, 16); __pipeline_commit(); __pipeline_wait_prior(0); __syncthreads(); y[t] = d[127 - t] * 2; }
#endif

// ---- halves and narrower formats

KERNEL h_arithmetic(__half* y, const __half* x) { I; __half v = x[i], w = x[i + 1]; y[i] = v * w + __hfma(v, w, v) - __hsub(v, w) + __hmax(v, w) + __hmin(v, w) + __habs(v) + __hneg(w); }
KERNEL h_pairs(__half2* y, const __half2* x) { I; __half2 v = x[i], w = x[i + 1]; y[i] = __hadd2(__hmul2(v, w), __hfma2(v, __low2half2(w), __lowhigh2highlow(v))) + __hgt2(v, w) + __hfma2_relu(v, w, v); }
KERNEL h_functions(float* y, const __half* x) { I; __half v = __habs(x[i]); y[i] = __half2float(hexp(v)) + __half2float(hlog(v)) + __half2float(hsqrt(v)) + __half2float(hrcp(v)) + __half2float(hsin(v)) + __half2float(hfloor(v)) + __half2float(htanh(v)); }
KERNEL h_divide(__half* y, const __half* x) { I; y[i] = x[i] / x[i + 1]; }
KERNEL h_compare(int* y, const __half* x) { I; y[i] = (x[i] < x[i + 1]) + 2 * __heq(x[i], x[i]) + 4 * __hisnan(x[i]) + 8 * __hgeu(x[i], x[i + 1]) + 16 * __half2int_rn(__float2half(10.f) * x[i]) + 1000 * (int)__half2short_rz(x[i]); }
KERNEL h_conversions(__half* y, const float* x, const int* z) { I; y[4 * i] = __float2half_rn(x[i]); y[4 * i + 1] = __int2half_rn(z[i]); y[4 * i + 2] = __float2half_rz(x[i]); y[4 * i + 3] = __double2half((double)x[i]); }
#if __CUDA_ARCH__ >= 800
KERNEL b_arithmetic(__nv_bfloat16* y, const __nv_bfloat16* x) { I; __nv_bfloat16 v = x[i], w = x[i + 1]; y[i] = __hfma(v, w, v) + __hmax(v, w) + v * w; }
KERNEL b_pairs(__nv_bfloat162* y, const __nv_bfloat162* x) { I; __nv_bfloat162 v = x[i], w = x[i + 1]; y[i] = __hmul2(__hadd2(v, w), __hfma2(v, w, v)); }
#endif
KERNEL b_conversions(float* y, const float* x, const __nv_bfloat16* z) { I; float2 p = __bfloat1622float2(__floats2bfloat162_rn(x[i], x[i + 1])); y[i] = p.x + p.y + __bfloat162float(z[i]) + __bfloat162int_rn(z[i]) + (z[i] > z[i + 1]); }
KERNEL q_conversions(float* y, unsigned char* z, const float* x, const unsigned char* w) { I; z[2 * i] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E4M3); z[2 * i + 1] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E5M2); y[i] = __half2float(__half(__nv_cvt_fp8_to_halfraw(w[i], __NV_E4M3))) + __half2float(__half(__nv_cvt_fp8_to_halfraw(w[i + 1] & 0x7b, __NV_E5M2))); }
KERNEL q_unpack(__half* y, const unsigned char* x, const __half* scale) { I; unsigned char v = x[i]; y[2 * i] = __hmul(__int2half_rn((v & 15) - 8), scale[i / 32]); y[2 * i + 1] = __hmul(__int2half_rn((v >> 4) - 8), scale[i / 32]); }

// ---- matrices

using namespace nvcuda::wmma;
#define PRODUCT(name, M, N, K, A, T, C, LA, LB, LC) KERNEL name(const T* a, const T* b, C* c) { fragment<matrix_a, M, N, K, A, LA> x; fragment<matrix_b, M, N, K, A, LB> y; fragment<accumulator, M, N, K, C> z; load_matrix_sync(z, c, 64, LC); load_matrix_sync(x, a, 64); load_matrix_sync(y, b, 64); mma_sync(z, x, y, z); store_matrix_sync(c, z, 64, LC); }
PRODUCT(p_half_rr, 16, 16, 16, half, half, half, row_major, row_major, mem_row_major)
PRODUCT(p_half_rc, 16, 16, 16, half, half, half, row_major, col_major, mem_col_major)
PRODUCT(p_half_cr, 16, 16, 16, half, half, float, col_major, row_major, mem_row_major)
PRODUCT(p_half_cc, 16, 16, 16, half, half, float, col_major, col_major, mem_col_major)
PRODUCT(p_half_wide, 8, 32, 16, half, half, float, row_major, row_major, mem_row_major)
PRODUCT(p_half_tall, 32, 8, 16, half, half, float, row_major, col_major, mem_row_major)
PRODUCT(p_s8_rc, 16, 16, 16, signed char, signed char, int, row_major, col_major, mem_row_major)
PRODUCT(p_u8_cr, 16, 16, 16, unsigned char, unsigned char, int, col_major, row_major, mem_row_major)
PRODUCT(p_s8_rr, 16, 16, 16, signed char, signed char, int, row_major, row_major, mem_row_major)
PRODUCT(p_s8_tall, 32, 8, 16, signed char, signed char, int, row_major, col_major, mem_col_major)
#if __CUDA_ARCH__ >= 800
PRODUCT(p_bf16, 16, 16, 16, __nv_bfloat16, __nv_bfloat16, float, row_major, col_major, mem_row_major)
PRODUCT(p_bf16_wide, 8, 32, 16, __nv_bfloat16, __nv_bfloat16, float, col_major, row_major, mem_row_major)
PRODUCT(p_tf32, 16, 16, 8, precision::tf32, float, float, row_major, col_major, mem_row_major)
PRODUCT(p_tf32_cr, 16, 16, 8, precision::tf32, float, float, col_major, row_major, mem_row_major)
PRODUCT(p_fp64, 8, 8, 4, double, double, double, row_major, col_major, mem_row_major)
#endif
KERNEL p_s4(const void* a, const void* b, int* c) { fragment<matrix_a, 8, 8, 32, experimental::precision::s4, row_major> x; fragment<matrix_b, 8, 8, 32, experimental::precision::s4, col_major> y; fragment<accumulator, 8, 8, 32, int> z; fill_fragment(z, 0); load_matrix_sync(x, a, 32); load_matrix_sync(y, b, 32); mma_sync(z, x, y, z); store_matrix_sync(c, z, 8, mem_row_major); }
KERNEL p_bits(const void* a, const void* b, int* c) { fragment<matrix_a, 8, 8, 128, experimental::precision::b1, row_major> x; fragment<matrix_b, 8, 8, 128, experimental::precision::b1, col_major> y; fragment<accumulator, 8, 8, 128, int> z; fill_fragment(z, 0); load_matrix_sync(x, a, 128); load_matrix_sync(y, b, 128); bmma_sync(z, x, y, z); store_matrix_sync(c, z, 8, mem_row_major); }
KERNEL p_fragments(half* c, const half* a) { fragment<accumulator, 16, 16, 16, half> z; load_matrix_sync(z, a, 16, mem_row_major); for (int k = 0; k < z.num_elements; k++) z.x[k] = z.x[k] * half(2) + half(1); store_matrix_sync(c, z, 16, mem_col_major); }
