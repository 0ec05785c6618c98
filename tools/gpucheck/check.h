/* kva_gpu_check: runs the cases of kva_gpu_pack on a device, on a machine without LLVM or this source tree. The device
 * is a GPU, or a CPU that this tree only compiles for.
 *
 *   check.c    options; the supervisor: workers, their time, what they report, what goes to the files
 *   worker.c   one case after the other, in a process of its own
 *   record.c   what stands in the files */
#ifndef KVA_TOOLS_GPUCHECK_CHECK_H
#define KVA_TOOLS_GPUCHECK_CHECK_H

#include "tools/gpucheck/format.h"
#include "tools/gpucheck/kernels.h"

#include <string.h>

/* An operator's case for a CPU. */
static inline bool gpu_case_is_cpu(const gpu_case *c) {
  return strncmp(c->target, "sm_", 3) != 0;
}

static inline bool gpu_device_is_cpu(const char *device) {
  return !strcmp(device, "cpu");
}
static inline bool gpu_device_has_driver(const char *device) {
  return !gpu_device_is_cpu(device) && strcmp(device, "ptxsim") != 0;
}

/* Indexed by gpu_case.artifact; kva_gpu_pack generates the table. */
typedef const kva_artifact *(*gpu_artifact)(void);
extern const gpu_artifact gpu_artifacts[];
extern const int gpu_n_artifacts;

enum { GPU_MAX_TENSORS = 8, GPU_MAX_ONLY = 16 };

typedef struct gpu_item {
  const gpu_case *c;
  const gpu_tensor *tensors[2 * GPU_MAX_TENSORS]; /* inputs, then outputs */
  const void *data[2 * GPU_MAX_TENSORS];
} gpu_item;

typedef enum gpu_verdict {
  GPU_AGREES,
  GPU_WRONG,  /* a value, or values of two runs */
  GPU_FAILED, /* an error of the device or of loading: the process is of no more use */
  GPU_HANGS,  /* no answer within the limit */
  GPU_DIED,   /* the process ended */
  GPU_VERDICTS
} gpu_verdict;

typedef struct gpu_outcome {
  gpu_verdict verdict;
  double device, simulator; /* largest differences in units of the tolerance; negative: not looked at */
  int64_t samples;          /* elements compared with the oracle; 0: all with the reference */
  double seconds, spread;   /* of one run: the median, and (largest - smallest) / median; 0: not timed */
  bool refused;             /* the driver did not take the machine code: this is about its own compilation */
  char message[1024];
  kva_text kernels; /* JSON: what the driver tells of the kernels */
  kva_text profile; /* JSON: time by kernel */
  kva_text table;   /* the same in Markdown, the longest first */
} gpu_outcome;
void gpu_outcome_free(gpu_outcome *o);

/* ---- worker.c ---------------------------------------------------------------------------------------------------- */

typedef struct gpu_worker gpu_worker;
/* Nothing of the device is touched before the first case. `device` and `arch` are borrowed. */
gpu_worker *gpu_worker_create(const char *device, const char *arch);
void gpu_worker_destroy(gpu_worker *w);
/* Runs a case; *out is the caller's to free. */
void gpu_worker_run(gpu_worker *w, const gpu_item *it, gpu_outcome *out);

/* ---- record.c ---------------------------------------------------------------------------------------------------- */

const char *gpu_verdict_name(gpu_verdict v); /* "agrees", "WRONG", ... */
const char *gpu_kind_name(int kind);
const char *gpu_case_code(const gpu_case *c); /* "object", "cubin", "ptx" */
/* What made the machine code that runs. */
const char *gpu_case_compiler(const gpu_case *c);
/* Members of a JSON object that identify a case, without braces. */
void gpu_case_members(const gpu_case *c, int64_t id, kva_text *out);
/* A row of the report; "" where rows of this kind are for failures alone. */
void gpu_outcome_row(const gpu_case *c, const gpu_outcome *o, kva_text *out);
/* Members of a JSON object, each after a comma. */
void gpu_outcome_members(const gpu_case *c, const gpu_outcome *o, kva_text *out);
#define GPU_REPORT_HEADER                                                                    \
  "| what | name | code for | compiled by | result | difference | simulator | ms | rate |\n" \
  "|---|---|---|---|---|---|---|---|---|\n"

#endif
