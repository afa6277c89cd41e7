// What GH100 does with reads of one line that several SMs of a GPC send at about the same time, and where clusters go.
//
//     nvcc -O2 -arch=sm_90a -o probe probe_coalescer.cu
//     ./probe rates     B a cycle that an SM takes in by bulk copies or loads: SMs that read the same lines or others
//     ./probe places    on which SM each CTA of a grid of clusters starts, and when
//     ncu --clock-control none --cache-control none --csv --page raw --log-file steps.csv --metrics
//         lrc__request_sectors_op_read_coalescable.sum,lrc__lts2lrc_sectors_op_read.sum,
//         lrc__request_sectors_op_read_coalescing_achieved_type_hardware.sum ./probe steps
//
// `steps`: SMs read one line (or a few) in lock step, each some cycles after the one before; each line of output is a
// kernel, whose wanted sectors, joined sectors and sectors from slices the profiler counts. Where the span is small all
// SMs load it once before, which is in the counters, too.
//
// Output is CSV, as in workloads/silicon: coalescer.csv, coalescer_steps.csv (without the counters) and what
// cluster_places.csv sums up.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

typedef unsigned long long u64;
typedef unsigned int u32;

#define CHECK(call)                                                                  \
  do {                                                                               \
    cudaError_t status = (call);                                                     \
    if (status != cudaSuccess) {                                                     \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));                \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

#define DEV static __device__ __forceinline__

extern __shared__ __align__(1024) char shm[];

DEV u64 now() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
  return t;
}
DEV u32 rank_in_cluster() {
  u32 r;
  asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(r));
  return r;
}
DEV u32 cluster_size() {
  u32 n;
  asm volatile("mov.u32 %0, %cluster_nctarank;" : "=r"(n));
  return n;
}
DEV u32 cluster_id() {
  u32 c;
  asm volatile("mov.u32 %0, %clusterid.x;" : "=r"(c));
  return c;
}
DEV u32 sm_id() {
  u32 s;
  asm volatile("mov.u32 %0, %smid;" : "=r"(s));
  return s;
}
DEV u32 smem_of(const void* p) { return (u32)__cvta_generic_to_shared(p); }

DEV void spin(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}
DEV void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
DEV void barrier_init(u64* bar) { asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(smem_of(bar))); }
DEV void barrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;"); }
DEV void barrier_wait(u32 bar, u32 parity) {
  u32 ok = 0;
  while (!ok)
    asm volatile(
        "{ .reg .pred q; mbarrier.try_wait.parity.shared.b64 q, [%1], %2; selp.u32 %0, 1, 0, q; }"
        : "=r"(ok)
        : "r"(bar), "r"(parity)
        : "memory");
}
DEV void bulk_copy(char* to, const char* from, int bytes, u32 bar) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem_of(to)),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}
DEV uint4 load16(const char* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
DEV u32 load4(const char* p) {
  u32 v;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

template <typename... Parameters, typename... Given>
static void launch(void (*kernel)(Parameters...), int cluster, int ctas, int threads, int shared_bytes,
                   Given... given) {
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 226 * 1024));
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeClusterDimension;
  attribute[0].val.clusterDim.x = cluster;
  attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = attribute;
  config.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&config, kernel, given...));
  CHECK(cudaDeviceSynchronize());
}

// ---- rates

enum Stream { SAME, BY_CLUSTER, BY_CTA };
enum Skew { ODD, RANK };

// A stream is `footprint` bytes, walked again and again. skew: cycles that CTAs of odd rank begin later, or, RANK, the
// last one, with the others between.
struct Rate {
  const char* p;
  int piece, depth, rounds, stream, skew, skew_kind;
  long long footprint;
  u64* cycles;
  u32* flag;
};

DEV const char* stream_of(const Rate& a) {
  return a.p + (a.stream == SAME ? 0 : a.stream == BY_CLUSTER ? cluster_id() : blockIdx.x) * a.footprint;
}

// All CTAs are resident, and begin together but for the skew.
DEV void start_together(const Rate& a) {
  if (threadIdx.x == 0) {
    atomicAdd(a.flag, 1);
    while (*(volatile u32*)a.flag < gridDim.x) {
    }
  }
  __syncthreads();
  const long long rank = rank_in_cluster(), last = max(1, (int)cluster_size() - 1);
  spin(a.skew_kind == ODD ? (rank & 1) * a.skew : rank * a.skew / last);
  __syncthreads();
}

// One lane of each warp keeps `depth` bulk copies of `piece` bytes on their way.
__global__ void __launch_bounds__(256) by_bulk(Rate a) {
  __shared__ __align__(8) u64 bar[64];
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < warps * a.depth; i++) barrier_init(&bar[i]);
    barrier_fence();
  }
  __syncthreads();
  start_together(a);
  const long long start = clock64();
  if (threadIdx.x % 32 == 0) {
    const char* from = stream_of(a);
    char* to = shm + warp * a.depth * a.piece;
    for (int i = 0; i < a.rounds + a.depth; i++) {
      const int slot = i % a.depth;
      const u32 b = smem_of(&bar[warp * a.depth + slot]);
      if (i >= a.depth) barrier_wait(b, (i / a.depth - 1) & 1);
      if (i < a.rounds)
        bulk_copy(to + slot * a.piece, from + ((long long)(i * warps + warp) * a.piece) % a.footprint, a.piece, b);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) a.cycles[blockIdx.x] = clock64() - start;
}

// Each thread has four loads of 16 B on their way, past the L1.
__global__ void __launch_bounds__(1024) by_loads(Rate a) {
  start_together(a);
  const long long start = clock64(), step = (long long)blockDim.x * 16;
  const char* from = stream_of(a) + threadIdx.x * 16;
  u32 sum = 0;
  for (int i = 0; i < a.rounds; i++) {
    const char* q = from + (i * 4 * step) % a.footprint;
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = load16(q + j * step);
#pragma unroll
    for (int j = 0; j < 4; j++) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x12345) a.flag[1] = sum;
  __syncthreads();
  if (threadIdx.x == 0) a.cycles[blockIdx.x] = clock64() - start;
}

static const long long MIB = 1 << 20;

static char* pool;
static u64* out;
static u32* flag;

// Mean of the SMs, median of five runs after a first one; the slowest SM of the last run.
static void rate(bool bulk, int cluster, int clusters, int warps, int piece, int depth, Stream stream, int skew = 0,
                 Skew skew_kind = ODD, long long bytes = 4 * MIB) {
  static const char* const streams[] = {"same", "by_cluster", "by_cta"};
  const int ctas = cluster * clusters;
  // Streams of all SMs together shall fit the L2.
  const long long footprint = stream == BY_CTA && clusters > 1 ? MIB / 8 : MIB;
  const int rounds = bulk ? bytes / piece / warps : bytes / (warps * piece * depth);
  const Rate a = {pool, piece, depth, rounds, stream, skew, skew_kind, footprint, out, flag};
  std::vector<double> means;
  double slowest = 0;
  for (int run = 0; run < 6; run++) {
    CHECK(cudaMemset(flag, 0, 64));
    // More than half of shared memory: one CTA an SM.
    const int shared_bytes = std::max(bulk ? warps * piece * depth : 0, 120 * 1024);
    launch(bulk ? by_bulk : by_loads, cluster, ctas, warps * 32, shared_bytes, a);
    std::vector<u64> cycles(ctas);
    CHECK(cudaMemcpy(cycles.data(), out, 8 * ctas, cudaMemcpyDeviceToHost));
    const double moved = (double)rounds * warps * piece * (bulk ? 1 : depth);
    double sum = 0;
    slowest = 1e30;
    for (u64 c : cycles) {
      sum += moved / c;
      slowest = std::min(slowest, moved / c);
    }
    if (run) means.push_back(sum / ctas);
  }
  std::sort(means.begin(), means.end());
  printf("%s,%d,%d,%d,%d,%d,%s,%d,%s,%.2f,%.2f\n", bulk ? "bulk" : "loads", cluster, clusters, warps, piece, depth,
         streams[stream], skew, skew_kind == ODD ? "odd" : "rank", means[2], slowest);
  fflush(stdout);
}

// As many clusters as are resident at once.
static int all(int cluster) { return cluster == 1 ? 132 : cluster == 2 ? 66 : cluster == 16 ? 7 : 120 / cluster; }

static void rates() {
  CHECK(cudaMalloc(&pool, 256 * MIB));
  CHECK(cudaMemset(pool, 1, 256 * MIB));
  CHECK(cudaMalloc(&out, 1 << 16));
  printf("kind,cluster,clusters,warps,piece_bytes,depth,stream,skew_cycles,skew_kind,");
  printf("bytes_per_cycle_per_sm,slowest_bytes_per_cycle\n");
  const int rings[][3] = {{4, 8192, 4}, {8, 8192, 2}, {4, 16384, 2}};  // 128 KiB on their way
  for (const auto& r : rings) {
    for (Stream stream : {SAME, BY_CTA})
      for (int cluster : {1, 2, 4, 8, 16}) rate(true, cluster, 1, r[0], r[1], r[2], stream);
    for (Stream stream : {SAME, BY_CLUSTER, BY_CTA})
      for (int cluster : {1, 2, 4, 8, 16})
        if (stream != BY_CLUSTER || cluster > 2) rate(true, cluster, all(cluster), r[0], r[1], r[2], stream);
  }
  // One GPC, one stream: how close in time its SMs are.
  for (Skew kind : {ODD, RANK})
    for (int skew : {0, 100, 250, 500, 1000, 2000, 4000, 8000, 16000})
      rate(true, 16, 1, 4, 16384, 2, SAME, skew, kind);
  // Few pieces on their way: the pace is that of latency.
  for (Stream stream : {SAME, BY_CTA})
    for (int depth : {1, 2, 3}) rate(true, 16, 1, 2, 16384, depth, stream, 0, ODD, 2 * MIB);
  for (Stream stream : {SAME, BY_CTA})
    for (int cluster : {1, 2, 4, 8, 16}) rate(false, cluster, 1, 32, 512, 4, stream);
  for (Stream stream : {SAME, BY_CLUSTER, BY_CTA})
    for (int cluster : {1, 2, 16})
      if (stream != BY_CLUSTER || cluster > 2) rate(false, cluster, all(cluster), 32, 512, 4, stream);
  for (int skew : {0, 250, 1000, 4000}) rate(false, 16, 1, 32, 512, 4, SAME, skew);
}

// ---- steps

enum Sync { BARRIER, TIMER };

// Round r reads `bytes` at r * step of the span, rank * delay cycles after the barrier of its cluster or after a time of
// the timer.
struct Steps {
  const char* p;
  int bytes, rounds, delay, sync, load;
  long long step, span;
  u32* flag;
  u64* start;
};

const u64 ROUND_NS = 3000;

__global__ void in_step(Steps a) {
  __shared__ __align__(8) u64 bar;
  const u32 rank = rank_in_cluster();
  if (threadIdx.x == 0) {
    barrier_init(&bar);
    barrier_fence();
  }
  __syncthreads();
  u64 start = 0;
  if (a.sync == TIMER) {
    if (threadIdx.x == 0) {
      if (atomicAdd(a.flag, 1) == gridDim.x - 1) {
        *a.start = now() + 4000;
        __threadfence();
        atomicExch(a.flag + 1, 1);
      }
      while (atomicAdd(a.flag + 1, 0) == 0) {
      }
    }
    __syncthreads();
    start = *(volatile u64*)a.start;
  }
  u32 sum = 0;
  if (a.span <= MIB)
    for (int i = threadIdx.x * 32; i < a.span; i += blockDim.x * 32) sum += load4(a.p + i);
  for (int r = 0; r < a.rounds; r++) {
    if (a.sync == TIMER) {
      while (now() < start + ROUND_NS * r) {
      }
    } else {
      cluster_sync();
    }
    spin((long long)rank * a.delay);
    const char* q = a.p + (r * a.step) % a.span;
    if (a.load) {
      for (int i = threadIdx.x * 4; i < a.bytes; i += blockDim.x * 4) sum += load4(q + i);
    } else if (threadIdx.x == 0) {
      bulk_copy(shm, q, a.bytes, smem_of(&bar));
      barrier_wait(smem_of(&bar), r & 1);
    }
    __syncwarp();
  }
  if (sum == 0x1234567) a.flag[4] = sum;
  if (a.sync == BARRIER) cluster_sync();
}

static void step(int cluster, int clusters, int bytes, int delay, Sync sync, bool load, bool dram) {
  Steps a = {pool, bytes, sync == TIMER ? 600 : 2000, delay, sync, load, std::max(bytes, 4096), 64 << 10, flag, out};
  if (dram) {
    a.rounds = 300;
    a.step = (64 + 4) << 10;
    a.span = 1024 * MIB;
  }
  printf("%d,%d,%d,%d,%s,%s,%s,%d\n", cluster, clusters, bytes, delay, sync == TIMER ? "timer" : "barrier",
         load ? "load" : "bulk", dram ? "DRAM" : "L2", a.rounds);
  fflush(stdout);
  CHECK(cudaMemset(flag, 0, 64));
  launch(in_step, cluster, cluster * clusters, 32, 130 * 1024, a);
}

static void steps() {
  CHECK(cudaMalloc(&pool, 1200 * MIB));
  CHECK(cudaMemset(pool, 1, 1200 * MIB));
  CHECK(cudaMalloc(&out, 64));
  printf("cluster,clusters,bytes,delay_cycles,sync,kind,from,rounds\n");
  for (bool load : {false, true}) {
    for (int delay : {0, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100, 150}) step(2, 1, 128, delay, BARRIER, load, false);
    for (int cluster : {4, 8, 16}) step(cluster, 1, 128, 0, BARRIER, load, false);
    for (int delay : {2, 4, 8, 16}) step(16, 1, 128, delay, BARRIER, load, false);
  }
  for (int bytes : {1024, 4096, 16384, 65536})
    for (int cluster : {2, 4, 16}) step(cluster, 1, bytes, 0, BARRIER, false, false);
  for (int delay : {20, 50, 100})
    for (int bytes : {16384, 65536}) step(2, 1, bytes, delay, BARRIER, false, false);
  for (int delay : {0, 200, 250, 300, 350, 400, 450, 500, 550}) step(2, 1, 128, delay, BARRIER, false, true);
  for (int clusters : {2, 4, 8, 132}) step(1, clusters, 128, 0, TIMER, false, false);
  step(1, 132, 4096, 0, TIMER, false, false);
  step(2, 66, 16384, 0, TIMER, false, false);
  step(16, 7, 16384, 0, TIMER, false, false);
}

// ---- places

struct Place {
  u32 sm, ns;
};

__global__ void where(Place* place, long long cycles) {
  const Place self = {sm_id(), (u32)now()};
  spin(cycles);
  if (threadIdx.x == 0) place[blockIdx.x] = self;
}

// A CTA stays for 60,000 cycles, so that those of the first wave start long before any other. Second of two runs.
static void places() {
  const int threads = 128, kib[] = {200, 100, 70, 50};  // of shared memory, for one to four CTAs an SM
  Place* at;
  CHECK(cudaMalloc(&at, 1 << 20));
  printf("threads,ctas_per_sm,cluster,ctas,sm:ns\n");
  for (int per_sm = 1; per_sm <= 4; per_sm++)
    for (int cluster : {1, 2, 4, 8, 16})
      for (int asked : {16, 64, 128, 144, 176, 208, 256, 320, 400, 528, 640}) {
        if (asked > 132 * per_sm + 128) continue;
        const int ctas = asked / cluster * cluster;
        for (int run = 0; run < 2; run++) launch(where, cluster, ctas, threads, kib[per_sm - 1] * 1024, at, 60000LL);
        std::vector<Place> found(ctas);
        CHECK(cudaMemcpy(found.data(), at, ctas * sizeof(Place), cudaMemcpyDeviceToHost));
        u32 first = ~0u;
        for (const Place& f : found) first = std::min(first, f.ns);
        printf("%d,%d,%d,%d,", threads, per_sm, cluster, ctas);
        for (int i = 0; i < ctas; i++) printf("%s%u:%u", i ? " " : "", found[i].sm, found[i].ns - first);
        printf("\n");
      }
}

int main(int argc, char** argv) {
  const char* mode = argc == 2 ? argv[1] : "";
  CHECK(cudaMalloc(&flag, 64));
  if (!strcmp(mode, "rates")) {
    rates();
  } else if (!strcmp(mode, "steps")) {
    steps();
  } else if (!strcmp(mode, "places")) {
    places();
  } else {
    fprintf(stderr, "usage: %s rates|steps|places\n", argv[0]);
    return 2;
  }
  return 0;
}
