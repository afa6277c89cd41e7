// Kernels of probe_memory.py. No includes, so that nvcc and NVRTC compile the same text (sm_90a).
// The Python side reads the signatures below to pass arguments by their types and appends the wgmma kernels.

typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void
#define DEV static __device__ __forceinline__

extern __shared__ __align__(1024) char shm[];

DEV u64 gtime() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
  return t;
}
DEV u64 clk() {
  u64 t;
  asm volatile("mov.u64 %0, %clock64;" : "=l"(t)::"memory");
  return t;
}
// Cycles between two readings; both halves are used, so that the compiler reads the 64-bit clock at once.
DEV u32 span(u64 a, u64 b) {
  u64 d = b - a;
  return (u32)d | (u32)(d >> 32);
}
DEV u32 smid() {
  u32 s;
  asm volatile("mov.u32 %0, %smid;" : "=r"(s));
  return s;
}
DEV u32 hash32(u32 x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}
DEV u32 smem_of(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Times of a CTA: t[4 * block] = globaltimer and clock64 at its start, then at its end.
struct Stamp {
  u64 g, c;
};
DEV Stamp begin() {
  __syncthreads();
  Stamp s;
  s.g = gtime();
  s.c = clk();
  return s;
}
DEV void finish(u64* t, Stamp s) {
  __syncthreads();
  if (threadIdx.x == 0) {
    u64 c = clk();
    u64* row = t + 4 * (u64)blockIdx.x;
    row[0] = s.g;
    row[1] = s.c;
    row[2] = gtime();
    row[3] = c;
  }
}

struct __align__(16) V4 {
  u32 x, y, z, w;
};
DEV V4 ld_cg(const V4* p) {
  V4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
DEV void st_cg(V4* p, V4 v) {
  asm volatile("st.global.cg.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// ---- launch ----------------------------------------------------------------------------------------------------------

KERNEL null_a(int x) {}
KERNEL null_b(int x, int y) {}

// Waits for so many cycles: what is queued behind it is free of the host.
KERNEL wait_cycles(long long cycles) {
  u64 a = clk();
  while ((long long)(clk() - a) < cycles) {
  }
}

// One entry a launch, in order of arrival: globaltimer at the start and at the end of CTA 0.
KERNEL stamp(u64* t, u32* counter) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    u64 a = gtime();
    u32 i = atomicAdd(counter, 1u);
    t[2 * (u64)i] = a;
    t[2 * (u64)i + 1] = gtime();
  }
}
KERNEL stamp_b(u64* t, u32* counter) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    u64 a = gtime();
    u32 i = atomicAdd(counter, 1u);
    t[2 * (u64)i] = a;
    t[2 * (u64)i + 1] = gtime() + (counter[1] & 0u);
  }
}

// Programmatic dependent launch: lets the next one start at once and waits for the one before.
KERNEL null_dependent(int x) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
KERNEL stamp_dependent(u64* t, u32* counter) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    u64 a = gtime();
    u32 i = atomicAdd(counter, 1u);
    t[2 * (u64)i] = a;
    t[2 * (u64)i + 1] = gtime();
  }
}

// Each CTA stores once: t[2 * block] = globaltimer, smid.
KERNEL cta_stamp(u64* t) {
  if (threadIdx.x == 0) {
    t[2 * (u64)blockIdx.x] = gtime();
    t[2 * (u64)blockIdx.x + 1] = smid();
  }
}

// Ends of all CTAs and their SM; every CTA waits for so many cycles.
KERNEL cta_spin(u64* t, long long cycles) {
  u64 g = gtime();
  u64 a = clk();
  while ((long long)(clk() - a) < cycles) {
  }
  if (threadIdx.x == 0) {
    t[3 * (u64)blockIdx.x] = g;
    t[3 * (u64)blockIdx.x + 1] = gtime();
    t[3 * (u64)blockIdx.x + 2] = smid();
  }
}

#define FMA4                                     \
  asm volatile("fma.rn.f32 %0, %0, %0, %0;\n\t"  \
               "fma.rn.f32 %1, %1, %1, %1;\n\t"  \
               "fma.rn.f32 %2, %2, %2, %2;\n\t"  \
               "fma.rn.f32 %3, %3, %3, %3;"      \
               : "+f"(a), "+f"(b), "+f"(c), "+f"(d));
#define REP4(X) X X X X
#define REP16(X) REP4(X) REP4(X) REP4(X) REP4(X)
#define REP64(X) REP16(X) REP16(X) REP16(X) REP16(X)
#define REP256(X) REP64(X) REP64(X) REP64(X) REP64(X)

// So many KiB of straight code (16 B an instruction), `passes` times by one warp: t[pass] = cycles.
#define BIG_CODE(NAME, BODY)                                           \
  KERNEL NAME(u64* t, int passes, float x) {                           \
    float a = x, b = x + 1, c = x + 2, d = x + 3;                      \
    for (int i = 0; i < passes; i++) {                                 \
      u64 s = clk();                                                   \
      BODY u64 e = clk();                                              \
      if (threadIdx.x == 0 && blockIdx.x == 0) t[i] = e - s;           \
    }                                                                  \
    if (a + b + c + d == 12345.f && threadIdx.x == 0) t[0] = 1;        \
  }
BIG_CODE(code_16k, REP256(FMA4))
BIG_CODE(code_64k, REP4(REP256(FMA4)))
BIG_CODE(code_64k_other, REP4(REP256(FMA4)) a += 1.f;)
BIG_CODE(code_256k, REP16(REP256(FMA4)))

// ---- streams ---------------------------------------------------------------------------------------------------------

// Threads stride over n pieces of 16 bytes, U loads in flight each.
template <int U>
DEV void stream_read(const V4* p, long long n, u32* sink, u64* t) {
  Stamp s = begin();
  u64 step = (u64)gridDim.x * blockDim.x;
  u32 sum = 0;
#pragma unroll 1
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i + (U - 1) * step < (u64)n; i += U * step) {
    V4 v[U];
#pragma unroll
    for (int k = 0; k < U; k++) v[k] = ld_cg(p + i + k * step);
#pragma unroll
    for (int k = 0; k < U; k++) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;
  finish(t, s);
}
KERNEL read_u1(const V4* p, long long n, u32* sink, u64* t) { stream_read<1>(p, n, sink, t); }
KERNEL read_u2(const V4* p, long long n, u32* sink, u64* t) { stream_read<2>(p, n, sink, t); }
KERNEL read_u4(const V4* p, long long n, u32* sink, u64* t) { stream_read<4>(p, n, sink, t); }
KERNEL read_u8(const V4* p, long long n, u32* sink, u64* t) { stream_read<8>(p, n, sink, t); }

KERNEL read8_u1(const u64* p, long long n, u32* sink, u64* t) {
  Stamp s = begin();
  u64 step = (u64)gridDim.x * blockDim.x, sum = 0;
#pragma unroll 1
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (u64)n; i += step) {
    u64 v;
    asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(v) : "l"(p + i) : "memory");
    sum += v;
  }
  if (sum == 0x9e3779b9u) *sink = (u32)sum;
  finish(t, s);
}

// R arrays read and W written; array k starts `pitch` pieces after the one before, first the R.
template <int R, int W>
DEV void stream_mix(V4* p, long long pitch, long long n, u32* sink, u64* t) {
  Stamp s = begin();
  u64 step = (u64)gridDim.x * blockDim.x;
  u32 sum = 1;
#pragma unroll 1
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (u64)n; i += step) {
    V4 v[R ? R : 1];
    V4 o = {sum, sum, sum, sum};
#pragma unroll
    for (int k = 0; k < R; k++) v[k] = ld_cg(p + k * pitch + i);
#pragma unroll
    for (int k = 0; k < R; k++) {
      o.x += v[k].x;
      o.y += v[k].y;
      o.z += v[k].z;
      o.w += v[k].w;
    }
#pragma unroll
    for (int k = 0; k < W; k++) st_cg(p + (R + k) * pitch + i, o);
    if (W == 0) sum += o.x ^ o.y ^ o.z ^ o.w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;
  finish(t, s);
}
#define MIX(R, W) \
  KERNEL mix_##R##_##W(V4* p, long long pitch, long long n, u32* sink, u64* t) { stream_mix<R, W>(p, pitch, n, sink, t); }
MIX(1, 0)
MIX(3, 1)
MIX(2, 1)
MIX(1, 1)
MIX(1, 2)
MIX(1, 3)
MIX(0, 1)

// Pieces of 16 << shift bytes at random places of (mask + 1) pieces; four loads in flight a thread.
KERNEL random_read(const V4* p, int shift, u32 mask, int rounds, u32 seed, u32* sink, u64* t) {
  Stamp s = begin();
  u32 gid = blockIdx.x * blockDim.x + threadIdx.x;
  u32 piece = gid >> shift, part = gid & ((1u << shift) - 1);
  u32 pieces = (gridDim.x * blockDim.x) >> shift;
  u32 sum = 0;
#pragma unroll 1
  for (int r = 0; r < rounds; r += 4) {
    V4 v[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      u64 at = hash32(piece + (u32)(r + k) * pieces + seed) & mask;
      v[k] = ld_cg(p + ((at << shift) | part));
    }
#pragma unroll
    for (int k = 0; k < 4; k++) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;
  finish(t, s);
}
KERNEL random_write(V4* p, int shift, u32 mask, int rounds, u32 seed, u64* t) {
  Stamp s = begin();
  u32 gid = blockIdx.x * blockDim.x + threadIdx.x;
  u32 piece = gid >> shift, part = gid & ((1u << shift) - 1);
  u32 pieces = (gridDim.x * blockDim.x) >> shift;
  V4 v = {seed, 0, 0, 0};
#pragma unroll 1
  for (int r = 0; r < rounds; r++) {
    u64 at = hash32(piece + (u32)r * pieces + seed) & mask;
    st_cg(p + ((at << shift) | part), v);
  }
  finish(t, s);
}

// One thread of the wanted SM loads n times, each address dependent on the load before (memory holds zeros);
// out[i] = cycles of load i, clock reads included. mode 0: i * stride; 1: (hash(i) % lines) * stride; wrapped by mask.
KERNEL chase(const char* p, int sm, int mode, long long stride, u32 lines, u64 mask, int warm, int n, u32* out) {
  u32* store = (u32*)shm;
  if (threadIdx.x != 0 || (sm >= 0 && smid() != (u32)sm) || (sm < 0 && blockIdx.x != 0)) return;
  u32 zero = 0;
#pragma unroll 1
  for (int pass = warm; pass >= 0; pass--) {
#pragma unroll 1
    for (int i = 0; i < n; i++) {
      u64 at = mode ? (u64)(hash32(i) % lines) * stride : (u64)i * stride;
      const char* q = p + (at & mask) + zero;
      u32 v;
      u64 a = clk();
      asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(q) : "memory");
      asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(smem_of(store + n)), "r"(v) : "memory");
      u64 b = clk();
      zero = v;
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(smem_of(store + i)), "r"(span(a, b)) : "memory");
    }
  }
  for (int i = 0; i < n; i++) out[i] = store[i];
}

// Every SM's thread 0 reads random lines, in a chain; out[block * n + i] = cycles.
KERNEL sample_lines(const char* p, u32 lines, u32 seed, int n, u32* out) {
  u32* store = (u32*)shm;
  if (threadIdx.x != 0) return;
  u32 zero = 0;
#pragma unroll 1
  for (int i = 0; i < n; i++) {
    const char* q = p + (u64)(hash32(seed + blockIdx.x * n + i) % lines) * 128 + zero;
    u32 v;
    u64 a = clk();
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(q) : "memory");
    asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(smem_of(store + n)), "r"(v) : "memory");
    u64 b = clk();
    zero = v;
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(smem_of(store + i)), "r"(span(a, b)) : "memory");
  }
  for (int i = 0; i < n; i++) out[blockIdx.x * n + i] = store[i];
}

// ---- L2 --------------------------------------------------------------------------------------------------------------

// SMs whose byte in `wanted` is set read a footprint of n pieces of 16 B `passes` times, eight loads in flight a thread.
// mode 0: all from the start (in step); 1: each SM from its own place, rotated; 2: each SM its own share only;
// 3: blocks of a warp's loads in an order of its own (hashed).
KERNEL l2_read(const V4* p, long long n, int passes, int mode, const unsigned char* wanted, u32* sink, u64* t) {
  if (!wanted[smid()]) return;
  Stamp s = begin();
  u32 sum = 0;
  u32 count = (u32)n;
  u32 width = blockDim.x * 8;
  u32 blocks = count / width;
  u32 share = blocks / gridDim.x;
  u32 first = mode == 0 ? 0 : mode == 1 ? (u32)((u64)blocks * blockIdx.x / gridDim.x) : share * blockIdx.x;
  u32 many = mode == 2 ? share : blocks;
#pragma unroll 1
  for (int pass = 0; pass < passes; pass++) {
    u32 b = mode == 3 ? 0 : first;
#pragma unroll 1
    for (u32 k = 0; k < many; k++) {
      u32 at = mode == 3 ? hash32(k + blockIdx.x * 7919 + pass * 104729) % blocks : b;
      const V4* q = p + (u64)at * width + threadIdx.x;
      V4 v[8];
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] = ld_cg(q + j * blockDim.x);
#pragma unroll
      for (int j = 0; j < 8; j++) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
      if (++b == blocks && mode != 2) b = 0;
    }
  }
  if (sum == 0x9e3779b9u) *sink = sum;
  finish(t, s);
}

// As mode 2 of l2_read, stores.
KERNEL l2_write(V4* p, long long n, int passes, const unsigned char* wanted, u64* t) {
  if (!wanted[smid()]) return;
  Stamp s = begin();
  u32 width = blockDim.x * 8;
  u32 share = (u32)n / width / gridDim.x;
  V4 v = {0, 0, 0, 0};
#pragma unroll 1
  for (int pass = 0; pass < passes; pass++) {
#pragma unroll 1
    for (u32 k = 0; k < share; k++) {
      V4* q = p + (u64)(share * blockIdx.x + k) * width + threadIdx.x;
#pragma unroll
      for (int j = 0; j < 8; j++) st_cg(q + j * blockDim.x, v);
    }
  }
  __threadfence();
  finish(t, s);
}

// out[2 * block] = smid, out[2 * block + 1] = cluster.
KERNEL where_am_i(u32* out) {
  u32 c;
  asm volatile("mov.u32 %0, %clusterid.x;" : "=r"(c));
  u64 a = clk();
  while (clk() - a < 20000) {
  }
  if (threadIdx.x == 0) {
    out[2 * blockIdx.x] = smid();
    out[2 * blockIdx.x + 1] = c;
  }
}

// Reductions at address (thread * stride) & mask, `n` each.
#define REDUCE(NAME, PTX)                                                       \
  KERNEL NAME(char* p, int stride, u32 mask, int n, u64* t) {                   \
    Stamp s = begin();                                                          \
    u32 gid = blockIdx.x * blockDim.x + threadIdx.x;                            \
    u32 step = gridDim.x * blockDim.x * (u32)stride;                            \
    u32 at = gid * (u32)stride;                                                 \
    for (int i = 0; i < n; i++) {                                               \
      char* q = p + (at & mask);                                                \
      asm volatile(PTX ::"l"(q), "r"(0u), "f"(0.f) : "memory");                 \
      at += step;                                                               \
    }                                                                           \
    __threadfence();                                                            \
    finish(t, s);                                                               \
  }
REDUCE(red_u32, "red.global.add.u32 [%0], %1;")
REDUCE(red_f32, "red.global.add.f32 [%0], %2;")
REDUCE(red_v2, "red.global.add.v2.f32 [%0], {%2,%2};")
REDUCE(red_v4, "red.global.add.v4.f32 [%0], {%2,%2,%2,%2};")
REDUCE(red_bf16x2, "red.global.add.noftz.bf16x2 [%0], %1;")

// Latency of an atomic that returns, by one thread: out = cycles of n in a chain.
KERNEL atomic_chain(u32* p, int n, u64* t) {
  u32 zero = 0;
  for (int pass = 0; pass < 2; pass++) {
    u64 a = clk();
    for (int i = 0; i < n; i++) asm volatile("atom.global.add.u32 %0, [%1], %0;" : "+r"(zero) : "l"(p) : "memory");
    if (zero == 77) a++;
    t[pass] = clk() - a;
  }
}

// ---- SM: instructions ------------------------------------------------------------------------------------------------

// 64 steps a turn over CHAINS chains; t[2 * warp] = first and last cycle of each warp.
template <int CHAINS, class Op>
DEV void run_op(int iters, u32* sink, u64* t) {
  typename Op::T x[CHAINS], y = (typename Op::T)(iters * 3 + 1);
#pragma unroll
  for (int c = 0; c < CHAINS; c++) x[c] = (typename Op::T)(threadIdx.x + c * 17 + iters);
  __syncthreads();
  u64 a = clk();
#pragma unroll 1
  for (int i = 0; i < iters; i++) {
#pragma unroll
    for (int k = 0; k < 64 / CHAINS; k++)
#pragma unroll
      for (int c = 0; c < CHAINS; c++) Op::f(x[c], y);
  }
  u64 b = clk();
  typename Op::T sum = x[0];
#pragma unroll
  for (int c = 1; c < CHAINS; c++) sum += x[c];
  if (sum == (typename Op::T)0x5e3779b9) sink[0] = 1;
  if ((threadIdx.x & 31) == 0) {
    t[2 * (threadIdx.x >> 5)] = a;
    t[2 * (threadIdx.x >> 5) + 1] = b;
  }
}
#define OP(NAME, TYPE, CON, PTX)                                                                     \
  struct Op_##NAME {                                                                                 \
    typedef TYPE T;                                                                                  \
    DEV_MEMBER void f(TYPE& x, TYPE y) { asm volatile(PTX : "+" CON(x) : CON(y)); }                  \
  };                                                                                                 \
  KERNEL op1_##NAME(int iters, u32* sink, u64* t) { run_op<1, Op_##NAME>(iters, sink, t); }          \
  KERNEL op8_##NAME(int iters, u32* sink, u64* t) { run_op<8, Op_##NAME>(iters, sink, t); }
#define DEV_MEMBER static __device__ __forceinline__
OP(ffma, float, "f", "fma.rn.f32 %0, %0, %1, %1;")
OP(fadd, float, "f", "add.rn.f32 %0, %0, %1;")
OP(fmul, float, "f", "mul.rn.f32 %0, %0, %1;")
OP(hfma2, u32, "r", "fma.rn.f16x2 %0, %0, %1, %1;")
OP(hfma2_bf16, u32, "r", "fma.rn.bf16x2 %0, %0, %1, %1;")
OP(hadd2, u32, "r", "add.rn.f16x2 %0, %0, %1;")
OP(iadd, u32, "r", "add.u32 %0, %0, %1;")
OP(imad, u32, "r", "mad.lo.u32 %0, %0, %1, %1;")
OP(lop3, u32, "r", "lop3.b32 %0, %0, %1, %1, 0x96;\n\tlop3.b32 %0, %1, %0, 3, 0x6a;")
OP(shf, u32, "r", "shf.l.wrap.b32 %0, %0, %1, 7;")
OP(prmt, u32, "r", "prmt.b32 %0, %0, %1, 0x2143;")
OP(fmnmx, float, "f", "min.f32 %0, %0, %1;\n\tmax.f32 %0, %0, 0f3F000000;")
OP(cvt_bf16x2, u32, "r", "{.reg .f32 a;\n\tmov.b32 a, %0;\n\tcvt.rn.bf16x2.f32 %0, a, a;}")
OP(cvt_f16x2, u32, "r", "{.reg .f32 a;\n\tmov.b32 a, %0;\n\tcvt.rn.f16x2.f32 %0, a, a;}")
OP(cvt_e4m3x2, u32, "r", "{.reg .f32 a;\n\t.reg .b16 h;\n\tmov.b32 a, %0;\n\tcvt.rn.satfinite.e4m3x2.f32 h, a, a;\n\tmov.b32 %0, {h, h};}")
OP(cvt_f16_f32, u32, "r", "{.reg .f32 a;\n\t.reg .b16 h, g;\n\tmov.b32 {h, g}, %0;\n\tcvt.f32.f16 a, h;\n\tmov.b32 %0, a;}")
OP(f2i, u32, "r", "{.reg .f32 a;\n\tmov.b32 a, %0;\n\tcvt.rni.s32.f32 %0, a;}")
OP(i2f, u32, "r", "{.reg .f32 a;\n\tcvt.rn.f32.s32 a, %0;\n\tmov.b32 %0, a;}")
OP(ex2, float, "f", "ex2.approx.ftz.f32 %0, %0;")
OP(rcp, float, "f", "rcp.approx.ftz.f32 %0, %0;\n\tadd.f32 %0, %0, %1;")
OP(rsq, float, "f", "rsqrt.approx.ftz.f32 %0, %0;")
OP(lg2, float, "f", "lg2.approx.ftz.f32 %0, %0;")
OP(sin, float, "f", "sin.approx.ftz.f32 %0, %0;")
OP(tanh, float, "f", "tanh.approx.f32 %0, %0;")
OP(ex2_f16x2, u32, "r", "ex2.approx.f16x2 %0, %0;")
OP(shfl, u32, "r", "shfl.sync.bfly.b32 %0, %0, 1, 0x1f, 0xffffffff;")
OP(vote, u32, "r", "{.reg .pred q;\n\tsetp.ne.u32 q, %0, 0;\n\tvote.sync.ballot.b32 %0, q, 0xffffffff;}")
OP(redux, u32, "r", "redux.sync.add.u32 %0, %0, 0xffffffff;")
OP(popc, u32, "r", "popc.b32 %0, %0;")
OP(dfma, double, "d", "fma.rn.f64 %0, %0, %1, %1;")
OP(dadd, double, "d", "add.rn.f64 %0, %0, %1;")

KERNEL bar_sync(int iters, u64* t) {
  __syncthreads();
  u64 a = clk();
#pragma unroll 1
  for (int i = 0; i < iters; i++) {
#pragma unroll
    for (int k = 0; k < 16; k++) asm volatile("bar.sync 0;" ::: "memory");
  }
  u64 b = clk();
  if ((threadIdx.x & 31) == 0) {
    t[2 * (threadIdx.x >> 5)] = a;
    t[2 * (threadIdx.x >> 5) + 1] = b;
  }
}

// ---- SM: tensor cores ------------------------------------------------------------------------------------------------

// 16 products a turn over CHAINS accumulators.
#define MMA(NAME, C, A0, ACCS, PTX)                                                                        \
  struct Mma_##NAME {                                                                                      \
    typedef C T;                                                                                           \
    DEV_MEMBER void f(C* d, const u32* a) {                                                                \
      asm volatile(PTX : "+" ACCS(d[0]), "+" ACCS(d[1]), "+" ACCS(d[2]), "+" ACCS(d[3])                    \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]));                    \
    }                                                                                                      \
  };                                                                                                       \
  KERNEL mma1_##NAME(int iters, u32* sink, u64* t) { run_mma<1, Mma_##NAME>(iters, sink, t); }             \
  KERNEL mma4_##NAME(int iters, u32* sink, u64* t) { run_mma<4, Mma_##NAME>(iters, sink, t); }             \
  KERNEL mma8_##NAME(int iters, u32* sink, u64* t) { run_mma<8, Mma_##NAME>(iters, sink, t); }
template <int CHAINS, class Op>
DEV void run_mma(int iters, u32* sink, u64* t) {
  typename Op::T d[CHAINS][4];
  u32 a[6];
#pragma unroll
  for (int k = 0; k < 6; k++) a[k] = (threadIdx.x + 1) * (iters + k);
#pragma unroll
  for (int c = 0; c < CHAINS; c++)
#pragma unroll
    for (int k = 0; k < 4; k++) d[c][k] = (typename Op::T)(c + k);
  __syncthreads();
  u64 s = clk();
#pragma unroll 1
  for (int i = 0; i < iters; i++) {
#pragma unroll
    for (int k = 0; k < 16 / CHAINS; k++)
#pragma unroll
      for (int c = 0; c < CHAINS; c++) Op::f(d[c], a);
  }
  // The last sum must have arrived: a comparison of it before the clock.
  typename Op::T sum = 0;
#pragma unroll
  for (int c = 0; c < CHAINS; c++) sum += d[c][0] + d[c][1] + d[c][2] + d[c][3];
  if (sum == (typename Op::T)12345) sink[0] = 1;
  u64 e = clk();
  if ((threadIdx.x & 31) == 0) {
    t[2 * (threadIdx.x >> 5)] = s;
    t[2 * (threadIdx.x >> 5) + 1] = e;
  }
}
#define QUADS "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#define PAIRS "{%0,%1,%2,%3}, {%4,%5}, {%8}, {%0,%1,%2,%3};"
MMA(fp16_k16, float, 4, "f", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 " QUADS)
MMA(bf16_k16, float, 4, "f", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 " QUADS)
MMA(fp16_k8, float, 2, "f", "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 " PAIRS)
MMA(tf32_k8, float, 4, "f", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 " QUADS)
MMA(int8_k32, int, 4, "r", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 " QUADS)
MMA(fp16acc_k16, u32, 4, "r", "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1};")
MMA(fp64_k4, double, 1, "d",
    "{.reg .f64 a, b;\n\tmov.b64 a, {%4,%5};\n\tmov.b64 b, {%6,%7};\n\t"
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {a}, {b}, {%0,%1};}")

// ---- SM: L1 and shared memory ----------------------------------------------------------------------------------------

// A ring of 64-bit pointers in `words` steps of `stride` bytes, followed n times from L1: t[pass] = cycles.
KERNEL l1_chase(u64* p, int words, int stride, int n, u64* t) {
  for (int i = 0; i < words; i++) p[(u64)i * stride / 8] = (u64)(p + (u64)((i + 1) % words) * stride / 8);
  __threadfence();
  u64 q = (u64)p;
  for (int pass = 0; pass < 3; pass++) {
    u64 a = clk();
#pragma unroll 1
    for (int i = 0; i < n; i += 16) {
#pragma unroll
      for (int k = 0; k < 16; k++) asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(q)::"memory");
    }
    if (q == 77) a++;
    t[pass] = clk() - a;
  }
}
KERNEL shared_chase(int words, int n, u64* t) {
  u32* ring = (u32*)shm;
  for (int i = 0; i < words; i++) ring[i] = smem_of(ring + (i + 1) % words);
  u32 q = smem_of(ring);
  for (int pass = 0; pass < 3; pass++) {
    u64 a = clk();
#pragma unroll 1
    for (int i = 0; i < n; i += 16) {
#pragma unroll
      for (int k = 0; k < 16; k++) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(q)::"memory");
    }
    if (q == 77) a++;
    t[pass] = clk() - a;
  }
}

// Rates of one instruction by all warps of a CTA, 16 a turn, 128 B apart; `zero` is 0, which the compiler does not know.
#define RATE(NAME, BODY)                                                                   \
  KERNEL NAME(char* p, int stride, u32 mask, u32 zero, int iters, u32* sink, u64* t) {     \
    for (int i = threadIdx.x; i < 10240; i += blockDim.x) ((u32*)shm)[i] = 0;              \
    u32 off = (threadIdx.x * (u32)stride) & mask;                                          \
    u32 q = smem_of(shm) + off;                                                            \
    char* g = p + off;                                                                     \
    u32 x = zero, y = zero, z = zero, w = zero, sum = 0;                                   \
    u64 a = 0;                                                                             \
    _Pragma("unroll 1") for (int pass = 0; pass < 2; pass++) {                             \
    __syncthreads();                                                                       \
    a = clk();                                                                             \
    _Pragma("unroll 1") for (int i = 0; i < iters; i++) {                                  \
      _Pragma("unroll") for (u32 k = 0; k < 16; k++) {                                     \
        BODY;                                                                              \
      }                                                                                    \
      q += zero;                                                                           \
      g += zero;                                                                           \
    }                                                                                      \
    }                                                                                      \
    if ((sum ^ x ^ y ^ z ^ w) == 0x9e3779b9u) sink[0] = sum;                               \
    u64 b = clk();                                                                         \
    if ((threadIdx.x & 31) == 0) {                                                         \
      t[2 * (threadIdx.x >> 5)] = a;                                                       \
      t[2 * (threadIdx.x >> 5) + 1] = b;                                                   \
    }                                                                                      \
  }
#define OUT4 "=r"(x), "=r"(y), "=r"(z), "=r"(w)
#define G_AT "l"(g + k * 128)
#define Q_AT "r"(q + k * 128)
#define TAKE4 sum ^= x ^ y ^ z ^ w
RATE(ldg32, asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(x) : G_AT : "memory"); sum ^= x)
RATE(ldg64, asm volatile("ld.global.ca.v2.u32 {%0,%1}, [%2];" : "=r"(x), "=r"(y) : G_AT : "memory"); sum ^= x ^ y)
RATE(ldg128, asm volatile("ld.global.ca.v4.u32 {%0,%1,%2,%3}, [%4];" : OUT4 : G_AT : "memory"); TAKE4)
RATE(lds32, asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : Q_AT : "memory"); sum ^= x)
RATE(lds64, asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(x), "=r"(y) : Q_AT : "memory"); sum ^= x ^ y)
RATE(lds128, asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : OUT4 : Q_AT : "memory"); TAKE4)
RATE(sts32, asm volatile("st.shared.u32 [%0], %1;" ::Q_AT, "r"(zero) : "memory"))
RATE(sts64, asm volatile("st.shared.v2.u32 [%0], {%1,%1};" ::Q_AT, "r"(zero) : "memory"))
RATE(sts128, asm volatile("st.shared.v4.u32 [%0], {%1,%1,%1,%1};" ::Q_AT, "r"(zero) : "memory"))
RATE(stg32, asm volatile("st.global.u32 [%0], %1;" ::G_AT, "r"(zero) : "memory"))
RATE(stg128, asm volatile("st.global.v4.u32 [%0], {%1,%1,%1,%1};" ::G_AT, "r"(zero) : "memory"))
RATE(ldsm_x4, asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : OUT4 : Q_AT : "memory"); TAKE4)
RATE(ldsm_x4t, asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : OUT4 : Q_AT : "memory"); TAKE4)
RATE(ldsm_x2, asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(x), "=r"(y) : Q_AT : "memory"); sum ^= x ^ y)
RATE(ldsm_x1, asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(x) : Q_AT : "memory"); sum ^= x)
RATE(stsm_x4, asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%1,%1,%1};" ::Q_AT, "r"(zero) : "memory"))
RATE(stsm_x1, asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::Q_AT, "r"(zero) : "memory"))
RATE(atoms_u32, asm volatile("red.shared.add.u32 [%0], %1;" ::Q_AT, "r"(zero) : "memory"))
// Chains: shared memory holds zeros and the address takes the result; a store and a load of the same place.
RATE(lds32_chain, asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(q) : "memory"); q += x)
RATE(lds128_chain, asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : OUT4 : "r"(q) : "memory"); q += w; sum ^= x ^ y ^ z)
RATE(ldsm_x4_chain, asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : OUT4 : "r"(q) : "memory"); q += w; sum ^= x ^ y ^ z)
RATE(sts_lds_chain, asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(q), "r"(x) : "memory"); asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(x) : "r"(q) : "memory"))
RATE(stsm_lds_chain, asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%1,%1,%1};" ::"r"(q), "r"(x) : "memory"); asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(x) : "r"(q) : "memory"))
RATE(atoms_chain, asm volatile("atom.shared.add.u32 %0, [%1], %0;" : "+r"(x) : "r"(q) : "memory"))

// ---- synchronisation -------------------------------------------------------------------------------------------------

DEV void mbar_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
DEV void mbar_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
DEV void mbar_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEV u32 mbar_try(u32 bar, u32 parity) {
  u32 ok;
  asm volatile("{.reg .pred q;\n\tmbarrier.try_wait.parity.shared::cta.b64 q, [%1], %2;\n\tselp.u32 %0, 1, 0, q;}"
               : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
  return ok;
}
DEV u32 mbar_test(u32 bar, u32 parity) {
  u32 ok;
  asm volatile("{.reg .pred q;\n\tmbarrier.test_wait.parity.shared::cta.b64 q, [%1], %2;\n\tselp.u32 %0, 1, 0, q;}"
               : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
  return ok;
}
DEV void mbar_wait(u32 bar, u32 parity) {
  for (int i = 0; i < 4000000; i++)
    if (mbar_try(bar, parity)) return;
}
DEV void fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
DEV u32 cluster_rank() {
  u32 r;
  asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(r));
  return r;
}
DEV u32 cluster_size() {
  u32 r;
  asm volatile("mov.u32 %0, %cluster_nctarank;" : "=r"(r));
  return r;
}
DEV u32 map_rank(u32 at, u32 rank) {
  u32 r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at), "r"(rank));
  return r;
}

// Two warps: t[0] = cycles of n round trips.
KERNEL mbar_pingpong(int n, u64* t) {
  __shared__ u64 bars[2];
  if (threadIdx.x == 0) {
    mbar_init(smem_of(bars), 1);
    mbar_init(smem_of(bars + 1), 1);
    fence_init();
  }
  __syncthreads();
  u32 ping = smem_of(bars), pong = smem_of(bars + 1);
  if (threadIdx.x == 0) {
    u64 a = clk();
    for (int i = 0; i < n; i++) {
      mbar_arrive(ping);
      mbar_wait(pong, i & 1);
    }
    t[0] = clk() - a;
  }
  if (threadIdx.x == 32)
    for (int i = 0; i < n; i++) {
      mbar_wait(ping, i & 1);
      mbar_arrive(pong);
    }
}

// One thread: cycles of n arrivals (t[0]), n try_waits (t[1]) and n test_waits (t[2]) on a completed phase in a chain,
// n arrivals that complete a phase each and the wait for it (t[3]).
KERNEL mbar_ops(int n, u64* t) {
  __shared__ u64 bars[2];
  u32 many = smem_of(bars), one = smem_of(bars + 1);
  mbar_init(many, 1 << 19);
  mbar_init(one, 1);
  fence_init();
  u64 a = clk();
#pragma unroll 8
  for (int i = 0; i < n; i++) mbar_arrive(many);
  u64 b = clk();
  t[0] = b - a;
  mbar_arrive(one);
  mbar_wait(one, 0);
  u32 sum = 0;
  a = clk();
#pragma unroll 8
  for (int i = 0; i < n; i++) sum += mbar_try(one, sum & 16384);
  b = clk();
  t[1] = b - a;
  a = clk();
#pragma unroll 8
  for (int i = 0; i < n; i++) sum += mbar_test(one, sum & 16384);
  b = clk();
  t[2] = b - a;
  a = clk();
  for (int i = 1; i <= n; i++) {
    mbar_arrive(one);
    mbar_wait(one, i & 1);
  }
  b = clk();
  t[3] = b - a;
  t[4] = sum;
}

// Cluster barriers: t[block] = cycles of n.
KERNEL cluster_barrier(int n, u64* t) {
  cluster_arrive();
  cluster_wait();
  u64 a = clk();
#pragma unroll 1
  for (int i = 0; i < n; i++) {
    cluster_arrive();
    cluster_wait();
  }
  u64 b = clk();
  if (threadIdx.x == 0) t[blockIdx.x] = b - a;
}

// Thread 0 of rank 0 follows n loads in rank `peer`'s shared memory (zeros): t[0] = cycles.
KERNEL dsmem_chase(int peer, int n, u64* t) {
  __shared__ u32 ring[1024];
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) ring[i] = 0;
  cluster_arrive();
  cluster_wait();
  if (cluster_rank() == 0 && threadIdx.x == 0) {
    u32 q = map_rank(smem_of(ring), peer);
    for (int pass = 0; pass < 2; pass++) {
      u64 a = clk();
#pragma unroll 1
      for (int i = 0; i < n; i++) {
        u32 v;
        asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(q) : "memory");
        q += v;
      }
      if (q == 77) a++;
      u64 b = clk();
      if (blockIdx.x == 0) t[pass] = b - a;
    }
  }
  cluster_arrive();
  cluster_wait();
}

// Every CTA reads (or writes) the next rank's 64 KiB of shared memory: 16 B a thread, 4 a turn.
template <bool STORE>
DEV void dsmem_rate(int iters, u32* sink, u64* t) {
  for (u32 i = threadIdx.x; i < 16384; i += blockDim.x) ((u32*)shm)[i] = 0;
  cluster_arrive();
  cluster_wait();
  u32 q = map_rank(smem_of(shm), (cluster_rank() + 1) % cluster_size());
  u32 sum = 0;
  Stamp s = begin();
#pragma unroll 1
  for (int i = 0; i < iters; i++) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
      u32 at = q + ((((u32)i * 4 + k) * blockDim.x + threadIdx.x) * 16 & 65535u);
      u32 x, y, z, w;
      if (STORE) {
        asm volatile("st.shared::cluster.v4.u32 [%0], {%1,%1,%1,%1};" ::"r"(at), "r"(0) : "memory");
      } else {
        asm volatile("ld.shared::cluster.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(at) : "memory");
        sum += x + y + z + w;
      }
    }
  }
  if (sum == 0x9e3779b9u) *sink = sum;
  if (STORE) {
    cluster_arrive();
    cluster_wait();
  }
  finish(t, s);
  cluster_arrive();
  cluster_wait();
}
KERNEL dsmem_read(int iters, u32* sink, u64* t) { dsmem_rate<false>(iters, sink, t); }
KERNEL dsmem_write(int iters, u32* sink, u64* t) { dsmem_rate<true>(iters, sink, t); }

// One thread: 16 B from line i * stride, n times each: ld.cg (mode 0), ld.ca (1), cp.async.cg (2), cp.async.ca (3).
KERNEL copy_latency(const char* p, int mode, long long stride, int n, int warm, u32* out) {
  u32 dst = smem_of(shm);
  u32* store = (u32*)(shm + 1024);
  if (threadIdx.x != 0) return;
  for (int pass = warm; pass >= 0; pass--)
    for (int i = 0; i < n; i++) {
      const char* q = p + (u64)i * stride;
      V4 v;
      asm volatile("mov.b64 %0, %0;" : "+l"(q)::"memory");
      u64 a = clk();
      if (mode == 0) {
        v = ld_cg((const V4*)q);
        asm volatile("st.volatile.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(dst), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
      } else if (mode == 1) {
        asm volatile("ld.global.ca.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(q) : "memory");
        asm volatile("st.volatile.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(dst), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
      } else if (mode == 2) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(q) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
      } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(q) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
      }
      u64 b = clk();
      store[i] = span(a, b);
    }
  for (int i = 0; i < n; i++) out[i] = store[i];
}

DEV void bulk_load(u32 dst, const void* src, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}
DEV void bulk_multicast(u32 dst, const void* src, u32 bytes, u32 bar, u32 mask) {
  asm volatile("{.reg .b16 m;\n\tcvt.u16.u32 m, %4;\n\t"
               "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], m;}" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar), "r"(mask) : "memory");
}

// One thread loads n pieces one after the other, `warm` + 1 times: out[i] = cycles from issue to the end of the wait.
KERNEL bulk_latency(const char* p, u32 bytes, long long stride, int n, int warm, u32* out) {
  __shared__ u64 bar;
  u32 b = smem_of(&bar);
  if (threadIdx.x != 0) return;
  mbar_init(b, 1);
  fence_init();
  u32 parity = 0;
  for (int pass = warm; pass >= 0; pass--)
    for (int i = 0; i < n; i++) {
      u64 s = clk();
      mbar_expect(b, bytes);
      bulk_load(smem_of(shm), p + (u64)i * stride, bytes, b);
      mbar_wait(b, parity);
      u64 e = clk();
      parity ^= 1;
      if (pass == 0) out[i] = span(s, e);
    }
}

// Each wanted SM keeps `depth` pieces in flight; CTA b reads pieces b + i * grid of a footprint of `pieces`.
KERNEL bulk_rate(const char* p, u32 bytes, int depth, u32 pieces, int n, const unsigned char* wanted, u64* t) {
  __shared__ u64 bars[64];
  if (!wanted[smid()]) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < depth; i++) mbar_init(smem_of(bars + i), 1);
    fence_init();
  }
  Stamp s = begin();
  if (threadIdx.x == 0) {
    u32 at = blockIdx.x % pieces;
    u32 slot = 0, parity = 0;
    for (int i = 0; i < n + depth; i++) {
      u32 bar = smem_of(bars + slot);
      if (i >= depth) mbar_wait(bar, parity ^ 1);
      if (i < n) {
        mbar_expect(bar, bytes);
        bulk_load(smem_of(shm) + slot * bytes, p + (u64)at * bytes, bytes, bar);
        at = (at + gridDim.x) % pieces;
      }
      if (++slot == (u32)depth) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
  finish(t, s);
}

// As bulk_rate for a cluster: rounds of `bytes` a CTA in two buffers, each CTA loads its part for all of them.
KERNEL bulk_multicast_rate(const char* p, u32 bytes, u32 rounds_in_footprint, int rounds, u64* t) {
  __shared__ u64 bars[2];
  u32 size = cluster_size(), rank = cluster_rank(), part = bytes / size;
  u32 cluster = blockIdx.x / size, clusters = gridDim.x / size;
  if (threadIdx.x == 0) {
    mbar_init(smem_of(bars), 1);
    mbar_init(smem_of(bars + 1), 1);
    fence_init();
  }
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  Stamp s = begin();
  for (int i = 0; i < rounds + 2; i++) {
    u32 bar = smem_of(bars + (i & 1));
    if (i >= 2) {
      mbar_wait(bar, (i >> 1 & 1) ^ 1);
      __syncwarp();
      cluster_arrive();
      cluster_wait();
    }
    if (i < rounds && threadIdx.x == 0) {
      mbar_expect(bar, bytes);
      u64 at = (u64)((cluster + (u32)i * clusters) % rounds_in_footprint) * bytes + rank * part;
      for (u32 k = 0; k < part; k += 4096) {
        u32 piece = part - k < 4096 ? part - k : 4096;
        bulk_multicast(smem_of(shm) + (i & 1) * bytes + rank * part + k, p + at + k, piece, bar, (1u << size) - 1);
      }
    }
  }
  finish(t, s);
  cluster_arrive();
  cluster_wait();
}

// Bulk stores from shared to global memory, at most `depth` groups unread (or, at the end, unwritten).
KERNEL bulk_store(char* p, u32 bytes, int depth, u32 pieces, int n, u64* t) {
  for (u32 i = threadIdx.x; i < bytes / 4; i += blockDim.x) ((u32*)shm)[i] = 0;
  asm volatile("fence.proxy.async;" ::: "memory");
  Stamp s = begin();
  if (threadIdx.x == 0) {
    u32 at = blockIdx.x % pieces;
    for (int i = 0; i < n; i++) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(p + (u64)at * bytes), "r"(smem_of(shm)), "r"(bytes) : "memory");
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      at = (at + gridDim.x) % pieces;
      if (depth == 1) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
      if (depth == 2) asm volatile("cp.async.bulk.wait_group 1;" ::: "memory");
      if (depth == 4) asm volatile("cp.async.bulk.wait_group 3;" ::: "memory");
      if (depth == 8) asm volatile("cp.async.bulk.wait_group 7;" ::: "memory");
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  finish(t, s);
}
// One thread: out[i] = cycles of one bulk store until its bytes were read (mode 0) or written (mode 1).
KERNEL bulk_store_latency(char* p, u32 bytes, int mode, int n, u32* out) {
  if (threadIdx.x != 0) return;
  for (int i = 0; i < n; i++) {
    u64 a = clk();
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(p + (u64)(i % 16) * bytes), "r"(smem_of(shm)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    if (mode == 0)
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    else
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    u64 b = clk();
    out[i] = span(a, b);
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Two CTAs pass a flag through the L2: t[0] = cycles of n round trips, on the SMs t[1], t[2].
KERNEL flag_pingpong(u32* flags, int other, int n, u64* t) {
  if (threadIdx.x != 0 || (blockIdx.x != 0 && blockIdx.x != (u32)other)) return;
  u32* mine = flags + (blockIdx.x == 0 ? 0 : 64);
  u32* theirs = flags + (blockIdx.x == 0 ? 64 : 0);
  u64 a = clk();
  for (int i = 1; i <= n; i++) {
    u32 v = 0;
    if (blockIdx.x == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(mine), "r"(i) : "memory");
    for (int k = 0; k < 100000 && v < (u32)i; k++)
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(theirs) : "memory");
    if (blockIdx.x != 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(mine), "r"(i) : "memory");
    if (i == n / 4) a = clk();
  }
  u64 b = clk();
  if (blockIdx.x == 0) {
    t[0] = b - a;
    t[1] = smid();
  } else {
    t[2] = smid();
  }
}
// One thread: out[i] = cycles of a store and a fence. mode 0: membar.gl; 1: fence.acq_rel.gpu; 2: membar.cta; 3: membar.sys.
KERNEL fence_latency(u32* p, int mode, int stores, int n, u32* out) {
  if (threadIdx.x != 0) return;
  for (int i = 0; i < n; i++) {
    u64 a = clk();
    for (int k = 0; k < stores; k++)
      asm volatile("st.global.u32 [%0], %1;" ::"l"(p + ((i & 31) * 16 + k) * 32), "r"(i) : "memory");
    if (mode == 0) asm volatile("membar.gl;" ::: "memory");
    if (mode == 1) asm volatile("fence.acq_rel.gpu;" ::: "memory");
    if (mode == 2) asm volatile("membar.cta;" ::: "memory");
    if (mode == 3) asm volatile("membar.sys;" ::: "memory");
    u64 b = clk();
    out[i] = span(a, b);
  }
}
// All CTAs meet at a counter in the L2, n times: t[block] = cycles.
KERNEL grid_barrier(u32* counter, int n, u64* t) {
  u64 a = 0;
  for (int i = 1; i <= n; i++) {
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(1) : "memory");
      u32 v = 0;
      for (int k = 0; k < 1000000 && v < gridDim.x * i; k++)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(counter) : "memory");
    }
    __syncthreads();
    if (i == n / 4) a = clk();
  }
  if (threadIdx.x == 0) t[blockIdx.x] = clk() - a;
}
