/* What of a model is trained and by which loss, as text; and what the passes make of it. */
#ifndef KVA_TOOLS_LIBRARY_TUNE_H
#define KVA_TOOLS_LIBRARY_TUNE_H

#include "passes/tune.h"
#include "runtime/exe/options.h"
#include "tools/library/library.h"

#include <math.h>

typedef struct kva_tune_choice {
  kva_strings train, freeze, init, lora;
  int64_t rank;                   /* with lora; 0: 8 */
  double alpha;                   /* with lora; NaN, as KVA_TUNE_NOTHING has it: 16 */
  double weight_decay;            /* of matrices and filters, with a loss */
  double clip;                    /* greatest norm of the gradient, with a loss; 0: none */
  const char *loss;               /* NULL: that of the model's train block */
  const char *labels, *optimizer; /* with a loss; NULL: "int64", "adamw" */
  const char *weights;
} kva_tune_choice;
#define KVA_TUNE_NOTHING \
  { .alpha = NAN }

/* What the choice says to passes tune, lora and loss: out->tune and out->loss, in the arena. lr: of a train block made
 * for the loss; 0: 1e-3. What goes with a loss, or with low-rank updates, is an error without. */
KVA_MUST_USE kva_status kva_tune_options_of(const kva_tune_choice *c, double lr, kva_arena *arena, kva_diag *diag,
                                            kva_pass_options *out);
/* Applies the choice to a module, but for the weights. control: how passes run; may be NULL. */
KVA_MUST_USE kva_status kva_tune_module(kva_module *m, const kva_tune_choice *c, double lr, kva_pass_control *control,
                                        kva_diag *diag);
/* The choice that a program made; borrows its strings. */
KVA_MUST_USE kva_status kva_tune_choice_of(const kvasir_training *t, kva_diag *diag, kva_tune_choice *out);

#endif
