/* Options of fine-tuning that `kvasir train` has: what trains, from which values, by which loss. */
#ifndef KVA_TOOLS_TUNE_H
#define KVA_TOOLS_TUNE_H

#include "passes/tune.h"
#include "tools/cli.h"

typedef struct kva_tune_choice {
  kva_strings train, freeze, init, lora;
  int64_t rank;               /* set to defaults before parsing: KVA_TUNE_DEFAULTS */
  double alpha, weight_decay; /* weight_decay: of matrices and filters, with --loss */
  const char *loss, *labels, *optimizer, *weights;
} kva_tune_choice;
#define KVA_TUNE_DEFAULTS \
  { .rank = 8, .alpha = 16, .weight_decay = 0, .labels = "int64", .optimizer = "adamw" }

#define KVA_TUNE_OPTIONS(c)                                                                                             \
  {                                                                                                                     \
      "--train",       NULL,        "PATTERN",                                                                          \
      KVA_OPTION_LIST, &(c)->train, "train what matches, freeze the rest; may be given often"},                         \
      {"--freeze", NULL, "PATTERN", KVA_OPTION_LIST, &(c)->freeze, "do not train what matches; may be given often"},    \
      {"--init",        NULL,       "PATTERN=INIT",                                                                     \
       KVA_OPTION_LIST, &(c)->init, "new values: zeros, constant(x), normal(s), uniform(a,b), he"},                     \
      {"--loss",          NULL,       "NAME",                                                                           \
       KVA_OPTION_STRING, &(c)->loss, "for a model without a train block: cross_entropy or mse"},                       \
      {"--labels", NULL, "TYPE", KVA_OPTION_STRING, &(c)->labels, "of cross_entropy's labels: int64 (default), int32"}, \
      {"--optimizer",   NULL,                                                                                           \
       "NAME",          KVA_OPTION_STRING,                                                                              \
       &(c)->optimizer, "with --loss: adamw (default), sgd, momentum, adagrad"},                                        \
      {"--weights",       NULL,          "FILE",                                                                        \
       KVA_OPTION_STRING, &(c)->weights, "start from these: a safetensors file or checkpoint"},                         \
      {"--lora", NULL, "PATTERN", KVA_OPTION_LIST, &(c)->lora, "train low-rank updates of the weights that match"},     \
      {"--rank", NULL, "N", KVA_OPTION_INT, &(c)->rank, "of low-rank updates (8)"}, {                                   \
    "--alpha", NULL, "X", KVA_OPTION_FLOAT, &(c)->alpha, "low-rank updates are scaled by X / rank (16)"                 \
  }

/* Applies the choice to a loaded module. lr: for a train block made by --loss; 0: 1e-3. */
KVA_MUST_USE kva_status kva_cli_tune(kva_module *m, const kva_tune_choice *c, double lr, kva_diag *diag);
/* One line for everything that trains, where the choice selects. */
void kva_cli_print_trained(const kva_module *m, const kva_tune_choice *c);

#endif
