/* Options of fine-tuning: trained parameters, their initial values, the loss. For verbs that train. */
#ifndef KVA_TOOLS_TUNE_H
#define KVA_TOOLS_TUNE_H

#include "tools/cli.h"
#include "tools/library/tune.h"

/* Option rows that both verbs share; each adds its own for `train` and `weights`. */
#define KVA_TUNE_OPTIONS(c)                                                                                         \
  {"--freeze", NULL, "PATTERN", KVA_OPTION_LIST, &(c)->freeze, "do not train what matches; may be given often"},    \
      {"--init",        NULL,       "PATTERN=INIT",                                                                 \
       KVA_OPTION_LIST, &(c)->init, "new values: zeros, constant(x), normal(s), uniform(a,b), he"},                 \
      {"--loss", NULL, "cross_entropy|mse", KVA_OPTION_WORD, &(c)->loss, "for a model without a train block"},      \
                                                                                                                    \
      {"--labels", NULL, "int64|int32", KVA_OPTION_WORD, &(c)->labels, "type of those of cross_entropy (int64)"},   \
      {"--optimizer",   NULL,                                                                                       \
       "NAME",          KVA_OPTION_STRING,                                                                          \
       &(c)->optimizer, "with --loss: adamw (default) or another optimizer of train blocks"},                       \
      {"--lora", NULL, "PATTERN", KVA_OPTION_LIST, &(c)->lora, "train low-rank updates of the weights that match"}, \
      {"--rank", NULL, "N", KVA_OPTION_COUNT, &(c)->rank, "of low-rank updates (8)"}, {                             \
    "--alpha", NULL, "X", KVA_OPTION_FLOAT, &(c)->alpha, "low-rank updates are scaled by X / rank (16)"             \
  }

/* Option row of verbs that may train: --train alone, or with patterns. */
#define KVA_TRAIN_OPTION(c, help) \
  { "--train", NULL, "[=PATTERN]", KVA_OPTION_CHOICES, &(c)->train, help }
/* Whether such a verb trains; a bare --train leaves no pattern. Returns -1, or EXIT_USAGE after a message where other
 * options of the choice are given without it. */
int kva_cli_take_train(const kva_verb *verb, kva_tune_choice *c, bool *out_train);

/* Checks the texts of the choice before a model is loaded. Returns -1, or EXIT_USAGE after printing everything. */
int kva_cli_check_tune(const kva_tune_choice *c);

/* How to load a model for fine-tuning. */
typedef struct kva_tune_load {
  const kva_strings *defines, *pins;
  bool free_batch;           /* see kva_load_options */
  bool inference;            /* likewise; training implies it */
  bool language;             /* likewise */
  double lr;                 /* of a train block made by --loss; 0: 1e-3 */
  bool train;                /* a model without a train block is an error */
  kva_pass_control *control; /* of the passes; may be NULL */
} kva_tune_load;
/* Loads a model and applies the choice. Returns -1 and the module, or an exit code after printing everything. */
int kva_cli_load_tuned(const char *path, const kva_tune_load *how, const kva_tune_choice *c, kva_diag *diag,
                       kva_module **out_module);
/* Prints one line per trained parameter, if the choice says anything of them. */
void kva_cli_print_trained(const kva_module *m, const kva_tune_choice *c);

#endif
