/* Training from a command line, shared by `kvasir train` and the executables of `kvasir build --train --exe`. */
#ifndef KVA_RUNTIME_EXE_TRAIN_H
#define KVA_RUNTIME_EXE_TRAIN_H

#include "runtime/comm.h"
#include "runtime/exe/options.h"
#include "runtime/report.h"
#include "runtime/runtime.h"

/* Values of the model's train block; 0 or NULL: absent. */
typedef struct kva_train_defaults {
  const char *schedule, *data; /* data: a text for kva_data_open */
  double lr, final_ratio;
  int64_t steps, batch, warmup, total, length;
  int64_t vocab;                /* last extent of the model's first output */
  const kva_data_range *ranges; /* of the data inputs */
} kva_train_defaults;

/* Names of the values of kva_schedule_kind, in order. */
#define KVA_SCHEDULES "constant|warmup|cosine|linear"

/* Values of the command line. Absent: negative where 0 means something, else 0 or NULL; or the defaults in
 * KVA_TRAIN_SETTINGS. */
typedef struct kva_train_settings {
  const char *data, *schedule, *metrics, *report, *checkpoint, *resume;
  /* Gets every event after the metrics have it, or NULL. resumed: the step that the run goes on from. */
  kva_status (*observe)(void *observer, const kva_train_event *event, int64_t resumed, kva_diag *diag);
  void *observer;
  kva_strings sources; /* kva_train_take_sources makes `data` of them */
  double time_limit;   /* seconds */
  kva_part shard;
  struct kva_comm *comm; /* the processes of the run; NULL: one */
  uint64_t model;        /* a sum over the model, where the program does not contain it */
  const char *rank_logs;
  int64_t steps, batch, accumulate, micro_batch, seed, threads, eval_every, eval_batches, checkpoint_every, keep;
  int64_t warmup;
  double lr, final_lr, weight_decay, clip;
  bool json, profile, keep_best;
} kva_train_settings;
#define KVA_TRAIN_SETTINGS                                                                                       \
  {                                                                                                              \
    .shard = {0, 1}, .steps = -1, .accumulate = 1, .seed = -1, .warmup = -1, .final_lr = -1, .weight_decay = -1, \
    .clip = -1, .eval_every = 100, .eval_batches = 8, .checkpoint_every = 1000, .keep = 3                        \
  }
/* Rows of the option table for settings *o. */
#define KVA_TRAIN_OPTIONS(o)                                                                                            \
  {"--steps", NULL, "N", KVA_OPTION_INT, &(o)->steps, "optimiser steps (the train block's; 0: only evaluate)"},         \
      {"--batch", NULL, "N", KVA_OPTION_COUNT, &(o)->batch, "sequences a step (the train block's, else 32)"},           \
      {"--accumulate", NULL, "N", KVA_OPTION_COUNT, &(o)->accumulate, "batches whose gradients make one step (1)"},     \
      {"--micro-batch",                                                                                                 \
       NULL,                                                                                                            \
       "N",                                                                                                             \
       KVA_OPTION_COUNT,                                                                                                \
       &(o)->micro_batch,                                                                                               \
       "sequences a micro-batch; gradients are summed over micro-batches in order"},                                    \
      {"--lr", NULL, "X", KVA_OPTION_POSITIVE, &(o)->lr, "learning rate (the train block's)"},                          \
      {"--schedule", NULL, KVA_SCHEDULES, KVA_OPTION_WORD, &(o)->schedule, "of the learning rate (the train block's)"}, \
      {"--warmup", NULL, "N", KVA_OPTION_INT, &(o)->warmup, "steps of linear warm-up"},                                 \
      {"--final-lr",                                                                                                    \
       NULL,                                                                                                            \
       "X",                                                                                                             \
       KVA_OPTION_NOT_NEGATIVE,                                                                                         \
       &(o)->final_lr,                                                                                                  \
       "where cosine and linear end, a share of --lr"},                                                                 \
      {"--weight-decay", NULL, "X", KVA_OPTION_NOT_NEGATIVE, &(o)->weight_decay, "of what the train block decays"},     \
      {"--clip", NULL, "X", KVA_OPTION_NOT_NEGATIVE, &(o)->clip, "greatest norm of the gradient (0: none)"},            \
      {"--seed", NULL, "N", KVA_OPTION_INT, &(o)->seed, "of initial values and data (0)"},                              \
      {"--threads", NULL, "N", KVA_OPTION_INT32, &(o)->threads, "worker threads (all); results do not depend on it"},   \
      {"--data",                                                                                                        \
       NULL,                                                                                                            \
       "SOURCE",                                                                                                        \
       KVA_OPTION_LIST,                                                                                                 \
       &(o)->sources,                                                                                                   \
       "instead of the train block's: induction, ngram, hop, igsm, random, tokens:FILE, npy:INPUT=FILE,..., "           \
       "safetensors:FILE; "                                                                                             \
       "several, each with weight=X, are mixed"},                                                                       \
      {"--shard", NULL, "R/W", KVA_OPTION_PART, &(o)->shard, "only part R (from 0) of W of every batch"},               \
      {"--rank-logs",   NULL,                                                                                           \
       "DIR",           KVA_OPTION_STRING,                                                                              \
       &(o)->rank_logs, "where processes of a mesh other than the first write what they print (nowhere)"},              \
      {"--eval-every", NULL, "N", KVA_OPTION_INT, &(o)->eval_every, "steps between evaluations (100; 0: never)"},       \
      {"--eval-batches", NULL, "N", KVA_OPTION_INT, &(o)->eval_batches, "batches of an evaluation (8)"},                \
      {"--checkpoint", NULL, "DIR", KVA_OPTION_STRING, &(o)->checkpoint, "save checkpoints in this folder"},            \
      {"--checkpoint-every", NULL, "N", KVA_OPTION_INT, &(o)->checkpoint_every, "steps between checkpoints (1000)"},    \
      {"--keep", NULL, "N", KVA_OPTION_INT, &(o)->keep, "checkpoints to keep, the last ones (3; 0: all)"},              \
      {"--keep-best",                                                                                                   \
       NULL,                                                                                                            \
       NULL,                                                                                                            \
       KVA_OPTION_FLAG,                                                                                                 \
       &(o)->keep_best,                                                                                                 \
       "save the state of the lowest evaluation loss as best.safetensors, too"},                                        \
      {"--resume",        NULL,         "[=PATH]",                                                                      \
       KVA_OPTION_CHOICE, &(o)->resume, "continue from a checkpoint, the last one of a folder (--checkpoint's)"},       \
      {"--time-limit", NULL, "T", KVA_OPTION_SECONDS, &(o)->time_limit, "end after 90s, 30m or 8h, as Ctrl-C does"},    \
      {"--metrics", NULL, "FILE", KVA_OPTION_STRING, &(o)->metrics, "write JSON lines, or CSV if FILE ends in .csv"},   \
      {"--report",        NULL,         "FILE.html",                                                                    \
       KVA_OPTION_STRING, &(o)->report, "write one page: curves, throughput, memory, time by kernel"},                  \
      {"--profile",     NULL,          NULL,                                                                            \
       KVA_OPTION_FLAG, &(o)->profile, "time every kernel; print the longest, memory, exchange"},                       \
  {                                                                                                                     \
    "--json", NULL, NULL, KVA_OPTION_FLAG, &(o)->json, "print the JSON lines instead of progress"                       \
  }

/* Rows of a step that each of the processes takes; an error where they do not divide. */
KVA_MUST_USE kva_status kva_train_rows_each(const kva_train_settings *o, const kva_train_defaults *d, kva_diag *diag,
                                            int64_t *out_rows);
/* Rows of a step, and of a micro-batch (0: as the program was compiled, else all rows). */
int64_t kva_train_rows(const kva_train_settings *o, const kva_train_defaults *d);
int64_t kva_train_pass_rows(const kva_train_settings *o, const kva_train_defaults *d);
/* What is wrong with settings beside each other; NULL: nothing. */
const char *kva_train_misused(const kva_train_settings *o);
/* Makes the data source of the command line's sources, in the arena. */
void kva_train_take_sources(kva_train_settings *o, kva_arena *arena);
/* The data source as text; NULL: none was given. */
const char *kva_train_data(const kva_train_settings *o, const kva_train_defaults *d);
/* The file that `output` (or NULL) is and that the run reads, as data or to go on from, in the arena; NULL: none. */
const char *kva_train_reads(const kva_train_settings *o, const char *data, const char *output, kva_arena *arena);
/* Opens what the settings name, so that mistakes are found before a model is compiled: the data, for n inputs of these
 * names, and the checkpoint of --resume. */
KVA_MUST_USE kva_status kva_train_check(const kva_train_settings *o, const kva_train_defaults *d, int n,
                                        const char *const *inputs, kva_diag *diag);
/* The settings of a run; *out lacks data symbols and callbacks. */
KVA_MUST_USE kva_status kva_train_make_options(const kva_train_settings *o, const kva_train_defaults *d, kva_diag *diag,
                                               kva_train_options *out);

/* The results of a run, for a report on several runs. Strings and arrays lie in the arena. */
typedef struct kva_train_result {
  const char *name;
  kva_history *history; /* free it with kva_history_destroy */
  kva_report_shift *shifts;
  int n_shifts;
  double seconds; /* of training */
  kva_memory_report memory;
  int64_t sent;            /* bytes a step, to other processes */
  kva_comm_times exchange; /* with them, in all steps and evaluations */
  int program; /* the program that memory and times describe: the training step or one of its micro-batches; -1: none */
  kva_report_time *times; /* of its kernels, longest first; only if the session profiles */
  int n_times;
  kva_report_moment *moments; /* of its steps */
  int n_moments;
  const kva_report_item *config; /* kva_train_config */
  int n_config;
  double items; /* per optimiser step, in units of: */
  const char *unit;
} kva_train_result;

/* Ctrl-C, SIGTERM, SIGHUP and SIGPIPE end runs after the current step; SIGHUP and SIGPIPE not where they are ignored,
 * as by nohup. */
void kva_train_catch_signals(void);
bool kva_train_stopped(void);

/* Trains a session according to the settings, resuming from the last checkpoint if they ask for it; prints progress;
 * writes metrics and checkpoints. metrics: the file, or NULL. The caller sets result->name; everything else is filled
 * in, also on failure. KVA_INTERRUPTED: a signal or the time limit ended the run before its last step. */
KVA_MUST_USE kva_status kva_train_session(kva_session *s, const kva_train_settings *o, const kva_train_defaults *d,
                                          const char *metrics, kva_arena *arena, kva_diag *diag,
                                          kva_train_result *result);
/* Whether a program's first input is a matrix of integers. */
bool kva_train_reads_tokens(const kva_program *p);
/* Data, batch, rate and what else shapes a run, by name and as text, in the arena. Returns their number; 0: settings
 * that kva_train_make_options refuses. */
int kva_train_config(const kva_train_settings *o, const kva_train_defaults *d, kva_arena *arena,
                     const kva_report_item **out);
/* Collects and prints shift scalars, memory and times of the session after a run, and its configuration. together: all
 * processes call it, so that each has the scalars of all stages; else those of its own. */
KVA_MUST_USE kva_status kva_train_collect(kva_session *s, const kva_train_settings *o, const kva_train_defaults *d,
                                          bool together, kva_arena *arena, kva_train_result *result);
/* config: printed before what the results say of their own configurations. */
KVA_MUST_USE kva_status kva_train_write_report(const char *path, int n, const kva_train_result *results, int n_config,
                                               const kva_report_item *config, kva_arena *arena, kva_diag *diag);

#endif
