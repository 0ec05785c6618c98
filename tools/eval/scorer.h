/* Probabilities of tokens by a language model, through its derived programs "decode" and "step": chunks of rows bound
 * the memory of logits, and what texts have in common at their beginning is computed once. */
#ifndef KVA_TOOLS_EVAL_SCORER_H
#define KVA_TOOLS_EVAL_SCORER_H

#include "runtime/runtime.h"
#include "tools/driver/language.h"

typedef struct kva_scorer kva_scorer;

/* s: a session of the model, compiled with kva_compile_options.decode for any number of sequences; borrowed. */
KVA_MUST_USE kva_status kva_scorer_create(kva_session *s, const kva_language *language, kva_diag *diag,
                                          kva_scorer **out_scorer);
void kva_scorer_destroy(kva_scorer *s);

/* A text of n tokens, of which those from `first` (at least 1) on are scored. */
typedef struct kva_scored_text {
  const uint32_t *tokens; /* each less than the model's vocabulary */
  int64_t n, first;
  double *log_p;   /* [n - first]: ln of the probability of each token after all before it */
  bool *likeliest; /* [n - first], or NULL: whether the model's first choice is this token; ties go to the lower one */
} kva_scored_text;

/* Scores texts together. The result of a text does not depend on the others. KVA_NOT_FINITE: a logit is NaN. */
KVA_MUST_USE kva_status kva_scorer_run(kva_scorer *s, int n, const kva_scored_text *texts, kva_diag *diag);

/* Continues a text of n tokens by the likeliest token, at most `count` times. `take` gets each and returns whether to
 * go on. KVA_NOT_FINITE: a logit is NaN. */
KVA_MUST_USE kva_status kva_scorer_continue(kva_scorer *s, int64_t n, const uint32_t *tokens, int64_t count,
                                            bool (*take)(void *user, uint32_t token), void *user, kva_diag *diag);

#endif
