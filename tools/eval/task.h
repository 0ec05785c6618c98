/* Tasks: items with right answers, read from files, and what a model makes of them. */
#ifndef KVA_TOOLS_EVAL_TASK_H
#define KVA_TOOLS_EVAL_TASK_H

#include "tools/eval/scorer.h"
#include "tools/tokenizer/tokenizer.h"

/* ---- items ------------------------------------------------------------------------------------------------------- */

typedef enum kva_item_kind {
  KVA_ITEM_CHOICE, /* which continuation is the likeliest? */
  KVA_ITEM_TARGET, /* one continuation: how likely is it, and does the model choose every token of it? */
  KVA_ITEM_ANSWER, /* is what the model writes one of the continuations? */
} kva_item_kind;

typedef struct kva_item_text {
  const char *context, *continuation; /* one after the other they are a text; UTF-8 */
} kva_item_text;

typedef struct kva_item {
  kva_item_kind kind;
  kva_loc loc;
  const char *intro;          /* text before all examples and the item, or "" */
  const char *group;          /* examples come from the same group: a subject, or "" */
  uint32_t n, right;          /* CHOICE: the number of the right text; else 0, which is shown in examples */
  const kva_item_text *texts; /* ANSWER: equal contexts */
  const char *stop;           /* ANSWER: ends what the model writes */
  bool mathematics;           /* ANSWER: compared as formulas */
} kva_item;

typedef struct kva_items {
  kva_arena *arena; /* of all items and their strings */
  KVA_VEC(kva_item) list;
} kva_items;

/* Names of the formats that kva_items_read knows, as a list of words for options: "items|lambada|..." */
#define KVA_TASKS "items|lambada|winogrande|hellaswag|arc|mmlu|cmmlu|math"

/* Appends the items of a file, or of the files in a folder. The message for an item that is not of the format names
 * file, line and what was expected. */
KVA_MUST_USE kva_status kva_items_read(const char *task, const char *path, kva_diag *diag, kva_items *items);

/* ---- running ----------------------------------------------------------------------------------------------------- */

typedef struct kva_task_run {
  kva_scorer *scorer;
  kva_tokenizer *tokenizer;
  int64_t vocabulary;
  int64_t context;       /* tokens before a continuation at most, the last ones; 0: all */
  int64_t positions;     /* tokens that the model can read */
  int64_t answer_tokens; /* that the model writes at most */
  int64_t shots;         /* examples before each item */
  const kva_items
      *pool;     /* they are taken from here, in its order; NULL: from the items, at random, never the item itself */
  int64_t limit; /* items at most; 0: all */
  int64_t resamples; /* for error bars */
  uint64_t seed;     /* of examples and resamples */
  FILE *details;     /* gets a JSON object for each item, or NULL */
  bool progress;     /* on standard error */
} kva_task_run;

typedef enum kva_measure {
  KVA_MEASURE_ACCURACY,  /* CHOICE: by the probability of the continuation; TARGET: the model chooses all of it */
  KVA_MEASURE_BY_TOKENS, /* CHOICE: by the mean over its tokens */
  KVA_MEASURE_BY_BYTES,  /* CHOICE: by the mean over its bytes */
  KVA_MEASURE_LOSS,      /* TARGET: -ln of its probability */
  KVA_MEASURE_EXACT,     /* ANSWER */
  KVA_MEASURES
} kva_measure;
extern const char *const kva_measure_names[KVA_MEASURES];

typedef struct kva_task_score {
  int64_t items, cut; /* cut: texts that lost tokens at their beginning */
  struct kva_measured {
    int64_t n;          /* items; 0: none of this kind */
    double mean, error; /* error: standard deviation of the mean over resamples */
  } of[KVA_MEASURES];
} kva_task_score;

KVA_MUST_USE kva_status kva_task_evaluate(const kva_task_run *r, const kva_items *items, kva_diag *diag,
                                          kva_task_score *out);

/* Mean of n values, and the standard deviation of the means of `resamples` samples of n of them, drawn with
 * replacement; 0 for less than two resamples. */
struct kva_measured kva_bootstrap(int64_t n, const double *values, int64_t resamples, uint64_t seed);

/* Whether two answers are the same but for white space at both ends; mathematics: but for what does not change a
 * formula in LaTeX. */
bool kva_same_answer(const char *a, const char *b, bool mathematics);
/* The argument of the last \boxed in a solution, in the arena; NULL: none. */
const char *kva_boxed(const char *solution, kva_arena *arena);

#endif
