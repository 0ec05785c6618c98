/* Launches: checks, memory for CTAs, distribution of the grid over the pool, the report.
 *
 * Clusters start in order of their numbers; without clusters, each CTA is one. CTAs of a cooperative launch take turns
 * in one host thread. */
#include "runtime/ptxsim/exec.h"

#include <pthread.h>
#include <stdlib.h>

enum { MAX_THREADS = 1024, MAX_SHARED = 227 << 10, ALIGN = 1024, MAX_CLUSTER = 8 };

/* A context runs clusters one after the other; there are as many contexts as clusters that run at once. */
typedef struct context context;
struct context {
  ptx_cluster cluster;
  context *next;
};

typedef struct grid_run {
  ptx_launch launch;
  pthread_mutex_t lock;
  context *idle; /* a list; holds all contexts at the end of the grid */
  ptx_budget budget;
  kva_status status;
} grid_run;

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

static void *aligned_zeroed(size_t size) {
  size = (size + ALIGN - 1) & ~(size_t)(ALIGN - 1);
  void *p = aligned_alloc(ALIGN, size ? size : ALIGN);
  if (p) memset(p, 0, size ? size : ALIGN);
  return p;
}

static void destroy_cta(ptx_cta *cta) {
  for (uint32_t k = 0; cta->warps && k < cta->launch->n_warps; k++) {
    ptx_warp *w = &cta->warps[k];
    free(w->regs);
    free(w->preds);
    free(w->copies);
    free(w->released);
    free(w->products);
    free(w->written);
    free(w->in_flight);
  }
  free(cta->warps);
  free(cta->shared);
  free(cta->local);
  free(cta->shadow);
  free(cta->pending);
  free(cta->mbarriers);
  free(cta->mbarrier_at);
  free(cta->bulks);
  free(cta->executed);
  free(cta->findings);
}

static void destroy_context(context *c) {
  for (uint32_t k = 0; c->cluster.ctas && k < c->cluster.n; k++) destroy_cta(&c->cluster.ctas[k]);
  free(c->cluster.ctas);
  free(c);
}

static bool make_warp(ptx_cta *cta, ptx_warp *w, uint32_t id) {
  const kva_ptx_kernel *k = cta->launch->kernel;
  w->cta = cta;
  w->id = id;
  w->number = cta->rank * cta->launch->n_warps + id;
  w->regs = aligned_zeroed(k->reg_bytes);
  w->preds = calloc(k->n_preds, sizeof *w->preds);
  if (cta->launch->options.check_global && !(w->released = calloc(1, sizeof *w->released))) return false;
  if (!k->uses_wgmma) return w->regs && w->preds;
  w->written = calloc(k->reg_bytes / 128 + 1, sizeof *w->written);
  w->in_flight = calloc(k->reg_bytes / 128 + 1, 1);
  return w->regs && w->preds && w->written && w->in_flight;
}

static bool make_shared(ptx_cta *cta) {
  const ptx_launch *launch = cta->launch;
  const kva_ptx_kernel *k = launch->kernel;
  size_t bytes = launch->shared_bytes;
  cta->shared = aligned_zeroed(bytes);
  if (!cta->shared) return false;
  if (bytes && !launch->options.unchecked_shared) {
    cta->shadow = calloc((bytes >> k->shadow_shift) + 1, sizeof *cta->shadow);
    if (!cta->shadow) return false;
  }
  if (bytes && k->uses_async) cta->pending = calloc(bytes + 16, 1);
  return !(bytes && k->uses_async) || cta->pending;
}

/* Returns false if no memory is left. */
static bool make_cta(ptx_cta *cta) {
  const ptx_launch *launch = cta->launch;
  const kva_ptx_kernel *k = launch->kernel;
  cta->warps = calloc(launch->n_warps, sizeof *cta->warps);
  cta->executed = calloc(k->n_ins, sizeof *cta->executed);
  bool ok = cta->warps && cta->executed && make_shared(cta);
  if (ok && k->local_bytes) ok = (cta->local = calloc((size_t)launch->n_warps * PTX_LANES, k->local_bytes)) != NULL;
  if (ok && launch->shared_bytes)
    ok = (cta->mbarrier_at = calloc(launch->shared_bytes / 8 + 1, sizeof *cta->mbarrier_at)) != NULL;
  for (uint32_t w = 0; ok && w < launch->n_warps; w++) ok = make_warp(cta, &cta->warps[w], w);
  return ok;
}

static context *make_context(const ptx_launch *launch) {
  context *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->cluster.launch = launch;
  c->cluster.n = launch->cluster_size;
  c->cluster.ctas = calloc(c->cluster.n, sizeof *c->cluster.ctas);
  bool ok = c->cluster.ctas != NULL;
  for (uint32_t k = 0; ok && k < c->cluster.n; k++) {
    ptx_cta *cta = &c->cluster.ctas[k];
    cta->launch = launch;
    cta->cluster = &c->cluster;
    cta->rank = k;
    ok = make_cta(cta);
  }
  if (ok) return c;
  destroy_context(c);
  return NULL;
}

/* ---- the start of a CTA ------------------------------------------------------------------------------------------ */

static void fill(ptx_warp *w, ptx_special special, uint32_t value) {
  uint32_t slot = w->cta->launch->kernel->special_slot[special];
  if (slot == PTX_NONE) return;
  uint32_t *d = ptx_reg32(w, slot);
  for (int l = 0; l < PTX_LANES; l++) d[l] = value;
}
#define FILL_LANES(w, special, E)                                                             \
  do {                                                                                        \
    uint32_t slot = (w)->cta->launch->kernel->special_slot[special];                          \
    for (uint32_t l = 0; slot != PTX_NONE && l < PTX_LANES; l++) ptx_reg32(w, slot)[l] = (E); \
  } while (0)

static void fill_grid(ptx_warp *w) {
  const ptx_launch *launch = w->cta->launch;
  const kva_ptx_dim3 *id = &w->cta->id;
  fill(w, PTX_SPECIAL_NTID_X, launch->block.x), fill(w, PTX_SPECIAL_NTID_Y, launch->block.y);
  fill(w, PTX_SPECIAL_NTID_Z, launch->block.z), fill(w, PTX_SPECIAL_CTAID_X, id->x);
  fill(w, PTX_SPECIAL_CTAID_Y, id->y), fill(w, PTX_SPECIAL_CTAID_Z, id->z);
  fill(w, PTX_SPECIAL_NCTAID_X, launch->grid.x), fill(w, PTX_SPECIAL_NCTAID_Y, launch->grid.y);
  fill(w, PTX_SPECIAL_NCTAID_Z, launch->grid.z), fill(w, PTX_SPECIAL_WARPID, w->id);
  fill(w, PTX_SPECIAL_NWARPID, launch->n_warps), fill(w, PTX_SPECIAL_SMID, 0);
  fill(w, PTX_SPECIAL_NSMID, 1), fill(w, PTX_SPECIAL_GRIDID, 0);
  fill(w, PTX_SPECIAL_DYNAMIC_SMEM, launch->dynamic_shared), fill(w, PTX_SPECIAL_TOTAL_SMEM, launch->shared_bytes);
}

static void fill_cluster(ptx_warp *w) {
  const ptx_launch *launch = w->cta->launch;
  const kva_ptx_dim3 *id = &w->cta->id, *size = &launch->cluster, *grid = &launch->grid;
  fill(w, PTX_SPECIAL_CLUSTER_RANK, w->cta->rank), fill(w, PTX_SPECIAL_CLUSTER_SIZE, launch->cluster_size);
  fill(w, PTX_SPECIAL_CLUSTER_CTAID_X, id->x % size->x), fill(w, PTX_SPECIAL_CLUSTER_CTAID_Y, id->y % size->y);
  fill(w, PTX_SPECIAL_CLUSTER_CTAID_Z, id->z % size->z), fill(w, PTX_SPECIAL_CLUSTER_NCTAID_X, size->x);
  fill(w, PTX_SPECIAL_CLUSTER_NCTAID_Y, size->y), fill(w, PTX_SPECIAL_CLUSTER_NCTAID_Z, size->z);
  fill(w, PTX_SPECIAL_CLUSTERID_X, id->x / size->x), fill(w, PTX_SPECIAL_CLUSTERID_Y, id->y / size->y);
  fill(w, PTX_SPECIAL_CLUSTERID_Z, id->z / size->z), fill(w, PTX_SPECIAL_NCLUSTERID_X, grid->x / size->x);
  fill(w, PTX_SPECIAL_NCLUSTERID_Y, grid->y / size->y), fill(w, PTX_SPECIAL_NCLUSTERID_Z, grid->z / size->z);
}

static void fill_lanes(ptx_warp *w) {
  const kva_ptx_dim3 b = w->cta->launch->block;
  uint32_t base = w->id * PTX_LANES;
  FILL_LANES(w, PTX_SPECIAL_TID_X, (base + l) % b.x);
  FILL_LANES(w, PTX_SPECIAL_TID_Y, (base + l) / b.x % b.y);
  FILL_LANES(w, PTX_SPECIAL_TID_Z, (base + l) / b.x / b.y);
  FILL_LANES(w, PTX_SPECIAL_LANEID, l);
  FILL_LANES(w, PTX_SPECIAL_MASK_EQ, 1u << l);
  FILL_LANES(w, PTX_SPECIAL_MASK_LT, (1u << l) - 1);
  FILL_LANES(w, PTX_SPECIAL_MASK_LE, PTX_ALL >> (31 - l));
  FILL_LANES(w, PTX_SPECIAL_MASK_GT, ~(PTX_ALL >> (31 - l)));
  FILL_LANES(w, PTX_SPECIAL_MASK_GE, ~((1u << l) - 1));
}

static void start_warp(ptx_warp *w) {
  const ptx_launch *launch = w->cta->launch;
  uint32_t first = w->id * PTX_LANES, rest = launch->n_threads - first;
  w->live = rest >= PTX_LANES ? PTX_ALL : (1u << rest) - 1;
  w->wait = PTX_READY;
  w->steps = 0;
  w->cluster_arrived = w->cluster_passed = 0;
  w->n_copies = w->group = w->n_marks = w->n_products = w->product_group = 0;
  memset(w->bulk_group, 0, sizeof w->bulk_group);
  w->wgmma_fenced = 0;
  w->n_registers = launch->registers;
  w->registers_set = NULL;
  w->fence_released = w->atomic_seen = w->polled = false;
  w->last_poll = 0;
  if (w->released) memset(w->released, 0, sizeof *w->released);
  if (w->written) memset(w->written, 0, (launch->kernel->reg_bytes / 128 + 1) * sizeof *w->written);
  if (w->in_flight) memset(w->in_flight, 0, launch->kernel->reg_bytes / 128 + 1);
  w->levels[0] = (ptx_level){0, PTX_NONE, w->live};
  w->depth = 1;
  memcpy(w->regs, launch->image, launch->kernel->reg_bytes);
  memset(w->preds, 0, launch->kernel->n_preds * sizeof *w->preds);
  w->preds[PTX_TRUE] = PTX_ALL;
  fill_grid(w);
  fill_cluster(w);
  fill_lanes(w);
}

/* Number `index` in extents, x fastest. */
static kva_ptx_dim3 place_in(uint64_t index, uint64_t x, uint64_t y) {
  return (kva_ptx_dim3){(uint32_t)(index % x), (uint32_t)(index / x % y), (uint32_t)(index / x / y)};
}

static void start_cta(ptx_cta *cta, uint64_t cluster_index) {
  const ptx_launch *launch = cta->launch;
  const kva_ptx_dim3 *size = &launch->cluster, *grid = &launch->grid, in = place_in(cta->rank, size->x, size->y);
  kva_ptx_dim3 cluster = place_in(cluster_index, grid->x / size->x, grid->y / size->y);
  cta->id = (kva_ptx_dim3){cluster.x * size->x + in.x, cluster.y * size->y + in.y, cluster.z * size->z + in.z};
  cta->number = cta->id.x + (uint64_t)grid->x * (cta->id.y + (uint64_t)grid->y * cta->id.z);
  cta->stopped = cta->acquired = false;
  cta->steps = cta->told = 0;
  cta->random = launch->options.schedule_seed ^ cta->number * 0x9e3779b97f4a7c15u;
  memset(cta->shared, 0xff, launch->shared_bytes);
  if (cta->pending) memset(cta->pending, 0, launch->shared_bytes);
  if (cta->local) memset(cta->local, 0xff, (size_t)launch->n_warps * PTX_LANES * launch->kernel->local_bytes);
  for (uint32_t b = 0; b < PTX_N_BARRIERS; b++)
    if (cta->barriers[b].arrived) cta->barriers[b] = (ptx_barrier){0};
  for (uint32_t k = 0; k < cta->n_mbarriers; k++) cta->mbarrier_at[cta->mbarriers[k].address / 8] = 0;
  cta->n_mbarriers = cta->n_bulks = cta->free_registers = 0;
  cta->progress = 0;
  if (launch->cluster_size > 1) memset(cta->reached, 0, sizeof cta->reached);
  memset(cta->product_agents, 0, sizeof cta->product_agents);
  for (uint32_t k = 0; k < launch->n_warps; k++) start_warp(&cta->warps[k]);
}

static void start_cluster(ptx_cluster *cluster, int64_t index) {
  cluster->progress = 0;
  cluster->n_stalls = cluster->n_waiting = 0;
  memset(&cluster->coming, 0, sizeof cluster->coming);
  memset(&cluster->done, 0, sizeof cluster->done);
  for (uint32_t k = 0; k < cluster->n; k++) start_cta(&cluster->ctas[k], (uint64_t)index);
  kva_ptx_clocks_begin(cluster);
}

/* ---- the grid ---------------------------------------------------------------------------------------------------- */

static context *take_context(grid_run *run) {
  pthread_mutex_lock(&run->lock);
  context *c = run->idle;
  if (c) run->idle = c->next;
  pthread_mutex_unlock(&run->lock);
  return c ? c : make_context(&run->launch);
}
static void give_context(grid_run *run, context *c) {
  pthread_mutex_lock(&run->lock);
  c->next = run->idle;
  run->idle = c;
  pthread_mutex_unlock(&run->lock);
}

static void run_out_of_memory(grid_run *run) {
  pthread_mutex_lock(&run->lock);
  run->status = KVA_NO_MEMORY;
  pthread_mutex_unlock(&run->lock);
}

static bool is_over(grid_run *run) {
  return atomic_load(&run->budget.over);
}

/* Whether another cluster may start, whose CTAs are counted. */
static bool may_start(grid_run *run) {
  if (is_over(run)) return false;
  atomic_fetch_add(&run->budget.started, run->launch.cluster_size);
  return true;
}

static void run_clusters(void *ctx, int64_t begin, int64_t end) {
  grid_run *run = ctx;
  context *c = take_context(run);
  if (!c) {
    run_out_of_memory(run);
    return;
  }
  for (int64_t k = begin; k < end && may_start(run); k++) {
    start_cluster(&c->cluster, k);
    kva_ptx_run_cluster(&c->cluster);
  }
  give_context(run, c);
}

/* Whether every CTA, in its last turns, only polled values that had not changed. */
static bool all_wait(context *const *resident, uint32_t n) {
  enum { TURNS = 1 << 17 };
  for (uint32_t k = 0; k < n; k++)
    if (resident[k]->cluster.n_waiting < TURNS) return false;
  return n > 0;
}

/* Gives each resident cluster a turn and removes those that end. */
static void run_turns(grid_run *run, context **resident, uint32_t *n) {
  uint32_t left = 0;
  for (uint32_t k = 0; k < *n; k++) {
    if (kva_ptx_run_cluster(&resident[k]->cluster))
      give_context(run, resident[k]);
    else
      resident[left++] = resident[k];
  }
  *n = left;
}

/* Runs a grid whose CTAs may wait for each other. */
static void run_together(grid_run *run, int64_t count) {
  context *resident[KVA_PTX_RESIDENT];
  uint32_t n = 0;
  for (int64_t next = 0; (next < count && !is_over(run)) || n;) {
    if (next < count && may_start(run)) {
      if (!(resident[n] = take_context(run))) {
        run_out_of_memory(run);
        break;
      }
      start_cluster(&resident[n++]->cluster, next++);
    }
    run_turns(run, resident, &n);
    if (next < count || !all_wait(resident, n)) continue;
    for (uint32_t k = 0; k < n; k++) kva_ptx_report_polling(&resident[k]->cluster);
    break;
  }
  while (n) give_context(run, resident[--n]);
}

/* ---- the report -------------------------------------------------------------------------------------------------- */

static void add_counters(kva_ptx_counters *to, const kva_ptx_counters *from) {
  to->branches += from->branches;
  to->divergent_branches += from->divergent_branches;
  to->global_load_requests += from->global_load_requests;
  to->global_load_sectors += from->global_load_sectors;
  to->global_load_bytes += from->global_load_bytes;
  to->global_store_requests += from->global_store_requests;
  to->global_store_sectors += from->global_store_sectors;
  to->global_store_bytes += from->global_store_bytes;
  to->shared_requests += from->shared_requests;
  to->shared_wavefronts += from->shared_wavefronts;
  to->shared_wavefronts_ideal += from->shared_wavefronts_ideal;
  to->matrix_flops += from->matrix_flops;
  if (from->shared_degree_max <= to->shared_degree_max) return;
  to->shared_degree_max = from->shared_degree_max;
  to->shared_degree_max_line = from->shared_degree_max_line;
}

static void add_executions(const ptx_cta *cta, kva_ptx_report *report) {
  const kva_ptx_kernel *k = cta->launch->kernel;
  uint32_t n = 0;
  for (uint32_t p = 0; p < k->n_ins; p++) {
    if (k->ins[p].hidden) continue;
    report->lines[n] = k->ins[p].line;
    report->warp_executions[n++] += cta->executed[p].warps;
    report->counters.warp_instructions += cta->executed[p].warps;
    report->counters.thread_instructions += cta->executed[p].threads;
    report->counters.warp_by_class[k->ins[p].class] += cta->executed[p].warps;
  }
  report->n_lines = n;
}

/* Returns false if no memory is left. */
static bool add_finding(kva_ptx_report *report, const kva_ptx_finding *f) {
  for (uint32_t k = 0; k < report->n_findings; k++) {
    if (report->findings[k].kind != f->kind || report->findings[k].line != f->line) continue;
    report->findings[k].count += f->count;
    return true;
  }
  kva_ptx_finding *more = realloc(report->findings, (report->n_findings + 1) * sizeof *more);
  if (!more) return false;
  report->findings = more;
  more[report->n_findings++] = *f;
  return true;
}

static int by_line(const void *a, const void *b) {
  const kva_ptx_finding *x = a, *y = b;
  if (x->line != y->line) return x->line < y->line ? -1 : 1;
  return x->kind < y->kind ? -1 : x->kind > y->kind;
}

static kva_status collect_cta(const ptx_cta *cta, kva_ptx_report *report) {
  add_counters(&report->counters, &cta->counters);
  add_executions(cta, report);
  for (uint32_t k = 0; k < cta->n_findings; k++)
    if (!add_finding(report, &cta->findings[k])) return KVA_NO_MEMORY;
  return KVA_OK;
}

static kva_status collect(grid_run *run, kva_ptx_report *report) {
  uint32_t n = run->launch.kernel->n_ins;
  report->lines = calloc(n, sizeof *report->lines);
  report->warp_executions = calloc(n, sizeof *report->warp_executions);
  if (!report->lines || !report->warp_executions) return KVA_NO_MEMORY;
  for (const context *c = run->idle; c; c = c->next)
    for (uint32_t k = 0; k < c->cluster.n; k++) KVA_TRY(collect_cta(&c->cluster.ctas[k], report));
  if (report->n_findings) qsort(report->findings, report->n_findings, sizeof *report->findings, by_line);
  return KVA_OK;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static kva_status launch_error(kva_diag *diag, const kva_ptx_kernel *k, const char *fmt, ...) KVA_PRINTF(3, 4);
static kva_status launch_error(kva_diag *diag, const kva_ptx_kernel *k, const char *fmt, ...) {
  char text[300];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return kva_error(diag, NULL, "launch of '%s': %s", k->info.name, text);
}

static kva_status check_block(kva_diag *diag, const kva_ptx_kernel *k, kva_ptx_dim3 b) {
  uint64_t n = (uint64_t)b.x * b.y * b.z;
  if (b.x == 0 || b.x > MAX_THREADS || b.y == 0 || b.y > MAX_THREADS || b.z == 0 || b.z > 64 || n > MAX_THREADS)
    return launch_error(diag, k, "%u x %u x %u threads in a CTA; 1 to %d are possible", b.x, b.y, b.z, MAX_THREADS);
  const uint32_t *most = k->info.max_threads, *required = k->info.required_threads;
  if (most[0] && n > (uint64_t)most[0] * most[1] * most[2])
    return launch_error(diag, k, "%llu threads in a CTA; .maxntid allows %llu", (unsigned long long)n,
                        (unsigned long long)most[0] * most[1] * most[2]);
  if (required[0] && (b.x != required[0] || b.y != required[1] || b.z != required[2]))
    return launch_error(diag, k, "%u x %u x %u threads in a CTA; .reqntid wants %u x %u x %u", b.x, b.y, b.z,
                        required[0], required[1], required[2]);
  return KVA_OK;
}

/* The cluster of a launch: its attribute or that of the kernel, which must be equal; or single CTAs. */
static kva_status set_cluster(ptx_launch *l, kva_diag *diag) {
  const kva_ptx_kernel *k = l->kernel;
  const uint32_t *own = k->info.cluster;
  kva_ptx_dim3 c = l->options.cluster, g = l->grid;
  if (c.x && own[0] && (c.x != own[0] || c.y != own[1] || c.z != own[2]))
    return launch_error(diag, k, "clusters of %u x %u x %u CTAs; .reqnctapercluster wants %u x %u x %u", c.x, c.y, c.z,
                        own[0], own[1], own[2]);
  if (!c.x) c = own[0] ? (kva_ptx_dim3){own[0], own[1], own[2]} : (kva_ptx_dim3){1, 1, 1};
  uint64_t n = (uint64_t)c.x * c.y * c.z;
  if (!n || n > MAX_CLUSTER || (k->info.max_cluster && n > k->info.max_cluster))
    return launch_error(diag, k, "a cluster of %u x %u x %u CTAs; 1 to %u are possible", c.x, c.y, c.z,
                        k->info.max_cluster ? k->info.max_cluster : MAX_CLUSTER);
  if (g.x % c.x || g.y % c.y || g.z % c.z)
    return launch_error(diag, k, "a grid of %u x %u x %u CTAs, in clusters of %u x %u x %u", g.x, g.y, g.z, c.x, c.y,
                        c.z);
  if (n * l->n_warps > (n > 1 ? PTX_MAX_WARPS : PTX_CTA_WARPS))
    return launch_error(diag, k, "%u warps in a cluster; the simulator runs %d", (uint32_t)n * l->n_warps,
                        PTX_MAX_WARPS);
  l->cluster = c;
  l->cluster_size = (uint32_t)n;
  return KVA_OK;
}

static kva_status check_launch(kva_diag *diag, const kva_ptx_kernel *k, kva_ptx_dim3 g, kva_ptx_dim3 b,
                               uint32_t dynamic, uint32_t n_params) {
  KVA_TRY(check_block(diag, k, b));
  if (g.x == 0 || g.x > INT32_MAX || g.y == 0 || g.y > 65535 || g.z == 0 || g.z > 65535)
    return launch_error(diag, k, "a grid of %u x %u x %u CTAs; 1 to 2147483647 x 65535 x 65535 are possible", g.x, g.y,
                        g.z);
  if ((uint64_t)k->shared_bytes + dynamic > MAX_SHARED)
    return launch_error(diag, k, "%u bytes of static and %u of dynamic shared memory; %d are possible", k->shared_bytes,
                        dynamic, MAX_SHARED);
  if (n_params == k->info.n_params) return KVA_OK;
  return launch_error(diag, k, "%u parameters; the kernel has %u", n_params, k->info.n_params);
}

static kva_status check_cooperation(const ptx_launch *l, kva_diag *diag) {
  const kva_ptx_kernel *k = l->kernel;
  uint64_t n = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
  if (k->polls && !l->options.cooperative)
    return launch_error(diag, k, "CTAs wait for each other through global memory: launch it cooperatively");
  if (!l->options.cooperative || n <= KVA_PTX_RESIDENT) return KVA_OK;
  return launch_error(diag, k, "a cooperative launch of %llu CTAs; %d run at once", (unsigned long long)n,
                      KVA_PTX_RESIDENT);
}

/* Initial registers of a thread: an equal share of the register file, in multiples of 8; see setmaxnreg. */
static uint32_t registers_of(const ptx_launch *launch) {
  uint32_t share = (64u << 10) / (launch->n_warps * PTX_LANES) & ~7u;
  return share > 255 ? 255 : share;
}

static uint32_t find_base(const kva_ptx_memory *m, uint64_t base) {
  uint32_t k = 0;
  while (m->ranges[k].base != base) k++;
  return k;
}

static kva_status fill_memory(ptx_launch *launch, const kva_ptx_memory *memory, kva_diag *diag) {
  const kva_ptx_module *m = launch->kernel->module;
  kva_status status = KVA_OK;
  for (uint32_t k = 0; status == KVA_OK && memory && k < memory->n; k++) {
    const ptx_range *r = &memory->ranges[k];
    status = kva_ptx_memory_add(&launch->memory, (void *)(uintptr_t)r->base, r->size, r->writable, r->name);
    if (status == KVA_OK && r->written) launch->memory.ranges[find_base(&launch->memory, r->base)].written = r->written;
  }
  for (uint32_t k = 0; status == KVA_OK && k < m->variables.len; k++) {
    const ptx_variable *v = &m->variables.data[k];
    status = kva_ptx_memory_add(&launch->memory, v->data, v->size, v->writable, v->name);
  }
  if (status == KVA_INVALID)
    return launch_error(diag, launch->kernel, "registered memory overlaps a variable of the module");
  return status;
}

/* The initial register file: poison, with constants in place. */
static bool make_image(ptx_launch *launch) {
  const kva_ptx_kernel *k = launch->kernel;
  launch->image = aligned_zeroed(k->reg_bytes);
  if (!launch->image) return false;
  memset(launch->image, 0xff, k->reg_bytes);
  for (uint32_t c = 0; c < k->constants.len; c++) {
    const ptx_constant *constant = &k->constants.data[c];
    uint32_t narrow = (uint32_t)constant->bits;
    for (size_t l = 0; l < PTX_LANES; l++)
      memcpy(launch->image + constant->slot + l * (constant->wide ? 8 : 4),
             constant->wide ? (const void *)&constant->bits : (const void *)&narrow, constant->wide ? 8 : 4);
  }
  return true;
}

static kva_status prepare(ptx_launch *launch, const kva_ptx_memory *memory, const void *const *params, kva_diag *diag) {
  const kva_ptx_kernel *k = launch->kernel;
  KVA_TRY(fill_memory(launch, memory, diag));
  launch->params = calloc(1, k->param_bytes + 16);
  if (!launch->params || !make_image(launch) || !kva_ptx_global_prepare(launch)) return KVA_NO_MEMORY;
  for (uint32_t p = 0; p < k->info.n_params; p++)
    memcpy(launch->params + k->info.params[p].offset, params[p], k->info.params[p].size);
  return KVA_OK;
}

static void clean(grid_run *run) {
  while (run->idle) {
    context *next = run->idle->next;
    destroy_context(run->idle);
    run->idle = next;
  }
  kva_ptx_global_clean(&run->launch);
  for (uint32_t k = 0; k < run->launch.memory.n; k++) free(run->launch.memory.ranges[k].name);
  free(run->launch.memory.ranges);
  free(run->launch.params);
  free(run->launch.image);
  pthread_mutex_destroy(&run->lock);
}

kva_status kva_ptx_launch(const kva_ptx_kernel *kernel, const kva_ptx_memory *memory, kva_ptx_dim3 grid,
                          kva_ptx_dim3 block, uint32_t dynamic_shared, const void *const *params, uint32_t n_params,
                          const kva_ptx_options *options, kva_diag *diag, kva_ptx_report *out_report) {
  *out_report = (kva_ptx_report){0};
  KVA_TRY(check_launch(diag, kernel, grid, block, dynamic_shared, n_params));
  grid_run run = {.launch = {.kernel = kernel, .grid = grid, .block = block, .dynamic_shared = dynamic_shared}};
  ptx_launch *launch = &run.launch;
  if (options) launch->options = *options;
  launch->budget = &run.budget;
  if (!launch->options.max_steps) launch->options.max_steps = 1u << 28;
  if (!launch->options.max_total) launch->options.max_total = UINT64_C(1) << 40;
  launch->n_threads = block.x * block.y * block.z;
  launch->n_warps = (launch->n_threads + PTX_LANES - 1) / PTX_LANES;
  launch->shared_bytes = kernel->shared_bytes + dynamic_shared;
  launch->registers = registers_of(launch);
  KVA_TRY(set_cluster(launch, diag));
  KVA_TRY(check_cooperation(launch, diag));
  pthread_mutex_init(&run.lock, NULL);
  double start = kva_now();
  kva_status status = prepare(launch, memory, params, diag);
  if (status == KVA_OK) {
    int64_t n = (int64_t)grid.x * grid.y * grid.z, clusters = n / launch->cluster_size;
    if (launch->options.cooperative)
      run_together(&run, clusters);
    else
      kva_pool_run(launch->options.check_global ? NULL : launch->options.pool, clusters, run_clusters, &run);
    status = run.status;
    out_report->ctas = (uint64_t)n;
    out_report->ctas_run = atomic_load(&run.budget.started);
  }
  if (status == KVA_OK) status = collect(&run, out_report);
  out_report->seconds = kva_now() - start;
  clean(&run);
  if (status == KVA_OK) return KVA_OK;
  kva_ptx_report_free(out_report);
  return status == KVA_NO_MEMORY ? kva_fail(diag, status, NULL, "launch of '%s': out of memory", kernel->info.name)
                                 : status;
}
