/* The time of a step.
 *
 * A kernel or a product takes the longer one of its operations at `efficiency` times the GPU's peak and of its
 * arguments through memory, each once. An exchange takes alpha + bytes / beta for each message, of the link of its
 * group, with the messages that runtime/comm.c sends: tensors in pieces of kva_comm_piece bytes; a sum is an exchange
 * in pairs and a gathering, of parts - 1 messages each, the latter taken to be a ring. Nothing overlaps, as Kvasir does
 * not: a step takes the sum of all. */
#include "tools/planner/planner.h"
#include "ops/exchange.h"
#include "runtime/comm.h"

/* ---- exchange ---------------------------------------------------------------------------------------------------- */

/* Messages of a process, one after the other. A neighbour receives before it sends, or sends before. */
static int64_t messages_of(const kva_exchanged *x, int64_t parts) {
  int64_t piece = kva_comm_piece(parts), pieces = (x->summed + x->gathered + piece - 1) / piece;
  return x->rounds ? x->rounds * (parts - 1) * pieces : parts > 2 ? 2 : 1;
}

void kva_exchange_add(const kva_cluster *c, const kva_exchanged *x, int64_t count, kva_exchange_cost *out) {
  int64_t messages = messages_of(x, out->parts), in_turn = x->rounds || out->parts == 2 ? 1 : 2;
  out->link = kva_cluster_link(c, out->parts, out->stride);
  out->count += count;
  out->bytes += count * x->each;
  out->messages += count * messages;
  out->seconds +=
      (double)count * ((double)messages * out->link.latency + (double)(x->each * in_turn) / out->link.bandwidth);
}

/* The axis that the processes differ on; a mesh of one axis has all of them on it. */
static const char *axis_of(const kva_mesh *m, int64_t parts, int64_t stride) {
  if (parts == m->tensor && stride == 1) return "tensor";
  if (parts == m->sequence && stride == kva_mesh_extent(m->tensor)) return "sequence";
  return "data";
}

static kva_exchange_cost *exchange_of(kva_paper *p, const kva_node *n) {
  int64_t parts = kva_exchange_parts(n), stride = kva_exchange_stride(n);
  for (int i = 0; i < p->n_exchanges; i++) {
    kva_exchange_cost *e = &p->exchanges[i];
    if (!strcmp(e->op, n->op->name) && e->parts == parts && e->stride == stride) return e;
  }
  KVA_ASSERT(p->n_exchanges < KVA_MAX_EXCHANGES);
  kva_exchange_cost *e = &p->exchanges[p->n_exchanges++];
  *e = (kva_exchange_cost){
      .op = n->op->name, .axis = axis_of(&p->mesh, parts, stride), .parts = parts, .stride = stride};
  return e;
}

static kva_status add_exchange(const kva_planner *planner, kva_module *m, const kva_node *n, kva_program_cost *program,
                               kva_paper *p) {
  kva_exchanged x;
  KVA_TRY(kva_exchanged_bytes(m, n, &x));
  if (!x.each) return KVA_OK;
  kva_exchange_add(&planner->cluster, &x, program->calls, exchange_of(p, n));
  program->sent += x.sent;
  return KVA_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static double step_seconds(const kva_planner *planner, kva_module *m, const kva_memory_plan *plan, uint32_t step,
                           const int64_t *bytes) {
  const kva_gpu_kind *gpu = planner->cluster.gpu;
  const kva_plan_step *s = &plan->steps.data[step];
  double moved = 0;
  for (uint32_t k = 0; k < s->n_args; k++) moved += (double)bytes[s->args[k]];
  double products = kva_plan_step_flops(m, plan, step) / (gpu->flops * planner->efficiency), memory = moved / gpu->hbm;
  return products > memory ? products : memory;
}

static kva_status add_steps(const kva_planner *planner, kva_module *m, const kva_memory_plan *plan,
                            const int64_t *bytes, kva_program_cost *program, kva_paper *p) {
  for (uint32_t i = 0; i < plan->steps.len; i++) {
    const kva_plan_step *s = &plan->steps.data[i];
    if (s->kind == KVA_PLAN_WAIT) continue;
    if (s->kind > KVA_PLAN_KERNEL)
      return kva_fail(m->diag, KVA_UNSUPPORTED, &s->node->loc,
                      "kv.%s: how long it takes depends on data, so --cluster cannot tell", s->node->op->name);
    if (s->node && s->node->op->traits & KVA_EXCHANGES)
      KVA_TRY(add_exchange(planner, m, s->node, program, p));
    else
      program->compute += (double)program->calls * step_seconds(planner, m, plan, i, bytes);
  }
  return KVA_OK;
}

kva_status kva_paper_add(const kva_planner *planner, kva_module *m, const kva_memory_plan *plan, int64_t calls,
                         kva_paper *p) {
  const kva_sizes sizes = {m, kva_assumed_extent, m};
  kva_summary s;
  kva_plan_bytes bytes;
  KVA_TRY(kva_summarize(m, plan, &s));
  kva_program_cost *program = &p->programs[p->n_programs++];
  *program = (kva_program_cost){.name = plan->function->name,
                                .calls = calls,
                                .flops = s.contraction_flops,
                                .temporaries = s.temp_peak_bytes,
                                .gradients = s.gradient_bytes,
                                .other = s.bytes.constants + s.bytes.inputs + s.bytes.outputs};
  if (s.tokens) p->tokens = s.tokens;
  kva_arena *scratch = kva_arena_create();
  kva_status status = kva_plan_measure(m, plan, &sizes, scratch, &bytes);
  if (status == KVA_OK) status = add_steps(planner, m, plan, bytes.of, program, p);
  kva_arena_destroy(scratch);
  return status;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Programs share memory for temporaries. */
int64_t kva_paper_temporaries(const kva_paper *p) {
  int64_t most = 0;
  for (int i = 0; i < p->n_programs; i++)
    if (p->programs[i].temporaries > most) most = p->programs[i].temporaries;
  return most;
}

int64_t kva_paper_other(const kva_paper *p) {
  int64_t most = 0;
  for (int i = 0; i < p->n_programs; i++)
    if (p->programs[i].other > most) most = p->programs[i].other;
  return p->states + most;
}

int64_t kva_paper_bytes(const kva_paper *p) {
  return p->params + p->copies + p->moments + p->gradients + kva_paper_other(p) + kva_paper_temporaries(p);
}

int64_t kva_paper_sent(const kva_paper *p) {
  int64_t sent = 0;
  for (int i = 0; i < p->n_programs; i++) sent += p->programs[i].calls * p->programs[i].sent;
  return sent;
}

double kva_paper_compute(const kva_paper *p) {
  double seconds = 0;
  for (int i = 0; i < p->n_programs; i++) seconds += p->programs[i].compute;
  return seconds;
}

double kva_paper_exchange(const kva_paper *p) {
  double seconds = 0;
  for (int i = 0; i < p->n_exchanges; i++) seconds += p->exchanges[i].seconds;
  return seconds;
}

double kva_paper_seconds(const kva_paper *p) {
  return kva_paper_compute(p) + kva_paper_exchange(p);
}
