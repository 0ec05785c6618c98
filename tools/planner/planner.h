/* Training on a cluster of GPUs, on paper: what each GPU holds, what it sends, how long a step takes. Nothing runs; the
 * numbers are those of the plans that `kvasir train --mesh` compiles, of the table of GPUs (cluster.c) and of a model
 * of time (cost.c), which docs/scale.md states. */
#ifndef KVA_TOOLS_PLANNER_H
#define KVA_TOOLS_PLANNER_H

#include "tools/driver/summary.h"

/* A GPU in the machine that its vendor builds of it. Bytes and operations a second, seconds a message. */
typedef struct kva_gpu_kind {
  const char *name, *arch; /* "h100"; a row of kva_target_gpus */
  int64_t memory;
  double flops; /* products in bfloat16, without sparsity */
  double hbm;
  double nvlink, network; /* that one GPU sends to others of its node, and to other nodes */
} kva_gpu_kind;

typedef struct kva_cluster {
  const kva_gpu_kind *gpu;
  int64_t per_node, nodes;
} kva_cluster;

/* "h100x8x16": 16 nodes of 8. */
KVA_MUST_USE kva_status kva_cluster_named(const char *text, kva_diag *diag, kva_cluster *out);
static inline int64_t kva_cluster_gpus(const kva_cluster *c) {
  return c->per_node * c->nodes;
}
/* What a process may take of a GPU's memory. */
int64_t kva_cluster_room(const kva_cluster *c);

/* What connects a group of `parts` processes, `stride` ranks apart. Ranks fill one node after the other. */
typedef struct kva_link {
  const char *name;
  double latency, bandwidth;
} kva_link;
kva_link kva_cluster_link(const kva_cluster *c, int64_t parts, int64_t stride);

/* Exchanges of a step over one axis of the mesh by one operator. */
typedef struct kva_exchange_cost {
  const char *op, *axis;
  kva_link link;
  int64_t parts, stride;
  int64_t count, bytes, messages; /* by a process with neighbours on both sides, in all */
  double seconds;
} kva_exchange_cost;
enum { KVA_MAX_EXCHANGES = 24 }; /* operators times axes, and more */

/* What calls of one program of a step take. */
typedef struct kva_program_cost {
  const char *name;
  int64_t calls;                  /* in a step */
  double compute;                 /* seconds of all calls, without exchange */
  double flops;                   /* of a call */
  int64_t temporaries, gradients; /* bytes at the peak; gradients of them */
  int64_t other;                  /* bytes of constants, inputs and outputs */
  int64_t sent;                   /* bytes of a call, by process 0 */
} kva_program_cost;

/* A training step on a mesh. */
typedef struct kva_paper {
  kva_mesh mesh;
  int64_t rows, passes;            /* of a micro-batch; micro-batches of a step in each process */
  int64_t memory;                  /* the budget that values are computed again for; 0: all are kept */
  int64_t params, copies, moments; /* bytes; copies: of parameters, for products in 16 bits */
  int64_t gradients, states;       /* that micro-batches add to; all others */
  int64_t tokens;                  /* of a micro-batch; 0: inputs are no tokens */
  int n_programs, n_exchanges;
  kva_program_cost programs[2];
  kva_exchange_cost exchanges[KVA_MAX_EXCHANGES];
} kva_paper;

int64_t kva_paper_bytes(const kva_paper *p); /* of a process, in all */
int64_t kva_paper_temporaries(const kva_paper *p);
int64_t kva_paper_other(const kva_paper *p); /* neither parameters, moments, gradients nor temporaries */
int64_t kva_paper_sent(const kva_paper *p);  /* in a step, by process 0 */
double kva_paper_compute(const kva_paper *p);
double kva_paper_exchange(const kva_paper *p);
double kva_paper_seconds(const kva_paper *p); /* of a step */

/* ---- what is planned --------------------------------------------------------------------------------------------- */

typedef struct kva_planner {
  kva_cluster cluster;
  int64_t batch;     /* rows of a step of the whole run */
  int64_t rows;      /* of a micro-batch; 0: as many as fit */
  int64_t memory;    /* bytes that a process may take */
  double efficiency; /* share of kva_gpu_kind.flops that products reach */
  kva_dtype compute;
  kva_pass_control *control;
  /* The model again, for micro-batches of so many rows. */
  kva_status (*load)(void *user, int64_t rows, kva_diag *diag, kva_module **out_module);
  void *user;
  double row_flops;   /* of a row of a batch in one process that keeps all values; kva_planner_measure */
  int64_t row_tokens; /* likewise */
} kva_planner;

/* Adds what the calls of a program take to p. */
KVA_MUST_USE kva_status kva_paper_add(const kva_planner *planner, kva_module *m, const kva_memory_plan *plan,
                                      int64_t calls, kva_paper *p);
/* Adds `count` exchanges like x among out->parts processes, out->stride ranks apart. */
void kva_exchange_add(const kva_cluster *c, const kva_exchanged *x, int64_t count, kva_exchange_cost *out);

KVA_MUST_USE kva_status kva_planner_measure(kva_planner *planner, kva_diag *diag);
/* A step of `passes` micro-batches of `rows` rows. memory: see kva_paper. */
KVA_MUST_USE kva_status kva_planner_plan(const kva_planner *planner, const kva_mesh *mesh, int64_t rows, int64_t passes,
                                         int64_t memory, kva_diag *diag, kva_paper *out);
/* Rows of a step in each process. KVA_INVALID: they, or their micro-batches, do not divide. */
KVA_MUST_USE kva_status kva_planner_rows(const kva_planner *planner, const kva_mesh *mesh, kva_diag *diag,
                                         int64_t *out);
/* The largest divisor of n up to `most`; at least 1. */
int64_t kva_planner_divisor(int64_t n, int64_t most);
/* The step with the largest micro-batches that fit. KVA_INVALID with the reason: there is none. */
KVA_MUST_USE kva_status kva_planner_fit(const kva_planner *planner, const kva_mesh *mesh, kva_diag *diag,
                                        kva_paper *out);

double kva_planner_tokens(const kva_planner *planner, const kva_paper *p); /* a second; rows, if there are no tokens */
double kva_planner_mfu(const kva_planner *planner, const kva_paper *p);

/* ---- search ------------------------------------------------------------------------------------------------------ */

/* A mesh that was looked at. */
typedef struct kva_candidate {
  kva_mesh mesh;
  double estimate;    /* seconds of a step, by arithmetic */
  const char *reason; /* that it is not taken; NULL: it is */
  kva_paper paper;    /* of one that is taken */
} kva_candidate;

typedef struct kva_search {
  uint32_t n_taken, n; /* those that are taken come first, the fastest one before the others */
  kva_candidate *all;
} kva_search;

/* The meshes of all GPUs of the cluster, with at most a node's for tensor and sequence. From the arena. KVA_INVALID:
 * the model cannot be planned at all. */
KVA_MUST_USE kva_status kva_planner_search(const kva_planner *planner, kva_arena *arena, kva_diag *diag,
                                           kva_search *out);

/* ---- output ------------------------------------------------------------------------------------------------------ */

/* The mesh as --mesh has it, in the arena. */
const char *kva_mesh_text(const kva_mesh *mesh, kva_arena *arena);
void kva_planner_print(const kva_planner *planner, const kva_paper *p, FILE *out);
void kva_planner_print_json(const kva_planner *planner, const kva_paper *p, FILE *out);
void kva_search_print(const kva_planner *planner, const kva_search *s, FILE *out);
/* An object with two lists: "taken", objects as above, and "not_taken". */
void kva_search_print_json(const kva_planner *planner, const kva_search *s, FILE *out);

#endif
