/* Checks the data-dependent parts of an artefact: internal programs match the steps that run them, nesting is limited,
 * and symbols are bound before they are used. Part of kva_artifact_check. */
#include "runtime/calls.h"
#include "runtime/formula.h"
#include "runtime/session.h"

#include <stdlib.h>

enum { MAX_NESTING = 16 };

typedef struct checker {
  const kva_artifact *a;
  const kva_program *p;
  kva_diag *diag;
} checker;

#define FAULT(c, ...) kva_error((c)->diag, NULL, "damaged artefact: " __VA_ARGS__)

/* ---- one step ---------------------------------------------------------------------------------------------------- */

/* One element; the buffer may belong to a reshape of another rank. */
static bool is_scalar(const checker *c, int32_t buffer, bool wants_bool) {
  const kva_buffer_desc *b = &c->p->buffers[buffer];
  if (b->dtype != (wants_bool ? KVA_BOOL : KVA_I64)) return false;
  return b->bytes.n == 1 && b->bytes.words->op == KVA_FORMULA_CONST && b->bytes.words->arg == (wants_bool ? 1 : 8);
}

static kva_status bad_argument(const checker *c, int32_t index) {
  return FAULT(c, "an argument of step %d of '%s' is of the wrong kind", index, c->p->name);
}

static bool is_symbol(const checker *c, int32_t symbol) {
  return symbol >= 0 && symbol < c->p->n_symbols;
}

static kva_status check_bind(const checker *c, int32_t index) {
  const kva_step_desc *s = &c->p->steps[index];
  const kva_bind_desc *b = s->desc;
  if (s->n_args != 1 || s->n_results || !is_scalar(c, s->args[0], false)) return bad_argument(c, index);
  if (!is_symbol(c, b->symbol) || (b->bound.n && !kva_formula_is_valid(&b->bound, c->p->n_symbols)))
    return FAULT(c, "step %d of '%s' binds symbol %d of %d", index, c->p->name, b->symbol, c->p->n_symbols);
  return KVA_OK;
}

/* The caller provides the memory of outputs. */
static bool outputs_are_own(const kva_program *p) {
  for (int32_t i = 0; i < p->n_outputs; i++) {
    if (p->buffers[p->outputs[i]].kind != KVA_BUFFER_OUTPUT) return false;
    for (int32_t k = 0; k < i; k++)
      if (p->outputs[k] == p->outputs[i]) return false;
  }
  return true;
}

/* The internal program that a step runs with `n` inputs and outputs; NULL with a message. */
static const kva_program *program_of(const checker *c, int32_t index, int32_t number, int32_t n_inputs,
                                     int32_t n_outputs) {
  const kva_program *p = number >= 0 && number < c->a->n_programs ? &c->a->programs[number] : NULL;
  if (p && p->is_internal && p->n_symbols == c->p->n_symbols && p->n_inputs == n_inputs && p->n_outputs == n_outputs &&
      outputs_are_own(p))
    return p;
  (void)FAULT(c, "step %d of '%s' runs program %d, which does not fit it", index, c->p->name, number);
  return NULL;
}

/* Whether buffers of the caller and of the program have equal element types. Their shapes may differ by a reshape. */
static bool all_agree(const checker *c, int32_t n, const int32_t *outer, const kva_program *p, const int32_t *inner) {
  for (int32_t i = 0; i < n; i++)
    if (c->p->buffers[outer[i]].dtype != p->buffers[inner[i]].dtype) return false;
  return true;
}

static bool binds_are_valid(const checker *c, const kva_branch_desc *b, const kva_program *p) {
  if (b->n_binds < 0 || b->n_binds % KVA_BRANCH_BIND || (b->n_binds && !b->binds)) return false;
  for (int32_t i = 0; i < b->n_binds; i += KVA_BRANCH_BIND) {
    int32_t output = b->binds[i + 1], dim = b->binds[i + 2];
    if (!is_symbol(c, b->binds[i]) || output < 0 || output >= p->n_outputs || dim < 0 ||
        dim >= p->buffers[p->outputs[output]].rank)
      return false;
  }
  return true;
}

static kva_status check_branch(const checker *c, int32_t index) {
  const kva_step_desc *s = &c->p->steps[index];
  const kva_branch_desc *b = s->desc;
  int32_t n = s->n_args - s->n_results - 1;
  if (n < 0 || !is_scalar(c, s->args[0], true)) return bad_argument(c, index);
  for (int k = 0; k < 2; k++) {
    const kva_program *p = program_of(c, index, k ? b->orelse : b->then, n, s->n_results);
    if (!p) return KVA_INVALID;
    if (!all_agree(c, n, s->args + 1, p, p->inputs) || !all_agree(c, s->n_results, s->args + 1 + n, p, p->outputs))
      return bad_argument(c, index);
    if (!binds_are_valid(c, b, p)) return FAULT(c, "step %d of '%s' binds what it has not", index, c->p->name);
  }
  return KVA_OK;
}

static kva_status check_loop(const checker *c, int32_t index) {
  const kva_step_desc *s = &c->p->steps[index];
  const kva_loop_desc *l = s->desc;
  int32_t first = (l->has_count != 0) + (l->has_cond != 0), n = s->n_args - s->n_results - first;
  if (n < l->n_carried || l->n_carried < 0 || l->n_carried > s->n_results) return bad_argument(c, index);
  if ((l->has_count && !is_scalar(c, s->args[0], false)) || (l->has_cond && !is_scalar(c, s->args[first - 1], true)))
    return bad_argument(c, index);
  const kva_program *p = program_of(c, index, l->body, 1 + n, 1 + s->n_results);
  if (!p) return KVA_INVALID;
  const kva_buffer_desc *i = &p->buffers[p->inputs[0]], *go_on = &p->buffers[p->outputs[0]];
  const int32_t *initial = s->args + first, *finals = s->args + s->n_args - s->n_results;
  if (i->dtype != KVA_I64 || i->rank || go_on->dtype != KVA_BOOL || go_on->rank ||
      !all_agree(c, n, initial, p, p->inputs + 1) || !all_agree(c, l->n_carried, finals, p, p->outputs + 1) ||
      !all_agree(c, s->n_results - l->n_carried, finals + l->n_carried, p, p->outputs + 1 + l->n_carried))
    return bad_argument(c, index);
  return l->symbol < 0 || is_symbol(c, l->symbol)
             ? KVA_OK
             : FAULT(c, "step %d of '%s' binds symbol %d of %d", index, c->p->name, l->symbol, c->p->n_symbols);
}

static kva_status check_step(const checker *c, int32_t index) {
  switch (c->p->steps[index].kind) {
  case KVA_STEP_BIND: return check_bind(c, index);
  case KVA_STEP_BRANCH: return check_branch(c, index);
  case KVA_STEP_LOOP: return check_loop(c, index);
  default: return KVA_OK;
  }
}

/* ---- nesting ----------------------------------------------------------------------------------------------------- */

static kva_status check_depth(const checker *c, const kva_program *p, int depth) {
  if (depth > MAX_NESTING) return FAULT(c, "programs run each other in a circle, or deeper than %d", MAX_NESTING);
  for (int32_t i = 0; i < p->n_steps; i++) {
    const kva_step_desc *s = &p->steps[i];
    const kva_branch_desc *b = s->kind == KVA_STEP_BRANCH ? s->desc : NULL;
    const kva_loop_desc *l = s->kind == KVA_STEP_LOOP ? s->desc : NULL;
    if (b) KVA_TRY(check_depth(c, &c->a->programs[b->then], depth + 1));
    if (b) KVA_TRY(check_depth(c, &c->a->programs[b->orelse], depth + 1));
    if (l) KVA_TRY(check_depth(c, &c->a->programs[l->body], depth + 1));
  }
  return KVA_OK;
}

/* ---- symbols ----------------------------------------------------------------------------------------------------- */

static kva_status too_early(const checker *c, int32_t index) {
  return FAULT(c, "step %d of '%s' uses a size before it is bound", index, c->p->name);
}

/* `segment`: that of the step; results of a step that binds symbols may depend on these. */
static kva_status check_order(const checker *c, int32_t index, int32_t segment, const int32_t *segments) {
  const kva_step_desc *s = &c->p->steps[index];
  bool binds = kva_step_binds(s, 0) >= 0;
  for (int32_t i = 0; i < s->n_args; i++) {
    bool late = binds && i >= s->n_args - s->n_results;
    if (kva_buffer_segment(&c->p->buffers[s->args[i]], segments) > segment + late) return too_early(c, index);
  }
  if (s->kind == KVA_STEP_KERNEL && kva_formula_segment(&s->grid, segments) > segment) return too_early(c, index);
  if (s->kind == KVA_STEP_BIND && kva_formula_segment(&((const kva_bind_desc *)s->desc)->bound, segments) > segment)
    return too_early(c, index);
  for (int32_t i = kva_step_size_count(s); i-- > 0;)
    if (kva_formula_segment(kva_step_size(s, i), segments) > segment) return too_early(c, index);
  return KVA_OK;
}

static kva_status check_segments(const checker *c, const int32_t *segments) {
  int32_t segment = 0;
  for (int32_t i = 0; i < c->p->n_inputs; i++)
    if (kva_buffer_segment(&c->p->buffers[c->p->inputs[i]], segments) > 0)
      return FAULT(c, "the size of input %d of '%s' is bound by a step", i, c->p->name);
  for (int32_t i = 0; i < c->p->n_steps; i++) {
    KVA_TRY(check_order(c, i, segment, segments));
    segment += kva_step_binds(&c->p->steps[i], 0) >= 0;
    for (int32_t k = 0, symbol; (symbol = kva_step_binds(&c->p->steps[i], k)) >= 0; k++)
      if (segments[symbol] != segment) return FAULT(c, "symbol %d of '%s' is bound twice", symbol, c->p->name);
  }
  return KVA_OK;
}

static kva_status check_symbols(const checker *c) {
  int32_t *segments = calloc((size_t)c->p->n_symbols + 1, sizeof *segments);
  if (!segments) return kva_fail(c->diag, KVA_NO_MEMORY, NULL, "no memory to check the artefact");
  (void)kva_symbol_segments(c->a, c->p, segments);
  kva_status status = check_segments(c, segments);
  free(segments);
  return status;
}

kva_status kva_artifact_check_control(const kva_artifact *a, kva_diag *diag) {
  checker c = {.a = a, .diag = diag};
  for (int32_t i = 0; i < a->n_programs; i++) {
    c.p = &a->programs[i];
    for (int32_t k = 0; k < c.p->n_steps; k++) KVA_TRY(check_step(&c, k));
  }
  for (int32_t i = 0; i < a->n_programs; i++) {
    c.p = &a->programs[i];
    KVA_TRY(check_depth(&c, c.p, 0));
    KVA_TRY(check_symbols(&c));
  }
  return KVA_OK;
}
