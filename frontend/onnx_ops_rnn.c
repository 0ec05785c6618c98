/* Rules: RNN, GRU and LSTM, unrolled over a short sequence of known length, else a loop. X is [T, B, I] (layout 0) or
 * [B, T, I] (layout 1). The weights of each direction stack the gates: W[g H, I], R[g H, H], B[2 g H] (input, then
 * recurrent biases). Products with X do not depend on the state and are computed for all steps at once. */
#include "frontend/onnx_region.h"
#include "ops/ids.h"

enum { MAX_STEPS = 256, GATES_RNN = 1, GATES_GRU = 3, GATES_LSTM = 4 };
enum { IN_X, IN_W, IN_R, IN_B, IN_LENGTHS, IN_H, IN_C, IN_P, N_INPUTS };

typedef struct rnn {
  kva_value *in[N_INPUTS];                  /* with the extents that the attributes give them; NULL: omitted */
  int64_t gates, hidden, directions, steps; /* steps: -1 if they are not unrolled */
  kva_dim length;
  kva_value *lengths;                             /* int64[B, 1]; NULL: all sequences have the whole length */
  bool batch_first, linear_before_reset, reverse; /* reverse: the only direction runs backward */
  bool input_forget;                              /* the forget gate is 1 minus the input gate */
  double clip;                                    /* bound of what functions take; 0: none */
  kva_onnx_curve activations[6];
} rnn;

typedef struct direction {
  const rnn *r;
  kva_value *x;        /* [T, B, g H]: X W^T + biases of the input side */
  kva_value *R, *rb;   /* [g H, H], [g H] or NULL */
  kva_value *peephole; /* [3 H] or NULL */
  kva_value *h, *c;
  const kva_onnx_curve *act;
  bool backward;
} direction;

static kva_value *part(kva_onnx_call *k, kva_value *x, uint32_t axis, int64_t at, int64_t n) {
  return kva_onnx_slice(k->b, x, axis, kva_expr_const(kva_onnx_exprs(k), at), kva_expr_const(kva_onnx_exprs(k), n));
}

/* Entry `i` along axis 0, with the axis removed. */
static kva_value *entry(kva_onnx_call *k, kva_value *x, int64_t i) {
  kva_value *row = part(k, x, 0, i, 1);
  return kva_reshape(k->b, row, row->type->rank - 1, row->type->dims + 1);
}

/* ---- functions of gates ------------------------------------------------------------------------------------------ */

/* Function i of what a gate sums up. */
static kva_value *activate(kva_onnx_call *k, const direction *d, uint32_t i, kva_value *x) {
  if (d->r->clip > 0) x = kva_onnx_clamp(k->b, x, -d->r->clip, d->r->clip);
  return d->act[i].build(k->b, &d->act[i], x);
}

/* The next number of a list that functions consume in their order; an absent one leaves the default. */
static void take(const kva_onnx_attr *list, uint32_t *at, double *out) {
  if (list && list->kind == KVA_ONNX_FLOATS && *at < list->n) *out = kva_onnx_decimal(list->floats[(*at)++]);
}

static kva_status read_activations(kva_onnx_call *k, rnn *r) {
  static const char *const defaults[3][3] = {{"Tanh"}, {"Sigmoid", "Tanh"}, {"Sigmoid", "Tanh", "Tanh"}};
  uint32_t n = r->gates == GATES_RNN ? 1 : r->gates == GATES_GRU ? 2 : 3, alphas = 0, betas = 0;
  const kva_onnx_attr *a = kva_onnx_find_attr(k, "activations");
  const kva_onnx_attr *alpha = kva_onnx_find_attr(k, "activation_alpha");
  const kva_onnx_attr *beta = kva_onnx_find_attr(k, "activation_beta");
  bool given = a && a->n;
  if (a && (a->kind != KVA_ONNX_STRINGS || (a->n && a->n != n * r->directions)))
    return kva_onnx_fail(k, KVA_INVALID, "activations: expected %lld names", (long long)(n * r->directions));
  for (uint32_t i = 0; i < n * r->directions; i++) {
    kva_onnx_curve *own = &r->activations[i];
    const char *name = given ? a->strings[i] : defaults[n - 1][i % n];
    if (!kva_onnx_find_curve(name, KVA_ONNX_GATES, own))
      return kva_onnx_fail(k, KVA_UNSUPPORTED, "activation '%s'", name);
    if (own->parameters > 0) take(alpha, &alphas, &own->alpha);
    if (own->parameters > 1) take(beta, &betas, &own->beta);
  }
  return KVA_OK;
}

/* ---- attributes and shapes --------------------------------------------------------------------------------------- */

/* Whether sequence_lens is omitted, or known to be the whole length. */
static bool whole_sequences(kva_onnx_call *k, int64_t steps) {
  kva_value *lengths = kva_onnx_in(k, IN_LENGTHS);
  const kva_ref_tensor *w = lengths ? kva_onnx_constant(k->c, lengths) : NULL;
  for (int64_t i = 0; w && w->i && i < w->n; i++)
    if (w->i[i] != steps) return false;
  return !lengths || w;
}

static kva_status read_lengths(kva_onnx_call *k, rnn *r) {
  kva_value *lengths = r->in[IN_LENGTHS];
  if (whole_sequences(k, r->steps)) return KVA_OK;
  KVA_TRY(kva_onnx_check_vector(k, lengths, "sequence_lens"));
  r->lengths = kva_onnx_unsqueeze(k->b, kva_cast(k->b, lengths, KVA_I64), 1, 1);
  return KVA_OK;
}

static kva_status expect_extent(kva_onnx_call *k, const kva_value *v, const char *name, uint32_t axis,
                                kva_dim expected) {
  kva_text text = {0};
  if (v->type->dims[axis] == expected) return KVA_OK;
  kva_text_add(&text, "%s has extent ", name);
  kva_expr_print(v->type->dims[axis], &text);
  kva_text_add(&text, " on axis %u; expected ", axis);
  kva_expr_print(expected, &text);
  kva_status status = kva_onnx_fail(k, KVA_INVALID, "%s", text.data);
  kva_text_free(&text);
  return status;
}

/* Input i has this rank and these extents (NULL: any), which it is given where its own are symbolic. */
static kva_status shape_input(kva_onnx_call *k, rnn *r, uint32_t i, uint32_t rank, const kva_dim *extents) {
  static const char *const names[N_INPUTS] = {"X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"};
  if (!r->in[i]) return KVA_OK;
  if (r->in[i]->type->rank != rank)
    return kva_onnx_fail(k, KVA_INVALID, "%s has rank %u; expected %u", names[i], r->in[i]->type->rank, rank);
  r->in[i] = kva_onnx_with_dims(k, r->in[i], extents, names[i]);
  for (uint32_t axis = 0; axis < rank; axis++)
    if (extents[axis]) KVA_TRY(expect_extent(k, r->in[i], names[i], axis, extents[axis]));
  return KVA_OK;
}

/* Where an extent of X is a symbol and the same of another input a number, X has it. */
static void shape_x(kva_onnx_call *k, rnn *r) {
  const kva_value *w = r->in[IN_W], *lengths = r->in[IN_LENGTHS], *h = r->in[IN_H];
  kva_dim dims[3] = {NULL};
  uint32_t batch = !r->batch_first;
  if (w->type->rank == 3) dims[2] = w->type->dims[2];
  if (h && h->type->rank == 3) dims[batch] = h->type->dims[batch];
  if (lengths && lengths->type->rank == 1 && !dims[batch]) dims[batch] = lengths->type->dims[0];
  for (uint32_t i = 0; i < 3; i++)
    if (dims[i] && !kva_expr_is_const(dims[i], NULL)) dims[i] = NULL;
  r->in[IN_X] = kva_onnx_with_dims(k, r->in[IN_X], dims, "X");
}

/* Weights are [directions, gates hidden, ...]; their shapes and the attributes must tell the same. */
static kva_status shape_inputs(kva_onnx_call *k, rnn *r) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  int64_t rows = r->gates * r->hidden;
  kva_dim d = kva_expr_const(e, r->directions), hidden = kva_expr_const(e, r->hidden);
  kva_dim gates = kva_expr_const(e, rows), biases = kva_expr_const(e, 2 * rows),
          peep = kva_expr_const(e, 3 * r->hidden);
  kva_dim batch = r->in[IN_X]->type->dims[!r->batch_first];
  kva_dim states[3] = {d, batch, hidden}, batched[3] = {batch, d, hidden};
  const kva_dim *state = r->batch_first ? batched : states;
  KVA_TRY(shape_input(k, r, IN_W, 3, (kva_dim[]){d, gates, r->in[IN_X]->type->dims[2]}));
  KVA_TRY(shape_input(k, r, IN_R, 3, (kva_dim[]){d, gates, hidden}));
  KVA_TRY(shape_input(k, r, IN_B, 2, (kva_dim[]){d, biases}));
  KVA_TRY(shape_input(k, r, IN_H, 3, state));
  if (r->lengths) r->lengths = kva_onnx_with_extent(k, r->lengths, 0, batch, "sequence_lens");
  if (r->gates != GATES_LSTM) return KVA_OK;
  KVA_TRY(shape_input(k, r, IN_C, 3, state));
  return shape_input(k, r, IN_P, 2, (kva_dim[]){d, peep});
}

/* The extent of R, else what the attribute says. */
static kva_status read_hidden(kva_onnx_call *k, rnn *r) {
  r->hidden = kva_onnx_int(k, "hidden_size", 0);
  if (kva_expr_is_const(r->in[IN_R]->type->dims[2], &r->hidden) || r->hidden > 0) return KVA_OK;
  return kva_onnx_fail(k, KVA_UNSUPPORTED, "the hidden size must be a number: of R's shape or attribute hidden_size");
}

static kva_status check_attrs(kva_onnx_call *k, const rnn *r, const char *way) {
  int64_t hidden = kva_onnx_int(k, "hidden_size", r->hidden), layout = kva_onnx_int(k, "layout", 0);
  if (strcmp(way, "forward") && strcmp(way, "reverse") && strcmp(way, "bidirectional"))
    return kva_onnx_fail(k, KVA_INVALID, "direction '%s'; expected forward, reverse or bidirectional", way);
  if (hidden != r->hidden)
    return kva_onnx_fail(k, KVA_INVALID, "hidden_size is %lld, but R has %lld", (long long)hidden,
                         (long long)r->hidden);
  if (layout != 0 && layout != 1)
    return kva_onnx_fail(k, KVA_INVALID, "layout is %lld; expected 0 or 1", (long long)layout);
  return KVA_OK;
}

static kva_status read_rnn(kva_onnx_call *k, rnn *r) {
  const char *way = kva_onnx_string(k, "direction", "forward");
  const kva_type *x = kva_onnx_in(k, IN_X)->type;
  *r = (rnn){.gates = k->arg,
             .batch_first = kva_onnx_int(k, "layout", 0) != 0,
             .linear_before_reset = kva_onnx_int(k, "linear_before_reset", 0) != 0,
             .reverse = !strcmp(way, "reverse"),
             .input_forget = kva_onnx_int(k, "input_forget", 0) != 0,
             .clip = kva_onnx_float(k, "clip", 0),
             .directions = strcmp(way, "bidirectional") ? 1 : 2};
  for (uint32_t i = 0; i < N_INPUTS; i++) r->in[i] = kva_onnx_in(k, i);
  if (x->rank != 3 || r->in[IN_R]->type->rank != 3) return kva_onnx_fail(k, KVA_INVALID, "expected X and R of rank 3");
  KVA_TRY(read_hidden(k, r));
  r->length = x->dims[r->batch_first];
  if (!kva_expr_is_const(r->length, &r->steps)) r->steps = -1;
  KVA_TRY(read_lengths(k, r));
  if (r->steps > MAX_STEPS || r->steps == 0) r->steps = -1;
  KVA_TRY(check_attrs(k, r, way));
  shape_x(k, r);
  KVA_TRY(shape_inputs(k, r));
  return read_activations(k, r);
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

static kva_value *gate(kva_onnx_call *k, const direction *d, kva_value *all, int64_t i) {
  return part(k, all, 1, i * d->r->hidden, d->r->hidden);
}

static kva_value *recurrent(kva_onnx_call *k, const direction *d, kva_value *h) {
  kva_value *y = kva_matmul(k->b, h, d->R, false, true);
  return d->rb ? kva_add(k->b, y, d->rb) : y;
}

static kva_value *step_rnn(kva_onnx_call *k, direction *d, kva_value *x) {
  return activate(k, d, 0, kva_add(k->b, x, recurrent(k, d, d->h)));
}

/* Gates z, r, h. The candidate sees r * h before or (linear_before_reset) after the recurrent product. */
static kva_value *step_gru(kva_onnx_call *k, direction *d, kva_value *x) {
  kva_builder *b = k->b;
  kva_value *y = recurrent(k, d, d->h);
  kva_value *z = activate(k, d, 0, kva_add(b, gate(k, d, x, 0), gate(k, d, y, 0)));
  kva_value *r = activate(k, d, 0, kva_add(b, gate(k, d, x, 1), gate(k, d, y, 1)));
  kva_value *inner;
  if (d->r->linear_before_reset)
    inner = kva_mul(b, r, gate(k, d, y, 2));
  else
    inner = gate(k, d, recurrent(k, d, kva_mul(b, r, d->h)), 2);
  kva_value *candidate = activate(k, d, 1, kva_add(b, gate(k, d, x, 2), inner));
  kva_value *one = kva_scalar_like(b, z, 1);
  return kva_add(b, kva_mul(b, kva_sub(b, one, z), candidate), kva_mul(b, z, d->h));
}

static kva_value *peep(kva_onnx_call *k, const direction *d, kva_value *x, kva_value *c, int64_t i) {
  if (!d->peephole) return x;
  return kva_add(k->b, x, kva_mul(k->b, c, part(k, d->peephole, 0, i * d->r->hidden, d->r->hidden)));
}

/* Gates i, o, f, c; peepholes i, o, f. */
static kva_value *step_lstm(kva_onnx_call *k, direction *d, kva_value *x) {
  kva_builder *b = k->b;
  kva_value *y = kva_add(b, x, recurrent(k, d, d->h));
  kva_value *i = activate(k, d, 0, peep(k, d, gate(k, d, y, 0), d->c, 0));
  kva_value *f = d->r->input_forget ? kva_sub(b, kva_scalar_like(b, i, 1), i)
                                    : activate(k, d, 0, peep(k, d, gate(k, d, y, 2), d->c, 2));
  kva_value *candidate = activate(k, d, 1, gate(k, d, y, 3));
  d->c = kva_add(b, kva_mul(b, f, d->c), kva_mul(b, i, candidate));
  kva_value *o = activate(k, d, 0, peep(k, d, gate(k, d, y, 1), d->c, 1));
  return kva_mul(b, o, d->act[2].build(b, &d->act[2], d->c)); /* not clipped, as in ONNX Runtime */
}

/* ---- one direction ----------------------------------------------------------------------------------------------- */

static kva_value *initial_state(kva_onnx_call *k, const rnn *r, uint32_t input, int64_t i, kva_dim batch) {
  kva_value *given = r->in[input];
  kva_dim dims[2] = {batch, kva_expr_const(kva_onnx_exprs(k), r->hidden)};
  if (!given) return kva_zeros(k->b, kva_type_tensor(k->b->m, r->in[IN_X]->type->dtype, 2, dims));
  if (r->batch_first) given = kva_transpose(k->b, given, (int64_t[]){1, 0, 2});
  return entry(k, given, i);
}

/* X as [T, B, I]; x = X W^T with the input biases. */
static void prepare(kva_onnx_call *k, const rnn *r, kva_value *x, int64_t i, direction *d) {
  kva_builder *b = k->b;
  kva_value *bias = r->in[IN_B] ? entry(k, r->in[IN_B], i) : NULL;
  int64_t rows = r->gates * r->hidden, n_activations = r->gates == GATES_RNN ? 1 : r->gates == GATES_GRU ? 2 : 3;
  *d = (direction){.r = r,
                   .R = entry(k, r->in[IN_R], i),
                   .act = r->activations + i * n_activations,
                   .backward = r->reverse || i == 1};
  d->x = kva_matmul(b, x, entry(k, r->in[IN_W], i), false, true);
  if (bias) d->x = kva_add(b, d->x, part(k, bias, 0, 0, rows));
  if (bias) d->rb = part(k, bias, 0, rows, rows);
  if (r->gates == GATES_LSTM && r->in[IN_P]) d->peephole = entry(k, r->in[IN_P], i);
  if (b->failed) return;
  d->h = initial_state(k, r, IN_H, i, x->type->dims[1]);
  if (r->gates == GATES_LSTM) d->c = initial_state(k, r, IN_C, i, x->type->dims[1]);
}

/* The next state from the row of step t; the result is the row of the output. Sequences that have ended keep their
 * state, and their output is 0. */
static kva_value *advance(kva_onnx_call *k, direction *d, kva_value *x, kva_value *t) {
  kva_builder *b = k->b;
  kva_value *h = d->h, *c = d->c, *next;
  if (d->r->gates == GATES_RNN)
    next = step_rnn(k, d, x);
  else
    next = d->r->gates == GATES_GRU ? step_gru(k, d, x) : step_lstm(k, d, x);
  d->h = next;
  if (!d->r->lengths) return next;
  kva_value *running = kva_build2(b, KVA_OP_less, t, d->r->lengths);
  d->h = kva_onnx_where(b, running, next, h);
  if (c) d->c = kva_onnx_where(b, running, d->c, c);
  return kva_onnx_where(b, running, next, kva_scalar_like(b, next, 0));
}

static kva_value *join(kva_onnx_call *k, uint32_t n, kva_value **parts, int64_t axis) {
  return n == 1 ? parts[0] : kva_build(k->b, KVA_OP_concat, n, parts, &(kva_concat_attrs){.axis = axis});
}

/* The rows of all steps, [T, B, H]. */
static kva_status unroll(kva_onnx_call *k, direction *d, kva_value **out) {
  kva_value **rows = KVA_NEW_ARRAY(k->c->arena, kva_value *, d->r->steps + 1);
  for (int64_t s = 0; s < d->r->steps; s++) {
    int64_t t = d->backward ? d->r->steps - 1 - s : s;
    kva_value *x = entry(k, d->x, t);
    if (k->b->failed) return KVA_INVALID;
    rows[t] = kva_onnx_unsqueeze(k->b, advance(k, d, x, kva_const_scalar(k->b, KVA_I64, (double)t)), 0, 1);
    if (k->b->failed) return KVA_INVALID;
  }
  *out = join(k, (uint32_t)d->r->steps, rows, 0);
  return KVA_OK;
}

/* (i, h, c) -> (true, h, c, row) */
static kva_status loop_body(kva_onnx_call *k, const direction *d, const kva_region *body) {
  kva_builder *b = k->b;
  direction step = *d;
  kva_value *t = kva_graph_add_input(body->graph, kva_type_scalar(b->m, KVA_I64), NULL), *out[4];
  kva_value *last = kva_dim_scalar(b, KVA_I64, kva_expr_addi(b->m->exprs, d->r->length, -1));
  uint32_t n = 0;
  step.h = kva_graph_add_input(body->graph, d->h->type, NULL);
  if (d->c) step.c = kva_graph_add_input(body->graph, d->c->type, NULL);
  if (d->backward) t = kva_sub(b, last, t);
  kva_value *row = advance(k, &step, kva_onnx_gather(b, d->x, t, 0), t);
  if (b->failed) return KVA_INVALID;
  out[n++] = kva_const_scalar(b, KVA_BOOL, 1);
  out[n++] = step.h;
  if (d->c) out[n++] = step.c;
  out[n++] = row;
  kva_region_close(k, body, n, out);
  return KVA_OK;
}

static kva_status loop_over(kva_onnx_call *k, direction *d, kva_value **out) {
  kva_builder *b = k->b;
  uint32_t carried = d->c ? 2 : 1;
  kva_value *operands[4] = {kva_dim_scalar(b, KVA_I64, d->r->length), NULL, d->h, d->c};
  kva_region body = kva_region_open(k);
  kva_status status = loop_body(k, d, &body);
  if (status) return kva_region_discard(k, &body), status;
  kva_loop_attrs *attrs = kva_attrs_default(b->m->arena, KVA_OP(loop)->attrs);
  attrs->carried = carried;
  attrs->trips = d->r->length;
  kva_node *n = kva_region_node(k, KVA_OP_loop, 1, &body, carried + 2, operands, carried + 1, attrs);
  KVA_TRY(kva_region_infer(k, n));
  d->h = kva_result(n, 0);
  if (d->c) d->c = kva_result(n, 1);
  *out = d->backward ? kva_onnx_flip(b, kva_result(n, carried), 0) : kva_result(n, carried);
  return KVA_OK;
}

/* States [D, B, H]; layout 1 puts the batch first. */
static void set_state(kva_onnx_call *k, const rnn *r, uint32_t output, kva_value **states) {
  kva_value *parts[2];
  for (int64_t i = 0; i < r->directions; i++) parts[i] = kva_onnx_unsqueeze(k->b, states[i], 0, 1);
  kva_value *y = join(k, (uint32_t)r->directions, parts, 0);
  if (k->b->failed) return;
  kva_onnx_set_out(k, output, r->batch_first ? kva_transpose(k->b, y, (int64_t[]){1, 0, 2}) : y);
}

kva_status kva_onnx_rnn(kva_onnx_call *k) {
  rnn r;
  KVA_TRY(read_rnn(k, &r));
  kva_value *x = r.in[IN_X], *h[2], *c[2], *sequences[2];
  if (r.batch_first) x = kva_transpose(k->b, x, (int64_t[]){1, 0, 2});
  for (int64_t i = 0; i < r.directions; i++) {
    direction d;
    prepare(k, &r, x, i, &d);
    if (k->b->failed) return KVA_INVALID;
    KVA_TRY(r.steps < 0 ? loop_over(k, &d, &sequences[i]) : unroll(k, &d, &sequences[i]));
    sequences[i] = kva_onnx_unsqueeze(k->b, sequences[i], 1, 1);
    h[i] = d.h, c[i] = d.c;
  }
  kva_value *y = join(k, (uint32_t)r.directions, sequences, 1);
  if (k->b->failed) return KVA_INVALID;
  set_state(k, &r, 1, h);
  if (r.gates == GATES_LSTM) set_state(k, &r, 2, c);
  return kva_onnx_done(k, r.batch_first ? kva_transpose(k->b, y, (int64_t[]){2, 0, 1, 3}) : y);
}
