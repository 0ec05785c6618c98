/* A device runs kernels and owns the memory they work on. A session has one device. execute.c calls it once per step,
 * never per work item, so the indirection is cheap.
 *
 * Failing functions return a status; error() has the reason. One thread at a time calls a device. */
#ifndef KVA_RUNTIME_DEVICE_H
#define KVA_RUNTIME_DEVICE_H

#include "runtime/base/platform.h"
#include "runtime/comm.h"
#include "runtime/memory_plan.h"
#include "runtime/runtime.h"

typedef struct kva_device kva_device;

/* A step that calls a kernel. */
typedef struct kva_device_launch {
  const kva_program *program;
  const kva_step_desc *step;
  int64_t items;
  bool serial;            /* too little work to use several threads */
  const int64_t *symbols; /* values of program->symbols */
  void *const *args;      /* by argument: addresses on the device */
  const int64_t *bytes;   /* indexed by buffer of the program */
} kva_device_launch;

/* A step that is not a kernel (calls.def). It stays within its buffers. */
typedef struct kva_device_call {
  const kva_program *program;
  const kva_step_desc *step;
  const int64_t *sizes;   /* values of the descriptor's formulas, in order */
  const int64_t *symbols; /* values of program->symbols */
  void *const *args;      /* by argument: addresses on the device */
  const int64_t *bytes;   /* indexed by buffer of the program */
} kva_device_call;

/* Successive steps of a run: everything that a recording of them depends on. */
typedef struct kva_device_run {
  const kva_program *program;
  int32_t first, n;       /* steps */
  const int64_t *symbols; /* values of program->symbols */
  void *const *pointers;  /* indexed by buffer */
} kva_device_run;

typedef struct kva_device_class {
  const char *name;
  uint32_t formats; /* accepted code formats: bits 1 << kva_code_format */
  const char *arch; /* default GPU architecture to compile for; NULL: code of the CPU */
  /* Optional: whether this machine has the device (KVA_MISSING with the reason), and the device's own architecture. */
  kva_status (*probe)(kva_diag *diag, const char **out_arch);
  bool host_memory; /* kernels access the host's memory: callers' tensors and states are used in place */
  kva_status (*create)(kva_pool *pool, kva_diag *diag, kva_device **out_device); /* `pool` remains the caller's */
  void (*destroy)(kva_device *d);
  kva_status (*load)(kva_device *d, const kva_artifact *a, kva_diag *diag); /* once, before launches */
  /* Allocates memory aligned to KVA_ALIGNMENT: zeroed if host_memory, else undefined. */
  kva_status (*allocate)(kva_device *d, int64_t bytes, kva_block *out_block);
  void (*free)(kva_device *d, kva_block *block);
  kva_status (*copy_in)(kva_device *d, void *to, const void *from, int64_t bytes);  /* `from` may be reused on return */
  kva_status (*copy_out)(kva_device *d, void *to, const void *from, int64_t bytes); /* to the host, done on return */
  kva_status (*copy)(kva_device *d, void *to, const void *from, int64_t bytes);     /* on the device */
  kva_status (*launch)(kva_device *d, const kva_device_launch *launch);
  /* Optional: whether the device itself performs calls of this kva_call_id, through `call`. The host performs the
   * others, on copies of the arguments if these are not in its memory. */
  bool (*supports)(const kva_device *d, int32_t call);
  kva_status (*call)(kva_device *d, const kva_device_call *call);
  /* Optional: exchange between processes in the device's memory. join: every process of a run calls it after load;
   * KVA_MISSING in all of them: there is no library for it, and the host exchanges. exchanges: whether the device takes
   * this step, which it does in all processes or in none. exchange starts after all work already queued and may overlap
   * work queued later, up to await of the same number; numbers count from 0.
   * exchanged: how long it took, after synchronise. */
  kva_status (*join)(kva_device *d, kva_comm *comm, kva_diag *diag);
  bool (*exchanges)(const kva_device *d, const kva_program *p, const kva_step_desc *step);
  kva_status (*exchange)(kva_device *d, kva_comm *group, const kva_device_call *call, int32_t number);
  kva_status (*await)(kva_device *d, int32_t number);
  kva_status (*exchanged)(kva_device *d, int32_t number, double *out_seconds);
  /* Optional, around successive steps of an unprofiled run that the device performs itself. If begin has a recording of
   * an equal run, it starts that and sets *out_done; then neither steps nor end follow. end starts what begin recorded;
   * failed: discards it. */
  kva_status (*begin)(kva_device *d, const kva_device_run *run, bool *out_done);
  kva_status (*end)(kva_device *d, const kva_device_run *run, bool failed);
  /* Optional: records the time at this point of the device's work under `index`, from 0 up. After synchronise,
   * elapsed gives the seconds from index - 1 to index. */
  kva_status (*mark)(kva_device *d, int32_t index);
  kva_status (*elapsed)(kva_device *d, int32_t index, double *out_seconds);
  /* Optional: what became of a loaded kernel of the artefact. */
  void (*facts)(const kva_device *d, int32_t kernel, kva_kernel_facts *out);
  kva_status (*synchronise)(kva_device *d); /* waits for launches and copies; reports their failures */
  const char *(*error)(const kva_device *d);
} kva_device_class;

struct kva_device {
  const kva_device_class *class;
  kva_pool *pool;
};

/* The devices by name. libkvasir-rt does not contain the simulator. */
#ifdef KVA_DEPLOYED
#define KVA_EACH_DEVICE(X) X(cpu) X(cuda)
#else
#define KVA_EACH_DEVICE(X) X(cpu) X(cuda) X(ptxsim)
#endif
#define KVA_DECLARE_DEVICE(name) extern const kva_device_class kva_device_##name;
KVA_EACH_DEVICE(KVA_DECLARE_DEVICE)

/* Index of the first of an artefact's code objects, starting at `from`, that devices of this class run; -1: none. */
int32_t kva_device_code(const kva_device_class *class, const kva_artifact *a, int32_t from);

/* Chooses, among an artefact and its alternatives, the best one for the device; `a` itself if none fits. */
KVA_MUST_USE kva_status kva_device_choose(const char *name, const kva_artifact *a, kva_diag *diag,
                                          const kva_artifact **out_artifact);

/* name NULL: "cpu". */
KVA_MUST_USE kva_status kva_device_find(const char *name, kva_diag *diag, const kva_device_class **out_class);

#endif
