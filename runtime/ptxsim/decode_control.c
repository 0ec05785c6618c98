/* Branches, barriers, warp-wide instructions. */
#include "runtime/ptxsim/decode.h"

/* ---- control flow ------------------------------------------------------------------------------------------------ */

static kva_status decode_bra(ptx_decoder *d) {
  d->i->op = PTX_OP_BRANCH;
  d->i->class = KVA_PTX_CLASS_BRANCH;
  d->i->flag = kva_ptx_take(d, "uni");
  KVA_TRY(kva_ptx_finish(d, 1));
  if (d->s->operands[0].kind != PTX_OPERAND_LABEL) return kva_ptx_operand_error(d, &d->s->operands[0], "a label");
  d->target = d->s->operands[0].name;
  return KVA_OK;
}

static kva_status decode_brx(ptx_decoder *d) {
  d->i->op = PTX_OP_BRANCH_TABLE;
  d->i->class = KVA_PTX_CLASS_BRANCH;
  kva_ptx_take(d, "uni");
  if (!kva_ptx_take(d, "idx")) return kva_ptx_unsupported(d);
  KVA_TRY(kva_ptx_finish(d, 2));
  if (d->s->operands[1].kind != PTX_OPERAND_LABEL)
    return kva_ptx_operand_error(d, &d->s->operands[1], "a list of targets");
  d->target = d->s->operands[1].name;
  return kva_ptx_source(d, 0, PTX_U32, &d->i->src[0]);
}

static kva_status decode_ret(ptx_decoder *d) {
  d->i->op = PTX_OP_EXIT;
  d->i->class = KVA_PTX_CLASS_BRANCH;
  kva_ptx_take(d, "uni");
  return kva_ptx_finish(d, 0);
}

static kva_status decode_exit(ptx_decoder *d) {
  d->i->flag = true;
  return decode_ret(d);
}

static kva_status decode_trap(ptx_decoder *d) {
  d->i->exec = kva_ptx_exec_trap;
  d->i->class = KVA_PTX_CLASS_BRANCH;
  return kva_ptx_finish(d, 0);
}

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

static kva_status decode_warp_barrier(ptx_decoder *d) {
  if (!kva_ptx_take(d, "sync")) return kva_ptx_unsupported(d);
  d->i->exec = kva_ptx_exec_warp_sync;
  KVA_TRY(kva_ptx_finish(d, 1));
  return kva_ptx_source(d, 0, PTX_B32, &d->i->src[0]);
}

/* bar.red.popc.u32 d, a{, b}, {!}p and bar.red.{and,or}.pred */
static kva_status decode_barrier_red(ptx_decoder *d, uint32_t *first) {
  bool popc = kva_ptx_take(d, "popc"), all = kva_ptx_take(d, "and");
  d->i->sub = popc ? PTX_BAR_RED_POPC : all ? PTX_BAR_RED_AND : PTX_BAR_RED_OR;
  if (!popc && !all && !kva_ptx_take(d, "or")) return kva_ptx_unsupported(d);
  if (kva_ptx_take_type(d) != (popc ? PTX_U32 : PTX_PRED)) return kva_ptx_unsupported(d);
  if (d->s->n_operands < 3) return kva_ptx_unsupported(d);
  *first = 1;
  KVA_TRY(kva_ptx_pred_source(d, d->s->n_operands - 1, &d->i->src[2]));
  return popc ? kva_ptx_dest(d, 0, PTX_U32, &d->i->dst) : kva_ptx_pred_dest(d, &d->s->operands[0], &d->i->dst);
}

/* barrier.cluster.arrive{.release,.relaxed}{.aligned}, barrier.cluster.wait{.acquire}{.aligned} */
static kva_status decode_cluster_barrier(ptx_decoder *d) {
  bool arrive = kva_ptx_take(d, "arrive");
  if (!arrive && !kva_ptx_take(d, "wait")) return kva_ptx_unsupported(d);
  d->i->flag2 = arrive && kva_ptx_take(d, "relaxed");
  kva_ptx_take(d, arrive ? "release" : "acquire");
  d->i->flag = kva_ptx_take(d, "aligned");
  if (arrive)
    d->i->exec = kva_ptx_exec_cluster_arrive;
  else
    d->i->op = PTX_OP_CLUSTER_WAIT;
  return kva_ptx_finish(d, 0);
}

static kva_status decode_bar(ptx_decoder *d) {
  uint32_t first = 0;
  d->i->class = KVA_PTX_CLASS_BARRIER;
  if (kva_ptx_take(d, "cluster")) return decode_cluster_barrier(d);
  kva_ptx_take(d, "cta");
  if (kva_ptx_take(d, "warp")) return decode_warp_barrier(d);
  d->i->op = PTX_OP_BARRIER;
  d->i->flag = kva_ptx_take(d, "aligned") || !strcmp(d->s->base, "bar");
  if (kva_ptx_take(d, "sync"))
    d->i->sub = PTX_BAR_SYNC;
  else if (kva_ptx_take(d, "arrive"))
    d->i->sub = PTX_BAR_ARRIVE;
  else if (kva_ptx_take(d, "red"))
    KVA_TRY(decode_barrier_red(d, &first));
  else
    return kva_ptx_unsupported(d);
  uint32_t n = d->s->n_operands - first - (first ? 1 : 0);
  KVA_TRY(kva_ptx_finish(d, n <= 1 ? first + (first ? 1 : 0) + 1 : first + (first ? 1 : 0) + 2));
  if (d->i->sub == PTX_BAR_ARRIVE && n != 2)
    return kva_ptx_operand_error(d, &d->s->operands[0], "a number of threads, too,");
  KVA_TRY(kva_ptx_source(d, first, PTX_U32, &d->i->src[0]));
  d->i->src[1] = PTX_NONE;
  return n == 2 ? kva_ptx_source(d, first + 1, PTX_U32, &d->i->src[1]) : KVA_OK;
}

static bool has(const ptx_decoder *d, const char *mod) {
  for (uint32_t k = 0; k < d->s->n_mods; k++)
    if (!strcmp(d->s->mods[k], mod)) return true;
  return false;
}

/* Memory is consistent at every instruction: fences only matter to race checks. */
static kva_status decode_fence(ptx_decoder *d) {
  static const char *const mods[] = {"cta", "gl", "gpu", "sys", "sc", "acq_rel", "cluster", NULL};
  d->i->class = KVA_PTX_CLASS_BARRIER;
  if (has(d, "proxy") || has(d, "mbarrier_init")) return kva_ptx_decode_proxy_fence(d);
  bool wide = has(d, "gl") || has(d, "gpu") || has(d, "sys") || has(d, "cluster");
  kva_ptx_take_all(d, mods);
  d->i->exec = wide ? kva_ptx_exec_fence : kva_ptx_exec_nothing;
  return kva_ptx_finish(d, 0);
}

static kva_status decode_nanosleep(ptx_decoder *d) {
  d->i->class = KVA_PTX_CLASS_BARRIER;
  d->i->exec = kva_ptx_exec_nothing;
  if (kva_ptx_take_type(d) != PTX_U32) return kva_ptx_unsupported(d);
  KVA_TRY(kva_ptx_finish(d, 1));
  return kva_ptx_source(d, 0, PTX_U32, &d->i->src[0]);
}

static kva_status decode_griddepcontrol(ptx_decoder *d) {
  static const char *const mods[] = {"launch_dependents", "wait", NULL};
  kva_ptx_take_all(d, mods);
  d->i->class = KVA_PTX_CLASS_BARRIER;
  d->i->exec = kva_ptx_exec_nothing;
  return kva_ptx_finish(d, 0);
}

/* ---- warps ------------------------------------------------------------------------------------------------------- */

/* shfl.sync.mode.b32 d{|p}, a, b, c, mask */
static kva_status decode_shfl(ptx_decoder *d) {
  static const char *const modes[] = {"up", "down", "bfly", "idx"};
  uint32_t mode = 0;
  bool sync = kva_ptx_take(d, "sync");
  while (mode < 4 && !kva_ptx_take(d, modes[mode])) mode++;
  if (!sync || mode == 4 || kva_ptx_take_type(d) != PTX_B32) return kva_ptx_unsupported(d);
  d->i->sub = (uint8_t)mode;
  d->i->class = KVA_PTX_CLASS_WARP;
  d->i->exec = kva_ptx_exec_shfl;
  KVA_TRY(kva_ptx_finish(d, 5));
  ptx_operand to = d->s->operands[0];
  d->i->dst2 = PTX_NONE;
  if (to.second) KVA_TRY(kva_ptx_pred_dest(d, to.second, &d->i->dst2));
  to.second = NULL;
  KVA_TRY(kva_ptx_dest_of(d, &to, PTX_B32, false, &d->i->dst));
  for (uint32_t k = 0; k < 4; k++) KVA_TRY(kva_ptx_source(d, k + 1, PTX_B32, &d->i->src[k]));
  return KVA_OK;
}

static kva_status decode_vote(ptx_decoder *d) {
  static const char *const modes[] = {"all", "any", "uni", "ballot"};
  uint32_t mode = 0;
  bool sync = kva_ptx_take(d, "sync");
  while (mode < 4 && !kva_ptx_take(d, modes[mode])) mode++;
  if (!sync || mode == 4 || kva_ptx_take_type(d) != (mode == 3 ? PTX_B32 : PTX_PRED)) return kva_ptx_unsupported(d);
  d->i->sub = (uint8_t)mode;
  d->i->class = KVA_PTX_CLASS_WARP;
  d->i->exec = kva_ptx_exec_vote;
  KVA_TRY(kva_ptx_finish(d, 3));
  KVA_TRY(mode == 3 ? kva_ptx_dest(d, 0, PTX_B32, &d->i->dst) : kva_ptx_pred_dest(d, &d->s->operands[0], &d->i->dst));
  KVA_TRY(kva_ptx_pred_source(d, 1, &d->i->src[0]));
  return kva_ptx_source(d, 2, PTX_B32, &d->i->src[1]);
}

static kva_status decode_match(ptx_decoder *d) {
  bool any = kva_ptx_take(d, "any"), all = kva_ptx_take(d, "all"), sync = kva_ptx_take(d, "sync");
  ptx_type type = kva_ptx_take_type(d);
  if (!sync || any == all || (type != PTX_B32 && type != PTX_B64)) return kva_ptx_unsupported(d);
  d->i->sub = all;
  d->i->flag2 = type == PTX_B64;
  d->i->class = KVA_PTX_CLASS_WARP;
  d->i->exec = kva_ptx_exec_match;
  KVA_TRY(kva_ptx_finish(d, 3));
  ptx_operand to = d->s->operands[0];
  d->i->dst2 = PTX_NONE;
  if (to.second) KVA_TRY(kva_ptx_pred_dest(d, to.second, &d->i->dst2));
  to.second = NULL;
  KVA_TRY(kva_ptx_dest_of(d, &to, PTX_B32, false, &d->i->dst));
  KVA_TRY(kva_ptx_source(d, 1, type, &d->i->src[0]));
  return kva_ptx_source(d, 2, PTX_B32, &d->i->src[1]);
}

static kva_status decode_redux(ptx_decoder *d) {
  static const char *const names[] = {"add", "min", "max", "and", "or", "xor"}; /* in the order of ptx_atomic */
  uint32_t op = 0;
  bool sync = kva_ptx_take(d, "sync");
  while (op < 6 && !kva_ptx_take(d, names[op])) op++;
  ptx_type type = kva_ptx_take_type(d);
  bool logic = op >= 3, typed = logic ? type == PTX_B32 : type == PTX_U32 || type == PTX_S32;
  if (!sync || op == 6 || !typed) return kva_ptx_unsupported(d);
  d->i->sub = (uint8_t)op;
  d->i->type = (uint8_t)type;
  d->i->class = KVA_PTX_CLASS_WARP;
  d->i->exec = kva_ptx_exec_redux;
  KVA_TRY(kva_ptx_finish(d, 3));
  KVA_TRY(kva_ptx_dest(d, 0, type, &d->i->dst));
  KVA_TRY(kva_ptx_source(d, 1, type, &d->i->src[0]));
  return kva_ptx_source(d, 2, PTX_B32, &d->i->src[1]);
}

static kva_status decode_activemask(ptx_decoder *d) {
  d->i->class = KVA_PTX_CLASS_WARP;
  d->i->exec = kva_ptx_exec_activemask;
  if (kva_ptx_take_type(d) != PTX_B32) return kva_ptx_unsupported(d);
  KVA_TRY(kva_ptx_finish(d, 1));
  return kva_ptx_dest(d, 0, PTX_B32, &d->i->dst);
}

/* elect.sync d|p, mask: the first lane gets true. */
static kva_status decode_elect(ptx_decoder *d) {
  d->i->class = KVA_PTX_CLASS_WARP;
  d->i->exec = kva_ptx_exec_elect;
  if (!kva_ptx_take(d, "sync")) return kva_ptx_unsupported(d);
  KVA_TRY(kva_ptx_finish(d, 2));
  ptx_operand to = d->s->operands[0];
  if (!to.second) return kva_ptx_operand_error(d, &to, "a register and a predicate");
  KVA_TRY(kva_ptx_pred_dest(d, to.second, &d->i->dst2));
  to.second = NULL;
  KVA_TRY(kva_ptx_dest_of(d, &to, PTX_B32, false, &d->i->dst));
  return kva_ptx_source(d, 1, PTX_B32, &d->i->src[1]);
}

static const ptx_decode_row rows[] = {
    {"bra", decode_bra},
    {"brx", decode_brx},
    {"ret", decode_ret},
    {"exit", decode_exit},
    {"trap", decode_trap},
    {"bar", decode_bar},
    {"barrier", decode_bar},
    {"membar", decode_fence},
    {"fence", decode_fence},
    {"shfl", decode_shfl},
    {"vote", decode_vote},
    {"match", decode_match},
    {"redux", decode_redux},
    {"elect", decode_elect},
    {"nanosleep", decode_nanosleep},
    {"activemask", decode_activemask},
    {"griddepcontrol", decode_griddepcontrol},
};
const ptx_decode_rows kva_ptx_decode_control = {rows, sizeof rows / sizeof *rows};
