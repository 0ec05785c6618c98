/* wgmma: asynchronous products of a warpgroup, m64nNk16 of f16 or bf16 with f32 sums. Each of the four warps computes
 * its 16 rows, but the product is one operation: a warp's wait ends when all four have committed the group, and then
 * the whole product is complete. Eager mode computes at issue. Lazy mode computes at the first wait that covers the
 * group, from the registers and shared memory at that time.
 *
 * Shared memory layouts follow the PTX ISA (asynchronous warpgroup level matrix shared memory layout) and CUTLASS,
 * cute/atom/mma_traits_sm90_gmma.hpp. With a swizzle of S bytes, K-major: rows of S bytes, 8 per atom, atoms `stride`
 * apart. M- or N-major: rows of S bytes for each k, 8 per atom, atoms `stride` apart along k and `leading` apart along
 * m or n. Without swizzle: 8 x 16 byte atoms, `leading` apart along k and `stride` apart along m or n (K-major), the
 * same for M- or N-major. The swizzle permutes addresses, so a matrix may start within an atom.
 *
 * Registers: accumulators and A of a product in flight must not be touched. A wgmma.fence must separate ordinary writes
 * to them from the next product. */
#include "runtime/ptxsim/exec.h"

#include <stdlib.h>

enum { K = 16, ROWS = 16, MAX_N = 256, GROUP = 4 };

struct ptx_wgmma {
  const ptx_ins *i;
  uint64_t a, b; /* descriptors */
  uint32_t group, stamp;
  bool accumulate, done;
};

/* State of a register that a product in flight uses. */
enum { READ = 1, WRITTEN = 2 };

static uint32_t n_columns(const ptx_ins *i) {
  return i->n * 8u;
}
static uint32_t n_sums(const ptx_ins *i) {
  return i->n * 4u;
}
/* Bits of imm and operands that describe the instruction. */
static bool a_in_registers(const ptx_ins *i) {
  return i->src[0] == PTX_NONE;
}
static bool negated_a(const ptx_ins *i) {
  return i->imm & 1;
}
static bool negated_b(const ptx_ins *i) {
  return i->imm & 2;
}
static bool transposed_a(const ptx_ins *i) {
  return i->imm & 4;
}
static bool transposed_b(const ptx_ins *i) {
  return i->imm & 8;
}

/* ---- matrices in shared memory ----------------------------------------------------------------------------------- */

typedef struct layout {
  uint32_t start, leading, stride, span; /* bytes; span 0: no swizzle */
  bool transposed;                       /* M- or N-major */
} layout;

static layout layout_of(uint64_t descriptor, bool transposed) {
  static const uint32_t spans[] = {0, 128, 64, 32};
  return (layout){(uint32_t)(descriptor & 0x3fff) << 4, (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
                  (uint32_t)(descriptor >> 32 & 0x3fff) << 4, spans[descriptor >> 62], transposed};
}

/* The address of 8 consecutive elements: along k from (m, 8 k8), or along m or n from (8 m8, k). */
static uint32_t piece_address(const layout *t, uint32_t m, uint32_t k) {
  uint32_t at = t->start;
  if (!t->span)
    at += t->transposed ? m / 8 * t->stride + k % 8 * 16 + k / 8 * t->leading
                        : m / 8 * t->stride + k / 8 * t->leading + m % 8 * 16;
  else if (t->transposed)
    at += m / (t->span / 2) * t->leading + m % (t->span / 2) * 2 + k % 8 * t->span + k / 8 * t->stride;
  else
    at += m / 8 * t->stride + m % 8 * t->span + k * 2;
  return ptx_swizzle(at, t->span);
}

static bool piece_fits(ptx_warp *w, const ptx_ins *i, uint32_t address) {
  if (address + 16 <= w->cta->launch->shared_bytes) return true;
  kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_SHARED_BOUNDS, i, w, -1),
                 "%s: the matrix reaches address %u, of %u", i->text, address + 16, w->cta->launch->shared_bytes);
  return false;
}

static float to_float(const ptx_ins *i, uint32_t bits) {
  return i->type == PTX_BF16 ? load_bf16(bits) : load_f16(bits);
}

static void convert(const ptx_ins *i, const unsigned char *from, float out[8]) {
  uint16_t piece[8];
  memcpy(piece, from, sizeof piece);
  if (i->type == PTX_BF16)
    for (int e = 0; e < 8; e++) out[e] = load_bf16(piece[e]);
  else
    for (int e = 0; e < 8; e++) out[e] = load_f16(piece[e]);
}

/* Loads rows [first, first + n) of a matrix as [k][row - first]; n is a multiple of 8. */
static void load_matrix(ptx_warp *w, const ptx_ins *i, const layout *t, uint32_t first, uint32_t n, float *out) {
  for (uint32_t outer = 0; outer < (t->transposed ? K : n); outer++)
    for (uint32_t inner = 0; inner < (t->transposed ? n : K); inner += 8) {
      uint32_t row = t->transposed ? inner : outer, k = t->transposed ? outer : inner;
      uint32_t at = piece_address(t, first + row, k);
      float piece[8];
      if (!piece_fits(w, i, at)) return;
      convert(i, w->cta->shared + at, piece);
      if (t->transposed)
        memcpy(out + k * n + row, piece, sizeof piece);
      else
        for (uint32_t e = 0; e < 8; e++) out[(k + e) * n + row] = piece[e];
    }
}

static void check_matrix(ptx_warp *w, const ptx_ins *i, const layout *t, uint32_t first, uint32_t n, uint32_t stamp) {
  if (!w->cta->shadow) return;
  for (uint32_t outer = 0; outer < (t->transposed ? K : n); outer++)
    for (uint32_t inner = 0; inner < (t->transposed ? n : K); inner += 8) {
      uint32_t at = t->transposed ? piece_address(t, first + inner, outer) : piece_address(t, first + outer, inner);
      if (!piece_fits(w, i, at)) return;
      kva_ptx_race_async_read(w, i, -1, at, 16, stamp);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* A in registers has the layout of A of mma.m16n8k16. */
static void load_a_registers(const ptx_warp *w, const ptx_ins *i, float *out) {
  for (uint32_t r = 0; r < 4; r++) {
    const uint32_t *s = ptx_reg32(w, i->list[n_sums(i) + r]);
    for (uint32_t l = 0; l < PTX_LANES; l++) {
      uint32_t row = l / 4 + 8 * (r & 1), k = 2 * (l & 3) + 8 * (r >> 1);
      out[k * ROWS + row] = to_float(i, s[l] & 0xffffu);
      out[(k + 1) * ROWS + row] = to_float(i, s[l] >> 16);
    }
  }
}

/* Register j of lane l holds row l / 4 + 8 (j / 2 % 2), column 8 (j / 4) + 2 (l % 4) + j % 2. Registers j and j + 1 of
 * neighbouring lanes alternate in a row. */
static void read_sums(const ptx_warp *w, const ptx_ins *i, float *sums) {
  uint32_t n = n_columns(i);
  for (uint32_t j = 0; j < n_sums(i); j += 2) {
    const uint32_t *even = ptx_reg32(w, i->list[j]), *odd = ptx_reg32(w, i->list[j + 1]);
    float *first = sums + (j >> 1 & 1) * 8 * n + j / 4 * 8;
    for (uint32_t l = 0; l < PTX_LANES; l++) {
      first[l / 4 * n + 2 * (l & 3)] = ptx_f32(even[l]);
      first[l / 4 * n + 2 * (l & 3) + 1] = ptx_f32(odd[l]);
    }
  }
}
static void write_sums(const ptx_warp *w, const ptx_ins *i, const float *sums) {
  uint32_t n = n_columns(i);
  for (uint32_t j = 0; j < n_sums(i); j += 2) {
    uint32_t *even = ptx_reg32(w, i->list[j]), *odd = ptx_reg32(w, i->list[j + 1]);
    const float *first = sums + (j >> 1 & 1) * 8 * n + j / 4 * 8;
    for (uint32_t l = 0; l < PTX_LANES; l++) {
      even[l] = ptx_bits32(first[l / 4 * n + 2 * (l & 3)]);
      odd[l] = ptx_bits32(first[l / 4 * n + 2 * (l & 3) + 1]);
    }
  }
}

/* Tiles of four rows by eight sums stay in registers over all k. No contraction (-ffp-contract=off): the sums are equal
 * on every machine. */
typedef float sums8 __attribute__((vector_size(32), aligned(4)));

#ifdef __SANITIZE_THREAD__
#define CLONES /* their choice runs before the sanitizer does */
#else
#define CLONES __attribute__((target_clones("avx2", "default")))
#endif
CLONES static void multiply(const float *a, const float *b, uint32_t n, float sign, float *restrict sums) {
  for (uint32_t row = 0; row < ROWS; row += 4)
    for (uint32_t c = 0; c < n; c += 8) {
      sums8 *place[4], sum[4];
      for (uint32_t r = 0; r < 4; r++) place[r] = (sums8 *)(void *)(sums + (row + r) * n + c);
      for (uint32_t r = 0; r < 4; r++) sum[r] = *place[r];
      for (uint32_t k = 0; k < K; k++) {
        const sums8 line = *(const sums8 *)(const void *)(b + k * n + c);
        for (uint32_t r = 0; r < 4; r++) sum[r] += sign * a[k * ROWS + row + r] * line;
      }
      for (uint32_t r = 0; r < 4; r++) *place[r] = sum[r];
    }
}

static void perform(ptx_warp *w, const ptx_wgmma *p) {
  const ptx_ins *i = p->i;
  float a[K * ROWS], b[K * MAX_N] __attribute__((aligned(64))), sums[ROWS * MAX_N] __attribute__((aligned(64)));
  uint32_t n = n_columns(i);
  layout ta = layout_of(p->a, transposed_a(i)), tb = layout_of(p->b, transposed_b(i));
  memset(a, 0xff, sizeof a);
  memset(b, 0xff, sizeof b);
  if (a_in_registers(i))
    load_a_registers(w, i, a);
  else
    load_matrix(w, i, &ta, w->id % GROUP * ROWS, ROWS, a);
  load_matrix(w, i, &tb, 0, n, b);
  if (p->accumulate)
    read_sums(w, i, sums);
  else
    memset(sums, 0, sizeof *sums * ROWS * n);
  multiply(a, b, n, negated_a(i) != negated_b(i) ? -1.0f : 1.0f, sums);
  write_sums(w, i, sums);
}

/* ---- registers --------------------------------------------------------------------------------------------------- */

static void mark_registers(ptx_warp *w, const ptx_ins *i) {
  for (uint32_t j = 0; j < n_sums(i); j++) w->in_flight[i->list[j] / 128] |= WRITTEN;
  for (uint32_t j = 0; j < 4 && a_in_registers(i); j++) w->in_flight[i->list[n_sums(i) + j] / 128] |= READ;
}

static void touched(ptx_warp *w, const ptx_ins *i, const char *what) {
  const ptx_ins *since = w->products[0].i;
  kva_ptx_finding *f = kva_ptx_add_finding(w->cta, KVA_PTX_IN_FLIGHT, i, w, -1);
  if (f) f->other_line = since->line;
  kva_ptx_detail(f, "%s %s a register of the product issued at line %u or later, before wgmma.wait_group", i->text,
                 what, since->line);
}

void kva_ptx_wgmma_check(ptx_warp *w, const ptx_ins *i) {
  if (i->exec == kva_ptx_exec_wgmma) return;
  for (uint32_t k = 0; k < i->n_writes; k++) {
    w->written[i->writes[k] / 128] = w->steps;
    if (w->in_flight[i->writes[k] / 128]) touched(w, i, "writes");
  }
  if (!w->n_products) return;
  for (uint32_t k = 0; k < i->n_reads; k++)
    if (w->in_flight[i->reads[k] / 128] & WRITTEN) touched(w, i, "reads");
}

/* A fence must lie between ordinary writes of the registers and the product; accumulators of earlier products need
 * none. */
static void check_fence(ptx_warp *w, const ptx_ins *i) {
  uint32_t n = n_sums(i) + (a_in_registers(i) ? 4 : 0);
  bool missing = !w->wgmma_fenced;
  for (uint32_t j = 0; j < n; j++) missing |= w->written[i->list[j] / 128] > w->wgmma_fenced;
  if (missing)
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_MISSING_FENCE, i, w, -1),
                   "%s: its registers were written since the last wgmma.fence", i->text);
  for (uint32_t j = n_sums(i); j < n; j++)
    if (w->in_flight[i->list[j] / 128] & WRITTEN) touched(w, i, "reads");
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

/* Checks that whole warps of a whole warpgroup execute the instruction. */
bool kva_ptx_warpgroup(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  if (mask != PTX_ALL) {
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_INACTIVE_LANE, i, w, ptx_first(mask)),
                   "%s is run by lanes 0x%08x only", i->text, mask);
    return false;
  }
  if ((w->id | (GROUP - 1)) < w->cta->launch->n_warps) return true;
  kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_OPERAND, i, w, 0),
                 "%s needs warpgroups of %d warps; the last has %u", i->text, GROUP, w->cta->launch->n_warps % GROUP);
  return false;
}

static bool keep(ptx_warp *w, const ptx_wgmma *p) {
  if (w->n_products == w->cap_products) {
    uint32_t cap = w->cap_products ? 2 * w->cap_products : 16;
    ptx_wgmma *more = realloc(w->products, cap * sizeof *more);
    if (!more) return false;
    w->products = more;
    w->cap_products = cap;
  }
  w->products[w->n_products++] = *p;
  return true;
}

static bool uniform(ptx_warp *w, const ptx_ins *i, uint32_t slot) {
  const uint64_t *d = ptx_reg64(w, slot);
  for (int l = 1; l < PTX_LANES; l++)
    if (d[l] != d[0]) {
      kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_OPERAND, i, w, l), "%s: lanes have different descriptors",
                     i->text);
      return false;
    }
  if (!(d[0] >> 49 & 7)) return true;
  kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_OPERAND, i, w, 0), "%s: a base offset is not supported", i->text);
  return false;
}

/* The stamp of the group being issued; the warps of a warpgroup share its agent. */
static uint32_t group_stamp(ptx_warp *w) {
  uint32_t slot = w->product_group % PTX_N_AGENTS;
  uint32_t *group = &w->cta->product_agents[w->id / GROUP][slot].group;
  uint32_t *stamp = &w->cta->product_agents[w->id / GROUP][slot].stamp;
  if (*group != w->product_group + 1) *stamp = kva_ptx_agent_begin(w->cta->cluster);
  *group = w->product_group + 1;
  return *stamp;
}

void kva_ptx_exec_wgmma(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  if (!kva_ptx_warpgroup(w, i, mask) || !uniform(w, i, i->src[1]) || (!a_in_registers(i) && !uniform(w, i, i->src[0])))
    return;
  check_fence(w, i);
  ptx_wgmma p = {.i = i,
                 .a = a_in_registers(i) ? 0 : ptx_reg64(w, i->src[0])[0],
                 .b = ptx_reg64(w, i->src[1])[0],
                 .group = w->product_group,
                 .stamp = group_stamp(w),
                 .accumulate = ptx_pred(w, i->src[2]) & 1};
  layout ta = layout_of(p.a, transposed_a(i)), tb = layout_of(p.b, transposed_b(i));
  if (!a_in_registers(i)) check_matrix(w, i, &ta, w->id % GROUP * ROWS, ROWS, p.stamp);
  check_matrix(w, i, &tb, 0, n_columns(i), p.stamp);
  p.done = !w->cta->launch->options.lazy;
  if (p.done) perform(w, &p);
  if (!keep(w, &p)) return;
  mark_registers(w, i);
  w->cta->counters.matrix_flops += 2ull * ROWS * K * n_columns(i);
}

void kva_ptx_exec_wgmma_fence(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  if (kva_ptx_warpgroup(w, i, mask)) w->wgmma_fenced = w->steps;
}

void kva_ptx_exec_wgmma_commit(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  if (!kva_ptx_warpgroup(w, i, mask)) return;
  w->product_group++;
  w->cta->progress++;
}

/* The wait completes all groups below this number. */
static uint32_t wait_limit(const ptx_warp *w, const ptx_ins *i) {
  return (uint64_t)i->imm >= w->product_group ? 0 : w->product_group - (uint32_t)i->imm;
}

static void compute_group(ptx_warp *leader, uint32_t limit) {
  for (uint32_t k = 0; k < GROUP; k++)
    for (uint32_t p = 0; p < leader[k].n_products; p++) {
      ptx_wgmma *product = &leader[k].products[p];
      if (product->done || product->group >= limit) continue;
      perform(&leader[k], product);
      product->done = true;
    }
}

static void finish(ptx_warp *w, uint32_t limit) {
  uint32_t kept = 0;
  compute_group(w->cta->warps + w->id / GROUP * GROUP, limit);
  for (uint32_t k = 0; k < w->n_products; k++) {
    const ptx_wgmma p = w->products[k];
    if (p.group < limit)
      kva_ptx_agent_end(&w->before, p.stamp);
    else
      w->products[kept++] = p;
  }
  w->n_products = kept;
  memset(w->in_flight, 0, w->cta->launch->kernel->reg_bytes / 128 + 1);
  for (uint32_t k = 0; k < kept; k++) mark_registers(w, w->products[k].i);
}

static bool others_committed(const ptx_warp *w, uint32_t limit) {
  const ptx_warp *leader = w->cta->warps + w->id / GROUP * GROUP;
  for (uint32_t k = 0; k < GROUP; k++)
    if (leader[k].product_group < limit) return false;
  return true;
}

bool kva_ptx_wgmma_wait(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  if (!kva_ptx_warpgroup(w, i, mask)) return false;
  uint32_t limit = wait_limit(w, i);
  if (others_committed(w, limit)) {
    finish(w, limit);
    return false;
  }
  w->at = i;
  w->wait_mask = mask;
  w->wait = PTX_AT_WGMMA;
  return true;
}

bool kva_ptx_release_wgmma(ptx_cta *cta) {
  bool woke = false;
  for (uint32_t k = 0; k < cta->launch->n_warps; k++) {
    ptx_warp *w = &cta->warps[k];
    if (w->wait != PTX_AT_WGMMA || !others_committed(w, wait_limit(w, w->at))) continue;
    finish(w, wait_limit(w, w->at));
    w->wait = PTX_READY;
    woke = true;
  }
  return woke;
}

/* ---- exit -------------------------------------------------------------------------------------------------------- */

void kva_ptx_wgmma_check_exit(ptx_cta *cta) {
  for (uint32_t k = 0; k < cta->launch->n_warps; k++) {
    ptx_warp *w = &cta->warps[k];
    if (w->n_products)
      kva_ptx_detail(kva_ptx_add_finding(cta, KVA_PTX_IN_FLIGHT, w->products[0].i, w, -1),
                     "%s is not waited for before the warp ends", w->products[0].i->text);
  }
}
