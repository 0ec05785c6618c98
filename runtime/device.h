/* What runs kernels and holds the memory that they work on. A session has one device; execute.c asks it for one step
 * after the other, so that a device's calls cost once a step, never once a work item.
 *
 * Failures: a status, and error() tells why. Calls of one device come from one thread at a time. */
#ifndef KVA_RUNTIME_DEVICE_H
#define KVA_RUNTIME_DEVICE_H

#include "runtime/base/platform.h"
#include "runtime/memory_plan.h"
#include "runtime/runtime.h"

typedef struct kva_device kva_device;

/* A step that calls a kernel. */
typedef struct kva_device_launch {
  const kva_program *program;
  const kva_step_desc *step;
  int64_t items;
  bool serial;            /* too little work for several threads */
  const int64_t *symbols; /* values of program->symbols */
  void *const *args;      /* by argument: addresses on the device */
  const int64_t *bytes;   /* by buffer of the program */
} kva_device_launch;

/* A step that is no kernel (calls.def). It stays inside of its buffers. */
typedef struct kva_device_call {
  const kva_program *program;
  const kva_step_desc *step;
  const int64_t *sizes;   /* values of the descriptor's formulas, in order */
  const int64_t *symbols; /* values of program->symbols */
  void *const *args;      /* by argument: addresses on the device */
  const int64_t *bytes;   /* by buffer of the program */
} kva_device_call;

/* Successive steps of a run: what a recording of them depends on. */
typedef struct kva_device_run {
  const kva_program *program;
  int32_t first, n;       /* steps */
  const int64_t *symbols; /* values of program->symbols */
  void *const *pointers;  /* by buffer */
} kva_device_run;

typedef struct kva_device_class {
  const char *name;
  uint32_t formats; /* of code that it runs: bits 1 << kva_code_format */
  const char *arch; /* GPU code that it runs where nobody asks for another; NULL: code of the CPU */
  /* Optional: whether this machine has the device (KVA_MISSING with the reason), and its own architecture. */
  kva_status (*probe)(kva_diag *diag, const char **out_arch);
  bool host_memory; /* kernels work on the host's memory: callers' tensors and states are used where they are */
  kva_status (*create)(kva_pool *pool, kva_diag *diag, kva_device **out_device); /* the pool stays the caller's */
  void (*destroy)(kva_device *d);
  kva_status (*load)(kva_device *d, const kva_artifact *a, kva_diag *diag); /* before launches; once */
  /* Memory, aligned to KVA_ALIGNMENT. Its content is undefined where host_memory is false, else zero. */
  kva_status (*allocate)(kva_device *d, int64_t bytes, kva_block *out_block);
  void (*free)(kva_device *d, kva_block *block);
  kva_status (*copy_in)(kva_device *d, void *to, const void *from, int64_t bytes);  /* from is free again on return */
  kva_status (*copy_out)(kva_device *d, void *to, const void *from, int64_t bytes); /* to the host, done on return */
  kva_status (*copy)(kva_device *d, void *to, const void *from, int64_t bytes);     /* on the device */
  kva_status (*launch)(kva_device *d, const kva_device_launch *launch);
  /* Optional: whether the device itself does calls of this kva_call_id, by `call`. The host does the others, on copies
   * of the arguments where they are not in its memory. */
  bool (*supports)(const kva_device *d, int32_t call);
  kva_status (*call)(kva_device *d, const kva_device_call *call);
  /* Optional, around successive steps of a run that nobody profiles, none of which the host does. begin may have a
   * recording of an equal run: it starts that, *out_done is true, and neither steps nor end follow. end starts what
   * begin had recorded; failed: drop it. */
  kva_status (*begin)(kva_device *d, const kva_device_run *run, bool *out_done);
  kva_status (*end)(kva_device *d, const kva_device_run *run, bool failed);
  /* Optional: notes the time at this point of the device's work under a number from 0 up; seconds from that under
   * index - 1 to that under index, after synchronise. */
  kva_status (*mark)(kva_device *d, int32_t index);
  kva_status (*elapsed)(kva_device *d, int32_t index, double *out_seconds);
  kva_status (*synchronise)(kva_device *d); /* waits for launches and copies; reports what failed in them */
  const char *(*error)(const kva_device *d);
} kva_device_class;

struct kva_device {
  const kva_device_class *class;
  kva_pool *pool;
};

extern const kva_device_class kva_device_cpu, kva_device_ptxsim, kva_device_cuda;

/* Of an artefact's forms of code the number from `from` on that devices of this class run; -1: none. */
int32_t kva_device_code(const kva_device_class *class, const kva_artifact *a, int32_t from);

/* Of an artefact and its alternatives the one that suits the device best; itself where none does. */
KVA_MUST_USE kva_status kva_device_choose(const char *name, const kva_artifact *a, kva_diag *diag,
                                          const kva_artifact **out_artifact);

/* name NULL: "cpu". */
KVA_MUST_USE kva_status kva_device_find(const char *name, kva_diag *diag, const kva_device_class **out_class);

#endif
