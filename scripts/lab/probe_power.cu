// Kernels of probe_power.py. No header is needed, so that NVRTC takes the file as it is. All have one signature (ARGS).
//
// A kernel repeats a body for `total_ns` by the global timer. Each warp counts how often it did so after the first
// `warm_ns` and writes four numbers: bodies, cycles of its SM, nanoseconds, and the time at the end. With a `log`, one thread
// of CTA 0 also writes pairs (global timer, clock64). With `period_ns`, warps sleep outside the first `on_ns` of each.

typedef unsigned long long u64;
typedef long long ll;
typedef unsigned u32;

#define ARGS                                                                                                           \
    const u32 *in, u32 *out, u64 *stat, u64 *log, ll warm_ns, ll total_ns, ll inner, ll on_ns, ll period_ns,           \
        ll phase_ns, ll span, ll log_max, ll log_ns
#define KERNEL(name, threads, ctas) extern "C" __global__ void __launch_bounds__(threads, ctas) probe_##name(ARGS)

#define FINE_NS 20000ULL
#define FINE_UNTIL_NS 50000000ULL

__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

// The same for all lanes, so that a warp stays together.
__device__ __forceinline__ u64 warp_now() { return __shfl_sync(0xffffffffu, now(), 0); }

#define LOG                                                                                                            \
    if (logger && t >= next && logged < log_max) {                                                                     \
        u64 when = now(), cycle = clock64();                                                                           \
        log[1 + 2 * logged] = when;                                                                                    \
        log[2 + 2 * logged] = cycle;                                                                                   \
        logged++;                                                                                                      \
        next = t + (t - start < FINE_UNTIL_NS ? FINE_NS : (u64)log_ns);                                                \
    }                                                                                                                  \
    __syncwarp();

#define BEGIN                                                                                                          \
    u64 start = warp_now(), n = 0, n0 = 0, t0 = start, c0 = clock64(), next = start, t = start;                        \
    bool warm = false;                                                                                                 \
    ll logged = 0;                                                                                                     \
    bool logger = log != 0 && blockIdx.x == 0 && threadIdx.x == 0;                                                     \
    for (;;) {                                                                                                         \
        _Pragma("unroll 1") for (int i = 0; i < (int)inner; i++) {

#define END(STOP)                                                                                                      \
        }                                                                                                              \
        n += inner;                                                                                                    \
        t = warp_now();                                                                                                \
        LOG                                                                                                            \
        if (!warm && t - start >= (u64)warm_ns) {                                                                      \
            warm = true;                                                                                               \
            t0 = t;                                                                                                    \
            c0 = clock64();                                                                                            \
            n0 = n;                                                                                                    \
        }                                                                                                              \
        if (period_ns > 0) {                                                                                           \
            while (t - start < (u64)total_ns && (t + (u64)blockIdx.x * phase_ns) % (u64)period_ns >= (u64)on_ns) {     \
                __nanosleep(1000);                                                                                     \
                t = warp_now();                                                                                        \
                LOG                                                                                                    \
            }                                                                                                          \
        }                                                                                                              \
        if (STOP(t - start >= (u64)total_ns)) break;                                                                   \
    }                                                                                                                  \
    {                                                                                                                  \
        u64 c1 = clock64();                                                                                            \
        if ((threadIdx.x & 31) == 0) {                                                                                 \
            u64 *s = stat + 4 * ((u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);                              \
            s[0] = n - n0;                                                                                             \
            s[1] = c1 - c0;                                                                                            \
            s[2] = t - t0;                                                                                             \
            s[3] = t;                                                                                                  \
        }                                                                                                              \
        if (logger) log[0] = logged;                                                                                   \
    }

#define WARP_STOP(c) __any_sync(0xffffffffu, c)
#define CTA_STOP(c) __syncthreads_or(c)

// Idle in several ways.

KERNEL(spin_clock, 1024, 1) {
    u64 sum = 0;
    BEGIN
#pragma unroll
    for (int r = 0; r < 64; r++) {
        u64 c = clock64();
        sum ^= c;
    }
    END(WARP_STOP)
    out[blockIdx.x * blockDim.x + threadIdx.x] = (u32)sum;
}

KERNEL(sleep_only, 1024, 1) {
    BEGIN
    __nanosleep(2000);
    END(WARP_STOP)
}

KERNEL(empty_loop, 1024, 1) {
    u32 x = threadIdx.x;
    BEGIN
    asm volatile("xor.b32 %0, %0, %1;" : "+r"(x) : "r"(i));
    END(WARP_STOP)
    out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

// Register operations: eight chains (four in 64 bits) x = op(x, a, b), x = op(x, b, a). 256 operations a body.

#define CHAINED(name, type, letter, chains, first, second)                                                             \
    KERNEL(name, 1024, 1) {                                                                                            \
        const type *operands = (const type *)in;                                                                       \
        type x[chains], a[chains], b[chains];                                                                          \
        for (int j = 0; j < chains; j++) {                                                                             \
            x[j] = operands[j * 1024 + threadIdx.x];                                                                   \
            a[j] = operands[(chains + j) * 1024 + threadIdx.x];                                                        \
            b[j] = operands[(2 * chains + j) * 1024 + threadIdx.x];                                                    \
        }                                                                                                              \
        BEGIN                                                                                                          \
        _Pragma("unroll") for (int r = 0; r < 128 / chains; r++) {                                                     \
            _Pragma("unroll") for (int j = 0; j < chains; j++)                                                         \
                asm volatile(first : "+" letter(x[j]) : letter(a[j]), letter(b[j]));                                   \
            _Pragma("unroll") for (int j = 0; j < chains; j++)                                                         \
                asm volatile(second : "+" letter(x[j]) : letter(b[j]), letter(a[j]));                                  \
        }                                                                                                              \
        END(WARP_STOP)                                                                                                 \
        for (int j = 0; j < chains; j++) ((type *)out)[(j * gridDim.x + blockIdx.x) * 1024ULL + threadIdx.x] = x[j];  \
    }

#define SAME(name, type, letter, chains, op) CHAINED(name, type, letter, chains, op, op)

SAME(ffma, float, "f", 8, "fma.rn.f32 %0, %0, %1, %2;")
SAME(fadd, float, "f", 8, "add.rn.f32 %0, %0, %1;")
SAME(fmul, float, "f", 8, "mul.rn.f32 %0, %0, %1;")
SAME(hfma2, u32, "r", 8, "fma.rn.f16x2 %0, %0, %1, %2;")
SAME(hfma2_bf16, u32, "r", 8, "fma.rn.bf16x2 %0, %0, %1, %2;")
SAME(dfma, double, "d", 4, "fma.rn.f64 %0, %0, %1, %2;")
SAME(iadd3, u32, "r", 8, "{.reg .u32 t; add.u32 t, %0, %1; add.u32 %0, t, %2;}")
SAME(imad, u32, "r", 8, "mad.lo.u32 %0, %0, %1, %2;")
SAME(lop3, u32, "r", 8, "lop3.b32 %0, %0, %1, %2, 0x96;")
SAME(shf, u32, "r", 8, "shf.l.wrap.b32 %0, %0, %1, %2;")
SAME(prmt, u32, "r", 8, "prmt.b32 %0, %0, %1, %2;")
CHAINED(fmnmx, float, "f", 8, "min.f32 %0, %0, %1;", "max.f32 %0, %0, %1;")
SAME(f2fp, u32, "r", 8, "{.reg .f32 f, g; mov.b32 f, %0; mov.b32 g, %1; cvt.rn.f16x2.f32 %0, f, g;}")
CHAINED(f2i, u32, "r", 8, "{.reg .f32 f; mov.b32 f, %0; cvt.rni.s32.f32 %0, f;}",
        "{.reg .f32 f; cvt.rn.f32.s32 f, %0; mov.b32 %0, f;}")
CHAINED(f2f64, u64, "l", 4, "{.reg .f32 f; .reg .b32 l, h; mov.b64 {l, h}, %0; mov.b32 f, l; .reg .f64 d; cvt.f64.f32 d, f; mov.b64 %0, d;}",
        "{.reg .f32 f; .reg .f64 d; .reg .b32 l; mov.b64 d, %0; cvt.rn.f32.f64 f, d; mov.b32 l, f; mov.b64 %0, {l, l};}")
// ptxas takes lg2(rcp(x)) as -lg2(x), and rcp(rcp(x)) as x: this is EX2, LG2 with a sign that changes.
CHAINED(mufu_ex2_lg2, float, "f", 8, "ex2.approx.ftz.f32 %0, %0;", "rcp.approx.ftz.f32 %0, %0; lg2.approx.ftz.f32 %0, %0;")
SAME(shfl, u32, "r", 8, "shfl.sync.bfly.b32 %0, %0, 1, 31, 0xffffffff;")

// Shared memory: volatile, so that each access stays. 64 accesses a body.

#define FILL(bytes)                                                                                                    \
    __shared__ __align__(1024) u32 tile[bytes / 4];                                                                    \
    for (int k = threadIdx.x; k < bytes / 4; k += blockDim.x) tile[k] = in[k];                                         \
    __syncthreads();

#define SHARED_READ(name, words, LOAD)                                                                                 \
    KERNEL(name, 1024, 1) {                                                                                            \
        FILL(32768)                                                                                                    \
        u32 at = (u32)__cvta_generic_to_shared(tile) + threadIdx.x % 512 * (4 * words);                                \
        u32 x[8], y[8], z[8], w[8];                                                                                    \
        for (int j = 0; j < 8; j++) x[j] = y[j] = z[j] = w[j] = 0;                                                     \
        BEGIN                                                                                                          \
        _Pragma("unroll") for (int r = 0; r < 8; r++) {                                                                \
            _Pragma("unroll") for (int j = 0; j < 8; j++) LOAD;                                                        \
        }                                                                                                              \
        END(WARP_STOP)                                                                                                 \
        u32 sum = 0;                                                                                                   \
        for (int j = 0; j < 8; j++) sum ^= x[j] ^ y[j] ^ z[j] ^ w[j];                                                  \
        out[blockIdx.x * blockDim.x + threadIdx.x] = sum;                                                              \
    }

SHARED_READ(lds32, 1, asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(x[j]) : "r"(at + j * 2048)))
SHARED_READ(lds64, 2, asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x[j]), "=r"(y[j]) : "r"(at + j * 2048)))
SHARED_READ(lds128, 4,
            asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x[j]), "=r"(y[j]), "=r"(z[j]), "=r"(w[j]) : "r"(at + j * 2048)))

#define SHARED_WRITE(name, words, STORE)                                                                               \
    KERNEL(name, 1024, 1) {                                                                                            \
        FILL(32768)                                                                                                    \
        u32 at = (u32)__cvta_generic_to_shared(tile) + threadIdx.x % 512 * (4 * words);                                \
        u32 x[8];                                                                                                      \
        for (int j = 0; j < 8; j++) x[j] = in[j * 1024 + threadIdx.x];                                                 \
        BEGIN                                                                                                          \
        _Pragma("unroll") for (int r = 0; r < 8; r++) {                                                                \
            _Pragma("unroll") for (int j = 0; j < 8; j++) STORE;                                                       \
        }                                                                                                              \
        END(WARP_STOP)                                                                                                 \
        out[blockIdx.x * blockDim.x + threadIdx.x] = tile[threadIdx.x];                                                \
    }

SHARED_WRITE(sts32, 1, asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(at + (j ^ r) * 2048), "r"(x[j])))
SHARED_WRITE(sts128, 4,
             asm volatile("st.volatile.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at + (j ^ r) * 2048), "r"(x[j]),
                          "r"(x[(j + 1) & 7]), "r"(x[(j + 2) & 7]), "r"(x[(j + 3) & 7])))

// Global memory: a CTA reads chunks of 8 accesses a thread, in steps of the whole grid, within `span` bytes (a power of two).
// 8 accesses a body; each word read is taken into an exclusive or (1 LOP3 for 4 bytes, 2 for 16).

#define LDG4(op)                                                                                                       \
    asm volatile("ld.global" op ".v4.u32 {%0, %1, %2, %3}, [%4];"                                                   \
                 : "=r"(x[j]), "=r"(y[j]), "=r"(z[j]), "=r"(w[j]) : "l"(p + j * 16384))
#define LDG1(op) asm volatile("ld.global" op ".u32 %0, [%1];" : "=r"(x[j]) : "l"(p + j * 4096))
#define TAKE4                                                                                                          \
    asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(s0) : "r"(x[j]), "r"(y[j]));                                  \
    asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(s1) : "r"(z[j]), "r"(w[j]));
#define TAKE1 asm volatile("xor.b32 %0, %0, %1;" : "+r"(s0) : "r"(x[j]));

#define GLOBAL_READ(name, width, LOAD, TAKE)                                                                           \
    KERNEL(name, 1024, 1) {                                                                                            \
        u64 mask = (u64)span - 1, step = (u64)gridDim.x * (8192 * width), at = (u64)blockIdx.x * (8192 * width);       \
        u32 s0 = 0, s1 = 0, x[8], y[8], z[8], w[8];                                                                    \
        for (int j = 0; j < 8; j++) x[j] = y[j] = z[j] = w[j] = 0;                                                     \
        BEGIN                                                                                                          \
        const char *p = (const char *)in + (at & mask) + threadIdx.x * width;                                          \
        _Pragma("unroll") for (int j = 0; j < 8; j++) LOAD;                                                            \
        _Pragma("unroll") for (int j = 0; j < 8; j++) { TAKE }                                                         \
        at += step;                                                                                                    \
        END(WARP_STOP)                                                                                                 \
        out[blockIdx.x * blockDim.x + threadIdx.x] = s0 ^ s1;                                                          \
    }

GLOBAL_READ(ldg32_l1, 4, LDG1(""), TAKE1)
GLOBAL_READ(ldg128_l1, 16, LDG4(""), TAKE4)
GLOBAL_READ(ldg128_cg, 16, LDG4(".cg"), TAKE4)

KERNEL(stg128, 1024, 1) {
    u64 mask = (u64)span - 1, step = (u64)gridDim.x * 131072, at = (u64)blockIdx.x * 131072;
    u32 x[8];
    for (int j = 0; j < 8; j++) x[j] = in[j * 1024 + threadIdx.x];
    BEGIN
    char *p = (char *)out + (at & mask) + threadIdx.x * 16;
#pragma unroll
    for (int j = 0; j < 8; j++)
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p + j * 16384), "r"(x[j]), "r"(x[(j + 1) & 7]),
                     "r"(x[(j + 2) & 7]), "r"(x[(j + 3) & 7])
                     : "memory");
    at += step;
    END(WARP_STOP)
}

KERNEL(copy128, 1024, 1) {
    u64 mask = (u64)span - 1, step = (u64)gridDim.x * 65536, at = (u64)blockIdx.x * 65536;
    u32 x[4], y[4], z[4], w[4];
    BEGIN
    const char *p = (const char *)in + (at & mask) + threadIdx.x * 16;
    char *q = (char *)out + (at & mask) + threadIdx.x * 16;
#pragma unroll
    for (int j = 0; j < 4; j++) LDG4(".cg");
#pragma unroll
    for (int j = 0; j < 4; j++)
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(q + j * 16384), "r"(x[j]), "r"(y[j]), "r"(z[j]),
                     "r"(w[j])
                     : "memory");
    at += step;
    END(WARP_STOP)
}

// mma.sync: eight tiles of sums a warp; A and its negation in turn, so that sums stay bounded. 64 instructions a body.

#define MMA(name, type, letter, na, nb, nc, word, wletter, NEGATE, TEXT)                                               \
    KERNEL(name, 512, 1) {                                                                                             \
        const word *operands = (const word *)in;                                                                       \
        word a[2][4], b[2][2];                                                                                         \
        for (int k = 0; k < 4; k++) a[0][k] = operands[k * 1024 + threadIdx.x], a[1][k] = a[0][k] ? NEGATE(a[0][k]) : a[0][k];             \
        for (int k = 0; k < 4; k++) b[k / 2][k % 2] = operands[(4 + k) * 1024 + threadIdx.x];                          \
        type c[8][4];                                                                                                  \
        for (int j = 0; j < 8; j++)                                                                                    \
            for (int k = 0; k < 4; k++) c[j][k] = 0;                                                                   \
        BEGIN                                                                                                          \
        _Pragma("unroll") for (int r = 0; r < 8; r++) {                                                                \
            _Pragma("unroll") for (int j = 0; j < 8; j++) TEXT;                                                        \
        }                                                                                                              \
        END(WARP_STOP)                                                                                                 \
        type sum = 0;                                                                                                  \
        for (int j = 0; j < 8; j++)                                                                                    \
            for (int k = 0; k < nc; k++) sum += c[j][k];                                                               \
        ((type *)out)[blockIdx.x * blockDim.x + threadIdx.x] = sum;                                                    \
    }

#define NEG16(v) ((v) ^ 0x80008000u)
#define NEG32(v) ((v) ^ 0x80000000u)
#define NEG8(v) ((v) ^ 0xffffffffu)
#define NEG64(v) (-(v))
#define MMA42(instruction, letter)                                                                                     \
    asm volatile(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                        \
                 : "+" letter(c[j][0]), "+" letter(c[j][1]), "+" letter(c[j][2]), "+" letter(c[j][3])                  \
                 : "r"(a[r & 1][0]), "r"(a[r & 1][1]), "r"(a[r & 1][2]), "r"(a[r & 1][3]), "r"(b[j & 1][0]),           \
                   "r"(b[j & 1][1]))

MMA(mma_fp16, float, "f", 4, 2, 4, u32, "r", NEG16, MMA42("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "f"))
MMA(mma_bf16, float, "f", 4, 2, 4, u32, "r", NEG16, MMA42("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "f"))
MMA(mma_tf32, float, "f", 4, 2, 4, u32, "r", NEG32, MMA42("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "f"))
MMA(mma_int8, int, "r", 4, 2, 4, u32, "r", NEG8, MMA42("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "r"))
MMA(mma_fp64, double, "d", 1, 1, 2, double, "d", NEG64,
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(c[j][0]), "+d"(c[j][1]) : "d"(a[r & 1][j & 3]), "d"(b[j & 1][0])))

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900

// wgmma: one warp group a CTA, two CTAs an SM. A: 64 rows of 128 bytes, B: 256 rows of 128 bytes, both along k and swizzled
// by 128 bytes; an instruction takes 32 bytes of k whatever the type. 16 instructions a body, the first of which starts
// new sums.

#define D8(b) "%" #b "0, %" #b "1, %" #b "2, %" #b "3, %" #b "4, %" #b "5, %" #b "6, %" #b "7, %" #b "8, %" #b "9, "
#define SUMS                                                                                                           \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " D8(1) D8(2) D8(3) D8(4) D8(5) D8(6) D8(7) D8(8) D8(9) D8(10) D8(11)    \
        "%120, %121, %122, %123, %124, %125, %126, %127}"
#define O4(l, i) "+" l(d[i]), "+" l(d[i + 1]), "+" l(d[i + 2]), "+" l(d[i + 3])
#define O16(l, i) O4(l, i), O4(l, i + 4), O4(l, i + 8), O4(l, i + 12)
#define O128(l)                                                                                                        \
    O16(l, 0), O16(l, 16), O16(l, 32), O16(l, 48), O16(l, 64), O16(l, 80), O16(l, 96), O16(l, 112)

#define SS1(op, tail, a, b, p) "wgmma.mma_async.sync.aligned." op " " SUMS ", " a ", " b ", " p tail ";\n"
#define SS3(op, tail)                                                                                                  \
    SS1(op, tail, "a1", "b1", "q") SS1(op, tail, "a2", "b2", "q") SS1(op, tail, "a3", "b3", "q")
#define SS(op, tail)                                                                                                   \
    "{.reg .pred p, q; .reg .b64 a1, a2, a3, b1, b2, b3;\n"                                                            \
    "setp.ne.b32 p, 0, 0; setp.eq.b32 q, 0, 0;\n"                                                                      \
    "add.s64 a1, %128, 2; add.s64 a2, %128, 4; add.s64 a3, %128, 6;\n"                                                 \
    "add.s64 b1, %129, 2; add.s64 b2, %129, 4; add.s64 b3, %129, 6;\n"                                                 \
    "wgmma.fence.sync.aligned;\n" SS1(op, tail, "%128", "%129", "p") SS3(op, tail)                                     \
    SS1(op, tail, "%128", "%129", "q") SS3(op, tail) SS1(op, tail, "%128", "%129", "q") SS3(op, tail)                  \
    SS1(op, tail, "%128", "%129", "q") SS3(op, tail)                                                                   \
    "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;}\n"

#define R4(k) "r"(a[k]), "r"(a[k + 1]), "r"(a[k + 2]), "r"(a[k + 3])
#define RS4(op, tail, a, p)                                                                                            \
    SS1(op, tail, a, "%144", p) SS1(op, tail, a, "b1", "q") SS1(op, tail, a, "b2", "q") SS1(op, tail, a, "b3", "q")
#define RS(op, tail)                                                                                                   \
    "{.reg .pred p, q; .reg .b64 b1, b2, b3;\n"                                                                        \
    "setp.ne.b32 p, 0, 0; setp.eq.b32 q, 0, 0;\n"                                                                      \
    "add.s64 b1, %144, 2; add.s64 b2, %144, 4; add.s64 b3, %144, 6;\n"                                                 \
    "wgmma.fence.sync.aligned;\n" RS4(op, tail, "{%128, %129, %130, %131}", "p") RS4(op, tail, "{%132, %133, %134, %135}", "q")                                    \
    RS4(op, tail, "{%136, %137, %138, %139}", "q") RS4(op, tail, "{%140, %141, %142, %143}", "q")                                                                  \
    "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;}\n"

// Address, 16 bytes from one core matrix to the next (not used when swizzled), 1024 bytes to the next 8 rows, 128-byte swizzle.
__device__ __forceinline__ u64 descriptor(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}

#define WGMMA_BEGIN(type)                                                                                              \
    FILL(40960)                                                                                                        \
    asm volatile("fence.proxy.async;" ::: "memory");                                                                   \
    __syncthreads();                                                                                                   \
    u32 base = (u32)__cvta_generic_to_shared(tile);                                                                    \
    u64 da = descriptor(base), db = descriptor(base + 8192);                                                           \
    type d[128];                                                                                                       \
    _Pragma("unroll") for (int j = 0; j < 128; j++) d[j] = 0;

#define WGMMA_END(type)                                                                                                \
    END(CTA_STOP)                                                                                                      \
    type sum = 0;                                                                                                      \
    _Pragma("unroll") for (int j = 0; j < 128; j++) sum += d[j];                                                       \
    ((type *)out)[blockIdx.x * blockDim.x + threadIdx.x] = sum;

#define WGMMA(dtype, type, letter, op, tail_ss, tail_rs)                                                               \
    KERNEL(wgmma_##dtype##_ss, 128, 2) {                                                                               \
        WGMMA_BEGIN(type)                                                                                              \
        BEGIN                                                                                                          \
        asm volatile(SS(op, tail_ss) : O128(letter) : "l"(da), "l"(db) : "memory");                                    \
        WGMMA_END(type)                                                                                                \
    }                                                                                                                  \
    KERNEL(wgmma_##dtype##_rs, 128, 2) {                                                                               \
        WGMMA_BEGIN(type)                                                                                              \
        u32 a[16];                                                                                                     \
        _Pragma("unroll") for (int k = 0; k < 16; k++) a[k] = in[128 * k + threadIdx.x];                               \
        BEGIN                                                                                                          \
        asm volatile(RS(op, tail_rs)                                                                                   \
                     : O128(letter)                                                                                    \
                     : R4(0), R4(4), R4(8), R4(12), "l"(db)                                                            \
                     : "memory");                                                                                      \
        WGMMA_END(type)                                                                                                \
    }

WGMMA(bf16, float, "f", "m64n256k16.f32.bf16.bf16", ", 1, 1, 0, 0", ", 1, 1, 0")
WGMMA(fp16, float, "f", "m64n256k16.f32.f16.f16", ", 1, 1, 0, 0", ", 1, 1, 0")
WGMMA(tf32, float, "f", "m64n256k8.f32.tf32.tf32", ", 1, 1", ", 1, 1")
WGMMA(fp8, float, "f", "m64n256k32.f32.e4m3.e4m3", ", 1, 1", ", 1, 1")
WGMMA(int8, int, "r", "m64n256k32.s32.s8.s8", "", "")

#endif
