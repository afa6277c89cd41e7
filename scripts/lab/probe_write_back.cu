// What an L2 of GH100 writes back, and when: programs of phases (write, read, wait) in one kernel, whose bytes to and
// from DRAM a profiler counts and whose phases are timed.
//
//     nvcc -O3 -arch=sm_90a -o probe_write_back probe_write_back.cu
//     ./probe_write_back                     times of phases, us: median of 7 runs, each after a sweep of 1 GiB
//     ncu --cache-control all --clock-control none --csv --page raw --print-units base --metrics
//         dram__bytes_read.sum,dram__bytes_write.sum,lts__t_sectors_op_write.sum,lts__t_sectors_srcunit_ltcfabric.sum
//         -k phases ./probe_write_back once
//
// The L2 is empty before each kernel of the second form. All SMs walk a phase together, 16 B a thread.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
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

enum Kind { WRITE, READ, WAIT, COPY, SCATTERED };

// first, count: 16 B words, of a wait ns; other: where a copy writes.
struct Phase {
  int kind;
  long long first, count, other;
};

const int MOST = 8;

struct Program {
  int n;
  Phase phases[MOST];
};

__device__ __forceinline__ u64 now() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
  return t;
}

__device__ void meet(u32* arrived, u32 all) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1);
    while (*(volatile u32*)arrived < all) __nanosleep(100);
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(1024) phases(uint4* p, Program program, u32* arrived, u32* sink, u64* times) {
  const long long step = (long long)gridDim.x * blockDim.x;
  const long long self = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  u32 sum = 0;
  for (int i = 0; i < program.n; i++) {
    Phase ph = program.phases[i];
    meet(arrived, (i + 1) * gridDim.x);
    u64 start = now();
    if (ph.kind == WRITE) {
      for (long long w = self; w < ph.count; w += step) p[ph.first + w] = make_uint4(w, i, 3, 4);
    } else if (ph.kind == READ) {
#pragma unroll 4
      for (long long w = self; w < ph.count; w += step) {
        uint4 v = __ldcg(p + ph.first + w);
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
      }
    } else if (ph.kind == SCATTERED) {
      // Groups of 8 words, so whole lines, in the order of an odd multiplier; count is a power of two.
      for (long long w = self; w < ph.count; w += step) {
        long long line = (w >> 3) * 40503LL & ((ph.count >> 3) - 1);
        uint4 v = __ldcg(p + ph.first + (line << 3 | (w & 7)));
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
      }
    } else if (ph.kind == COPY) {
#pragma unroll 4
      for (long long w = self; w < ph.count; w += step) p[ph.other + w] = __ldcg(p + ph.first + w);
    } else if (threadIdx.x == 0) {
      while (now() - start < (u64)ph.count) {
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      times[2 * (i * (u64)gridDim.x + blockIdx.x)] = start;
      times[2 * (i * (u64)gridDim.x + blockIdx.x) + 1] = now();
    }
  }
  if (sum == 12345) *sink = sum;
}

__global__ void sweep(uint4* p, long long count, u32* sink) {
  u32 sum = 0;
  for (long long w = blockIdx.x * (long long)blockDim.x + threadIdx.x; w < count; w += (long long)gridDim.x * blockDim.x)
    sum ^= __ldcg(p + w).x;
  if (sum == 12345) *sink = sum;
}

static const long long MIB = (1 << 20) / 16;  // words
static const long long A = 0, B = 256 * MIB, C = 512 * MIB, D = 768 * MIB, SWEPT = 1024 * MIB;

static std::string word(const char* format, double number) {
  char text[64];
  snprintf(text, sizeof text, format, number);
  return text;
}

static std::string region(long long at) { return at == A ? "A" : at == B ? "B" : at == C ? "C" : "D"; }

// As in the column `program` of h100_write_back.csv: sizes in MiB, waits in us.
static std::string name_of(const std::vector<Phase>& phases) {
  std::string name;
  for (const Phase& ph : phases) {
    const double mib = (double)ph.count / MIB;
    if (!name.empty()) name += "; ";
    if (ph.kind == WAIT) name += word("wait %g", ph.count / 1000.);
    if (ph.kind == WRITE) name += "write " + region(ph.first) + word(" %g", mib);
    if (ph.kind == READ) name += "read " + region(ph.first) + word(" %g", mib);
    if (ph.kind == SCATTERED) name += "scattered " + region(ph.first) + word(" %g", mib);
    if (ph.kind == COPY) name += "copy " + region(ph.first) + " " + region(ph.other) + word(" %g", mib);
  }
  return name;
}

static Phase write(double mib, long long at = A) { return {WRITE, at, (long long)(mib * MIB), 0}; }
static Phase read(double mib, long long at = B) { return {READ, at, (long long)(mib * MIB), 0}; }
static Phase scattered(double mib) { return {SCATTERED, B, (long long)(mib * MIB), 0}; }
static Phase copy(double mib) { return {COPY, B, (long long)(mib * MIB), C}; }
static Phase wait_us(double us) { return {WAIT, 0, (long long)(us * 1000), 0}; }

static std::vector<std::vector<Phase>> programs() {
  std::vector<std::vector<Phase>> list;
  list.push_back({wait_us(1)});
  for (double w : {2., 4., 8., 12., 16., 20., 22., 24., 26., 28., 30., 32., 34., 36., 40., 44., 48., 56., 64., 96., 128., 256.})
    list.push_back({write(w)});
  for (double w : {8., 16., 24., 32., 64.})
    for (double t : {3., 10., 30., 100., 1000.}) list.push_back({write(w), wait_us(t)});
  for (double w : {8., 16., 24., 256.})
    for (double r : {1., 2., 4., 6., 8., 12., 16., 20., 24., 28., 32., 40., 48., 64., 96., 128.})
      list.push_back({write(w), read(r)});
  for (double r : {2., 4., 8., 16., 32., 64.}) {
    list.push_back({write(256), scattered(r)});
    list.push_back({write(256), wait_us(100), read(r)});
    list.push_back({write(256), copy(r)});
    list.push_back({write(256), write(r, C)});
    list.push_back({read(256, D), write(r, C)});
    list.push_back({read(256, D), copy(r)});
    list.push_back({copy(r)});
    list.push_back({read(r), write(r, B)});
    list.push_back({write(r), read(r, A)});
  }
  for (double w : {8., 16., 24., 28., 32., 36., 40., 48.}) list.push_back({write(w), write(w), write(w), write(w)});
  // What loads find again: a region swept several times, and one that is swept beside another.
  for (double r : {16., 24., 28., 32., 36., 40., 44., 48., 56., 64., 96.}) {
    list.push_back({read(r), read(r), read(r), read(r)});
    list.push_back({read(r), read(16, C), read(r)});
    list.push_back({write(r), read(16, C), read(r, A)});
  }
  return list;
}

int main(int argc, char** argv) {
  const bool once = argc > 1 && !strcmp(argv[1], "once");
  cudaDeviceProp prop;
  CHECK(cudaGetDeviceProperties(&prop, 0));
  const int sms = prop.multiProcessorCount;
  uint4* p;
  u32 *arrived, *sink;
  u64* times;
  CHECK(cudaMalloc(&p, (SWEPT + 1024 * MIB) * 16));
  CHECK(cudaMemset(p, 1, (SWEPT + 1024 * MIB) * 16));
  CHECK(cudaMalloc(&arrived, 4));
  CHECK(cudaMalloc(&sink, 4));
  CHECK(cudaMallocManaged(&times, MOST * sms * 16));
  if (!once) printf("program,phase,time_us,min_us,max_us\n");
  for (const std::vector<Phase>& listed : programs()) {
    const std::string name = name_of(listed);
    Program program;
    program.n = (int)listed.size();
    std::copy(listed.begin(), listed.end(), program.phases);
    std::vector<std::vector<double>> all(program.n);
    for (int run = 0; run < (once ? 1 : 7); run++) {
      if (!once) {
        sweep<<<sms * 2, 1024>>>(p + SWEPT, 1024 * MIB, sink);
        sweep<<<sms * 2, 1024>>>(p + SWEPT, 1024 * MIB, sink);
      }
      CHECK(cudaMemsetAsync(arrived, 0, 4));
      CHECK(cudaDeviceSynchronize());
      phases<<<sms, 1024>>>(p, program, arrived, sink, times);
      CHECK(cudaGetLastError());
      CHECK(cudaDeviceSynchronize());
      for (int i = 0; i < program.n; i++) {
        u64 first = ~0ull, last = 0;
        for (int c = 0; c < sms; c++) {
          first = std::min(first, times[2 * (i * (u64)sms + c)]);
          last = std::max(last, times[2 * (i * (u64)sms + c) + 1]);
        }
        all[i].push_back((last - first) * 1e-3);
      }
    }
    for (int i = 0; i < program.n; i++) {
      std::sort(all[i].begin(), all[i].end());
      if (once) {
        if (i == 0) printf("%s\n", name.c_str());
      } else {
        printf("%s,%d,%.3f,%.3f,%.3f\n", name.c_str(), i, all[i][all[i].size() / 2], all[i].front(), all[i].back());
      }
    }
    fflush(stdout);
  }
  return 0;
}
