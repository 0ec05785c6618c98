/* Plans programs in segments.
 *
 * A step (BIND, BRANCH or LOOP) may assign a symbol, so that sizes depend on data. Such a step ends a segment: sizes,
 * grids and memory that need the symbol are planned after the step. Everything else is planned at the start of the run,
 * in segment 0, the only segment of most programs. A segment is planned again only if symbols have changed, and its
 * memory only grows. If a symbol has a bound, the memory that the bound needs is reserved before the first run. */
#include "runtime/calls.h"
#include "runtime/formula.h"
#include "runtime/session.h"

/* Below SERIAL_BYTES of arguments a step does not repay waking threads (a few microseconds). */
enum { SERIAL_BYTES = 32 << 10 };

/* ---- assignment to segments -------------------------------------------------------------------------------------- */

int32_t kva_step_binds(const kva_step_desc *step, int32_t index) {
  switch (step->kind) {
  case KVA_STEP_BIND: return index ? -1 : ((const kva_bind_desc *)step->desc)->symbol;
  case KVA_STEP_LOOP: return index ? -1 : ((const kva_loop_desc *)step->desc)->symbol;
  case KVA_STEP_BRANCH: {
    const kva_branch_desc *b = step->desc;
    return index * KVA_BRANCH_BIND < b->n_binds ? b->binds[index * KVA_BRANCH_BIND] : -1;
  }
  default: return -1;
  }
}

/* Symbols bound by another program's steps, or by its inputs (is_input_elsewhere), are unknown here and skipped. */
static bool is_bound_elsewhere(const kva_artifact *a, const char *name) {
  for (int32_t i = 0; i < a->n_programs; i++) {
    const kva_program *p = &a->programs[i];
    for (int32_t k = 0; k < p->n_steps; k++)
      for (int32_t j = 0, symbol; (symbol = kva_step_binds(&p->steps[k], j)) >= 0; j++)
        if (!strcmp(p->symbols[symbol], name)) return true;
  }
  return false;
}

static bool formula_uses(const kva_formula *f, int32_t symbol) {
  for (int64_t i = 0; i < f->n; i++)
    if (f->words[i].op == KVA_FORMULA_SYMBOL && f->words[i].arg == symbol) return true;
  return false;
}

static bool program_uses(const kva_program *p, int32_t symbol) {
  for (int32_t i = 0; i < p->n_buffers; i++) {
    for (int32_t d = 0; d < p->buffers[i].rank; d++)
      if (formula_uses(&p->buffers[i].dims[d], symbol)) return true;
  }
  for (int32_t i = 0; i < p->n_steps; i++)
    if (formula_uses(&p->steps[i].grid, symbol)) return true;
  return false;
}

static bool inputs_use(const kva_program *p, int32_t symbol) {
  for (int32_t k = 0; k < p->n_inputs; k++)
    for (int32_t d = 0; d < p->buffers[p->inputs[k]].rank; d++)
      if (formula_uses(&p->buffers[p->inputs[k]].dims[d], symbol)) return true;
  return false;
}

/* Inputs of another program determine it, and neither p nor a program that steps run has a size with it. */
static bool is_input_elsewhere(const kva_artifact *a, const kva_program *p, int32_t symbol) {
  bool found = false;
  if (program_uses(p, symbol)) return false;
  for (int32_t i = 0; i < a->n_programs; i++) {
    const kva_program *q = &a->programs[i];
    if (q->is_internal && program_uses(q, symbol)) return false;
    found |= inputs_use(q, symbol);
  }
  return found;
}

/* A symbol of p's own inputs has a value, whatever steps of other programs bind a symbol of its name to. */
static bool is_foreign(const kva_artifact *a, const kva_program *p, int32_t symbol) {
  if (inputs_use(p, symbol)) return false;
  return is_bound_elsewhere(a, p->symbols[symbol]) || is_input_elsewhere(a, p, symbol);
}

int32_t kva_symbol_segments(const kva_artifact *a, const kva_program *p, int32_t *out_segments) {
  int32_t segment = 0;
  for (int32_t i = 0; i < p->n_symbols; i++)
    out_segments[i] = !p->is_internal && is_foreign(a, p, i) ? KVA_NO_SEGMENT : 0;
  for (int32_t k = 0; k < p->n_steps; k++) {
    if (kva_step_binds(&p->steps[k], 0) < 0) continue;
    segment++;
    for (int32_t j = 0, symbol; (symbol = kva_step_binds(&p->steps[k], j)) >= 0; j++) out_segments[symbol] = segment;
  }
  return segment + 1;
}

int32_t kva_formula_segment(const kva_formula *f, const int32_t *symbol_segments) {
  int32_t last = 0;
  for (int64_t i = 0; i < f->n; i++) {
    if (f->words[i].op != KVA_FORMULA_SYMBOL) continue;
    int32_t segment = symbol_segments[f->words[i].arg];
    if (segment > last) last = segment;
  }
  return last;
}

int32_t kva_buffer_segment(const kva_buffer_desc *b, const int32_t *symbol_segments) {
  int32_t last = kva_formula_segment(&b->bytes, symbol_segments);
  for (int32_t d = 0; d < b->rank; d++) {
    int32_t segment = kva_formula_segment(&b->dims[d], symbol_segments);
    if (segment > last) last = segment;
  }
  return last;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

kva_status kva_bad_size(kva_session *s, const kva_program *p, const char *what, int32_t index, const char *name) {
  return kva_session_fail(s, KVA_INVALID, "%s: the size of %s %d (%s) is negative or overflows for these shapes",
                          p->name, what, index, name ? name : "unnamed");
}

static bool eval_size(const kva_formula *f, const int64_t *symbols, int64_t *out) {
  return kva_formula_eval(f, symbols, out) && *out >= 0;
}

bool kva_eval_dims(const kva_buffer_desc *b, const int64_t *symbols, kva_tensor *t) {
  t->dtype = (kva_dtype)b->dtype;
  t->rank = b->rank;
  for (int32_t d = 0; d < b->rank; d++)
    if (!eval_size(&b->dims[d], symbols, &t->dims[d])) return false;
  return true;
}

/* The sizes of buffers that a caller sees must match their dims. */
static kva_status size_buffers(kva_session *s, kva_program_state *sp, int32_t segment, const int64_t *symbols) {
  for (int32_t i = 0; i < sp->desc->n_buffers; i++) {
    const kva_buffer_desc *b = &sp->desc->buffers[i];
    if (sp->buffer_segments[i] != segment) continue;
    if (!eval_size(&b->bytes, symbols, &sp->bytes[i])) return kva_bad_size(s, sp->desc, "buffer", i, b->name);
    if (b->kind != KVA_BUFFER_INPUT && b->kind != KVA_BUFFER_OUTPUT) continue;
    kva_tensor t;
    if (!kva_eval_dims(b, symbols, &t) || kva_tensor_bytes(&t) != sp->bytes[i])
      return kva_bad_size(s, sp->desc, "buffer", i, b->name);
  }
  return KVA_OK;
}

/* ---- conditions -------------------------------------------------------------------------------------------------- */

static kva_status unmet(kva_session *s, const kva_program *p, const kva_condition *c, const int64_t *symbols) {
  int64_t left = -1, right = -1;
  kva_text text = {0};
  kva_formula_print(&c->left, p->symbols, &text);
  if (kva_formula_eval(&c->left, symbols, &left)) kva_text_add(&text, " = %lld", (long long)left);
  kva_text_add(&text, " here, but must be ");
  kva_formula_print(&c->right, p->symbols, &text);
  if (kva_formula_eval(&c->right, symbols, &right)) kva_text_add(&text, " = %lld", (long long)right);
  kva_status status = kva_session_fail(s, KVA_INVALID, "%s: %s is %s; the model does not fit these shapes", p->name,
                                       c->what, kva_text_string(&text));
  kva_text_free(&text);
  return status;
}

/* What was compiled in as equal is equal. */
static kva_status check_conditions(kva_session *s, const kva_program_state *sp, int32_t segment) {
  const kva_program *p = sp->desc;
  for (int32_t i = 0; i < p->n_conditions; i++) {
    const kva_condition *c = &p->conditions[i];
    int32_t left = kva_formula_segment(&c->left, sp->symbol_segments);
    int32_t right = kva_formula_segment(&c->right, sp->symbol_segments);
    int64_t a, b;
    if ((left > right ? left : right) != segment) continue;
    if (!kva_formula_eval(&c->left, sp->symbols, &a) || !kva_formula_eval(&c->right, sp->symbols, &b) || a != b)
      return unmet(s, p, c, sp->symbols);
  }
  return KVA_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Whether buffer i is in its segment's arena. Outputs of later segments stay there until the next run. */
static bool is_in_arena(const kva_program_state *sp, int32_t i) {
  int32_t kind = sp->desc->buffers[i].kind;
  return kind == KVA_BUFFER_TEMP || (kind == KVA_BUFFER_OUTPUT && sp->buffer_segments[i] > 0);
}

static kva_status place_arena(kva_session *s, kva_program_state *sp, int32_t segment) {
  const kva_program *p = sp->desc;
  int32_t n = 0;
  for (int32_t i = 0; i < p->n_buffers; i++) {
    const kva_buffer_desc *b = &p->buffers[i];
    if (sp->buffer_segments[i] != segment || !is_in_arena(sp, i)) continue;
    sp->lifetimes[n++] = b->kind == KVA_BUFFER_TEMP
                             ? (kva_lifetime){.bytes = sp->bytes[i], .first = b->first_step, .last = b->last_step}
                             : (kva_lifetime){.bytes = sp->bytes[i], .first = 0, .last = p->n_steps};
  }
  if (kva_plan_memory(n, sp->lifetimes, sp->order, &sp->segments[segment].bytes))
    return kva_session_fail(s, KVA_NO_MEMORY, "%s: temporaries need more memory than can be addressed", p->name);
  n = 0;
  for (int32_t i = 0; i < p->n_buffers; i++)
    if (sp->buffer_segments[i] == segment && is_in_arena(sp, i)) sp->offsets[i] = sp->lifetimes[n++].offset;
  return KVA_OK;
}

/* Places the buffers of one kind one after the other; only those of segment 0. */
static kva_status place_kind(kva_session *s, kva_program_state *sp, int32_t kind, int64_t *end) {
  for (int32_t i = 0; i < sp->desc->n_buffers; i++) {
    if (sp->desc->buffers[i].kind != kind || sp->buffer_segments[i] || sp->resident[i]) continue;
    int64_t size;
    sp->offsets[i] = *end;
    if (!kva_align_size(sp->bytes[i], &size) || !kva_add_size(*end, size, end))
      return kva_session_fail(s, KVA_NO_MEMORY, "%s: outputs need more memory than can be addressed", sp->desc->name);
  }
  return KVA_OK;
}

/* Places outputs; on a device with its own memory also constants, in a separate block, and inputs, except for those of
 * internal programs, which are buffers of their callers. */
static kva_status place_outputs(kva_session *s, kva_program_state *sp) {
  sp->output_bytes = sp->constant_bytes = 0;
  KVA_TRY(place_kind(s, sp, KVA_BUFFER_OUTPUT, &sp->output_bytes));
  if (s->device->class->host_memory) return KVA_OK;
  KVA_TRY(place_kind(s, sp, KVA_BUFFER_CONST, &sp->constant_bytes));
  return sp->desc->is_internal ? KVA_OK : place_kind(s, sp, KVA_BUFFER_INPUT, &sp->output_bytes);
}

kva_status kva_session_grow(kva_session *s, const kva_program *p, const char *what, kva_block *block, int64_t bytes) {
  if (block->bytes >= bytes) return KVA_OK;
  s->device->class->free(s->device, block);
  if (!s->device->class->allocate(s->device, bytes, block)) return KVA_OK;
  return kva_session_fail(s, KVA_NO_MEMORY, "%s: no memory for %.1f MiB of %s", p->name, (double)bytes / (1 << 20),
                          what);
}

/* Segment 0 of a program that callers run uses the arena shared by all such programs; an arena given by the caller is
 * used as it is, or the run fails. Other segments are live at the same time, so they have their own memory. */
static kva_status grow_arena(kva_session *s, kva_program_state *sp, int32_t segment, kva_block **out_block) {
  int64_t bytes = sp->segments[segment].bytes;
  bool shared = segment == 0 && !sp->desc->is_internal;
  *out_block = shared ? &s->temps : &sp->segments[segment].block;
  if (!shared || !s->options.arena || !s->device->class->host_memory)
    return kva_session_grow(s, sp->desc, "temporaries", *out_block, bytes);
  s->temps = (kva_block){.data = s->options.arena, .bytes = s->options.arena_bytes};
  if (bytes <= s->options.arena_bytes) return KVA_OK;
  return kva_session_fail(s, KVA_NO_MEMORY, "%s: the arena has %lld bytes, these shapes need %lld", sp->desc->name,
                          (long long)s->options.arena_bytes, (long long)bytes);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static kva_status plan_sizes(kva_session *s, kva_program_state *sp, int32_t index) {
  const kva_step_desc *step = &sp->desc->steps[index];
  int32_t n = kva_step_size_count(step);
  int64_t *sizes = &sp->sizes[sp->sizes_at[index]];
  for (int32_t i = 0; i < n; i++)
    if (!eval_size(kva_step_size(step, i), sp->symbols, &sizes[i]))
      return kva_bad_size(s, sp->desc, "step", index, step->origin);
  const kva_call_class *call = kva_call_class_of(step);
  if (!call->fits || call->fits(sp->desc, step, sizes, sp->bytes)) return KVA_OK;
  return kva_session_fail(s, KVA_INVALID, "%s: step %d works beyond its buffers", sp->desc->name, index);
}

static kva_status plan_kernel(kva_session *s, kva_program_state *sp, int32_t index) {
  const kva_step_desc *step = &sp->desc->steps[index];
  int64_t work = 0;
  for (int32_t i = 0; i < step->n_args; i++)
    if (!kva_add_size(work, sp->bytes[step->args[i]], &work)) work = INT64_MAX;
  sp->serial[index] = work < SERIAL_BYTES;
  return eval_size(&step->grid, sp->symbols, &sp->grids[index])
             ? KVA_OK
             : kva_bad_size(s, sp->desc, "step", index, step->origin);
}

static kva_status plan_copy(kva_session *s, kva_program_state *sp, int32_t index) {
  const kva_step_desc *step = &sp->desc->steps[index];
  int64_t to = sp->bytes[step->args[0]], from = sp->bytes[step->args[1]];
  if (to == from) return KVA_OK;
  return kva_session_fail(s, KVA_INVALID, "%s: step %d copies %lld bytes to a buffer of %lld", sp->desc->name, index,
                          (long long)from, (long long)to);
}

static kva_status plan_step(kva_session *s, kva_program_state *sp, int32_t index) {
  switch (sp->desc->steps[index].kind) {
  case KVA_STEP_KERNEL: return plan_kernel(s, sp, index);
  case KVA_STEP_COPY: return plan_copy(s, sp, index);
  case KVA_STEP_CALL: return plan_sizes(s, sp, index);
  default: return KVA_OK;
  }
}

static kva_status plan_steps(kva_session *s, kva_program_state *sp, int32_t segment) {
  bool last = segment + 1 == sp->n_segments;
  int32_t end = last ? sp->desc->n_steps : sp->segments[segment + 1].first_step;
  for (int32_t i = sp->segments[segment].first_step; i < end; i++) KVA_TRY(plan_step(s, sp, i));
  return KVA_OK;
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

/* Sets symbols of later segments to their bounds in sp->candidate; *out_last: the last segment for which all are
 * known. */
static void bound_symbols(kva_program_state *sp, int32_t *out_last) {
  const kva_program *p = sp->desc;
  *out_last = 0;
  memcpy(sp->candidate, sp->symbols, (size_t)p->n_symbols * sizeof *sp->symbols);
  for (int32_t i = 0; i < p->n_steps; i++) {
    int32_t symbol = kva_step_binds(&p->steps[i], 0);
    if (symbol < 0) continue;
    const kva_bind_desc *b = p->steps[i].kind == KVA_STEP_BIND ? p->steps[i].desc : NULL;
    if (!b || !b->bound.n || !eval_size(&b->bound, sp->candidate, &sp->candidate[symbol])) return;
    ++*out_last;
  }
}

/* Grows the arenas of later segments to what the bounds of their symbols need. Only a hint: a bound may exceed the
 * memory although the actual sizes do not. */
static void reserve(kva_session *s, kva_program_state *sp) {
  int32_t last;
  kva_block *block;
  bound_symbols(sp, &last);
  for (int32_t k = 1; k <= last; k++)
    if (size_buffers(s, sp, k, sp->candidate) || place_arena(s, sp, k) || grow_arena(s, sp, k, &block)) break;
  s->error[0] = 0;
}

static kva_status plan_segment(kva_session *s, kva_program_state *sp, int32_t segment) {
  kva_segment *g = &sp->segments[segment];
  g->planned = false;
  KVA_TRY(check_conditions(s, sp, segment));
  KVA_TRY(size_buffers(s, sp, segment, sp->symbols));
  KVA_TRY(place_arena(s, sp, segment));
  if (segment == 0) {
    KVA_TRY(place_outputs(s, sp));
    if (!s->device->class->host_memory) KVA_TRY(kva_transfer_plan(s, sp));
    if (sp->n_segments > 1) reserve(s, sp);
  }
  KVA_TRY(plan_steps(s, sp, segment));
  if (sp->desc->n_symbols) memcpy(g->symbols, sp->symbols, (size_t)sp->desc->n_symbols * sizeof *sp->symbols);
  g->planned = true;
  return KVA_OK;
}

kva_status kva_segment_enter(kva_session *s, kva_program_state *sp, int32_t segment) {
  kva_segment *g = &sp->segments[segment];
  bool same =
      !sp->desc->n_symbols || !memcmp(g->symbols, sp->symbols, (size_t)sp->desc->n_symbols * sizeof *g->symbols);
  if (!g->planned || !same) KVA_TRY(plan_segment(s, sp, segment));
  kva_block *block;
  KVA_TRY(grow_arena(s, sp, segment, &block));
  for (int32_t i = 0; i < sp->desc->n_buffers; i++) {
    if (sp->buffer_segments[i] != segment || !is_in_arena(sp, i)) continue;
    bool given = sp->desc->buffers[i].kind == KVA_BUFFER_OUTPUT && sp->pointers[i];
    if (!given) sp->pointers[i] = kva_block_at(block, sp->offsets[i]);
  }
  sp->segment = segment;
  return KVA_OK;
}
