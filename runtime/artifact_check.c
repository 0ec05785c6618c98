/* Validates an artefact once, so that execution need not check again. An artefact is machine code and therefore
 * trusted: the check detects truncated files, other versions and compiler errors, not attacks. */
#include "runtime/calls.h"
#include "runtime/formula.h"
#include "runtime/session.h"

enum { MAX_ALTERNATIVES = 64 };

typedef struct checker {
  const kva_artifact *a;
  kva_diag *diag;
  const kva_program *p;
} checker;

#define FAULT(c, ...) kva_error((c)->diag, NULL, "damaged artefact: " __VA_ARGS__)

static bool is_dtype(int32_t t) {
  return t > KVA_DTYPE_NONE && t < KVA_DTYPE_COUNT;
}

/* Number of elements; -1 for a negative extent or overflow. */
static int64_t count_elements(int32_t rank, const int64_t *dims) {
  int64_t n = 1;
  for (int32_t i = 0; i < rank; i++)
    if (!kva_mul_size(n, dims[i], &n)) return -1;
  return n;
}

/* Elements of the slice of a divided state that a group of processes has; -1: there is no such slice. */
static int64_t slice_elements(const kva_state_desc *s) {
  bool fine = s->whole_rank >= 0 && s->whole_rank <= KVA_ABI_MAX_RANK && kva_dtype_bits((kva_dtype)s->dtype) >= 8;
  int64_t n = fine ? count_elements(s->whole_rank, s->whole) : -1;
  if (n < 0 || n > INT64_MAX / 64 || !s->slices) return n;
  bool cut = s->slices > 0 && s->split_axis >= 0 && s->split_axis < s->whole_rank;
  return cut && s->whole[s->split_axis] % s->slices == 0 ? n / s->slices : -1;
}

static bool is_slice(const kva_state_desc *s) {
  bool same = s->rank == s->whole_rank;
  for (int32_t i = 0; same && i < s->rank; i++) same = s->dims[i] * (i == s->split_axis ? s->slices : 1) == s->whole[i];
  return same;
}

/* A part is a vector of as many elements as the parts of the whole, or of a slice of it, have. */
static kva_status check_division(const checker *c, const kva_state_desc *s) {
  int64_t n = slice_elements(s);
  bool fine = n >= 0 && n <= INT64_MAX / 64 && s->parts >= 0;
  if (fine && s->parts) fine = s->rank == 1 && kva_part_elements(n, s->parts) == s->dims[0];
  if (fine && !s->parts) fine = is_slice(s);
  if (fine) return KVA_OK;
  return FAULT(c, "state '%s' is no part of %d of its shape, in %d slices", s->name, s->parts, s->slices);
}

static kva_status check_source(const checker *c, int32_t index) {
  const kva_state_desc *s = &c->a->states[index];
  if (s->of < 0 || s->of >= c->a->n_states)
    return FAULT(c, "state '%s' is initialised from state %d of %d", s->name, s->of, c->a->n_states);
  const kva_state_desc *source = &c->a->states[s->of];
  if (!is_dtype(source->dtype) || source->rank < 0 || source->rank > KVA_ABI_MAX_RANK ||
      count_elements(source->rank, source->dims) != count_elements(s->rank, s->dims) || source->parts != s->parts ||
      source->slices != s->slices || (s->slices && source->split_axis != s->split_axis))
    return FAULT(c, "state '%s' is initialised from a state of another size", s->name);
  if (source->stages && (!s->stages || (s->stages & ~source->stages)))
    return FAULT(c, "state '%s' is initialised from a state that other processes have", s->name);
  int32_t at = index;
  for (int32_t hops = 0; kva_state_has_source(&c->a->states[at]); hops++) {
    at = c->a->states[at].of;
    if (hops == c->a->n_states || at < 0 || at >= c->a->n_states)
      return FAULT(c, "the initialisation of state '%s' goes round in a circle", s->name);
  }
  return KVA_OK;
}

static kva_status check_state(const checker *c, int32_t index) {
  const kva_state_desc *s = &c->a->states[index];
  if (!s->name) return FAULT(c, "state %d has no name", index);
  if (!is_dtype(s->dtype) || s->dtype == KVA_STRING) return FAULT(c, "state '%s' has type %d", s->name, s->dtype);
  if (s->role < KVA_ROLE_PARAMETER || s->role > KVA_ROLE_CACHE)
    return FAULT(c, "state '%s' has role %d", s->name, s->role);
  if (s->rank < 0 || s->rank > KVA_ABI_MAX_RANK) return FAULT(c, "state '%s' has rank %d", s->name, s->rank);
  int64_t n = count_elements(s->rank, s->dims), bytes;
  if (n < 0 || !kva_dtype_bytes((kva_dtype)s->dtype, n, &bytes) || bytes != s->bytes)
    return FAULT(c, "state '%s' has %lld bytes, which is not what its shape needs", s->name, (long long)s->bytes);
  if (kva_state_is_divided(s)) KVA_TRY(check_division(c, s));
  if (s->init < KVA_STATE_INIT_CONSTANT || s->init > KVA_STATE_INIT_COPY)
    return FAULT(c, "state '%s' has initialiser %d", s->name, s->init);
  if (s->init == KVA_STATE_INIT_DATA && n > 0 && !s->data)
    return FAULT(c, "state '%s' is to be initialised from data and has none", s->name);
  if (s->init == KVA_STATE_INIT_COPY && s->role != KVA_ROLE_CACHE)
    return FAULT(c, "state '%s' is a copy, and no cache", s->name);
  return kva_state_has_source(s) ? check_source(c, index) : KVA_OK;
}

static kva_status check_buffer(const checker *c, int32_t index) {
  const kva_program *p = c->p;
  const kva_buffer_desc *b = &p->buffers[index];
  if (b->kind < KVA_BUFFER_INPUT || b->kind > KVA_BUFFER_TEMP)
    return FAULT(c, "buffer %d of '%s' has kind %d", index, p->name, b->kind);
  if (!is_dtype(b->dtype)) return FAULT(c, "buffer %d of '%s' has type %d", index, p->name, b->dtype);
  if (b->rank < 0 || b->rank > KVA_ABI_MAX_RANK)
    return FAULT(c, "buffer %d of '%s' has rank %d", index, p->name, b->rank);
  for (int32_t d = 0; d < b->rank; d++)
    if (!kva_formula_is_valid(&b->dims[d], p->n_symbols))
      return FAULT(c, "dim %d of buffer %d of '%s' is no formula", d, index, p->name);
  if (!kva_formula_is_valid(&b->bytes, p->n_symbols))
    return FAULT(c, "the size of buffer %d of '%s' is no formula", index, p->name);
  if (b->kind == KVA_BUFFER_STATE && (b->state < 0 || b->state >= c->a->n_states))
    return FAULT(c, "buffer %d of '%s' is state %d of %d", index, p->name, b->state, c->a->n_states);
  if (b->kind == KVA_BUFFER_TEMP && (b->first_step < 0 || b->last_step < b->first_step || b->last_step >= p->n_steps))
    return FAULT(c, "buffer %d of '%s' lives from step %d to %d of %d", index, p->name, b->first_step, b->last_step,
                 p->n_steps);
  return KVA_OK;
}

static kva_status check_arg(const checker *c, int32_t step, int32_t arg) {
  const kva_program *p = c->p;
  if (arg < 0 || arg >= p->n_buffers)
    return FAULT(c, "step %d of '%s' uses buffer %d of %d", step, p->name, arg, p->n_buffers);
  const kva_buffer_desc *b = &p->buffers[arg];
  if (b->kind == KVA_BUFFER_TEMP && (step < b->first_step || step > b->last_step))
    return FAULT(c, "step %d of '%s' uses buffer %d, which lives from step %d to %d", step, p->name, arg, b->first_step,
                 b->last_step);
  return KVA_OK;
}

static bool has_code(const checker *c, const kva_kernel_desc *k) {
  if (!kva_artifact_arch(c->a)) return k->fn;
  if (!k->name || !k->threads || k->n_symbols < 0 || (k->n_symbols && !k->symbols)) return false;
  for (int32_t i = 0; i < k->n_symbols; i++)
    if (k->symbols[i] < 0 || k->symbols[i] >= c->p->n_symbols) return false;
  return true;
}

static bool has_symbols(const checker *c, const kva_step_desc *s) {
  if (s->n_symbols < 0 || s->n_symbols > KVA_ABI_STEP_SYMBOLS || (s->n_symbols && !s->symbols)) return false;
  for (int32_t i = 0; i < s->n_symbols; i++)
    if (s->symbols[i] < 0 || s->symbols[i] >= c->p->n_symbols) return false;
  return true;
}

static bool is_sound(const checker *c, char field, const void *member) {
  if (field == 'f') return kva_formula_is_valid(member, c->p->n_symbols);
  return field != 's' || *(const char *const *)member;
}

static kva_status check_members(const checker *c, int32_t index) {
  const kva_step_desc *s = &c->p->steps[index];
  const char *fields = kva_step_fields(s);
  if (*fields && !s->desc) return FAULT(c, "step %d of '%s' has no description", index, c->p->name);
  int64_t at = 0;
  for (const char *f = fields; *f; at += kva_field_bytes(*f++)) {
    at = kva_field_offset(*f, at);
    if (!is_sound(c, *f, (const char *)s->desc + at))
      return FAULT(c, "member %d in the description of step %d of '%s' is damaged", (int)(f - fields), index,
                   c->p->name);
  }
  return KVA_OK;
}

/* Checks the descriptor of a call member by member, then the conditions of its row. */
static kva_status check_call(const checker *c, int32_t index) {
  const kva_step_desc *s = &c->p->steps[index];
  if (s->call < 0 || s->call >= KVA_CALL_COUNT)
    return FAULT(c, "step %d of '%s' is call %d of %d", index, c->p->name, s->call, KVA_CALL_COUNT);
  const kva_call_class *class = kva_call_class_of(s);
  if ((class->n_args >= 0 && s->n_args != class->n_args) || (class->n_results >= 0 && s->n_results != class->n_results))
    return FAULT(c, "step %d of '%s' has %d arguments and %d results", index, c->p->name, s->n_args, s->n_results);
  KVA_TRY(check_members(c, index));
  kva_text why = {0};
  kva_status status = KVA_OK;
  if (class->check && !class->check(c->p, s, &why))
    status = FAULT(c, "step %d of '%s': %s", index, c->p->name, why.data ? why.data : "");
  kva_text_free(&why);
  return status;
}

static bool maps_are_valid(const checker *c, const kva_step_desc *s, const kva_kernel_desc *k) {
  if (k->n_maps < 0 || (k->n_maps && !k->maps)) return false;
  for (int32_t i = 0; i < k->n_maps; i++) {
    const kva_tensor_map_desc *m = &k->maps[i];
    if (m->argument < 0 || m->argument >= s->n_args || m->rank < 1 || m->rank > KVA_ABI_MAP_RANK) return false;
    for (int32_t d = 0; d < m->rank; d++)
      if (m->box[d] < 1 || !kva_formula_is_valid(&m->dims[d], c->p->n_symbols) ||
          (d && !kva_formula_is_valid(&m->strides[d], c->p->n_symbols)))
        return false;
  }
  return true;
}

static bool writes(const kva_step_desc *s, int32_t arg) {
  int32_t first, n = kva_step_writes(s, &first);
  return arg >= first && arg < first + n;
}

/* Whether a step between an exchange that only starts and its WAIT leaves alone what they read and write. */
static bool leaves_alone(const kva_step_desc *s, const kva_step_desc *x) {
  if (s->kind == KVA_STEP_WAIT) return true;
  if (s->kind > KVA_STEP_CALL) return false;
  for (int32_t i = 0; i < s->n_args; i++)
    for (int32_t k = 0; k < x->n_args; k++)
      if (s->args[i] == x->args[k] && (writes(x, k) || writes(s, i))) return false;
  return true;
}

static bool are_alike(const kva_step_desc *a, const kva_step_desc *b) {
  if (a->n_args != b->n_args || a->n_results != b->n_results) return false;
  for (int32_t i = 0; i < a->n_args; i++)
    if (a->args[i] != b->args[i]) return false;
  return true;
}

/* Of a WAIT, that it has a start; of an exchange that only starts, its WAIT and the steps between. All steps are
 * checked one by one before. */
static kva_status check_wait(const checker *c, int32_t index) {
  const kva_program *p = c->p;
  const kva_step_desc *s = &p->steps[index];
  if (s->kind == KVA_STEP_WAIT) {
    int32_t start = ((const kva_wait_desc *)s->desc)->start;
    if (start >= 0 && start < index && p->steps[start].wait == index) return KVA_OK;
    return FAULT(c, "step %d of '%s' waits for step %d, which does not start anything for it", index, p->name, start);
  }
  if (!s->wait) return KVA_OK;
  if (s->wait <= index || s->wait >= p->n_steps || p->steps[s->wait].kind != KVA_STEP_WAIT ||
      ((const kva_wait_desc *)p->steps[s->wait].desc)->start != index || !are_alike(s, &p->steps[s->wait]) ||
      p->is_internal || !kva_step_is_collective(s))
    return FAULT(c, "step %d of '%s' ends in step %d, which does not wait for it", index, p->name, s->wait);
  for (int32_t i = index + 1; i < s->wait; i++)
    if (!leaves_alone(&p->steps[i], s))
      return FAULT(c, "step %d of '%s' uses what step %d, which ends in step %d, still sends or gets", i, p->name,
                   index, s->wait);
  return KVA_OK;
}

static kva_status check_step(const checker *c, int32_t index) {
  const kva_step_desc *s = &c->p->steps[index];
  if (s->kind < KVA_STEP_KERNEL || s->kind > KVA_STEP_WAIT)
    return FAULT(c, "step %d of '%s' has kind %d", index, c->p->name, s->kind);
  if (s->n_args < 0 || (s->n_args && !s->args) || (s->kind == KVA_STEP_COPY && s->n_args != 2))
    return FAULT(c, "step %d of '%s' has %d arguments", index, c->p->name, s->n_args);
  if (s->n_results < 0 || s->n_results > s->n_args)
    return FAULT(c, "step %d of '%s' has %d results", index, c->p->name, s->n_results);
  for (int32_t i = 0; i < s->n_args; i++) KVA_TRY(check_arg(c, index, s->args[i]));
  if (s->kind == KVA_STEP_COPY) return KVA_OK;
  if (s->kind == KVA_STEP_CALL) return check_call(c, index);
  if (s->kind != KVA_STEP_KERNEL) return check_members(c, index); /* kva_artifact_check_control does the rest */
  if (s->kernel < 0 || s->kernel >= c->a->n_kernels || !has_code(c, &c->a->kernels[s->kernel]))
    return FAULT(c, "step %d of '%s' calls kernel %d of %d", index, c->p->name, s->kernel, c->a->n_kernels);
  if (!has_symbols(c, s)) return FAULT(c, "symbols of the kernel in step %d of '%s' are damaged", index, c->p->name);
  if (kva_artifact_arch(c->a) && !maps_are_valid(c, s, &c->a->kernels[s->kernel]))
    return FAULT(c, "a tensor map of step %d of '%s' is damaged", index, c->p->name);
  if (c->a->kernels[s->kernel].cooperating > KVA_ABI_COOPERATING)
    return FAULT(c, "%u blocks cooperate in step %d of '%s'; at most %d may", c->a->kernels[s->kernel].cooperating,
                 index, c->p->name, KVA_ABI_COOPERATING);
  if (!kva_formula_is_valid(&s->grid, c->p->n_symbols))
    return FAULT(c, "the grid of step %d of '%s' is no formula", index, c->p->name);
  return KVA_OK;
}

static bool is_given(const kva_program *p, int32_t buffer) {
  for (int32_t i = 0; i < p->n_inputs; i++)
    if (p->inputs[i] == buffer) return true;
  return false;
}

static kva_status check_signature(const checker *c) {
  const kva_program *p = c->p;
  for (int32_t i = 0; i < p->n_inputs; i++) {
    int32_t b = p->inputs[i];
    if (b < 0 || b >= p->n_buffers || p->buffers[b].kind != KVA_BUFFER_INPUT || !p->buffers[b].name)
      return FAULT(c, "input %d of '%s' is buffer %d, which is no named input buffer", i, p->name, b);
  }
  for (int32_t i = 0; i < p->n_outputs; i++) {
    int32_t b = p->outputs[i];
    if (b < 0 || b >= p->n_buffers || p->buffers[b].kind == KVA_BUFFER_TEMP)
      return FAULT(c, "output %d of '%s' is buffer %d, which does not outlive the program", i, p->name, b);
    if (p->buffers[b].kind == KVA_BUFFER_INPUT && !is_given(p, b))
      return FAULT(c, "output %d of '%s' replaces buffer %d, which is no input", i, p->name, b);
    if (p->output_roles && (p->output_roles[i] < KVA_OUTPUT_VALUE || p->output_roles[i] > KVA_OUTPUT_METRIC))
      return FAULT(c, "output %d of '%s' has role %d", i, p->name, p->output_roles[i]);
  }
  return KVA_OK;
}

static kva_status check_condition(const checker *c, int32_t index) {
  const kva_condition *q = &c->p->conditions[index];
  int32_t n = c->p->n_symbols;
  if (kva_formula_is_valid(&q->left, n) && kva_formula_is_valid(&q->right, n) && q->what) return KVA_OK;
  return FAULT(c, "condition %d of '%s' is damaged", index, c->p->name);
}

static kva_status check_program(checker *c, int32_t index) {
  const kva_program *p = c->p = &c->a->programs[index];
  if (index && c->a->programs[index - 1].is_internal && !p->is_internal)
    return FAULT(c, "program %d stands after one that only steps run", index);
  if (!p->name) return FAULT(c, "program %d has no name", index);
  if (p->n_symbols < 0 || p->n_buffers < 0 || p->n_steps < 0 || p->n_inputs < 0 || p->n_outputs < 0 ||
      (p->n_symbols && !p->symbols) || (p->n_buffers && !p->buffers) || (p->n_steps && !p->steps) ||
      (p->n_inputs && !p->inputs) || (p->n_outputs && !p->outputs) || p->n_conditions < 0 ||
      (p->n_conditions && !p->conditions))
    return FAULT(c, "program '%s' lacks a table", p->name);
  for (int32_t i = 0; i < p->n_symbols; i++)
    if (!p->symbols[i]) return FAULT(c, "symbol %d of '%s' has no name", i, p->name);
  for (int32_t i = 0; i < p->n_buffers; i++) KVA_TRY(check_buffer(c, i));
  for (int32_t i = 0; i < p->n_steps; i++) KVA_TRY(check_step(c, i));
  for (int32_t i = 0; i < p->n_steps; i++) KVA_TRY(check_wait(c, i));
  for (int32_t i = 0; i < p->n_conditions; i++) KVA_TRY(check_condition(c, i));
  return check_signature(c);
}

/* All code objects must be for one kind of machine. */
static kva_status check_code(const checker *c, int32_t index) {
  const kva_code *code = &c->a->codes[index];
  if (code->format < KVA_CODE_FUNCTIONS || code->format > KVA_CODE_PTX)
    return FAULT(c, "its code %d has format %d", index, code->format);
  const char *arch = kva_artifact_arch(c->a);
  bool gpu = code->format != KVA_CODE_FUNCTIONS;
  if (gpu != (arch != NULL) || (gpu && (!code->arch || strcmp(code->arch, arch) != 0)))
    return FAULT(c, "its code %d is for another architecture than the others", index);
  if (gpu && (!code->data || code->bytes < 1)) return FAULT(c, "its code %d is missing", index);
  return KVA_OK;
}

static kva_status check_artifact(const kva_artifact *a, kva_diag *diag) {
  checker c = {.a = a, .diag = diag};
  if (!a || a->magic != KVA_ABI_MAGIC)
    return kva_error(diag, NULL, "this is no Kvasir artefact: its first eight bytes are not the expected mark");
  if (a->abi_version != KVA_ABI_VERSION)
    return kva_error(diag, NULL,
                     "the artefact was built for version %u of the runtime interface, this runtime has version %u; "
                     "build it again with this version of kvasir",
                     a->abi_version, KVA_ABI_VERSION);
  if (a->n_states < 0 || a->n_kernels < 0 || a->n_programs < 0 || (a->n_states && !a->states) ||
      (a->n_kernels && !a->kernels) || (a->n_programs && !a->programs) || a->n_codes < 1 || !a->codes)
    return FAULT(&c, "it lacks a table");
  for (int32_t i = 0; i < a->n_codes; i++) KVA_TRY(check_code(&c, i));
  for (int32_t i = 0; i < a->n_states; i++) KVA_TRY(check_state(&c, i));
  for (int32_t i = 0; i < a->n_programs; i++) KVA_TRY(check_program(&c, i));
  return kva_artifact_check_control(a, diag);
}

kva_status kva_artifact_check(const kva_artifact *a, kva_diag *diag) {
  checker c = {.a = a, .diag = diag};
  KVA_TRY(check_artifact(a, diag));
  int n = 0;
  for (const kva_artifact *other = a->next; other; other = other->next) {
    if (++n > MAX_ALTERNATIVES) return FAULT(&c, "its list of architectures has no end");
    KVA_TRY(check_artifact(other, diag));
  }
  return KVA_OK;
}
