/* Where the time of a program goes, beside what the machine can do: what `kvasir profile` prints. */
#ifndef KVA_TOOLS_PROFILE_H
#define KVA_TOOLS_PROFILE_H

#include "runtime/report.h"

/* What the machine reaches when nothing else is in the way; 0: unknown. */
typedef struct kva_peaks {
  const char *isa; /* instruction set of the loops; NULL: unknown */
  int threads;
  double flops; /* float multiply-adds in registers, per second, two operations each */
  double bytes; /* read from memory, per second */
} kva_peaks;

/* Measures this machine's CPU with so many threads (0: all), in about half a second. Fails without memory. */
KVA_MUST_USE kva_status kva_peaks_measure(int threads, kva_diag *diag, kva_peaks *out);

typedef struct kva_profile_step {
  const char *name;  /* the nodes of the graph that it computes */
  int program, step; /* of the session */
  int outer;         /* the loop or branch among the steps that runs its program; -1: callers do */
  int64_t calls;     /* in one run: how often a loop runs it */
  double seconds;    /* of one run, the median of all; of a loop or branch without the steps that it runs */
  double flops;      /* matrix products, convolutions, attention; 0: none, or sizes were not known to the compiler */
  double bytes;      /* of its arguments, each once a call */
  int64_t live;      /* bytes of temporaries meanwhile */
} kva_profile_step;

typedef struct kva_profile {
  const char *model, *program, *device;
  int64_t runs;
  double median, low, high; /* seconds of a run; the range that half of the runs are in */
  int n;
  kva_profile_step *steps; /* in order; those that a loop or branch runs follow it */
  kva_memory_report memory;
  kva_peaks peaks;
} kva_profile;

/* Runs a program of a session with options.profile `runs` times, after one that is not counted, and fills in what was
 * measured. Strings are the session's. */
KVA_MUST_USE kva_status kva_profile_run(kva_session *s, int program, int64_t runs, const kva_tensor *in,
                                        kva_tensor *out, kva_arena *arena, kva_diag *diag, kva_profile *profile);

/* A line for each kind of step, those that take longest first, at most `most`. */
void kva_profile_print(const kva_profile *p, int most, FILE *out);
/* One object: the run, the machine, memory, and every step in order. */
void kva_profile_print_json(const kva_profile *p, FILE *out);
/* Events in Chrome's format (chrome://tracing, Perfetto): one run made of the medians, and memory. */
KVA_MUST_USE kva_status kva_profile_write_trace(const kva_profile *p, const char *path, kva_diag *diag);
/* One HTML page: roofline, memory over the steps, the table. */
KVA_MUST_USE kva_status kva_profile_write_page(const kva_profile *p, const char *path, kva_diag *diag);

#endif
