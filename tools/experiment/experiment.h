/* Experiments: files of data that say which commands to run and what to compare. One engine runs any of them: it
 * expands runs and seeds to commands of this tool, keeps the results of those that are done, judges claims and writes
 * pages. */
#ifndef KVA_TOOLS_EXPERIMENT_H
#define KVA_TOOLS_EXPERIMENT_H

#include "runtime/report.h"

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* How large: as the file says, or with the options of its "quick" or "paper". */
typedef enum kva_scale { KVA_SCALE_FILE, KVA_SCALE_QUICK, KVA_SCALE_PAPER, KVA_N_SCALES } kva_scale;

/* {NAME} in options stands for the path. */
typedef struct kva_exp_file {
  const char *name, *path;
} kva_exp_file;

/* What `kvasir eval` measures of a trained model; its values get the name as a prefix. */
typedef struct kva_exp_eval {
  const char *name, *options;
} kva_exp_eval;

/* A run of the file; each seed makes one command of it. */
typedef struct kva_exp_run {
  const char *name, *model, *options; /* options: words, added to those of the file; or NULL */
  const char *full;                   /* instead of options in KVA_SCALE_PAPER; or NULL */
  const char *group;                  /* the curve of a plot of points that it belongs to; NULL: its own name */
  double x;                           /* its place there; NaN: not drawn */
} kva_exp_run;

typedef enum kva_exp_plot_kind {
  KVA_PLOT_CURVES, /* metric over steps */
  KVA_PLOT_POINTS, /* value over the x of runs, a curve a group */
  KVA_PLOT_TABLE,  /* all of `values`, a row a run */
  KVA_PLOT_FIELD,  /* the matrix `metric` that a model computes over the unit square */
  KVA_PLOT_SHIFTS, /* learned shift scalars */
} kva_exp_plot_kind;

typedef struct kva_exp_plot {
  kva_exp_plot_kind kind;
  const char *title, *metric, *x_title, *y_title;
  bool log_x, fit; /* fit: y = a x^-b by least squares of logarithms, beside the points */
  uint32_t n_values;
  const char **values;
  const double *at; /* of points with values: the x of each, a curve a run */
} kva_exp_plot;

/* `value` of the run `of` compared with a number or with the same value of another run, times a factor, for each seed.
 */
typedef struct kva_exp_claim {
  const char *text, *paper, *value, *is;
  uint32_t of;
  int64_t than_run; /* -1: than is a number */
  double than, times, within;
} kva_exp_claim;

typedef struct kva_experiment {
  const char *name, *path, *title, *paper, *about;
  const char *verb;                  /* "train", "run", "show" or "eval" */
  const char *options[KVA_N_SCALES]; /* added to those of [KVA_SCALE_FILE]; or NULL */
  int64_t seeds;
  KVA_VEC(kva_exp_file) files;
  KVA_VEC(kva_exp_eval) evals;
  KVA_VEC(kva_exp_run) runs;
  KVA_VEC(kva_exp_plot) plots;
  KVA_VEC(kva_exp_claim) claims;
} kva_experiment;

/* Reads a file, all of whose keys must be known. Strings lie in the arena; paths of models are relative to the file. */
KVA_MUST_USE kva_status kva_experiment_read(const char *path, kva_arena *arena, kva_diag *diag, kva_experiment *out);

/* ---- runs -------------------------------------------------------------------------------------------------------- */

typedef struct kva_exp_settings {
  kva_scale scale;
  int64_t seeds; /* 0: the file's */
  int64_t jobs;  /* at a time; 0: one a core */
  const char *folder, *device;
  KVA_VEC(kva_exp_file) files; /* before those of the experiment */
  const char *given;           /* options of the command that name files or the device: " --text books"; or empty */
  bool dry_run;                /* jobs only say what they would be */
} kva_exp_settings;

typedef struct kva_exp_value {
  const char *name;
  double value;
} kva_exp_value;

typedef struct kva_exp_command {
  char **argv;        /* as started; ends with NULL */
  const char *output; /* of the job's folder, gets its standard output */
  const char *name;   /* for a reader, with `text`, as one would type it; NULL: for the engine only */
  const char *text;
} kva_exp_command;

/* A run with a seed: commands one after the other and, once they are done, what came of them. */
typedef struct kva_exp_job {
  const kva_experiment *experiment;
  uint32_t run; /* of the experiment */
  int64_t seed;
  KVA_VEC(kva_exp_command) commands;
  uint32_t at;        /* the command that runs */
  const char *folder; /* of its results */
  bool cached, done;
  const char *failure; /* how its command ended, if it failed; there are no results then */
  int pid;             /* while it runs, else 0 */
  double began, seconds;
  kva_history *history; /* of a training; else NULL */
  KVA_VEC(kva_exp_value) values;
  KVA_VEC(kva_report_item) config; /* of a training: data, batch, rate, ... */
} kva_exp_job;

/* Seeds of each run: 1 in a dry run. */
int64_t kva_exp_seeds(const kva_experiment *e, const kva_exp_settings *o);
/* The jobs of an experiment: run 0 with all seeds, run 1, ... *out_n of them in the arena. */
KVA_MUST_USE kva_status kva_exp_expand(const kva_experiment *e, const kva_exp_settings *o, kva_arena *arena,
                                       kva_diag *diag, kva_exp_job **out_jobs, uint32_t *out_n);
/* Runs those that are not done yet, several at a time, and loads the results of all. One that fails stops no other.
 * KVA_INTERRUPTED after a signal. */
KVA_MUST_USE kva_status kva_exp_run_jobs(kva_exp_job **jobs, uint32_t n, const kva_exp_settings *o, kva_arena *arena,
                                         kva_diag *diag);
void kva_exp_job_free(kva_exp_job *job);
/* Continues the hash with a file, or with names and bytes of all files of a folder in order of their names; names that
 * begin with a dot are left out. */
KVA_MUST_USE kva_status kva_exp_hash(const char *path, kva_arena *arena, kva_diag *diag, uint64_t *hash);
/* Loads what the command of a job left in its folder. */
KVA_MUST_USE kva_status kva_exp_load(kva_exp_job *job, kva_arena *arena, kva_diag *diag);

/* A setting of a training as text; NULL: there is none. */
const char *kva_exp_config_of(const kva_exp_job *job, const char *name);
/* What a training takes, by its plan. */
typedef struct kva_exp_cost {
  double parameters, bytes, step_flops, steps; /* bytes: of all that is in memory at once */
} kva_exp_cost;
/* false: the job is no training, or has failed. */
bool kva_exp_cost_of(const kva_exp_job *job, kva_exp_cost *out);

/* ---- judgement --------------------------------------------------------------------------------------------------- */

/* "last loss", "best accuracy", "least loss", "reach accuracy 0.99" (the first step there, infinite if never): of the
 * evaluations, else of the training steps. "mean A, B, ...": of values. A plain name: a value that the run printed.
 * NaN where there is no number, as the last accuracy of a run whose loss was not finite: no claim holds of it. */
KVA_MUST_USE kva_status kva_exp_value_of(const kva_exp_job *job, const char *what, kva_diag *diag, double *out);

typedef struct kva_exp_verdict {
  const char *ours; /* what was found, in words */
  bool holds;       /* for every seed */
  int64_t held, seeds;
} kva_exp_verdict;
/* jobs: those of the experiment; *out_verdicts: one a claim. A claim about a run that failed does not hold. */
KVA_MUST_USE kva_status kva_exp_judge(const kva_experiment *e, const kva_exp_job *jobs, int64_t seeds, kva_arena *arena,
                                      kva_diag *diag, kva_exp_verdict **out_verdicts);
/* The mean over seeds with its range, as "0.998 (0.995 to 1)". */
const char *kva_exp_mean_text(kva_arena *arena, int64_t n, const double *values);

/* ---- pages ------------------------------------------------------------------------------------------------------- */

typedef struct kva_exp_outcome {
  const kva_experiment *experiment;
  kva_exp_job *jobs;
  int64_t seeds;
  kva_exp_verdict *verdicts;
} kva_exp_outcome;

/* How a run failed, with any of its seeds; NULL: it has results. */
const char *kva_exp_failure(const kva_exp_job *jobs, int64_t seeds, uint32_t run);

/* NAME.json, NAME.html and NAME-*.svg in the folder; with several outcomes all.html, too. */
KVA_MUST_USE kva_status kva_exp_write(const kva_exp_outcome *outcomes, uint32_t n, const kva_exp_settings *o,
                                      kva_arena *arena, kva_diag *diag);

#endif
