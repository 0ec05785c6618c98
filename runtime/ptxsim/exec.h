/* Execution of decoded PTX, private to the simulator: warps, CTAs, and macros for lane loops. */
#ifndef KVA_RUNTIME_PTXSIM_EXEC_H
#define KVA_RUNTIME_PTXSIM_EXEC_H

#include "runtime/ptxsim/program.h"

#include <stdatomic.h>
#include <string.h>

typedef struct ptx_range {
  uint64_t base, size;
  bool writable;
  char *name;
  uint8_t *written;                 /* undefined memory: per word, whether it was written; NULL: initialised */
  struct ptx_global_shadow *shadow; /* with check_global: per granule; exec_global.c */
} ptx_range;
struct kva_ptx_memory {
  ptx_range *ranges; /* sorted by base */
  uint32_t n, cap;
};

/* What happened before a point of the program (clock.c): the clocks up to which the accesses of warps and asynchronous
 * agents are ordered. */
enum {
  PTX_CTA_WARPS = 32,
  PTX_MAX_WARPS = 128, /* of a cluster */
  PTX_N_AGENTS = 64,
  PTX_N_CLOCKS = PTX_MAX_WARPS + PTX_N_AGENTS
};
typedef struct ptx_clocks {
  uint32_t seen[PTX_N_CLOCKS];                                  /* up to this clock, for all lanes */
  uint32_t some_seen[PTX_MAX_WARPS], some_lanes[PTX_MAX_WARPS]; /* up to this clock, for these lanes only */
  uint32_t fenced[PTX_MAX_WARPS]; /* writes that a proxy fence made visible to async reads */
} ptx_clocks;

/* A tensor map as kva_ptxsim_encode_map writes it; see tensor_map.c. */
typedef struct ptx_tensor_map {
  char magic[8];
  uint64_t address;
  uint64_t dims[KVA_PTXSIM_MAP_RANK], strides[KVA_PTXSIM_MAP_RANK - 1];
  uint16_t box[KVA_PTXSIM_MAP_RANK];
  uint8_t dtype, element, rank, swizzle; /* element: bytes */
  uint8_t reserved[26];
} ptx_tensor_map;
_Static_assert(sizeof(ptx_tensor_map) == KVA_PTXSIM_MAP_BYTES, "a CUtensorMap has 128 bytes");
/* Whether the bytes were written by kva_ptxsim_encode_map. */
bool kva_ptx_tensor_map_valid(const ptx_tensor_map *map);
/* Applies the swizzle of `span` bytes (0, 32, 64, 128) to a shared address: address bits from 7 up are XORed into bits
 * from 4 up. */
static inline uint32_t ptx_swizzle(uint32_t address, uint32_t span) {
  return span ? address ^ (address >> 3 & (span - 1) & 0x70) : address;
}

/* State shared by all CTAs of a launch; constant except for the finding list, which has a lock (launch.c). */
/* What the CTAs of a launch share while they run. */
typedef struct ptx_budget {
  _Atomic uint64_t started; /* CTAs */
  _Atomic uint64_t spent;   /* warp instructions, as far as CTAs have told */
  atomic_bool over;         /* a CTA ran into a limit: no further one starts, and those that run end */
} ptx_budget;

typedef struct ptx_launch {
  const kva_ptx_kernel *kernel;
  kva_ptx_memory memory; /* the caller's ranges and the module's variables */
  kva_ptx_options options;
  kva_ptx_dim3 grid, block, cluster;
  ptx_budget *budget;
  uint32_t n_threads, n_warps, dynamic_shared, shared_bytes;
  uint32_t cluster_size; /* CTAs */
  uint32_t registers;    /* registers of a thread at its start */
  bool tracks_global;    /* some range has `written` or `shadow` */
  ptx_clocks **released; /* check_global: per CTA, what its fences and atomics have published; NULL: nothing */
  unsigned char *params;
  unsigned char *image; /* initial register file, without special registers */
} ptx_launch;

/* A divergence level: the lanes of mask run from pc to reconverge. Each side of a branch has fewer lanes than the level
 * below it, which waits, so 32 lanes have at most 63 open levels. */
enum { PTX_MAX_LEVELS = 2 * PTX_LANES };
typedef struct ptx_level {
  uint32_t pc, reconverge, mask;
} ptx_level;

typedef enum ptx_wait {
  PTX_READY,
  PTX_AT_BARRIER,
  PTX_AT_MBARRIER,
  PTX_AT_REGISTERS,
  PTX_AT_WGMMA,
  PTX_AT_CLUSTER,
  PTX_EXITED
} ptx_wait;

typedef struct ptx_cta ptx_cta;
typedef struct ptx_cluster ptx_cluster;
typedef struct ptx_copy ptx_copy;
typedef struct ptx_bulk ptx_bulk;
typedef struct ptx_wgmma ptx_wgmma;

struct ptx_warp {
  unsigned char *regs;
  uint32_t *preds;
  ptx_cta *cta;
  uint32_t id, live; /* live: lanes that have not exited */
  uint32_t number;   /* in the cluster */
  uint32_t cluster_arrived,
      cluster_passed; /* barrier.cluster: lanes that arrived in this phase, or in one that ended */
  ptx_wait wait;
  uint32_t barrier, wait_mask; /* the barrier it waits at, and the waiting lanes */
  const ptx_ins *at;           /* the instruction that it runs or waits at */
  ptx_level levels[PTX_MAX_LEVELS];
  uint32_t depth;
  uint32_t last_range; /* index of the global memory range that is tried first */
  uint64_t steps;
  uint32_t clock;    /* stamps accesses */
  ptx_clocks before; /* what happened before its next access */
  ptx_copy *copies;  /* cp.async, oldest first */
  uint32_t n_copies, cap_copies;
  uint32_t group, n_marks;                          /* copy groups committed; arrivals at mbarriers */
  uint32_t bulk_group[PTX_LANES];                   /* bulk groups committed */
  ptx_wgmma *products;                              /* in flight, oldest first */
  uint32_t n_products, cap_products, product_group; /* groups committed */
  uint8_t *in_flight;    /* kernels with wgmma: by slot / 128, whether a product in flight reads or writes it */
  uint64_t *written;     /* kernels with wgmma: by slot / 128, step at which an ordinary instruction last wrote it */
  uint64_t wgmma_fenced; /* step of the last wgmma.fence; 0: none */
  uint32_t n_registers;  /* per thread; see setmaxnreg */
  const ptx_ins *registers_set;
  ptx_clocks *released; /* check_global: clocks at its last fence of scope gpu */
  bool fence_released, atomic_seen;
  bool polled;        /* it polled global memory, so its turn ends */
  uint64_t last_poll; /* hash of instruction, addresses and values of the last poll */
};

enum { PTX_N_BARRIERS = 16 };
typedef struct ptx_barrier {
  uint32_t arrived;      /* number of threads */
  uint32_t expected;     /* number of threads; 0: all */
  uint32_t reduce_count; /* bar.red: threads with a true predicate */
  bool reduce_some_not;
  ptx_clocks before; /* join of the clocks of the arrived warps; zero if there are none */
} ptx_barrier;

/* Stamps of the accesses to a granule of shared memory, with their lines: race.c. */
typedef struct ptx_shadow {
  uint32_t writer, writer_line, reader, reader_line, last_reader;
} ptx_shadow;

/* The last access to a CTA's shared memory by a warp or agent of another CTA. */
typedef struct ptx_reached {
  uint32_t clock;
  const ptx_ins *by; /* NULL: none */
  const ptx_warp *from;
} ptx_reached;

struct ptx_cta {
  const ptx_launch *launch;
  ptx_cluster *cluster;
  uint32_t rank; /* in the cluster */
  kva_ptx_dim3 id;
  ptx_warp *warps;
  unsigned char *shared, *local;
  ptx_shadow *shadow;             /* per granule of shared memory; NULL: unchecked */
  unsigned char *pending;         /* bytes that an asynchronous copy will write */
  struct ptx_mbarrier *mbarriers; /* live and invalidated ones; mbarrier_at: index + 1 by address / 8 */
  uint32_t n_mbarriers, cap_mbarriers;
  uint16_t *mbarrier_at;
  ptx_bulk *bulks; /* incomplete bulk copies, oldest first */
  uint32_t n_bulks, cap_bulks;
  struct {
    uint32_t group, stamp;                           /* group + 1 */
  } product_agents[PTX_CTA_WARPS / 4][PTX_N_AGENTS]; /* by warpgroup, and by group modulo the number of agents */
  uint32_t free_registers;                           /* of the CTA's share; setmaxnreg.dec returns registers to it */
  uint64_t progress;                                 /* counts events that may unblock a waiting warp */
  ptx_reached reached[PTX_N_CLOCKS];                 /* by warp or agent of other CTAs */
  ptx_barrier barriers[PTX_N_BARRIERS];
  uint64_t number; /* in the grid */
  bool acquired;   /* it made an atomic, then a fence: it sees what other CTAs released */
  uint64_t random;
  uint64_t steps, told; /* warp instructions, and those that the launch's budget knows of */
  bool polled, went_on; /* in this turn a warp polled; a warp stored to global memory, or its poll found a new value */
  bool stopped;         /* a finding ended this CTA */
  struct {
    uint64_t warps, threads;
  } * executed; /* by instruction */
  kva_ptx_counters counters;
  kva_ptx_finding *findings;
  uint32_t n_findings, cap_findings;
};

/* CTAs that run at once and reach each other's shared memory; one alone if the kernel has no clusters. */
struct ptx_cluster {
  const ptx_launch *launch;
  ptx_cta *ctas;
  uint32_t n;
  uint32_t base_clock, top_clock, next_agent, agent_clocks[PTX_N_AGENTS];
  ptx_clocks coming, done; /* barrier.cluster: what waits acquire after the current phase, and after the last one */
  uint64_t progress;       /* at the last stall */
  uint32_t n_stalls;       /* since then */
  uint32_t n_waiting;      /* consecutive turns that polled without going on */
};

/* Adds a finding at instruction `at` of lane `lane` (-1: the whole warp). Returns where to write the detail, or NULL if
 * this (kind, line) was already found. */
kva_ptx_finding *kva_ptx_add_finding(ptx_cta *cta, kva_ptx_finding_kind kind, const ptx_ins *at, const ptx_warp *w,
                                     int lane);
void kva_ptx_detail(kva_ptx_finding *finding, const char *fmt, ...) KVA_PRINTF(2, 3);

const ptx_range *kva_ptx_find_range(const kva_ptx_memory *memory, uint64_t address, uint64_t size, uint32_t *last);
/* The named range at an address or nearest below it, for messages; NULL: none. */
const ptx_range *kva_ptx_nearest_range(const kva_ptx_memory *memory, uint64_t address);

/* Runs the cluster until it ends (true) or has polled global memory (false), when other clusters get a turn. */
bool kva_ptx_run_cluster(ptx_cluster *cluster);
/* Reports CTAs that wait for each other, so that none can continue. */
void kva_ptx_report_polling(ptx_cluster *cluster);
/* exec_sync.c. A warp arrives at a barrier; true: it must wait. */
bool kva_ptx_arrive(ptx_warp *w, const ptx_ins *i, uint32_t mask);
/* Wakes the warps at complete barriers; true if there were any. */
bool kva_ptx_release_barriers(ptx_cta *cta);

/* exec_cluster.c. A warp begins barrier.cluster.wait; true: it must stop. */
bool kva_ptx_cluster_wait(ptx_warp *w, const ptx_ins *i, uint32_t mask);
/* Wakes the warps that wait for a phase in which all threads of the cluster have arrived. */
bool kva_ptx_release_cluster(ptx_cluster *cluster);
/* Notes an access to another CTA's shared memory by a thread or agent, whose stamp this is. That CTA must have started
 * before it, and must not end before it. */
void kva_ptx_reach(ptx_warp *w, const ptx_ins *i, int lane, ptx_cta *owner, uint32_t stamp);
void kva_ptx_cluster_check_exit(ptx_cluster *cluster);

/* The CTA whose shared memory an address of w reaches, the window of the cluster included; *address becomes an address
 * in that CTA. NULL: the cluster has no such CTA. */
enum { PTX_RANK_SHIFT = 24 };
static inline ptx_cta *ptx_owner(const ptx_warp *w, uint64_t *address) {
  uint64_t number = *address >> PTX_RANK_SHIFT;
  if (!number) return w->cta;
  if (number > w->cta->cluster->n) return NULL;
  *address &= (1u << PTX_RANK_SHIFT) - 1;
  return &w->cta->cluster->ctas[number - 1];
}
/* The address in the cluster's window of an address in `owner`. */
static inline uint32_t ptx_window(const ptx_cta *owner, uint32_t address) {
  return (owner->rank + 1) << PTX_RANK_SHIFT | address;
}

/* clock.c: the happens-before order. */
void kva_ptx_clocks_begin(ptx_cluster *cluster);
void kva_ptx_clocks_warp_sync(ptx_warp *w);
/* Publishes to `to` what happened before this point, for later acquires; mask: the releasing lanes. */
void kva_ptx_clocks_release(ptx_warp *w, ptx_clocks *to, uint32_t mask);
void kva_ptx_clocks_join(ptx_clocks *to, const ptx_clocks *from);
void kva_ptx_clocks_proxy_fence(ptx_warp *w);
/* Starts an asynchronous access and returns its stamp; ends it. */
uint32_t kva_ptx_agent_begin(ptx_cluster *cluster);
void kva_ptx_agent_end(ptx_clocks *to, uint32_t stamp);

/* A stamp consists of clock, strong flag (atomic or volatile), and thread of the cluster or PTX_FIRST_AGENT + agent. */
enum {
  PTX_FIRST_AGENT = PTX_MAX_WARPS * PTX_LANES,
  PTX_THREAD_BITS = 13,
  PTX_STRONG = 1 << PTX_THREAD_BITS,
  PTX_CLOCK_SHIFT = PTX_THREAD_BITS + 1
};
_Static_assert(PTX_FIRST_AGENT + PTX_N_AGENTS <= PTX_STRONG, "agents and threads have different numbers");
static inline uint32_t ptx_stamp_clock(uint32_t stamp) {
  return stamp >> PTX_CLOCK_SHIFT;
}
static inline uint32_t ptx_stamp_thread(uint32_t stamp) {
  return stamp & (PTX_STRONG - 1);
}
static inline uint32_t ptx_stamp_of(const ptx_warp *w, int lane, bool strong) {
  return w->clock << PTX_CLOCK_SHIFT | (strong ? PTX_STRONG : 0) | (w->number * PTX_LANES + (uint32_t)lane);
}
/* Whether an earlier access, by a thread other than `thread`, may be concurrent with one that w makes now. */
static inline bool ptx_unordered(const ptx_warp *w, uint32_t earlier, uint32_t thread) {
  uint32_t who = ptx_stamp_thread(earlier), clock = ptx_stamp_clock(earlier);
  if (who >= PTX_FIRST_AGENT) return clock > w->before.seen[PTX_MAX_WARPS + who - PTX_FIRST_AGENT];
  uint32_t warp = who / PTX_LANES;
  if (who == thread || clock <= w->before.seen[warp]) return false;
  return !(clock <= w->before.some_seen[warp] && w->before.some_lanes[warp] >> (who % PTX_LANES) & 1);
}

/* race.c: accesses to shared memory, where addresses may be those of the cluster's window. */
void kva_ptx_race_read(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size);
/* data: the written bytes, or NULL if they are not known yet. */
void kva_ptx_race_write(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size, const void *data);
/* A lane's cp.async is complete. Other threads see its data after a release from this point on, not from its issue. */
void kva_ptx_race_landed(ptx_warp *w, int lane, uint32_t address, uint32_t size);
void kva_ptx_race_atomic(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size);
/* An access by the async proxy on behalf of a lane (-1: the whole warp), with an agent's stamp. */
void kva_ptx_race_async_read(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size, uint32_t stamp);
void kva_ptx_race_async_write(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size, uint32_t stamp);

/* exec_global.c: accesses to tracked global memory. data: the written bytes, or NULL. */
void kva_ptx_global_access(ptx_warp *w, const ptx_ins *i, int lane, uint64_t address, uint32_t size, bool write,
                           const void *data);
void kva_ptx_global_atomic(ptx_warp *w, const ptx_ins *i, int lane, uint64_t address, uint32_t size);
KVA_MUST_USE bool kva_ptx_global_prepare(ptx_launch *launch);
void kva_ptx_global_clean(ptx_launch *launch);
void kva_ptx_exec_fence(ptx_warp *w, const ptx_ins *i, uint32_t mask);

/* exec_mbarrier.c */
typedef struct ptx_mbarrier {
  uint32_t address, init_stamp, init_line;
  bool live, fenced; /* fenced: its initialisation is visible to the async proxy */
  uint32_t expected, pending, phase;
  int64_t tx;
  uint32_t tx_line;        /* line of the last expect_tx */
  ptx_clocks coming, done; /* clocks that waiters acquire after the current phase, and after the last one */
} ptx_mbarrier;
/* kva_ptx_mbarrier_at: the mbarrier at an address of shared memory; NULL: none. kva_ptx_mbarrier_find: the live one
 * that w reaches; NULL after a finding. */
ptx_mbarrier *kva_ptx_mbarrier_at(ptx_cta *cta, uint64_t address);
ptx_mbarrier *kva_ptx_mbarrier_find(ptx_warp *w, const ptx_ins *i, int lane, ptx_cta *owner, uint64_t address);
void kva_ptx_mbarrier_arrive(ptx_warp *w, const ptx_ins *i, int lane, ptx_mbarrier *b, uint32_t count);
void kva_ptx_mbarrier_complete_tx(ptx_cta *cta, ptx_mbarrier *b, int64_t bytes);
/* A warp begins to wait at its instruction; true: it must stop. */
bool kva_ptx_mbarrier_wait(ptx_warp *w, const ptx_ins *i, uint32_t mask);
/* Wakes warps whose phases are complete; with `give_up` also the others, with a false predicate. */
bool kva_ptx_release_mbarriers(ptx_cta *cta, bool give_up);
void kva_ptx_mbarrier_fence(ptx_warp *w);
void kva_ptx_mbarrier_check_exit(ptx_cta *cta);

/* exec_bulk.c: bulk copies. Completes one that nothing waits for; false: there is none. */
bool kva_ptx_bulk_land_one(ptx_cta *cta);
void kva_ptx_bulk_check_exit(ptx_cta *cta);
/* Lets a lane's preceding cp.async arrive at an mbarrier on completion. exec_async.c completes them. */
void kva_ptx_copies_arrive(ptx_warp *w, const ptx_ins *i, int lane, uint32_t mbarrier);
uint32_t kva_ptx_copies_mark(ptx_warp *w, int lane);
void kva_ptx_copies_land(ptx_warp *w, uint32_t mark);
void kva_ptx_copies_check_exit(ptx_cta *cta);

/* exec_wgmma.c. kva_ptx_wgmma_check runs before every instruction of a kernel with wgmma. */
void kva_ptx_wgmma_check(ptx_warp *w, const ptx_ins *i);
bool kva_ptx_wgmma_wait(ptx_warp *w, const ptx_ins *i, uint32_t mask);
bool kva_ptx_release_wgmma(ptx_cta *cta);
void kva_ptx_wgmma_check_exit(ptx_cta *cta);
/* Checks that whole warps of a whole warpgroup execute the instruction; reports a finding otherwise. */
bool kva_ptx_warpgroup(ptx_warp *w, const ptx_ins *i, uint32_t mask);

/* exec_registers.c: setmaxnreg */
bool kva_ptx_setmaxnreg(ptx_warp *w, const ptx_ins *i, uint32_t mask);
bool kva_ptx_release_registers(ptx_cta *cta);
void kva_ptx_registers_check_exit(ptx_cta *cta);

/* exec_address.c. kva_ptx_resolve: the host address of an access of `size` bytes (a power of two) by one lane; NULL
 * after a finding. */
void kva_ptx_addresses(const ptx_warp *w, uint32_t slot, int64_t offset, uint64_t out[PTX_LANES]);
/* The state space of a generic address; *address becomes an address within that space. */
ptx_space kva_ptx_space_of(uint64_t *address);
/* Whether the instruction's access is to shared memory; a generic *address becomes one in it. */
bool kva_ptx_is_shared(const ptx_ins *i, uint64_t *address);
unsigned char *kva_ptx_resolve(ptx_warp *w, const ptx_ins *i, ptx_space space, int lane, uint64_t address,
                               uint32_t size, bool write);
/* Counts one request. */
void kva_ptx_count_global(ptx_cta *cta, const uint64_t *addresses, uint32_t mask, uint32_t size, bool store);
void kva_ptx_count_shared(ptx_cta *cta, const ptx_ins *i, const uint64_t *addresses, uint32_t mask, uint32_t size);

/* Instructions that decode.c refers to. */
void kva_ptx_exec_mov_pred(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_mov32(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_mov64(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_widen(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_convert(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_pack(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_unpack(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_clock(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_setp(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_setp_pair(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_set(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_selp32(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_selp64(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_pred_logic(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_mapa(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_ctarank(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_cluster_arrive(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_cvta(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_isspace(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_load(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_store(ptx_warp *w, const ptx_ins *i, uint32_t mask);
/* Atomically replaces the i->bytes bytes at place by the result of operation i->sub on them and b; returns the old
 * value. */
uint64_t kva_ptx_atomic_update(unsigned char *place, const ptx_ins *i, uint64_t b, uint64_t c);
void kva_ptx_exec_atom(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_shfl(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_vote(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_match(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_redux(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_activemask(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_elect(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_warp_sync(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_nothing(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_trap(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_cp_async(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_cp_commit(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_cp_wait(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_mbarrier(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_copy_arrive(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_proxy_fence(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_mbarrier_fence(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_bulk(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_bulk_commit(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_bulk_wait(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_wgmma(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_wgmma_fence(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_wgmma_commit(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_mma(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_ldmatrix(ptx_warp *w, const ptx_ins *i, uint32_t mask);
void kva_ptx_exec_stmatrix(ptx_warp *w, const ptx_ins *i, uint32_t mask);

/* ---- registers --------------------------------------------------------------------------------------------------- */

static inline uint32_t *ptx_reg32(const ptx_warp *w, uint32_t slot) {
  return __builtin_assume_aligned(w->regs + slot, 64);
}
static inline uint64_t *ptx_reg64(const ptx_warp *w, uint32_t slot) {
  return __builtin_assume_aligned(w->regs + slot, 64);
}
static inline uint32_t ptx_pred(const ptx_warp *w, uint32_t operand) {
  uint32_t mask = w->preds[operand >> 1];
  return operand & 1 ? ~mask : mask;
}
static inline void ptx_set_pred(ptx_warp *w, uint32_t index, uint32_t value, uint32_t mask) {
  w->preds[index] = (w->preds[index] & ~mask) | (value & mask);
}
static inline void ptx_blend32(uint32_t *d, const uint32_t *from, uint32_t mask) {
  for (int l = 0; l < PTX_LANES; l++) d[l] = mask >> l & 1 ? from[l] : d[l];
}
static inline void ptx_blend64(uint64_t *d, const uint64_t *from, uint32_t mask) {
  for (int l = 0; l < PTX_LANES; l++) d[l] = mask >> l & 1 ? from[l] : d[l];
}
static inline int ptx_first(uint32_t mask) {
  return __builtin_ctz(mask);
}
static inline uint32_t ptx_count(uint32_t mask) {
  return mask == PTX_ALL ? 32u : (uint32_t)__builtin_popcount(mask);
}

/* ---- lanes: how a PTX type is held and computed ------------------------------------------------------------------ */

static inline float ptx_f32(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}
static inline uint32_t ptx_bits32(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}
static inline double ptx_f64(uint64_t bits) {
  double f;
  memcpy(&f, &bits, sizeof f);
  return f;
}
static inline uint64_t ptx_bits64(double f) {
  uint64_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}
/* Flushes subnormals to zero with the same sign. */
static inline uint32_t ptx_flush(uint32_t bits) {
  return bits & 0x7f800000u ? bits : bits & 0x80000000u;
}
static inline float ptx_bf16(uint32_t bits) {
  return ptx_f32(bits << 16);
}
static inline uint32_t ptx_bits_bf16(float f) {
  uint32_t x = ptx_bits32(f);
  uint32_t rounded = (x + 0x7fffu + (x >> 16 & 1)) >> 16;
  return (x & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded;
}

/* X(type): lane_X, value_X, load_X(lane), store_X(value). */
#define PTX_LANE_TYPE(T, lane, value, load, store) \
  typedef lane lane_##T;                           \
  typedef value value_##T;                         \
  static inline value load_##T(lane bits) {        \
    return (value)load(bits);                      \
  }                                                \
  static inline lane store_##T(value v) {          \
    return (lane)store(v);                         \
  }
PTX_LANE_TYPE(u16, uint32_t, uint16_t, (uint16_t), (uint16_t))
PTX_LANE_TYPE(s16, uint32_t, int16_t, (int16_t), (uint16_t))
PTX_LANE_TYPE(u32, uint32_t, uint32_t, , )
PTX_LANE_TYPE(s32, uint32_t, int32_t, (int32_t), (uint32_t))
PTX_LANE_TYPE(u64, uint64_t, uint64_t, , )
PTX_LANE_TYPE(s64, uint64_t, int64_t, (int64_t), (uint64_t))
PTX_LANE_TYPE(f32, uint32_t, float, ptx_f32, ptx_bits32)
PTX_LANE_TYPE(f64, uint64_t, double, ptx_f64, ptx_bits64)
PTX_LANE_TYPE(bf16, uint32_t, float, ptx_bf16, ptx_bits_bf16)
#undef PTX_LANE_TYPE
typedef uint32_t lane_f32z, lane_f16;
typedef float value_f32z, value_f16;
static inline float load_f32z(uint32_t bits) {
  return ptx_f32(ptx_flush(bits));
}
static inline uint32_t store_f32z(float v) {
  return ptx_flush(ptx_bits32(v));
}
static inline float load_f16(uint32_t bits) {
  return kva_f16_to_f32((uint16_t)bits);
}
static inline uint32_t store_f16(float v) {
  return kva_f32_to_f16(v);
}

/* Lane loops. A full warp writes the register directly, others write a copy that is then blended in. Sources may be the
 * destination, since each lane reads only its own elements (hence ivdep). */
#define PTX_BLEND(d, tmp, mask)                                                                         \
  (sizeof *(d) == 8 ? ptx_blend64((uint64_t *)(void *)(d), (const uint64_t *)(const void *)(tmp), mask) \
                    : ptx_blend32((uint32_t *)(void *)(d), (const uint32_t *)(const void *)(tmp), mask))
#define PTX_REG(T, w, slot) ((lane_##T *)__builtin_assume_aligned((w)->regs + (slot), 64))

#define PTX_LOOP(D, ATTRIBUTES, fn, SOURCES, LOADS, E)                       \
  ATTRIBUTES static void fn(ptx_warp *w, const ptx_ins *i, uint32_t mask) {  \
    lane_##D tmp[PTX_LANES] __attribute__((aligned(64)));                    \
    lane_##D *reg = PTX_REG(D, w, i->dst), *d = mask == PTX_ALL ? reg : tmp; \
    SOURCES                                                                  \
    _Pragma("GCC ivdep") for (int l = 0; l < PTX_LANES; l++) {               \
      LOADS                                                                  \
      d[l] = store_##D(E);                                                   \
    }                                                                        \
    if (mask != PTX_ALL) PTX_BLEND(reg, tmp, mask);                          \
  }
#define PTX_SOURCE(T, name, k) const lane_##T *name = PTX_REG(T, w, i->src[k]);
#define PTX_FN1(fn, D, A, E)   PTX_LOOP(D, , fn, PTX_SOURCE(A, a, 0), const value_##A x = load_##A(a[l]);, E)
#define PTX_FN2(fn, D, A, B, E)                                                                  \
  PTX_LOOP(D, , fn, PTX_SOURCE(A, a, 0) PTX_SOURCE(B, b, 1), const value_##A x = load_##A(a[l]); \
           const value_##B y = load_##B(b[l]);, E)
#define PTX_FN3_AS(ATTRIBUTES, fn, D, A, B, C, E)                                          \
  PTX_LOOP(D, ATTRIBUTES, fn, PTX_SOURCE(A, a, 0) PTX_SOURCE(B, b, 1) PTX_SOURCE(C, c, 2), \
           const value_##A x = load_##A(a[l]);                                             \
           const value_##B y = load_##B(b[l]); const value_##C z = load_##C(c[l]);, E)
#define PTX_FN3(fn, D, A, B, C, E) PTX_FN3_AS(, fn, D, A, B, C, E)

#endif
