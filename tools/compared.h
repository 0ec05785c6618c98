/* What `kvasir diff` and `reduce` have in common: a model, how it is run, and when its values agree with the
 * reference's. */
#ifndef KVA_TOOLS_COMPARED_H
#define KVA_TOOLS_COMPARED_H

#include "tools/cli.h"
#include "tools/diff/diff.h"

typedef struct kva_compared {
  kva_strings inputs, defines, pins;
  const char *weights;
  int64_t seed, threads;
  kva_device_choice device;
  kva_diff_target target; /* kva_compared_run sets device and threads of it */
  kva_diff_tolerance tolerance;
} kva_compared;
#define KVA_COMPARED \
  { .target.options.opt_level = 2, .tolerance = KVA_DIFF_TOLERANCE }
#define KVA_COMPARED_OPTIONS(c)                                                                                 \
  {"--input", "-i", "[NAME=]FILE", KVA_OPTION_LIST, &(c)->inputs, "a .npy or .pb file for an input"},           \
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &(c)->defines, "set a hyper-parameter of a .kv model"}, \
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &(c)->pins, "fix a shape symbol"},                           \
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &(c)->weights, KVA_WEIGHTS_HELP},                          \
      {"--seed", NULL, "N", KVA_OPTION_INT, &(c)->seed, "of parameters and random inputs (0)"},                 \
      {"--threads", NULL, "N", KVA_OPTION_INT32, &(c)->threads, "worker threads (all)"},                        \
      KVA_DIFF_TOLERANCE_OPTIONS(&(c)->tolerance), KVA_DEVICE_OPTIONS(&(c)->device)

/* A message, if a file that kva_diff_write makes in `dir` would replace one that the verb reads. */
bool kva_compared_replaces(const char *verb, const kva_compared *c, const char *path, const char *dir);

/* A verb's work. `whole` is the model a second time, for kva_diff_begin or to destroy. Returns an exit code. */
typedef int (*kva_compared_work)(void *user, kva_diff_values *v, kva_module *whole, const kva_run_request *request,
                                 kva_diag *diag);
/* Loads the model and does the work. Returns its exit code, or that of what failed before. */
int kva_compared_run(kva_compared *c, const char *path, kva_compared_work work, void *user);

#endif
