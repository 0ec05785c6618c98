/* `kvasir show --cluster`: a training step on a cluster, on paper. */
#ifndef KVA_TOOLS_ON_CLUSTER_H
#define KVA_TOOLS_ON_CLUSTER_H

#include "tools/cli.h"

/* What the user says of the cluster. */
typedef struct kva_cluster_choice {
  const char *name; /* NULL: none */
  int64_t batch;
  double efficiency; /* 0: KVA_CLUSTER_EFFICIENCY */
} kva_cluster_choice;
#define KVA_CLUSTER_EFFICIENCY 0.6
#define KVA_CLUSTER_OPTIONS(c)                                                                                     \
  {"--cluster", NULL,                                                                                              \
   "GPUxNxM",   KVA_OPTION_STRING,                                                                                 \
   &(c)->name,  "a training step on M nodes of N GPUs each (h100x8x16), on paper: memory, exchange, time"},        \
      {"--batch",        NULL,        "N",                                                                         \
       KVA_OPTION_COUNT, &(c)->batch, "rows of that step, of the whole run (a power of two with 4194304 tokens)"}, \
  {                                                                                                                \
    "--efficiency", NULL, "X", KVA_OPTION_POSITIVE, &(c)->efficiency,                                              \
        "share of the GPU's peak that products reach in that step (0.6)"                                           \
  }

/* The model, and how it is compiled. */
typedef struct kva_cluster_model {
  const char *path;
  const kva_strings *defines, *pins;
  const char *mesh; /* NULL: none is given */
  kva_dtype compute;
  int64_t memory; /* 0: what the GPU has */
  bool json;
  kva_pass_control *control;
} kva_cluster_model;

/* Prints the step. Returns an exit code. */
int kva_cli_show_cluster(const kva_cluster_choice *c, const kva_cluster_model *model, kva_diag *diag);

#endif
