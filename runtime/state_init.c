/* Initial values of states.
 *
 * Every state has its own Philox key, a hash of the session's seed and the state's name. Counter i gives four words,
 * for elements 4i to 4i+3. So a value depends on (seed, name, element) alone, not on the order of states or on threads.
 * Per element, with u = kva_uniform01(word), computed in double and rounded once to the state's type:
 *
 *   uniform  a + (b - a) u
 *   normal   Box-Muller on words (0, 1) and (2, 3): a sqrt(-2 ln u0) cos(2 pi u1), a sqrt(-2 ln u0) sin(2 pi u1)
 *
 * Of a state that processes divide each draws what it has: with slices by an element's place in the whole state. What
 * a part has beyond the end stays zero.
 * Groups of four also prevent two threads from writing one byte of packed 4- and 2-bit types. */
#include "runtime/comm.h"
#include "runtime/session.h"

#include <math.h>

enum { GROUP = 4, GROUPS_PER_ITEM = 1024 };

typedef struct filler {
  const kva_state_desc *desc;
  kva_dtype dtype;
  void *data;
  int64_t elements;
  kva_state_share share; /* what element 0 is */
  uint64_t key;
  const kva_tensor *source; /* ONE_MINUS, COPY */
} filler;

static void store(kva_dtype t, void *data, int64_t i, double v) {
  if (kva_dtype_is_float(t))
    kva_store_f64(t, data, i, v);
  else
    kva_store_i64(t, data, i, kva_load_i64(KVA_F64, &v, 0)); /* clamps */
}

static double load(const kva_tensor *t, int64_t i) {
  return kva_dtype_is_float(t->dtype) ? kva_load_f64(t->dtype, t->data, i) : (double)kva_load_i64(t->dtype, t->data, i);
}

static void draw_normal(const filler *f, int64_t group, double *v) {
  kva_philox r = kva_philox4x32((uint64_t)group, 0, f->key);
  for (int i = 0; i < GROUP; i += 2) {
    double radius = f->desc->init_a * sqrt(-2 * log(kva_uniform01(r.v[i])));
    double angle = 2 * M_PI * kva_uniform01(r.v[i + 1]);
    v[i] = radius * cos(angle);
    v[i + 1] = radius * sin(angle);
  }
}

static void draw_uniform(const filler *f, int64_t group, double *v) {
  kva_philox r = kva_philox4x32((uint64_t)group, 0, f->key);
  for (int i = 0; i < GROUP; i++) v[i] = f->desc->init_a + (f->desc->init_b - f->desc->init_a) * kva_uniform01(r.v[i]);
}

static bool is_drawn(const filler *f) {
  return f->desc->init == KVA_STATE_INIT_NORMAL || f->desc->init == KVA_STATE_INIT_UNIFORM;
}

/* The four values of a group of the whole state. */
static void draw(const filler *f, int64_t group, double *v) {
  if (f->desc->init == KVA_STATE_INIT_NORMAL)
    draw_normal(f, group, v);
  else
    draw_uniform(f, group, v);
}

/* Elements [begin, begin + n) of this process, up to four. Without slices they are one group of the whole. */
static void draw_own(const filler *f, int64_t begin, int64_t n, double *v) {
  double drawn[GROUP];
  int64_t group = -1, run;
  for (int64_t i = 0; i < n; i++) {
    int64_t at = kva_state_place(f->desc, f->share.slice, f->share.first + begin + i, &run);
    if (at / GROUP != group) draw(f, group = at / GROUP, drawn);
    v[i] = drawn[at % GROUP];
  }
}

static double made_of_source(const filler *f, int64_t i) {
  double x = load(f->source, i);
  return f->desc->init == KVA_STATE_INIT_COPY ? x : 1 - x;
}

static void fill_group(const filler *f, int64_t group) {
  double v[GROUP];
  int64_t begin = group * GROUP, n = f->elements - begin < GROUP ? f->elements - begin : GROUP;
  if (is_drawn(f))
    draw_own(f, begin, n, v);
  else
    for (int i = 0; i < n; i++) v[i] = f->source ? made_of_source(f, begin + i) : f->desc->init_a;
  for (int i = 0; i < n; i++) store(f->dtype, f->data, begin + i, v[i]);
}

/* Constant values: full groups are copies of the first. */
static void fill_constant(const filler *f, int64_t first, int64_t last) {
  int64_t group_bytes = (int64_t)kva_dtype_bits(f->dtype) * GROUP / 8, full = f->elements / GROUP;
  char *data = (char *)f->data + first * group_bytes;
  fill_group(f, first);
  int64_t bytes = ((last < full ? last : full) - first) * group_bytes;
  for (int64_t done = group_bytes; done < bytes; done *= 2)
    memcpy(data + done, data, (size_t)(done < bytes - done ? done : bytes - done));
  if (last > full) fill_group(f, full);
}

static void fill_items(void *ctx, int64_t begin, int64_t end) {
  const filler *f = ctx;
  int64_t groups = (f->elements + GROUP - 1) / GROUP, last = end * GROUPS_PER_ITEM;
  if (last > groups) last = groups;
  if (f->desc->init == KVA_STATE_INIT_CONSTANT) {
    fill_constant(f, begin * GROUPS_PER_ITEM, last);
    return;
  }
  for (int64_t g = begin * GROUPS_PER_ITEM; g < last; g++) fill_group(f, g);
}

static void copy_data(const kva_state_desc *d, const kva_state_share *share, char *own) {
  int64_t width = kva_dtype_bits((kva_dtype)d->dtype) / 8, run;
  for (int64_t i = 0; i < share->n; i += run) {
    const char *from = (const char *)d->data + kva_state_place(d, share->slice, share->first + i, &run) * width;
    if (run > share->n - i) run = share->n - i;
    memcpy(own + i * width, from, (size_t)(run * width));
  }
}

/* Zero needs no work: a session's memory comes zeroed from the operating system. */
static void initialise(kva_session *s, int32_t index) {
  const kva_state_desc *d = &s->artifact->states[index];
  bool zero = d->role == KVA_ROLE_MOMENT || (d->init == KVA_STATE_INIT_CONSTANT && d->init_a == 0);
  if (zero || d->bytes == 0 || !kva_session_holds(s, index)) return;
  kva_state_share share = kva_state_share_of(d, s->options.comm, kva_comm_rank(s->options.comm));
  if (d->init == KVA_STATE_INIT_DATA && kva_state_is_divided(d)) {
    copy_data(d, &share, s->states[index].data);
    return;
  }
  if (d->init == KVA_STATE_INIT_DATA) {
    if (s->states[index].data != d->data) memcpy(s->states[index].data, d->data, (size_t)d->bytes);
    return;
  }
  if (!share.n) return;
  filler f = {.desc = d,
              .dtype = (kva_dtype)d->dtype,
              .data = s->states[index].data,
              .elements = share.n,
              .share = share,
              .key = kva_hash(kva_hash(0, &s->options.seed, sizeof s->options.seed), d->name, strlen(d->name)),
              .source = kva_state_has_source(d) ? &s->states[d->of] : NULL};
  kva_pool_run(s->pool, (f.elements + GROUP * GROUPS_PER_ITEM - 1) / (GROUP * GROUPS_PER_ITEM), fill_items, &f);
}

/* Length of the chain of states made of states that starts at `index`; kva_artifact_check proves that it ends. */
static int32_t chain_length(const kva_artifact *a, int32_t index) {
  int32_t n = 0;
  for (; kva_state_has_source(&a->states[index]); n++) index = a->states[index].of;
  return n;
}

void kva_initialise_states(kva_session *s) {
  const kva_artifact *a = s->artifact;
  int32_t longest = 0;
  for (int32_t length = 0; length <= longest; length++)
    for (int32_t i = 0; i < a->n_states; i++) {
      int32_t own = chain_length(a, i);
      if (own > longest) longest = own;
      if (own == length) initialise(s, i);
    }
}

void kva_refresh_copies(kva_session *s) {
  for (int32_t i = 0; s->states_lent && i < s->artifact->n_states; i++)
    if (s->artifact->states[i].init == KVA_STATE_INIT_COPY) initialise(s, i);
  s->states_lent = false;
}
